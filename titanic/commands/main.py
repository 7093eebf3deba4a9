"""Command `titanic`: mirror daemon and clients; `serve` and the operator's commands are added."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from core.daemon.command import BIND, SECONDS, Group
from core.daemon.http import http_option
from core.daemon.option_fields import FiniteRange, WholeRange, options
from core.daemon.run import DaemonSettings, daemon_options, log_options, loop_option, run_daemon
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_option, read_frames, write_json, write_reply
from mdp.commands.client_options import BROKER, HEADERS, header_map
from titanic.commands.client_options import ask
from titanic.commands.operator import disk_errors, operator
from titanic.commands.serve import MirrorDaemonOptions, serve, serve_mirror
from titanic.errors import Pending

if TYPE_CHECKING:
    from core.daemon.http import NamedAddress
    from core.security.credentials import Secured
    from titanic.client import Client

_JSON = json_option("Print JSON.")


# A command line for the help of each command.
EXAMPLES: Final = {
    "submit": "titanic submit echo hello",
    "serve": "titanic serve --store /var/lib/titanic",
    "fetch": "titanic fetch 0192d6f5a0c07a3c9e6f0a1b2c3d4e5f",
    "wait": "titanic wait 0192d6f5a0c07a3c9e6f0a1b2c3d4e5f",
    "close": "titanic close 0192d6f5a0c07a3c9e6f0a1b2c3d4e5f",
    "ls": "titanic ls --status",
    "verify": "titanic verify --store /var/lib/titanic",
    "repair": "titanic repair --store /var/lib/titanic --accept-loss",
    "compact": "titanic compact --store /var/lib/titanic",
    "export": "titanic export --store /var/lib/titanic --output requests.jsonl",
    "mirror": "titanic mirror --bind tcp://10.0.0.2:5560 --store /var/lib/titanic",
    "promote": "titanic promote --store /var/lib/titanic",
}


@click.group(cls=Group, name="titanic", examples=EXAMPLES)
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
    endpoint: str, store: str, take_over: bool, security: Secured | None, http: NamedAddress | None, settings: DaemonSettings
) -> None:
    """Keep a second copy of the store of a titanic serve with --mirror."""
    chosen = MirrorDaemonOptions(endpoint, store, take_over, security, http)
    with disk_errors(store):
        run_daemon(partial(serve_mirror, chosen), settings)


# ------------------------------------------------------------------------------------------------------------------- clients


client_options = options(
    loop_option,
    log_options("warning"),
    security_options(connects=True),
    BROKER,
    click.option("--timeout", type=SECONDS, default=2.5, help="Seconds to wait for the store, per attempt."),
    click.option("--attempts", type=WholeRange(min=1), default=3, help="Times to ask in all."),
)


@main.command()
@client_options
@click.option("--key", help="Idempotency key: submits with the same key and request are one request.")
@click.option("--delay", type=FiniteRange(min=0), default=0.0, show_default=False, help="Seconds before it may be given to a worker.")
@click.option("--ttl", type=FiniteRange(min=0), default=0.0, show_default=False, help="Seconds after which it expires.")
@click.option(
    "--give-up-after", type=WholeRange(min=0), default=0, show_default=False, help="Failed attempts after which it is dead-lettered."
)
@HEADERS
@_JSON
@click.argument("service")
@click.argument("body", nargs=-1)
def submit(
    key: str | None,
    delay: float,
    ttl: float,
    give_up_after: int,
    headers: tuple[str, ...],
    as_json: bool,
    service: str,
    body: tuple[str, ...],
    **asking: Any,
) -> None:
    """Store a request for SERVICE and print its UUID. Each BODY is a frame; '-' is standard input."""
    frames = read_frames(body)

    async def talk(client: Client) -> str:
        ticket = await client.submit(service, *frames, key=key, delay=delay, ttl=ttl, attempts=give_up_after, headers=header_map(headers))
        return ticket.uuid

    uuid = ask(talk, **asking)
    if as_json:
        write_json({"uuid": uuid})
    else:
        click.echo(uuid)


@main.command()
@client_options
@_JSON
@click.argument("uuid")
def fetch(as_json: bool, uuid: str, **asking: Any) -> None:
    """Print the reply to a request, one frame a line; exit 1 if there is none yet."""

    async def talk(client: Client) -> list[bytes]:
        reply = await client.ticket(uuid).fetch()
        if reply is None:
            raise Pending(uuid, 0.0)
        return reply

    write_reply(ask(talk, **asking), as_json, uuid=uuid)


@main.command()
@client_options
@click.option("--for", "for_s", type=FiniteRange(min=0), help="Seconds to wait for the reply.  [default: no limit]")
@click.option("--close", "and_close", is_flag=True, help="Close the request once the reply was printed.")
@_JSON
@click.argument("uuid")
def wait(for_s: float | None, and_close: bool, as_json: bool, uuid: str, **asking: Any) -> None:
    """Wait for the reply to a request, and print it."""

    async def talk(client: Client) -> None:
        ticket = client.ticket(uuid)
        write_reply(await ticket.result(for_s), as_json, uuid=uuid)
        if and_close:
            sys.stdout.flush()
            await ticket.close()

    ask(talk, **asking)


@main.command()
@client_options
@click.argument("uuid")
def close(uuid: str, **asking: Any) -> None:
    """Forget a request and its reply."""

    async def talk(client: Client) -> None:
        await client.ticket(uuid).close()

    ask(talk, **asking)


for _verb in (serve, *operator.commands.values()):
    main.add_command(_verb)
