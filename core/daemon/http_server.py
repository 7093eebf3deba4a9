"""The server behind `core.daemon.http`: the only module that imports aiohttp and prometheus-client."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from importlib.resources import files
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from core.daemon.logs import RateLimit
from core.daemon.metrics import SERIES_MAX, Family, Histogram
from core.net.listener import ACCEPTS_PER_ITERATION, SPARE_FILES_PART, files_max
from core.net.names.lookups import addresses_now
from core.net.names.zones import host_of
from core.runtime import supervision

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from core.daemon.metrics import MetricsPage, WebLimits

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STATIC = {"/": ("index.html", "text/html"), "/dashboard.css": ("dashboard.css", "text/css")}
_STATIC["/dashboard.js"] = ("dashboard.js", "text/javascript")


class _Refusal(asyncio.Protocol):
    """Closes a connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()  # uvloop's are no subclass


class _HttpConnection(asyncio.Protocol):
    """Connection of an aiohttp handler, with a time limit for everything that the handler waits for."""

    def __init__(self, handler: web.RequestHandler, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self._server = server
        self._transport: asyncio.WriteTransport | None = None
        self.silent = True  # its request is incomplete
        self._tail = b""  # last bytes received, to find the end of a header
        self._end = supervision.current().later("http visit", server.limits.request_s, self._abort, failed=lambda _: self._abort())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.handler.connection_made(self._transport)

    def data_received(self, data: bytes) -> None:
        self.handler.data_received(data)
        if self.silent:  # until its request is complete, a new connection may replace it
            self._tail = self._tail[-3:] + data
            self.silent = b"\r\n\r\n" not in self._tail

    def eof_received(self) -> None:
        self.handler.eof_received()

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        self._server.connections.pop(self, None)
        self.handler.connection_lost(exc)

    def close_silent(self) -> None:
        self._server.connections.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def _abort(self) -> None:
        """Close a connection whose time is over, unless it streams."""
        if self._transport is not None and self.handler not in self._server.streaming:
            self._server.dropped["request_s"] += 1
            self._transport.abort()


class Server:
    """Shows one page over HTTP."""

    def __init__(self, page: MetricsPage, limits: WebLimits, names: Sequence[str] = ()) -> None:
        self.dropped = dict.fromkeys(("connections_max", "request_s", "host", "malformed"), 0)  # refused or closed, by its reason
        self._names = {name.lower().rstrip(".") for name in ("localhost", socket.gethostname(), *names)}
        self._page = page  # to serve
        self.limits = limits  # of HTTP clients
        self.connections: dict[_HttpConnection, None] = {}  # oldest first
        self._streams: set[asyncio.Task[Any]] = set()
        self.streaming: set[web.RequestHandler] = set()  # handlers of live pages, which have no time limit
        self._closing = False
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._server: asyncio.Server | None = None
        app = web.Application(middlewares=[self._check_request], client_max_size=1)
        place = files("core") / "dashboard"
        for path, (name, kind) in _STATIC.items():
            app.router.add_get(path, _static((place / name).read_bytes(), kind))
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/snapshot", self._snapshot)
        app.router.add_get("/live", self._live)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=_library_log(self.dropped),
            keepalive_timeout=0,
            lingering_time=0,
            shutdown_timeout=limits.write_s,  # for open answers when the server closes; aiohttp waits a minute, twice
            max_line_size=limits.line_bytes,
            max_field_size=limits.line_bytes,
        )

    async def start(self, host: str, port: int) -> int:
        """Listen on an address, or all addresses of a name; raises OSError."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        # The loop's own lookup has no limit, and would hold up the end of the program.
        places = await asyncio.to_thread(addresses_now, host, port, socket.AF_UNSPEC)
        hosts = [host_of(one[4]) for one in places]
        self._server = await loop.create_server(self._accept, hosts, port, backlog=ACCEPTS_PER_ITERATION)
        for listening in self._server.sockets:
            with listening.dup() as sock:
                sock.listen(self.limits.connections_max)  # asyncio takes one number for accepts per iteration and for the kernel's queue
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        self._closing = True  # refuse further live pages, which would not be ended
        if self._server is not None:
            self._server.close()
        try:
            await supervision.cancel_all(self._streams)
        finally:
            await self._runner.cleanup()

    def _accept(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        # A quarter of the files that the daemon's sockets leave to its work, at most; negative where there is no limit of open files.
        share = files_max() // SPARE_FILES_PART // 4
        if len(self.connections) >= (self.limits.connections_max if share < 0 else min(self.limits.connections_max, max(1, share))):
            self.dropped["connections_max"] += 1
            # Silent connections must not block those that send requests: a probe sends its request at once.
            silent = next((connection for connection in self.connections if connection.silent), None)
            if silent is None:
                return _Refusal()
            silent.close_silent()
        connection = _HttpConnection(server(), self, asyncio.get_running_loop())
        self.connections[connection] = None
        return connection

    # -- access

    def _is_ours(self, host: str) -> bool:
        """Return whether a Host, if one was sent, is an address or name of this server, not a foreign one."""
        if not host:
            return True
        name = host.rpartition(":")[0] if re.fullmatch(r".*:\d{1,5}", host) else host
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name.lower().rstrip(".") in self._names
        return True

    @web.middleware
    async def _check_request(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check the Host, add protective headers, and close the connection after one answer."""
        try:
            if self._is_ours(request.headers.get("Host", "")):
                response = await handler(request)
            else:
                self.dropped["host"] += 1
                response = web.Response(text="no such host here; --http-name NAME makes it one\n", status=421)
        except web.HTTPException as error:
            response = web.Response(text=f"{error.status} {error.reason}\n", status=error.status)
        if not response.prepared:
            response.headers.update({name: value for name, value in HEADERS.items() if name not in response.headers})
            response.force_close()
        return response

    # -- content

    def _cached(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return a recent answer, or make a new one: a flood of requests costs one evaluation."""
        now = asyncio.get_running_loop().time()
        made_at, octets = self._kept.get(name, (-1.0, b""))
        if now - made_at >= self.limits.keep_s or made_at < 0:
            octets = make()
            self._kept[name] = now, octets
        return octets

    def _content(self) -> bytes:
        reason = self._page.not_ready()
        head = {"title": self._page.title, "ready": not reason, "state": reason or "serving"}
        return json.dumps(head | self._page.snapshot().as_dict(), separators=(",", ":")).encode()

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        text = self._cached("metrics", lambda: prometheus_text([*self._page.families(), self._dropped_family()]))
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _dropped_family(self) -> Family:
        family = Family("http_dropped", "counter", "Connections and requests of this page that were refused or closed.", ("limit",))
        family.samples += [((limit,), count) for limit, count in self.dropped.items()]
        return family

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="alive\n")

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        reason = self._page.not_ready()
        return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)

    async def _snapshot(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._cached("snapshot", self._content), content_type="application/json")

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Send an update every `refresh_s` until the page is closed or does not read for `write_s`."""
        task = asyncio.current_task()
        if task is None or self._closing or len(self._streams) >= self.limits.streams_max:
            return web.Response(text="closing\n" if self._closing else "too many live pages\n", status=503)
        self._streams.add(task)
        self.streaming.add(request.protocol)
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            if request.transport is not None:
                # A write then waits until earlier bytes are sent, so a client that does not read is noticed at once.
                request.transport.set_write_buffer_limits(high=0)
            while True:
                octets = b"data: " + self._cached("snapshot", self._content) + b"\n\n"
                async with asyncio.timeout(self.limits.write_s):
                    await response.write(octets)
                await asyncio.sleep(self.limits.refresh_s)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams.discard(task)
            self.streaming.discard(request.protocol)
        return response


def _library_log(dropped: dict[str, int]) -> logging.Logger:
    """Return a rate-limited log for aiohttp, which logs an error with its traceback for each malformed request.

    These are counted, and no fault of ours.
    """

    def lower(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            dropped["malformed"] += 1
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
            record.msg, record.args, record.exc_info = "malformed HTTP request", (), None
            record.reason = str(error.message).partition("\n")[0].rstrip(":")
        return record.levelno >= parent.getEffectiveLevel()

    parent = logging.getLogger("core.daemon.http")
    made = logging.Logger("core.daemon.http.server", logging.DEBUG)  # some of them come at this level
    made.parent = parent
    made.addFilter(lower)
    made.addFilter(RateLimit())
    return made


def _static(octets: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def show(request: web.Request) -> web.StreamResponse:
        return web.Response(body=octets, content_type=kind, charset="utf-8")

    return show


class _Collector:
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for family in self._families:
            yield _metric(family)


def _metric(family: Family) -> Metric:
    samples = family.samples[:SERIES_MAX]
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in samples:
            assert isinstance(value, Histogram)
            buckets = [
                (str(bound) if bound != float("inf") else "+Inf", float(count))
                for bound, count in zip(value.bounds, value.counts, strict=True)
            ]
            histogram.add_metric(list(labels), buckets, value.total)
        return histogram
    made = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(family.name, family.help, labels=family.labels)
    for labels, value in samples:
        assert isinstance(value, int | float)
        made.add_metric(list(labels), value)
    return made


def prometheus_text(families: Iterable[Family]) -> bytes:
    """Return the families in Prometheus's text format, at most `SERIES_MAX` series each."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(families))
    return generate_latest(registry)
