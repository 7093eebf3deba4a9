"""Freelance server: answers PINGs at once, requests by a handler (RFC 10; FRL-02 and FRL-04 for models 1, 2).

    async with freelance.Server("tcp://10.0.0.7:5055", handler=lambda body: body) as server:
        await server.serve_forever()

Clients of model 3 know a server by the endpoint they connect to, so the server announces that endpoint as its identity (FLP-01).
"""

from __future__ import annotations

import inspect
import logging
import socket as system
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import core
from core.address import HostKind, IpcBind, TcpBind, parse_bind, tcp_endpoint
from core.daemon.logs import RateLimitedLog
from core.machine.value_copies import check_counts
from core.rpc.running_handlers import RunningHandlers, reply_frames
from core.rpc.service import Service, sent
from core.runtime.supervision import PROGRAM_ENDS
from freelance.errors import MalformedMessage
from freelance.models.flp import PONG, decode_request

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from core.security.credentials import Secured

__all__ = ["Server"]

log = logging.getLogger(__name__)

PLAIN: Final = frozenset({bytes, list, tuple, type(None)})  # result types of most handlers; nothing to await

LINGER_MS: Final = 1000  # time for written replies to leave when the server closes


class Server(Service):
    """Server for clients of one model.

    Args:
        bind: endpoint to listen at.
        handler: takes the body's frames, returns the reply's frames, one frame, or None for no reply; may be a coroutine
            function. It must be quick or asynchronous: while it computes, no PONG is sent. If it raises, there is no reply.
        identity: the endpoint clients connect to; None: `bind`, with this machine's name in place of a wildcard address.
        model: 3; or 1 or 2, whose clients expect a REP socket.
        running_max: requests being handled; more are dropped, and their clients ask other servers.
        context: to make the socket in; None: the server has its own.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of the socket, e.g. CURVE keys.

    Attributes:
        counters: requests answered and dropped, by name.
        draining: no more requests are accepted.

    Raises:
        ValueError: no such model, or an identity is needed and missing.
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
        check_counts(running_max=running_max)
        super().__init__(context, security, socket_options)
        self.counters: Counter[str] = Counter()
        self._log = RateLimitedLog(log)
        self.draining = False
        self._bind = bind
        self._handler = handler
        self._identity = identity
        self._model = model
        self._socket: core.Socket | None = None
        self._running = RunningHandlers(running_max)

    async def _start(self) -> None:
        self._socket = await self._listen()
        receiver = self._receive_pings_and_requests if self._model == 3 else self._receive_enveloped
        self._socket.set_receiver(receiver)

    async def _stop(self) -> None:
        self.draining = self._socket is not None  # a server that did not start may be entered again
        await self._running.cancel()

    @property
    def endpoint(self) -> str:
        """Endpoint it listens at."""
        return self._listening().last_endpoint

    @property
    def identity(self) -> str:
        """Endpoint that clients of model 3 must connect to, byte for byte."""
        return str(self._listening().options.routing_id, "utf-8")

    async def drain(self, timeout_s: float) -> bool:
        """Accept nothing more and wait for the handlers; return whether all finished in time."""
        self.draining = True
        return await self._running.drain(timeout_s)

    def _listening(self) -> core.Socket:
        if self._socket is None:
            raise RuntimeError("the server listens within its block")
        return self._socket

    async def _listen(self) -> core.Socket:
        """Bind with the identity already set (FLP-01); a port the system chooses is chosen on another socket first."""
        bind, where = self._bind, parse_bind(self._bind, ipv6=bool(self._options.get("ipv6")))
        if self._identity is None and isinstance(where, TcpBind) and where.port == 0:
            async with self._context.socket(core.ROUTER, **self._options) as chooser:
                chooser.bind(bind)
                bind = chooser.last_endpoint
            port = int(bind.rpartition(":")[2])
            where = TcpBind(bind, where.host, where.kind, port)
        identity = self._identity or _public_endpoint(bind, where)
        return self._bound(core.ROUTER, bind, linger_ms=LINGER_MS, **{"tell_limits": 1, **self._options, "routing_id": identity})

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
        reply = self._ask_handler(body)
        if inspect.isawaitable(reply):
            self._running.start(reply, ended=partial(self._handled, head))
        else:
            frames = self._frames_of(reply)
            if frames:
                replies.append([*head, *frames])

    def _ask_handler(self, body: list[bytes]) -> Any:
        """Call the handler; return its reply or awaitable, None for neither. A handler that does not wait costs no task."""
        if self.draining:
            self.counters["request_draining"] += 1
            return None
        if self._running.full:
            self.counters["running_overflow"] += 1
            return None
        self.counters["accepted"] += 1
        try:
            reply = self._handler(body)
        except PROGRAM_ENDS:
            raise
        except BaseException as error:  # any error of the handler, one that a cancelled future has raised too
            self._handler_failed(error)
            return None
        if reply is None:
            self.counters["unanswered"] += 1
        return reply

    def _frames_of(self, reply: Any) -> list[bytes]:
        """Return a reply's frames, an empty list without a reply. An empty reply has one empty frame (FLP-05)."""
        if reply is None:
            return []
        try:
            octets = reply_frames(reply)
        except PROGRAM_ENDS:
            raise
        except BaseException as error:  # these are no frames, or a generator of the handler has failed
            self._handler_failed(error)
            return []
        self.counters["answered"] += 1
        return octets or [b""]

    def _handled(self, head: list[bytes], ended: asyncio.Future[Any], error: BaseException | None) -> None:
        """Take the result of a handler. Its error is not the server's, and the protocol cannot report it."""
        if error is not None:
            self._handler_failed(error)
            return
        if ended.cancelled():
            self.counters["cancelled"] += 1
            return
        if ended.result() is None:
            self.counters["unanswered"] += 1
        frames = self._frames_of(ended.result())
        if frames:
            sent(self._listening(), [*head, *frames])

    def _handler_failed(self, error: BaseException) -> None:
        self.counters["handler_failed"] += 1
        self._log.error(type(error).__name__, "handler failed", cause=error)


def _public_endpoint(bind: str, where: object) -> str:
    if isinstance(where, IpcBind) and where.wildcard:
        raise ValueError(f"{bind} gets a new name at each start; give the identity that clients use")
    if isinstance(where, TcpBind) and where.kind is HostKind.ANY:
        return tcp_endpoint(system.gethostname(), where.port)
    return bind
