"""Client of a pair: it finds the active server, again after each fail-over (BST-21 to BST-24).

    async with bstar.Client("tcp://10.0.0.1:5001", "tcp://10.0.0.2:5001") as client:
        reply = await client.request(b"hello")

A request is sent again until it has a reply, so the servers may see it twice: `Request.key` identifies it (BST-24). State that the lost
server had about this client is gone; build it up again in `on_switch`.

`bstar/machine/requester.py` decides where and when requests are sent.
"""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Self

import core
from bstar.errors import ClientClosed, MalformedMessage
from bstar.machine.requester import Limits, Renew, Requester, Send, ServerRequest
from bstar.machine.wire import decode_reply_header, encode_request_header
from core.address import endpoints_to_connect
from core.daemon.logs import RateLimitedLog
from core.machine.value_copies import check_counts, check_not_negative, check_positive
from core.rpc.client_engine import ClientEngine
from core.runtime import runtime, supervision
from core.zmtp.frames import octets_of

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from bstar.machine.ballot import Ballot
    from core.security.credentials import Secured
    from core.sockets.monitor import MonitorEvent

__all__ = ["Client"]

log = logging.getLogger(__name__)

SERVERS: Final = ("primary", "backup")
# After which neither server is just being started.
LOG_AFTER_S: Final = 2.5
# Silent PINGs, one for each timeout, after which a connection is made again.
PROBES: Final = 3


class Client:
    """Sends requests to the active one of two servers.

    Args:
        primary: endpoint of the primary, which is tried first.
        backup: endpoint of the backup.
        timeout: seconds of silence after which the other server is tried; a stock one may take as long to connect.
        settle: seconds after which a silent server is tried again; at least the fail-over time of the pair.
        patience: seconds after which a request ends with `NoServer`.
        stock: the servers are stock members: no headers, one request at a time, and the waiting time of the guide between the servers.
        window: requests in flight at once.
        waiting_max: requests that may wait for a server.
        on_switch: called with `primary` or `backup` when requests go to another server than before; its error is logged.
        context: for the sockets; by default a new one.
        security: of the new context: `core.Curve` or `core.Plain`.
        socket_options: of the sockets, e.g. CURVE keys; `linger` and `immediate` are those of the client.

    Attributes:
        counters: events by name.
    """

    def __init__(
        self,
        primary: str,
        backup: str,
        *,
        timeout: float = 1.0,
        settle: float = 2.0,
        patience: float = 60.0,
        stock: bool = False,
        window: int = 1000,
        waiting_max: int = 100_000,
        on_switch: Callable[[str], None] | None = None,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_positive(timeout=timeout)
        check_not_negative(settle=settle)
        check_not_negative(inf, patience=patience)
        check_counts(window=window, waiting_max=waiting_max)
        limits = Limits(timeout_s=timeout, settle_s=settle, deadline_s=patience, window=window, waiting_max=waiting_max)
        machine = Requester(runtime.current().random_bits(64), limits, stock=stock)
        # A connection of which the other end, or a firewall between, knows nothing any longer is closed and made again.
        ping_ms = max(1, round(timeout * 1000))
        options = {"heartbeat_ivl": ping_ms, "heartbeat_timeout": PROBES * ping_ms, **(socket_options or {})}
        self._engine = PairEngine(
            machine,
            endpoints_to_connect((primary, backup)),
            stock=stock,
            on_switch=on_switch,
            context=context,
            security=security,
            socket_options=options,
        )

    async def __aenter__(self) -> Self:
        self._engine.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._engine.close()

    def request(self, *body: bytes, patience: float | None = None) -> asyncio.Future[list[bytes]]:
        """Send a request at once; return a future of the body frames of the reply. Cancelling it forgets the request.

        Args:
            body: frames.
            patience: seconds in place of that of the client.

        Raises:
            Overrun: too many requests are waiting.
            ClientClosed: the client was closed, or its context ended, before (raised at once) or meanwhile (of the future).
            NoServer: (of the future) neither server answered in time.
            HandlerError: (of the future) the handler of the server failed.
            core.MessageTooLarge: (of the future) the request exceeds the limit of the server.
        """
        self._running()
        if patience is not None:
            check_not_negative(inf, patience=patience)
        pending = ServerRequest([frame if type(frame) is bytes else octets_of(frame) for frame in body], patience)
        self._engine.submit(pending)
        return self._engine.reply_to(pending)

    @property
    def server(self) -> str:
        """Server that is tried first: `primary` or `backup`."""
        return SERVERS[self._running().current]

    @property
    def ballot(self) -> Ballot:
        """Highest ballot of any reply; replies below it are dropped (BST-33)."""
        return self._running().highest.seen

    @property
    def counters(self) -> Counter[str]:
        """Events by name."""
        return self._running().counters

    def _running(self) -> Requester:
        if self._engine.loop is None:
            raise RuntimeError("the client runs within its block")
        return self._engine.machine


class PairEngine(ClientEngine[Requester]):
    """A DEALER for each server of a pair; to stock servers one at a time."""

    def __init__(
        self,
        machine: Requester,
        endpoints: Sequence[str],
        *,
        stock: bool,
        on_switch: Callable[[str], None] | None,
        context: core.Context | None,
        security: Secured | None,
        socket_options: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(machine, "bstar", ClientClosed, context, security, socket_options)
        self._ticker = supervision.current().timer("bstar client clock", self._tick)
        self._endpoints = endpoints
        self._stock = stock
        self._on_switch = on_switch
        self._reported_server = 0
        self._sockets: list[core.Socket | None] = [None, None]
        self._away_since = inf  # neither can be
        self._lines = RateLimitedLog(log)

    def flush(self) -> None:
        """Send the messages of the machine; report another server than before."""
        machine = self.machine
        while machine.outgoing:
            outgoing, machine.outgoing = machine.outgoing, []
            for order in outgoing:
                if isinstance(order, Renew):
                    self._renew(order.server)
                else:
                    self._send(order)
        if machine.current != self._reported_server:
            self._reported_server = machine.current
            if self._on_switch is not None:
                supervision.current().call("bstar client callback", self._on_switch, SERVERS[machine.current])

    def _send(self, order: Send) -> None:
        machine, socket = self.machine, self._sockets[order.server]
        head = [b""] if self._stock else [b"", encode_request_header(order.header)]
        try:
            if socket is not None:
                socket.send_multipart([*head, *order.body], core.NOBLOCK)
        except core.Again:
            machine.counters["send_blocked"] += 1  # queue full or connection lost: its timeout sends it again
        except core.MessageTooLarge as error:
            self.notify(machine.refused(order.header.sequence, error, self.clock()))

    def _connect(self) -> None:
        self.machine.begin(self.clock())
        for server in range(len(SERVERS) if not self._stock else 1):
            self._open(server)

    def _open_sockets(self) -> Iterable[core.Socket]:
        return [socket for socket in self._sockets if socket is not None]

    def _open(self, server: int) -> None:
        # IMMEDIATE: requests that wait for a connection stay in the requester, which may send them elsewhere. A request to a stock
        # server waits in its socket, until its timeout closes both.
        socket = self.new_socket(core.DEALER, linger=0, immediate=int(not self._stock))
        self._sockets[server] = socket
        socket.set_receiver(partial(self._receive, server), on_peer=lambda _, joined: self._on_connection(server, joined))
        socket.connect(self._endpoints[server])

    def _not_connected(self, event: MonitorEvent) -> None:
        """Log why neither server can be connected to, after a while, and then once a minute."""
        super()._not_connected(event)
        if self._stock or not self.troubles.keys() >= {*self._endpoints}:
            return
        now = self.clock()
        self._away_since = min(self._away_since, now)
        if now - self._away_since >= LOG_AFTER_S:
            places = [f"{server} at {where}: {self.troubles[where]}" for server, where in zip(SERVERS, self._endpoints, strict=True)]
            self._lines.warning("unreachable", "neither server can be reached, and both are tried again: %s", "; ".join(places))

    def _on_connection(self, server: int, joined: bool) -> None:
        if joined:
            self.troubles.clear()
            self._away_since = inf
        if not self.closed:
            self.updated((self.machine.joined if joined else self.machine.lost)(server, self.clock()))

    def _receive(self, server: int, batch: list[list[bytes]]) -> None:
        machine = self.machine
        settled: list[ServerRequest] = []
        for frames in batch if not self.closed else []:
            now = self.clock()
            if not frames or frames[0]:
                machine.counters["reply_malformed"] += 1
            elif self._stock:
                settled += machine.receive_stock(server, frames[1:], now)
            else:
                try:
                    header = decode_reply_header(frames[1] if len(frames) > 1 else b"")
                except MalformedMessage:
                    machine.counters["reply_malformed"] += 1
                    continue
                settled += machine.receive(server, header, frames[2:], now)
        if not self.closed:
            self.updated(settled)

    def _renew(self, server: int) -> None:
        """Switch from a stock server to the other one, with a new connection."""
        old, self._sockets[server] = self._sockets[server], None
        if old is not None:
            old.close()
        self._open(1 - server)
