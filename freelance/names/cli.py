"""`freelance names` command: name servers and their clients."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from core.daemon.command import BIND, CONNECT, SECONDS, Group
from core.daemon.config import read_toml
from core.daemon.exit_codes import BadConfig, RequestFailed, Unreachable, exits
from core.daemon.http import http_option, serve_page
from core.daemon.metrics import figures_page
from core.daemon.option_fields import WholeRange, field_options, options
from core.daemon.run import DaemonSettings, daemon_options, log_options, loop_option, run_daemon
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_option, write_json, write_line
from core.runtime.event_loop import run as run_loop
from freelance.errors import CatalogFull, MalformedMessage, NamesRefused, NoServer
from freelance.names.resolver import Listing, Names
from freelance.names.server import NameServer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured

# Environment, name, and its endpoints: {"bind": […], "connect": […]}.
InitialName = tuple[str, str, "Mapping[str, list[str]]"]


@dataclass(frozen=True)
class NameServerDaemonOptions:
    """Options of `freelance names serve`.

    Attributes:
        endpoint: endpoint for clients and the other servers.
        peers: endpoint of another server of the pool; repeatable.
        identity: endpoint that clients connect to.  [default: --bind, with this machine's name for *]
        names: initial endpoints of names.
        source: file that `names` are from, for errors.
        sync_s: seconds between comparisons with each peer.
        security: which peers may connect.
        http: address of the page, None for none.
    """

    endpoint: str
    peers: Sequence[str] = ()
    identity: str | None = None
    names: Sequence[InitialName] = ()
    source: str = ""
    sync_s: float = 5.0
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_names(options: NameServerDaemonOptions, lifetime: Lifetime) -> None:
    """Answer questions about names until the process is asked to stop; raises BadConfig or core.ZMQError."""
    peers = options.peers
    server = NameServer(options.endpoint, peers=peers, identity=options.identity, sync_s=options.sync_s, security=options.security)
    async with server, serve_page(options.http, figures_page("freelance names", "freelance_names", lambda: server.figures)):
        for environment, name, ends in options.names:
            try:
                server.put(environment, name, **ends)
            except (MalformedMessage, CatalogFull) as error:
                raise BadConfig(f"{options.source}: {environment}.{name}: {error}") from None
        fields = {"names": len(options.names), "peers": len(peers)}
        lifetime.ready("name server runs", endpoint=server.endpoint, identity=server.identity, **fields)
        await lifetime.until_stopped()


T = TypeVar("T")

FILE_BYTES_MAX: Final = 4 * 1024 * 1024  # 10,000 names of 256 bytes are less


@click.group(cls=Group, name="names")
def names() -> None:
    """Names in place of endpoints."""


_server_options = options(
    click.option("--server", "servers", type=CONNECT, multiple=True, required=True, help="Endpoint of a name server; repeatable."),
    click.option("--environment", default="production", help="Environment of the names."),
    click.option("--timeout", type=SECONDS, default=3.0, help="Seconds for each question."),
    security_options(connects=True),
    loop_option,
    log_options("warning"),
)
_BIND = click.option("--bind", "binds", type=BIND, multiple=True, help="Endpoint for servers; repeatable.")
_CONNECT = click.option("--connect", "connects", type=CONNECT, multiple=True, help="Endpoint for clients; repeatable.")
_JSON = json_option("Print JSON, one object a line.")


@names.command()
@field_options(
    NameServerDaemonOptions,
    skip=("names", "source", "security", "http"),
    endpoint={"flag": "--bind", "type": BIND},
    peers={"flag": "--peer", "type": CONNECT},
    identity={"metavar": "ENDPOINT"},
)
@click.option("--file", metavar="TOML", help="Initial endpoints: a table for each environment, with one for each name.")
@security_options(listens=True, connects=True, required=False)
@http_option
@daemon_options
def serve(endpoint: str, identity: str | None, file: str | None, settings: DaemonSettings, **given: Any) -> None:
    """Run a name server."""
    if identity is None and endpoint == "ipc://*":
        raise BadConfig("ipc://* gets a new name at each start; give --identity, or a path")
    known = _read_file(file) if file else []

    chosen = NameServerDaemonOptions(endpoint, identity=identity, names=known, source=file or "", **given)
    run_daemon(partial(serve_names, chosen), settings)


def _read_file(path: str) -> list[tuple[str, str, dict[str, list[str]]]]:
    """Return (environment, name, {"bind": […], "connect": […]}) of a file; raises BadConfig."""
    _, tables = read_toml(path, "check the path given to --file", FILE_BYTES_MAX)
    found = []
    for environment, content in tables.items():
        for name, ends in content.items() if isinstance(content, dict) else [("", content)]:
            if not isinstance(ends, dict) or not all(role in ("bind", "connect") and _are_texts(value) for role, value in ends.items()):
                raise BadConfig(f'{path}: {environment}.{name}: write bind = ["…"] and connect = ["…"] below [{environment}.{name}]')
            found.append((environment, name, ends))
    return found


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


@names.command(name="set")
@_BIND
@_CONNECT
@click.option("--ttl", type=SECONDS, help="Seconds until the endpoints expire.  [default: never]")
@_server_options
@click.argument("name")
def set_name(name: str, binds: tuple[str, ...], connects: tuple[str, ...], ttl: float | None, **asking: Any) -> None:
    """Add endpoints to a name, or renew them."""
    _require_endpoints(binds, connects)
    _ask(lambda client: client.set(name, bind=binds, connect=connects, ttl=ttl), **asking)


@names.command()
@_BIND
@_CONNECT
@_server_options
@click.argument("name")
def drop(name: str, binds: tuple[str, ...], connects: tuple[str, ...], **asking: Any) -> None:
    """Take endpoints from a name."""
    _require_endpoints(binds, connects)
    if not _ask(lambda client: client.drop(name, bind=binds, connect=connects), **asking):
        raise RequestFailed(f"{name} has no such endpoint in {asking['environment']}")


def _require_endpoints(binds: tuple[str, ...], connects: tuple[str, ...]) -> None:
    if not binds and not connects:
        raise click.UsageError("which endpoints? give --bind or --connect")


@names.command()
@_JSON
@_server_options
@click.argument("name", required=False)
def get(name: str | None, as_json: bool, **asking: Any) -> None:
    """Print the endpoints of a name, one a line; without NAME, all names."""
    if name is None:
        found = _ask(lambda client: client.names(), **asking)
        if as_json:
            write_json({"names": found})
        else:
            for one in found:
                write_line(one)
        return
    wanted = name
    listing = _ask(lambda client: client.get(wanted), **asking)
    _show(wanted, listing, as_json)
    if not listing.bind and not listing.connect:
        raise RequestFailed(f"{wanted} has no endpoint in {asking['environment']}")


@names.command()
@click.option("--count", "times", type=WholeRange(min=1), help="End after this many listings.  [default: never]")
@_JSON
@_server_options
@click.argument("name")
def watch(name: str, times: int | None, as_json: bool, **asking: Any) -> None:
    """Print the endpoints of a name, now and after each change; an empty line ends each listing."""

    async def look(client: Names) -> None:
        async with aclosing(client.watch(name)) as listings:
            numbers = count(1)
            async for listing in listings:
                _show(name, listing, as_json)
                if not as_json:
                    click.echo()
                if next(numbers) == times:
                    return

    _ask(look, **asking)


def _show(name: str, listing: Listing, as_json: bool) -> None:
    if as_json:
        write_json({"name": name, "bind": listing.bind, "connect": listing.connect, "ttl_s": listing.ttl_s})
        return
    for role, endpoints in (("bind", listing.bind), ("connect", listing.connect)):
        for endpoint in endpoints:
            write_line(f"{role} {endpoint}")


def _ask(
    question: Callable[[Names], Coroutine[Any, Any, T]],
    *,
    servers: tuple[str, ...],
    environment: str,
    timeout: float,
    security: Secured | None,
    uvloop: bool | None,
) -> T:
    async def talk() -> T:
        async with Names(servers, environment=environment, timeout=timeout, security=security) as client:
            return await question(client)

    with exits({NoServer: Unreachable, NamesRefused: RequestFailed}):
        return run_loop(talk(), uvloop=uvloop)
