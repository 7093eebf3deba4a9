"""`titanic`: the store, its clients and its operator on the command line. It parses, builds options and runs; it decides nothing."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

import mdp
from core.command import CONNECT, Group
from core.daemon import Daemon, DaemonSettings, daemon_options, log_options, loop_option, run_daemon
from core.errors import LocalProtocolError
from core.exits import BadConfig, DiskFailed, ExitError, RequestFailed, Unreachable
from core.field_options import field_options
from core.loop import run
from core.terminal import json_frame, read_frames, write_frames, write_json
from core.zmtp.framing import decode_frames
from titanic.client import Client
from titanic.content import Dead, Request, reply_frames
from titanic.disk import RealDisk
from titanic.dispatch import DispatchOptions
from titanic.errors import JournalError, Pending, StoreLocked, TitanicError, VersionTooNew
from titanic.journal import JournalOptions
from titanic.ledger import Ledger, Limits, State
from titanic.log import LogOptions
from titanic.service import Service, ServiceOptions
from titanic.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from titanic.ledger import Entry
    from titanic.survey import Problem

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
_STORE = click.option(
    "--store", type=click.Path(exists=True, file_okay=False), required=True, help="Directory of the store; nobody may serve it."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

T = TypeVar("T")


class StoreDamaged(ExitError):
    """The store holds what cannot be read, or not what it must hold."""

    exit_code = 3


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
@field_options(Limits, zero=("retain_ms", "keys_max", "key_age_ms"))
@field_options(ServiceOptions, skip=("dispatch",), zero=("max_attempts",))
@field_options(DispatchOptions)
@daemon_options
def serve(
    brokers: tuple[str, ...],
    store: str | None,
    fsync: str | int,
    memory: bool,
    hyphens: bool,
    segment_bytes: int,
    heartbeat_ms: int,
    liveness: int,
    settings: DaemonSettings,
    **values: Any,
) -> None:
    """Serve titanic.request, titanic.reply and titanic.close at a broker, and dispatch what was stored."""
    if memory == (store is not None):
        raise click.UsageError("where to store? give either --store DIR or --memory")
    limits = Limits(**{name: values.pop(name) for name in Limits.__slots__})
    dispatch = DispatchOptions(**{name: values.pop(name) for name in DispatchOptions.__slots__})
    options = ServiceOptions(dispatch=dispatch, **values)

    async def body(daemon: Daemon) -> None:
        disk = RealDisk(store) if store is not None else None
        journal = JournalOptions(log=LogOptions(segment_bytes=segment_bytes), fsync=fsync) if disk is not None else None
        stored = Store(disk, journal, limits, hyphens=hyphens)
        async with Service(brokers, stored, options, heartbeat_ms=heartbeat_ms, liveness=liveness) as service:
            for problem in stored.problems:
                click.echo(f"titanic: {problem}", err=True)
            daemon.ready("titanic serves", store=store or "memory", fsync=fsync, **_summary(stored))
            await daemon.until_stopped()
            await service.drain(settings.drain_s)

    with _disk_errors():
        run_daemon(body, settings)


def _summary(stored: Store) -> dict[str, Any]:
    return {name: value for name, value in stored.status.items() if name in ("state", "requests", "segments", "problems")}


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Turn what can be wrong with a store into an exit code."""
    try:
        yield
    except StoreLocked as error:
        raise Unreachable(str(error)) from None
    except VersionTooNew as error:
        raise BadConfig(f"{error}; use the newer program") from None
    except JournalError as error:
        raise StoreDamaged(f"{error}; look with titanic verify, mend with titanic repair --accept-loss") from None
    except OSError as error:
        raise DiskFailed(f"{error.filename or 'the store'}: {error.strerror or error}") from None


# ------------------------------------------------------------------------------------------------------------------- clients


def ask(talk: Callable[[Client], Coroutine[Any, Any, T]], brokers: Sequence[str], uvloop: bool | None, **options: Any) -> T:
    """Run a conversation with a store.

    Raises:
        Unreachable: there is no broker.
        RequestFailed: broker or store said no.
    """

    async def converse() -> T:
        async with Client(brokers, **options) as client:
            return await talk(client)

    try:
        return run(converse(), uvloop=uvloop)
    except mdp.Unreachable as error:
        raise Unreachable(f"no broker at {', '.join(brokers)}: {error}") from None
    except (mdp.RequestError, TitanicError) as error:
        raise RequestFailed(str(error)) from None
    except LocalProtocolError as error:
        raise click.UsageError(str(error)) from None


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

    uuid = ask(talk, brokers, uvloop, timeout=timeout, attempts=attempts)
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
def fetch(brokers: tuple[str, ...], timeout: float, attempts: int, uvloop: bool | None, as_json: bool, uuid: str) -> None:
    """Print the reply to a request, one frame a line; exit 1 if there is none yet."""

    async def talk(client: Client) -> list[bytes]:
        reply = await client.ticket(uuid).fetch()
        if reply is None:
            raise Pending(uuid, 0.0)
        return reply

    _show(uuid, ask(talk, brokers, uvloop, timeout=timeout, attempts=attempts), as_json)


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

    ask(talk, brokers, uvloop, timeout=timeout, attempts=attempts)


@main.command()
@client_options
@click.argument("uuid")
def close(brokers: tuple[str, ...], timeout: float, attempts: int, uvloop: bool | None, uuid: str) -> None:
    """Forget a request and its reply."""

    async def talk(client: Client) -> None:
        await client.ticket(uuid).close()

    ask(talk, brokers, uvloop, timeout=timeout, attempts=attempts)


# ------------------------------------------------------------------------------------------------------------------ operator


@contextmanager
def _held(store: str) -> Iterator[RealDisk]:
    """Hold a store while nobody serves it."""
    with _disk_errors():
        disk = RealDisk(store)
        disk.lock()
        try:
            yield disk
        finally:
            disk.unlock()


def _problem_row(problem: Problem) -> dict[str, Any]:
    row = problem._asdict()
    row["uuid"] = problem.uuid.hex().upper()
    return row


@main.command()
@_STORE
@_JSON
@log_options("warning")
def verify(store: str, as_json: bool) -> None:
    """Read every record of a store; exit 0 if all is well, 3 if not, each damaged record named. Changes nothing."""
    from titanic.offline import check

    began = time.monotonic()
    with _held(store) as disk:
        problems, records, octets = check(disk)
    elapsed = time.monotonic() - began
    if as_json:
        write_json({"records": records, "bytes": octets, "problems": [_problem_row(problem) for problem in problems]})
    else:
        for problem in problems:
            click.echo(str(problem))
        click.echo(f"{records} records, {octets} octets read in {elapsed:.1f} s")
    if problems:
        raise StoreDamaged(f"{store}: {len(problems)} problems")


@main.command()
@_STORE
@click.option("--accept-loss", is_flag=True, help="Go on without what cannot be read; it is kept under other names.")
@log_options("warning")
def repair(store: str, accept_loss: bool) -> None:
    """Make a damaged store start, and no longer degraded."""
    from titanic import offline

    with _held(store) as disk:
        problems, _, _ = offline.check(disk)
        if not problems:
            click.echo("nothing to repair")
            return
        if not accept_loss:
            for problem in problems:
                click.echo(str(problem))
            raise StoreDamaged(f"{store}: {len(problems)} problems; with --accept-loss the store goes on without what they name")
        for line in offline.repair(disk, os.urandom(16)):
            click.echo(line)
    _restart(store, lambda log, ledger: None)
    click.echo("repaired")


def _restart(store: str, work: Callable[[Any, Ledger], None]) -> None:
    """Bring a store up as the daemon would, do something with it, and close it."""
    from titanic.compaction import checkpoint_of
    from titanic.log import Log

    with _disk_errors():
        ledger = Ledger(Limits())
        log = Log.open(RealDisk(store), LogOptions(), ledger, store=os.urandom(16))
        try:
            work(log, ledger)
            log.write_checkpoint(checkpoint_of(log, ledger))
        except TitanicError as error:
            raise DiskFailed(str(error)) from None
        finally:
            log.close()


@main.command()
@_STORE
@log_options("warning")
def compact(store: str) -> None:
    """Give the room of closed requests back to the disk, and write a checkpoint."""
    from titanic import compaction

    def work(log: Any, ledger: Ledger) -> None:
        dropped, moved = compaction.compact(log, ledger)
        click.echo(f"{dropped} segments dropped, {moved} records kept")

    _restart(store, work)


@main.command()
@_STORE
@_JSON
@click.option("--service", help="Only requests for this service.")
@log_options("warning")
def ls(store: str, as_json: bool, service: str | None) -> None:
    """List the requests of a store: UUID, state, service, age in seconds, attempts."""
    from titanic.offline import read_store

    with _held(store) as disk:
        _, ledger = read_store(disk)
    now_ms = ledger.resume_clock(time.time_ns() // 1_000_000)
    for entry in _sorted(ledger, service):
        if as_json:
            write_json(_entry_row(entry, now_ms))
        else:
            row = _entry_row(entry, now_ms)
            click.echo("{uuid}  {state:8}  {service}  {age_s:.0f}  {attempts}".format(**row))


def _sorted(ledger: Ledger, service: str | None) -> list[Entry]:
    wanted = service.encode() if service is not None else None
    entries = [entry for entry in ledger.entries.values() if wanted is None or entry.service == wanted]
    return sorted(entries, key=lambda entry: entry.accepted_ms)


def _entry_row(entry: Entry, now_ms: int) -> dict[str, Any]:
    return {
        "uuid": entry.uuid.hex().upper(),
        "state": State(entry.state).name.lower(),
        "service": json_frame(entry.service),
        "age_s": (now_ms - entry.accepted_ms) / 1000,
        "attempts": entry.attempts,
        "key": json_frame(entry.key) if entry.key else None,
    }


@main.command()
@_STORE
@click.option("--output", type=click.Path(dir_okay=False), help="File to write.  [default: standard output]")
@log_options("warning")
def export(store: str, output: str | None) -> None:
    """Write every request that is not closed as one line of JSON, bodies in base64."""
    from titanic.offline import body_at, read_store

    with _held(store) as disk:
        found, ledger = read_store(disk)
        now_ms = ledger.resume_clock(time.time_ns() // 1_000_000)
        with Path(output).open("w", encoding="utf-8") if output else _standard_output() as file:
            for entry in _sorted(ledger, None):
                row = _entry_row(entry, now_ms)
                if entry.request is not None:
                    body = body_at(disk, found.store, entry.request)
                    row["request"] = _coded(decode_frames(body[Request.decode(body).frames_at :])[1:])
                if entry.reply is not None:
                    body = body_at(disk, found.store, entry.reply)
                    if entry.state == State.ANSWERED:
                        row["reply"] = _coded(decode_frames(reply_frames(body)))
                    else:
                        row["reason"] = Dead.decode(body).reason
                file.write(json.dumps(row) + "\n")


@contextmanager
def _standard_output() -> Iterator[Any]:
    yield sys.stdout


def _coded(frames: Sequence[bytes]) -> list[str]:
    return [base64.b64encode(frame).decode("ascii") for frame in frames]
