"""Asynchronous server of DEALER clients: many requests in flight, any number of replies for each (ENV-02).

async def answer(client: pirate.Conversation, body: list[bytes]) -> None:
    client.state["asked"] = client.state.get("asked", 0) + 1
    for part in work(body):
        client.reply(part)

async with pirate.AsyncServer("tcp://*:5570", answer, ttl=2.0) as server:
    await server.serve_forever()
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import core
from core.runtime import supervision
from pirate.client_sessions import ClientSessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

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


class AsyncServer:
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
        if not ttl > 0 or running_max < 1 or clients_max < 1:
            raise ValueError("ttl, running_max and clients_max are above zero")
        self.counters: Counter[str] = Counter()
        self._bind = bind
        self._handler = handler
        self._running_max = running_max
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._options = dict(socket_options or {})
        self._stack = AsyncExitStack()
        self._sessions: ClientSessions[Conversation] = ClientSessions(self._begin, ttl, clients_max)
        self._running: set[asyncio.Task[None]] = set()
        self._clock = supervision.current().timer("pirate server clock", self._tick)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        if self._own_context:
            await self._stack.enter_async_context(self._context)
        self._socket = self._stack.enter_context(
            self._context.socket(core.ROUTER, **{"tell_limits": 1, **self._options, "router_mandatory": 1})
        )
        try:
            self._socket.bind(self._bind)
        except core.ZMQError:
            await self._stack.aclose()
            raise
        self._socket.set_receiver(self._receive, on_peer=self._peer_changed)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._clock.cancel()
        await supervision.cancel_all(self._running)
        self._socket.close(linger=LINGER_MS)
        await self._socket.wait_closed()
        await self._stack.aclose()
        self._ended.set()

    @property
    def endpoint(self) -> str:
        """Endpoint it listens at."""
        return self._socket.last_endpoint

    @property
    def clients(self) -> int:
        """Number of clients with a state."""
        return len(self._sessions)

    async def serve_forever(self) -> None:
        """Wait for the end of the block; requests are answered with or without this call."""
        await self._ended.wait()

    def send(self, client: bytes, frames: tuple[bytes, ...]) -> None:
        """Send a client a message (see `Conversation.reply`)."""
        try:
            self._socket.send_multipart([client, *frames], core.NOBLOCK)
        except (core.HostUnreachable, core.Again, core.MessageTooLarge):
            self.counters["reply_undelivered"] += 1

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _begin(self, client: bytes) -> Conversation:
        self.counters["client"] += 1
        return Conversation(self, client)

    def _receive(self, batch: list[list[bytes]]) -> None:
        now = self._loop.time()
        for client, *body in batch:
            conversation = self._sessions.heard(client, now)
            if len(self._running) >= self._running_max:
                self.counters["running_overflow"] += 1
                continue
            self.counters["request"] += 1
            task = self._loop.create_task(self._handle(conversation, body))
            self._running.add(task)
            task.add_done_callback(self._handled)
        self._set_timer()

    async def _handle(self, conversation: Conversation, body: list[bytes]) -> None:
        await self._handler(conversation, body)

    def _handled(self, task: asyncio.Task[None]) -> None:
        """Record the end of a handler; its error is not the server's."""
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.counters["handler_failed"] += 1
            log.error("handler failed", exc_info=error)

    def _peer_changed(self, client: bytes, joined: bool) -> None:
        if not joined and not self._socket.peer_metadata(client):  # else another client has the id by now
            self._sessions.gone(client)

    def _set_timer(self) -> None:
        at = self._sessions.deadline()
        if at is not None and self._clock.when is None:
            self._clock.at(at)

    def _tick(self) -> None:
        self.counters["client_silent"] += len(self._sessions.tick(self._loop.time()))
        self._set_timer()
