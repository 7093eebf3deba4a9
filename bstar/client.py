"""Client of a pair: it finds the active server, again after each fail-over (BST-21 to BST-24).

    async with bstar.Client("tcp://10.0.0.1:5001", "tcp://10.0.0.2:5001") as client:
        reply = await client.request(b"hello")

A request is sent again until it has a reply, so the servers may see it twice: `Request.key` identifies it (BST-24). State that the lost
server had about this client is gone; build it up again in `on_switch`.

`bstar/machine/requester.py` decides where and when requests are sent.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import core
from bstar.errors import ClientClosed, HandlerError, MalformedMessage, NoServer, Overrun
from bstar.machine.requester import Failed, Finished, GaveUp, Limits, Renew, Requester, Send
from bstar.machine.wire import decode_reply_header, encode_request_header
from core.runtime import runtime, supervision

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from bstar.machine.ballot import Ballot
    from bstar.machine.requester import RequesterEffect
    from core.security.credentials import Secured

__all__ = ["Client"]

SERVERS: Final = (0, 1)


class Client:
    """Sends requests to the active one of two servers.

    Args:
        primary: endpoint of the primary, which is tried first.
        backup: endpoint of the backup.
        timeout: seconds of silence after which the other server is tried.
        settle: seconds after which a silent server is tried again; at least the fail-over time of the pair.
        patience: seconds after which a request ends with `NoServer`.
        stock: the servers are stock members: no headers, one request at a time, and the waiting time of the guide between the servers.
        window: requests in flight at once.
        waiting_max: requests that may wait for a server.
        on_switch: called with `primary` or `backup` when requests go to another server than before.
        context: for the sockets; by default a new one.
        security: of the new context: `core.Curve` or `core.Plain`.
        socket_options: of the sockets, e.g. CURVE keys.

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
        self._endpoints = (primary, backup)
        self._limits = Limits(timeout_s=timeout, settle_s=settle, deadline_s=patience, window=window, waiting_max=waiting_max)
        self._stock = stock
        self._on_switch = on_switch
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._options = dict(socket_options or {})
        self._stack = AsyncExitStack()
        self._sockets: list[core.Socket | None] = [None, None]
        self._futures: dict[int, asyncio.Future[list[bytes]]] = {}
        self._clock = supervision.current().timer("bstar client clock", self._tick)
        self._requester: Requester | None = None
        self._reported_server = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._own_context:
            await self._stack.enter_async_context(self._context)
        self._requester = Requester(runtime.current().random_bits(64), self._limits, self._loop.time(), stock=self._stock)
        for server in SERVERS if not self._stock else SERVERS[:1]:
            self._open(server)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._clock.cancel()
        self._closed = True
        futures, self._futures = [*self._futures.values()], {}
        for future in futures:
            if not future.done():
                future.set_exception(ClientClosed())
                future.exception()  # marks it as retrieved: open requests need not be awaited
        for socket in self._sockets:
            if socket is not None:
                socket.close(linger=0)
        await self._stack.aclose()

    def request(self, *body: bytes, patience: float | None = None) -> asyncio.Future[list[bytes]]:
        """Send a request at once; return a future of the body frames of the reply. Cancelling it forgets the request.

        Args:
            body: frames.
            patience: seconds in place of that of the client.

        Raises:
            Overrun: too many requests are waiting.
            ClientClosed: the client was closed, before (raised at once) or meanwhile (of the future).
            NoServer: (of the future) neither server answered in time.
            HandlerError: (of the future) the handler of the server failed.
            core.MessageTooLarge: (of the future) the request exceeds the limit of the server.
        """
        requester = self._running()
        if self._closed:
            raise ClientClosed
        if requester.full:
            raise Overrun(self._limits.waiting_max)
        sequence, effects = requester.submit(list(body), self._loop.time(), patience)
        future: asyncio.Future[list[bytes]] = self._loop.create_future()
        self._futures[sequence] = future
        future.add_done_callback(lambda done: self._on_done(sequence, done))
        self._carry_out(effects)
        return future

    @property
    def server(self) -> str:
        """Server that is tried first: `primary` or `backup`."""
        return ("primary", "backup")[self._running().current]

    @property
    def ballot(self) -> Ballot:
        """Highest ballot of any reply; replies below it are dropped (BST-33)."""
        return self._running().highest.seen

    @property
    def counters(self) -> Counter[str]:
        """Events by name."""
        return self._running().counters

    def _running(self) -> Requester:
        if self._requester is None:
            raise RuntimeError("the client runs within its block")
        return self._requester

    def _open(self, server: int) -> None:
        # IMMEDIATE: requests that wait for a connection stay in the requester, which may send them elsewhere. A request to a stock
        # server waits in its socket, until its timeout closes both.
        socket = self._context.socket(core.DEALER, **{"immediate": int(not self._stock), "linger": 0, "tell_limits": 1, **self._options})
        self._sockets[server] = socket
        socket.set_receiver(
            lambda batch: self._receive(server, batch), on_peer=lambda _, joined: self._on_connection(server, socket, joined)
        )
        socket.connect(self._endpoints[server])

    def _on_connection(self, server: int, socket: core.Socket, joined: bool) -> None:
        if self._sockets[server] is socket and not self._closed:
            requester = self._running()
            self._carry_out((requester.joined if joined else requester.lost)(server, self._loop.time()))

    def _receive(self, server: int, batch: list[list[bytes]]) -> None:
        requester = self._running()
        if self._closed:
            return
        for frames in batch:
            now = self._loop.time()
            if not frames or frames[0]:
                requester.counters["reply_malformed"] += 1
            elif self._stock:
                self._carry_out(requester.receive_stock(server, frames[1:], now))
            else:
                try:
                    header = decode_reply_header(frames[1] if len(frames) > 1 else b"")
                except MalformedMessage:
                    requester.counters["reply_malformed"] += 1
                    continue
                self._carry_out(requester.receive(server, header, frames[2:], now))

    def _carry_out(self, effects: Iterable[RequesterEffect]) -> None:
        for effect in effects:
            match effect:
                case Send(server, header, body):
                    socket = self._sockets[server]
                    assert socket is not None
                    head = [b""] if self._stock else [b"", encode_request_header(header)]
                    try:
                        socket.send_multipart([*head, *body], core.NOBLOCK)
                    except core.Again:
                        self.counters["send_blocked"] += 1  # queue full or connection lost: its timeout sends it again
                    except core.MessageTooLarge as error:
                        self.counters["too_large"] += 1
                        self._settle(header.sequence, error)
                        self._carry_out(self._running().withdraw(header.sequence, self._loop.time()))
                case Renew(server):
                    self._renew(server)
                case Finished(sequence, body):
                    self._settle(sequence, body)
                case Failed(sequence, reason):
                    self._settle(sequence, HandlerError(reason))
                case GaveUp(sequence, attempts, after_s):
                    self._settle(sequence, NoServer(attempts=attempts, after_s=after_s))
        self._schedule()

    def _schedule(self) -> None:
        requester = self._running()
        if requester.current != self._reported_server:
            self._reported_server = requester.current
            if self._on_switch is not None:
                self._on_switch(self.server)
        at = requester.deadline()
        if at is None:
            self._clock.cancel()
        else:
            self._clock.at(at)

    def _tick(self) -> None:
        self._carry_out(self._running().tick(self._loop.time()))

    def _renew(self, server: int) -> None:
        """Switch from a stock server to the other one, with a new connection."""
        old, self._sockets[server] = self._sockets[server], None
        if old is not None:
            old.close(linger=0)
        self._open(1 - server)

    def _settle(self, sequence: int, result: list[bytes] | Exception) -> None:
        future = self._futures.pop(sequence, None)
        if future is None or future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _on_done(self, sequence: int, future: asyncio.Future[list[bytes]]) -> None:
        if future.cancelled() and self._futures.pop(sequence, None) is not None:
            self._carry_out(self._running().withdraw(sequence, self._loop.time()))
