"""`titanic`: the store, its clients and its operator on the command line. It parses, builds options and runs; it decides nothing."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from core.command import BIND, CONNECT, Group
from core.daemon import Daemon, DaemonSettings, daemon_options, log_options, loop_option, run_daemon
from core.field_options import field_options
from core.security_options import security_options
from core.terminal import json_frame, read_frames, write_frames, write_json
from core.web import http_option, web_face
from titanic.ask import ask
from titanic.disk import RealDisk
from titanic.dispatch import DispatchOptions
from titanic.errors import Pending
from titanic.journal import JournalOptions
from titanic.ledger import Limits
from titanic.log import LogOptions
from titanic.mirror import Mirror
from titanic.mirror_line import TIMEOUT_S, MirrorLine
from titanic.operate import disk_errors, operator
from titanic.service import Service, ServiceOptions
from titanic.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.secured import Secured
    from titanic.client import Client


__all__ = ["main"]

DEFAULT_BROKER: Final = "tcp://127.0.0.1:5555"
_BROKER = click.option(
    "--broker",
    "brokers",
    type=CONNECT,
    multiple=True,
    default=[DEFAULT_BROKER],
    show_default=True,
    help="Endpoint of the broker; repeated, in order of preference.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

T = TypeVar("T")
log = logging.getLogger("titanic")
PROGRESS_S: Final = 5.0


class Fsync(click.ParamType[str | int]):
    """always, never, or interval=MS."""

    name = "always|interval=MS|never"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """Return "always", "never", or the ms."""
        if isinstance(value, int):
            return value
        name, _, number = str(value).partition("=")
        if value in ("always", "never"):
            return name
        if name == "interval" and number.isdigit() and 0 < int(number) <= 3_600_000:
            return int(number)
        return self.fail(f"{value!r} is none of always, never, interval=MS (1 to 3600000)", param, ctx)


@click.group(cls=Group, name="titanic")
def main() -> None:
    """Titanic: requests that are stored before they are acknowledged, and answered when a worker is there."""


# ------------------------------------------------------------------------------------------------------------------- daemon


@main.command()
@_BROKER
@click.option("--store", type=click.Path(file_okay=False), help="Directory of the store; made if it does not exist.")
@click.option("--fsync", type=Fsync(), default="always", show_default=True, help="When a request counts as stored.")
@click.option("--memory", is_flag=True, help="Store nothing on disk; everything is lost at the end.")
@click.option("--hyphens", is_flag=True, help="Take UUIDs with hyphens too.")
@click.option(
    "--segment-bytes", type=click.IntRange(min=65536), default=LogOptions().segment_bytes, show_default=True, help="Size of a segment."
)
@click.option("--heartbeat-ms", type=click.IntRange(min=1), default=2500, show_default=True, help="Must be the broker's.")
@click.option("--liveness", type=click.IntRange(min=1), default=3, show_default=True, help="Silent intervals before a broker is dead.")
@click.option(
    "--scrub-s",
    type=click.FloatRange(min=0),
    default=JournalOptions().scrub_s,
    show_default=True,
    help="Seconds after which a segment is read again to find damage early; 0 for never.",
)
@click.option("--mirror", type=CONNECT, help="Endpoint of a titanic mirror that has to hold everything before it is acknowledged.")
@click.option(
    "--mirror-away",
    type=click.Choice(["refuse", "go-on"]),
    default="refuse",
    show_default=True,
    help="While the mirror is away: refuse requests, or go on and acknowledge what only this disk holds.",
)
@click.option(
    "--mirror-timeout",
    type=click.FloatRange(min=0.1),
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds for one sync of the mirror before it counts as away.",
)
@field_options(Limits, zero=("retain_ms", "keys_max", "key_age_ms"))
@field_options(ServiceOptions, skip=("dispatch",), zero=("max_attempts",))
@field_options(DispatchOptions)
@security_options(connects=True)
@http_option
@daemon_options
def serve(
    brokers: tuple[str, ...],
    store: str | None,
    fsync: str | int,
    memory: bool,
    hyphens: bool,
    segment_bytes: int,
    scrub_s: float,
    heartbeat_ms: int,
    liveness: int,
    mirror: str | None,
    mirror_away: str,
    mirror_timeout: float,
    security: Secured | None,
    http: tuple[str, int] | None,
    settings: DaemonSettings,
    **values: Any,
) -> None:
    """Serve titanic.request, titanic.reply and titanic.close at a broker, and dispatch what was stored."""
    if memory == (store is not None):
        raise click.UsageError("where to store? give either --store DIR or --memory")
    if mirror is not None and (memory or fsync != "always"):
        raise click.UsageError("--mirror keeps the promise of --fsync always, and needs --store DIR")
    limits = Limits(**{name: values.pop(name) for name in Limits.__slots__})
    dispatch = DispatchOptions(**{name: values.pop(name) for name in DispatchOptions.__slots__})
    options = ServiceOptions(dispatch=dispatch, **values)

    async def body(daemon: Daemon) -> None:
        disk = RealDisk(store) if store is not None else None
        journal = JournalOptions(log=LogOptions(segment_bytes=segment_bytes), fsync=fsync, scrub_s=scrub_s) if disk is not None else None
        line = MirrorLine(mirror, timeout_s=mirror_timeout, security=security) if mirror is not None else None
        stored = Store(disk, journal, limits, hyphens=hyphens, mirror=line, go_on=mirror_away == "go-on")
        log.info(_promise(fsync, memory, mirror, mirror_away))
        times: dict[str, Any] = {"heartbeat_ms": heartbeat_ms, "liveness": liveness}
        service = Service(brokers, stored, options, progress=_Progress(), security=security, **times)
        async with service, web_face(http, service.face()):
            for problem in stored.problems:
                click.echo(f"titanic: {problem}", err=True)
            daemon.ready("titanic serves", store=store or "memory", fsync=fsync, **_summary(stored))
            await daemon.until_stopped()
            await service.drain(settings.drain_s)

    with disk_errors():
        run_daemon(body, settings)


def _promise(fsync: str | int, memory: bool, mirror: str | None, mirror_away: str) -> str:
    """Return what 200 means with these options, and what can be lost after it."""
    if memory:
        return "200 means: in memory; the end of this process loses everything"
    if mirror is not None:
        alone = "; while the mirror is away, on this disk only" if mirror_away == "go-on" else ""
        return f"200 means: synced on this disk and on the mirror{alone}; the loss of either machine loses nothing else"
    if fsync == "always":
        return "200 means: synced; neither kill -9 nor a power failure loses anything"
    if fsync == "never":
        return "200 means: written; kill -9 loses nothing, a power failure what the system had not written yet"
    return f"200 means: written; kill -9 loses nothing, a power failure what was accepted in the last {fsync} ms"


class _Progress:
    """Says every few seconds how far reading the store has come; called in another thread."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()

    def __call__(self, done: int, most: int) -> None:
        now = time.monotonic()
        if now - self._said_s >= PROGRESS_S:
            self._said_s = now
            log.info("reading the store", extra={"segments": done, "of": most})


@main.command()
@click.option("--bind", "endpoint", type=BIND, required=True, help="Endpoint for the store that is mirrored.")
@click.option("--store", type=click.Path(file_okay=False), required=True, help="Directory of the mirror; made if it does not exist.")
@click.option("--take-over", is_flag=True, help="Make a mirror even of a directory that holds a store; what is in it is replaced.")
@security_options(listens=True)
@daemon_options
def mirror(endpoint: str, store: str, take_over: bool, security: Secured | None, settings: DaemonSettings) -> None:
    """Hold a second copy of a store, which a titanic serve with --mirror keeps up."""

    async def body(daemon: Daemon) -> None:
        async with Mirror(RealDisk(store), take_over=take_over, security=security) as copy:
            where = copy.bind(endpoint)
            daemon.ready("titanic mirrors", endpoint=where, store=store, step=copy.replica.mark.step.value)
            failing = asyncio.ensure_future(copy.until_failed())
            stopping = asyncio.ensure_future(daemon.until_stopped())
            await asyncio.wait([failing, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if failing.done():
                failing.result()
            failing.cancel()

    with disk_errors():
        run_daemon(body, settings)


def _summary(stored: Store) -> dict[str, Any]:
    return {name: value for name, value in stored.status.items() if name in ("state", "requests", "segments", "problems")}


# ------------------------------------------------------------------------------------------------------------------- clients


def client_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every client command has: which broker, and how long to wait for the store."""
    for option in (
        click.option("--attempts", type=click.IntRange(min=1), default=3, show_default=True, help="Times to ask in all."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=2.5,
            show_default=True,
            help="Seconds to wait for the store, per attempt.",
        ),
        _BROKER,
        security_options(connects=True),
    ):
        function = option(function)
    return loop_option(log_options("warning")(function))


@main.command()
@client_options
@click.option("--key", help="Idempotency key: submits with the same key and request are one request.")
@click.option("--delay", type=click.FloatRange(min=0), default=0.0, help="Seconds before it may be given to a worker.")
@click.option("--ttl", type=click.FloatRange(min=0), default=0.0, help="Seconds after which it is not given to a worker any more.")
@click.option("--give-up-after", type=click.IntRange(min=0), default=0, help="Failed attempts after which it is given up.")
@_JSON
@click.argument("service")
@click.argument("body", nargs=-1)
def submit(
    brokers: tuple[str, ...],
    timeout: float,
    attempts: int,
    security: Secured | None,
    uvloop: bool | None,
    key: str | None,
    delay: float,
    ttl: float,
    give_up_after: int,
    as_json: bool,
    service: str,
    body: tuple[str, ...],
) -> None:
    """Store a request for SERVICE and print its UUID. Each BODY is a frame; '-' is standard input."""
    frames = read_frames(body)

    async def talk(client: Client) -> str:
        return (await client.submit(service, *frames, key=key, delay=delay, ttl=ttl, attempts=give_up_after)).uuid

    uuid = ask(talk, brokers, uvloop, timeout=timeout, attempts=attempts, security=security)
    if as_json:
        write_json({"uuid": uuid})
    else:
        click.echo(uuid)


def _show(uuid: str, frames: list[bytes], as_json: bool) -> None:
    if as_json:
        write_json({"uuid": uuid, "frames": [json_frame(frame) for frame in frames]})
    else:
        write_frames(frames)


@main.command()
@client_options
@_JSON
@click.argument("uuid")
def fetch(
    brokers: tuple[str, ...],
    timeout: float,
    attempts: int,
    security: Secured | None,
    uvloop: bool | None,
    as_json: bool,
    uuid: str,
) -> None:
    """Print the reply to a request, one frame a line; exit 1 if there is none yet."""

    async def talk(client: Client) -> list[bytes]:
        reply = await client.ticket(uuid).fetch()
        if reply is None:
            raise Pending(uuid, 0.0)
        return reply

    _show(uuid, ask(talk, brokers, uvloop, timeout=timeout, attempts=attempts, security=security), as_json)


@main.command()
@client_options
@click.option("--for", "for_s", type=click.FloatRange(min=0), help="Seconds to wait for the reply.  [default: for ever]")
@click.option("--close", "and_close", is_flag=True, help="Close the request once the reply was printed.")
@_JSON
@click.argument("uuid")
def wait(
    brokers: tuple[str, ...],
    timeout: float,
    attempts: int,
    security: Secured | None,
    uvloop: bool | None,
    for_s: float | None,
    and_close: bool,
    as_json: bool,
    uuid: str,
) -> None:
    """Wait for the reply to a request, and print it."""

    async def talk(client: Client) -> None:
        ticket = client.ticket(uuid)
        _show(uuid, await ticket.result(for_s), as_json)
        if and_close:
            sys.stdout.flush()
            await ticket.close()

    ask(talk, brokers, uvloop, timeout=timeout, attempts=attempts, security=security)


@main.command()
@client_options
@click.argument("uuid")
def close(
    brokers: tuple[str, ...],
    timeout: float,
    attempts: int,
    security: Secured | None,
    uvloop: bool | None,
    uuid: str,
) -> None:
    """Forget a request and its reply."""

    async def talk(client: Client) -> None:
        await client.ticket(uuid).close()

    ask(talk, brokers, uvloop, timeout=timeout, attempts=attempts, security=security)


for _verb in operator.commands.values():
    main.add_command(_verb)
