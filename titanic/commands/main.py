"""Command `titanic`: parses arguments, builds options and runs."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from core.daemon.command import BIND, Group
from core.daemon.http import http_option, serve_page
from core.daemon.metrics import figures_page
from core.daemon.run import Daemon, DaemonSettings, daemon_options, log_options, loop_option, run_daemon
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_frame, read_frames, write_frames, write_json
from titanic.commands.client_options import ask
from titanic.commands.operator import disk_errors, operator
from titanic.commands.serve import BROKER, serve
from titanic.errors import Pending
from titanic.journal.disk import RealDisk
from titanic.mirror.replica_server import Mirror

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.security.credentials import Secured
    from titanic.client import Client


__all__ = ["main"]

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

T = TypeVar("T")


@click.group(cls=Group, name="titanic")
def main() -> None:
    """Titanic: requests are stored before they are acknowledged, and answered when there is a worker."""


# ------------------------------------------------------------------------------------------------------------------- daemon


@main.command()
@click.option("--bind", "endpoint", type=BIND, required=True, help="Endpoint for the store that is mirrored.")
@click.option("--store", type=click.Path(file_okay=False), required=True, help="Directory of the mirror; created if it does not exist.")
@click.option("--take-over", is_flag=True, help="Accept a directory that holds a store; its contents are replaced.")
@security_options(listens=True)
@http_option
@daemon_options
def mirror(
    endpoint: str, store: str, take_over: bool, security: Secured | None, http: tuple[str, int] | None, settings: DaemonSettings
) -> None:
    """Keep a second copy of the store of a titanic serve with --mirror."""

    async def body(daemon: Daemon) -> None:
        copy = Mirror(RealDisk(store), take_over=take_over, security=security)
        page = figures_page("titanic mirror", "titanic_mirror", lambda: copy.figures, not_ready=copy.lacks)
        async with copy, serve_page(http, page):
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
        BROKER,
        security_options(connects=True),
    ):
        function = option(function)
    return loop_option(log_options("warning")(function))


@main.command()
@client_options
@click.option("--key", help="Idempotency key: submits with the same key and request are one request.")
@click.option("--delay", type=click.FloatRange(min=0), default=0.0, help="Seconds before it may be given to a worker.")
@click.option("--ttl", type=click.FloatRange(min=0), default=0.0, help="Seconds after which it expires.")
@click.option("--give-up-after", type=click.IntRange(min=0), default=0, help="Failed attempts after which it is dead-lettered.")
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
@click.option("--for", "for_s", type=click.FloatRange(min=0), help="Seconds to wait for the reply.  [default: no limit]")
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


for _verb in (serve, *operator.commands.values()):
    main.add_command(_verb)
