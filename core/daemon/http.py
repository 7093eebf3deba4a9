"""The HTTP page of a daemon: `/metrics`, `/healthz`, `/readyz`, and one page that is live over server-sent events.

    async with serve_page(http, page):        # `http` is --http HOST:PORT, or None for no page at all
        …

Read-only: nothing can be changed here, and no request body is read. aiohttp and prometheus-client are imported only when a daemon serves
HTTP. Connections are limited in number, bytes and time, so that neither a flood of connections nor a client that never reads costs the
daemon more than a few file descriptors (faults W1, W7, W8, N5).
"""

from __future__ import annotations

import functools
import ipaddress
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from core.daemon.command import needs_extra
from core.daemon.exit_codes import Unreachable
from core.daemon.metrics import MetricsPage, Snapshot, WebLimits
from core.runtime import supervision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from core.daemon.metrics import Family

log = logging.getLogger(__name__)


class NamedAddress(NamedTuple):
    """Address to listen on, in text as on the command line, and host names to answer to."""

    host: str
    port: int  # 0 for any
    names: tuple[str, ...] = ()  # accepted Host names, besides addresses, `localhost` and the machine's own name

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HostPort(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, and older ones do
    """HOST:PORT; an IPv6 address stands in brackets."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NamedAddress:
        if isinstance(value, NamedAddress):
            return value
        host, colon, port = str(value).rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        if not colon or not host or not port.isdigit() or int(port) > 65535 or (":" in host and not str(value).startswith("[")):
            return self.fail(f"{value!r} is not HOST:PORT, such as 127.0.0.1:9090 or [::1]:9090", param, ctx)
        return NamedAddress(host, int(port))


HTTP = HostPort()


def http_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --http and --http-name; the function gets `http`, a `NamedAddress` or None."""

    @functools.wraps(function)
    def command(*args: Any, http: NamedAddress | None, http_names: tuple[str, ...], **kwargs: Any) -> Any:
        return function(*args, http=None if http is None else http._replace(names=http_names), **kwargs)

    named = click.option(
        "--http-name",
        "http_names",
        multiple=True,
        help="Accept this host name in requests; addresses, localhost and this machine's name are always accepted. May be repeated.",
    )(command)
    return click.option("--http", type=HTTP, help="Serve /metrics, /healthz, /readyz and a live page there (extra `web`).")(named)


@asynccontextmanager
async def serve_page(
    address: NamedAddress | tuple[str, int] | None, page: MetricsPage, limits: WebLimits | None = None
) -> AsyncIterator[int]:
    """Serve a page within the block; yields the port, 0 without an address.

    The page includes the current supervisor's state: faults of tasks, threads and timers, and whether they make the daemon not ready.
    Raises BadConfig if the extra `web` is not installed, Unreachable if the address cannot be listened on.
    """
    if address is None:
        yield 0
        return
    with needs_extra("web", "--http"):
        from core.daemon.http_server import Server
    place = NamedAddress(*address)
    server = Server(supervised_page(page, supervision.current()), limits or WebLimits(), (place.host, *place.names))
    try:
        port = await server.start(place.host, place.port)
    except OSError as error:
        await server.close()
        raise Unreachable(f"cannot serve HTTP on {address[0]}:{address[1]}: {error.strerror or error}; choose another --http") from None
    log.info("http serves", extra={"host": address[0], "port": port})
    if not _is_loopback(address[0]):
        log.warning("http is readable from other machines; it shows names and figures", extra={"host": address[0]})
    try:
        yield port
    finally:
        await server.close()


def supervised_page(page: MetricsPage, supervisor: supervision.Supervisor) -> MetricsPage:
    """Return the page with the supervisor's faults; it is not ready while something supervised does not run."""

    def families() -> list[Family]:
        return [*page.families(), *supervisor.families()]

    def snapshot() -> Snapshot:
        shown = page.snapshot()
        faults = {f"fault: {name}": float(number) for name, number in supervisor.faults.items()}
        return Snapshot({**shown.figures, **supervisor.troubles}, shown.tables, {**shown.counters, **faults})

    return MetricsPage(page.title, lambda: page.not_ready() or supervisor.not_ready(), families, snapshot)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
