"""`freelance` command: servers and clients without a broker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from core.daemon.command import BIND, CONNECT, SECONDS, Group
from core.daemon.exit_codes import BadConfig, RequestFailed, Unreachable, exits
from core.daemon.http import http_option, serve_page
from core.daemon.metrics import figures_page
from core.daemon.option_fields import arguments, field_options
from core.daemon.run import DaemonSettings, daemon_options, log_options, loop_option, run_daemon
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_option, read_frames, write_reply
from core.rpc.handlers import echo, handler_option
from core.runtime.event_loop import run as run_loop
from freelance.client import Client
from freelance.errors import NoServer, TooLarge
from freelance.names.cli import names
from freelance.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured


@dataclass(frozen=True)
class ServerDaemonOptions:
    """Options of `freelance serve`.

    Attributes:
        endpoint: endpoint for clients.
        identity: endpoint that clients connect to.  [default: --bind, with this machine's name for *]
        model: of the clients.
        running_max: maximum requests being handled.
        handler: function from the body's frames to the reply's.
        security: which clients may connect.
        http: address of the page, None for none.
    """

    endpoint: str
    identity: str | None = None
    model: Literal[1, 2, 3] = 3
    running_max: int = 1000
    handler: Callable[[list[bytes]], Any] = echo
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_server(options: ServerDaemonOptions, lifetime: Lifetime) -> None:
    """Answer requests until the process is asked to stop, then finish open ones; raises core.ZMQError or Unreachable."""
    server = Server(options.endpoint, options.handler, **arguments(options, without=("endpoint", "handler", "http")))
    async with server, serve_page(options.http, figures_page("freelance serve", "freelance", lambda: server.counters)):
        lifetime.ready("server runs", endpoint=server.endpoint, identity=server.identity, model=str(options.model))
        await lifetime.until_stopped()
        await server.drain(lifetime.drain_s)


MODEL: Final = click.Choice(["1", "2", "3"])


# A command line for the help of each command.
EXAMPLES: Final = {
    "call": "freelance call --to tcp://10.0.0.1:5555 --to tcp://10.0.0.2:5555 hello",
    "serve": "freelance serve --bind tcp://*:5555",
    "names serve": "freelance names serve --bind tcp://*:5556",
    "names set": "freelance names set shop --connect tcp://10.0.0.1:5555 --server tcp://10.0.0.9:5556",
    "names get": "freelance names get shop --server tcp://10.0.0.9:5556",
    "names drop": "freelance names drop shop --server tcp://10.0.0.9:5556",
    "names watch": "freelance names watch shop --server tcp://10.0.0.9:5556",
}


@click.group(cls=Group, name="freelance", examples=EXAMPLES)
def main() -> None:
    """Freelance: clients that reach any of several servers, without a broker between them."""


main.add_command(names)


@main.command()
@field_options(
    ServerDaemonOptions,
    skip=("handler", "security", "http"),
    endpoint={"flag": "--bind", "type": BIND},
    identity={"metavar": "ENDPOINT"},
    model={"type": MODEL, "default": "3", "help": "Model of the clients."},
)
@handler_option("Function from the body's frames to the reply's.")
@security_options(listens=True)
@http_option
@daemon_options
def serve(endpoint: str, model: str, handler: Callable[[list[bytes]], Any] | None, settings: DaemonSettings, **given: Any) -> None:
    """Answer requests."""
    if given["identity"] is None and endpoint == "ipc://*":
        raise BadConfig("ipc://* gets a new name at each start; give --identity, or a path")
    chosen = ServerDaemonOptions(endpoint, model=_model(model), handler=handler or echo, **given)
    run_daemon(partial(serve_server, chosen), settings)


def _model(text: str) -> Any:
    return int(text)


@main.command()
@click.option("--to", "endpoints", type=CONNECT, multiple=True, required=True, help="Endpoint of a server, most wanted first; repeatable.")
@click.option("--model", type=MODEL, default="3", help="Model of the servers.")
@click.option("--timeout", type=SECONDS, default=3.0, help="Seconds for the whole request.")
@click.option("--try-timeout", type=SECONDS, help="Seconds for each server.  [default: a third of --timeout]")
@json_option()
@click.argument("body", nargs=-1, required=True)
@security_options(connects=True)
@loop_option
@log_options("error")
def call(
    endpoints: tuple[str, ...],
    model: str,
    timeout: float,
    try_timeout: float | None,
    as_json: bool,
    body: tuple[str, ...],
    security: Secured | None,
    uvloop: bool | None,
) -> None:
    """Send a request to any of the servers and print the reply, one frame a line. '-' is standard input."""
    if model == "2" and len(body) != 1:
        raise click.UsageError("a request of model 2 has one body frame")
    frames = read_frames(body)

    async def talk() -> list[bytes]:
        times: dict[str, Any] = {"timeout": timeout, "try_timeout": try_timeout or timeout / 3}
        async with Client(endpoints, model=_model(model), security=security, **times) as client:
            return await client.request(*frames)

    with exits({NoServer: Unreachable, TooLarge: RequestFailed}):
        write_reply(run_loop(talk(), uvloop=uvloop), as_json)
