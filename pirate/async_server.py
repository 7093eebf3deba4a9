"""Asynchronous server of DEALER clients: many requests in flight, any number of replies for each (ENV-02).

async def answer(client: pirate.Conversation, body: list[bytes]) -> None:
    client.state["asked"] = client.state.get("asked", 0) + 1
    for part in work(body):
        client.reply(part)

async with pirate.AsyncServer("tcp://*:5570", answer, ttl=2.0) as server:
    await server.serve_forever()
"""

from __future__ import annotations

import logging
from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Any, Final

import core
from core.daemon.logs import RateLimitedLog
from core.machine.value_copies import check_counts, check_positive
from core.rpc.running_handlers import RunningHandlers, call
from core.rpc.service import Service
from core.runtime import supervision
from pirate.client_sessions import ClientSessions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping

    from core.security.credentials import Secured

__all__ = ["AsyncServer", "Conversation"]

log = logging.getLogger(__name__)

LINGER_MS: Final = 1000  # time for written replies to leave when the server closes


class Conversation:
    """One client, until it is forgotten.

    Attributes:
        client: its routing id.
        state: data that handlers keep about it.
    """

    __slots__ = ("_server", "client", "state")

    def __init__(self, server: AsyncServer, client: bytes) -> None:
        self._server = server
        self.client = client
        self.state: dict[str, Any] = {}

    def reply(self, *frames: bytes) -> None:
        """Send the client a message; if the client has gone, it is dropped and counted."""
        self._server.send(self.client, frames)


class AsyncServer(Service):
    """Server of DEALER clients.

    Args:
        bind: endpoint to listen at.
        handler: coroutine function that takes the conversation and the request's frames, and may reply any number of times.
        ttl: seconds of silence after which a client's state is dropped.
        running_max: requests being handled; more are dropped.
        clients_max: client states; beyond it, the client that was silent longest is forgotten.
        context: to make the socket in; None: the server has its own.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of the socket, e.g. CURVE keys.

    Attributes:
        counters: requests taken and dropped, by name.
    """

    def __init__(
        self,
        bind: str,
        handler: Callable[[Conversation, list[bytes]], Awaitable[None]],
        *,
        ttl: float = 2.0,
        running_max: int = 1000,
        clients_max: int = 100_000,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(context, security, socket_options)
        self._timer = supervision.current().timer("pirate server clock", self._tick)
        check_positive(inf, ttl=ttl)
        check_counts(running_max=running_max, clients_max=clients_max)
        self.counters: Counter[str] = Counter()
        self._log = RateLimitedLog(log)
        self._bind = bind
        self._handler = handler
        self._running = RunningHandlers(running_max)
        self._sessions: ClientSessions[Conversation] = ClientSessions(self._begin, ttl, clients_max)

    async def _start(self) -> None:
        options = {"tell_limits": 1, **self._options, "router_mandatory": 1}
        self._socket = self._bound(core.ROUTER, self._bind, linger_ms=LINGER_MS, **options)
        self._socket.set_receiver(self._receive, on_peer=self._peer_changed)

    async def _stop(self) -> None:
        await self._running.cancel()

    @property
    def endpoint(self) -> str:
        """Endpoint it listens at."""
        return self._socket.last_endpoint

    @property
    def clients(self) -> int:
        """Number of clients with a state."""
        return len(self._sessions)

    def send(self, client: bytes, frames: tuple[bytes, ...]) -> None:
        """Send a client a message (see `Conversation.reply`)."""
        try:
            self._socket.send_multipart([client, *frames], core.NOBLOCK)
        except (core.HostUnreachable, core.Again, core.MessageTooLarge, core.ContextTerminated):
            self.counters["reply_undelivered"] += 1

    def _begin(self, client: bytes) -> Conversation:
        self.counters["client"] += 1
        return Conversation(self, client)

    def _receive(self, batch: list[list[bytes]]) -> None:
        now = self._loop.time()
        for client, *body in batch:
            conversation = self._sessions.heard(client, now)
            if self._running.full:
                self.counters["running_overflow"] += 1
                continue
            self.counters["request"] += 1
            self._running.start(call(self._handler, conversation, body), ended=self._handled)
        self._wake_at(self._sessions.deadline())

    def _handled(self, task: asyncio.Future[None], error: BaseException | None) -> None:
        """Record the end of a handler; its error is not the server's."""
        if error is not None:
            self.counters["handler_failed"] += 1
            self._log.error(type(error).__name__, "handler failed", cause=error)

    def _peer_changed(self, client: bytes, joined: bool) -> None:
        if not joined:
            self._sessions.gone(client)

    def _tick(self) -> None:
        self.counters["client_silent"] += len(self._sessions.tick(self._loop.time()))
        self._wake_at(self._sessions.deadline())
