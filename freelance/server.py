"""The server: answers PINGs at once and requests through a handler (RFC 10; FRL-02 and FRL-04 for models 1 and 2).

    async with freelance.Server("tcp://10.0.0.7:5055", handler=lambda body: body) as server:
        await server.serve_forever()

Clients of model 3 know a server by the endpoint they connect to, so it announces that as its identity (FLP-01).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket as system
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import core
from core.endpoint import HostKind, IpcBind, TcpBind, parse_bind, tcp_endpoint
from freelance.errors import MalformedMessage
from freelance.flp import PONG, decode_request, encode_reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from core.secured import Secured

__all__ = ["Server"]

log = logging.getLogger(__name__)

LINGER_MS: Final = 1000  # replies that are written when the server closes get this long to leave


class Server:
    """Answers requests of clients of one model.

    Args:
        bind: endpoint to listen at.
        handler: takes the body's frames, returns the reply's frames, one frame, or None for no reply; may be a coroutine
            function. It has to be quick or asynchronous: while it computes, no PONG leaves. One that raises gives no reply.
        identity: the endpoint clients connect to; None takes `bind`, with this machine's name where it says every address.
        model: 3; or 1 or 2, whose clients expect a REP socket.
        running_max: requests with the handler at once; more are dropped, and their clients ask elsewhere.
        context: to make the socket in; the server has its own when left out.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of the socket, e.g. CURVE keys.

    Attributes:
        counters: what was answered and dropped, by name.
        draining: nothing more is accepted.

    Raises:
        ValueError: no such model, or an identity is needed and not given.
    """

    def __init__(
        self,
        bind: str,
        handler: Callable[[list[bytes]], Any],
        *,
        identity: str | None = None,
        model: Literal[1, 2, 3] = 3,
        running_max: int = 1000,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        if model not in (1, 2, 3):
            raise ValueError(f"there is no model {model}")
        self.counters: Counter[str] = Counter()
        self.draining = False
        self._bind = bind
        self._handler = handler
        self._identity = identity
        self._model = model
        self._running_max = running_max
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._options = dict(socket_options or {})
        self._stack = AsyncExitStack()
        self._socket: core.Socket | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        if self._own_context:
            await self._stack.enter_async_context(self._context)
        try:
            self._socket = await self._listen()
        except (core.ZMQError, ValueError):
            await self._stack.aclose()
            raise
        self._socket.set_receiver(self._receive_pings_and_requests if self._model == 3 else self._receive_enveloped)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.draining = True
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        socket = self._listening()
        socket.close(linger=LINGER_MS)
        await socket.wait_closed()
        await self._stack.aclose()
        self._ended.set()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self._listening().last_endpoint

    @property
    def identity(self) -> str:
        """What clients of model 3 have to connect to, octet for octet."""
        return str(self._listening().options.routing_id, "utf-8")

    async def serve_forever(self) -> None:
        """Wait for the end of the block; requests are answered with or without somebody waiting here."""
        await self._ended.wait()

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing more and wait for the handlers; return whether all have finished in time."""
        self.draining = True
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        return not self._running

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _listening(self) -> core.Socket:
        if self._socket is None:
            raise RuntimeError("the server listens within its block")
        return self._socket

    async def _listen(self) -> core.Socket:
        """Bind; the identity comes first (FLP-01), so a port the system is to choose is chosen on a socket of its own."""
        bind, where = self._bind, parse_bind(self._bind, ipv6=bool(self._options.get("ipv6")))
        if self._identity is None and isinstance(where, TcpBind) and where.port == 0:
            async with self._context.socket(core.ROUTER, **self._options) as chooser:
                chooser.bind(bind)
                bind = chooser.last_endpoint
            port = int(bind.rpartition(":")[2])
            where = TcpBind(bind, where.host, where.kind, port)
        identity = self._identity or _public_endpoint(bind, where)
        socket = self._context.socket(core.ROUTER, **{**self._options, "routing_id": identity})
        try:
            socket.bind(bind)
        except core.ZMQError:
            socket.close(linger=0)
            raise
        return socket

    def _receive_pings_and_requests(self, batch: list[list[bytes]]) -> None:
        replies: list[list[bytes]] = []
        for client, *frames in batch:
            try:
                request = decode_request(frames)
            except MalformedMessage:
                self.counters["request_malformed"] += 1
                continue
            if request is None:
                self.counters["ping"] += 1
                replies.append([client, PONG])
            else:
                self._accept([client, request.control], request.body, replies)
        self._send(replies)

    def _receive_enveloped(self, batch: list[list[bytes]]) -> None:
        """Take `[client, …, "", body…]`; in model 2 the body is `[sequence, body]` and everything else is invalid (FRL-04)."""
        replies: list[list[bytes]] = []
        for frames in batch:
            end = next((number for number, frame in enumerate(frames[1:], 1) if not frame), len(frames)) + 1
            head, body = frames[:end], frames[end:]
            if not body or (self._model == 2 and len(body) != 2):
                self.counters["request_malformed"] += 1
            elif self._model == 2:
                self._accept([*head, body[0]], body[1:], replies)
            else:
                self._accept(head, body, replies)
        self._send(replies)

    def _send(self, replies: list[list[bytes]]) -> None:
        if len(replies) == 1:
            self._listening().send_multipart(replies[0])
        elif replies:
            self._listening().send_many(replies)

    def _accept(self, head: list[bytes], body: list[bytes], replies: list[list[bytes]]) -> None:
        """Have a request handled; `head` is everything the reply begins with. A handler that does not wait costs no task."""
        if self.draining:
            self.counters["request_draining"] += 1
        elif len(self._running) >= self._running_max:
            self.counters["running_overflow"] += 1
        else:
            self.counters["accepted"] += 1
            try:
                reply = self._handler(body)
                if not inspect.isawaitable(reply):
                    replies += self._reply(head, reply)
                    return
            except Exception as error:  # the handler's, whatever it is
                self._failed(error)
                return
            task = asyncio.get_running_loop().create_task(self._handle(head, reply))
            self._running.add(task)
            task.add_done_callback(self._handled)

    async def _handle(self, head: list[bytes], reply: Awaitable[Any]) -> None:
        self._send(self._reply(head, await reply))

    def _reply(self, head: list[bytes], reply: Any) -> list[list[bytes]]:
        """Return the message to send, if there is one."""
        if reply is None:
            self.counters["unanswered"] += 1
            return []
        # A reply has a body (FLP-05): nothing to say is one empty frame.
        frames = [reply] if isinstance(reply, bytes) else list(reply) or [b""]
        self.counters["answered"] += 1
        return [[*head[:-1], *encode_reply(head[-1], frames)]]

    def _handled(self, task: asyncio.Task[None]) -> None:
        """Take note of how a handler ended. Its error is no failure of the server; the protocol has no word for it."""
        self._running.discard(task)
        if task.cancelled():
            self.counters["cancelled"] += 1
            return
        error = task.exception()
        if error is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        self.counters["handler_failed"] += 1
        log.error("handler failed", exc_info=error)


def _public_endpoint(bind: str, where: object) -> str:
    """Return the endpoint clients are expected to connect to."""
    if isinstance(where, IpcBind) and where.wildcard:
        raise ValueError(f"{bind} gets a new name each time; give the identity clients shall know")
    if isinstance(where, TcpBind) and where.kind is HostKind.ANY:
        return tcp_endpoint(system.gethostname(), where.port)
    return bind
