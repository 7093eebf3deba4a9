"""Pirate worker: handles one request after the other and reconnects to its queue when a session ends.

`worker_session.py` decides what to send.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import core
from core.address import endpoints_to_connect
from core.daemon.logs import RateLimitedLog
from core.machine.value_copies import check_counts, check_not_negative, check_positive
from core.rpc.connect_times import with_connect_times
from core.rpc.running_handlers import RunningHandlers, call, reply_frames
from core.rpc.service import Service
from core.runtime import runtime, supervision
from core.sockets.monitor import TROUBLES
from pirate.errors import SimulatedCrash
from pirate.ppp import checked_heartbeat_s
from pirate.worker_session import CancelHandler, Close, Open, Send, SessionLimits, SessionState, StartHandler, WorkerSession

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from core.security.credentials import Secured
    from pirate.worker_session import Effect

__all__ = ["Worker"]

log = logging.getLogger(__name__)

LINGER_MS: Final = 1000  # time for a written reply to leave when the worker closes


class Worker(Service):
    """Worker of a queue, with one request at a time.

    Args:
        endpoints: of the queue's backend; with several queues, each new session is with the next one.
        handler: takes the body's frames, returns the reply's frames or one frame; may be a coroutine function. It must be quick or
            asynchronous: while it computes, no heartbeat is sent. If it raises, there is no reply, and the client retries.
        simple: be a REQ socket without heartbeats (Simple Pirate); otherwise speak PPP (Paranoid Pirate).
        heartbeat_ms: between heartbeats, both ways; 10 to 30,000, the same at the queue.
        liveness: silent intervals after which the queue is given up.
        heartbeat_busy: heartbeat while working too; only for queues that do not take it for READY (PPP-09).
        reconnect_ms: first pause before a new session; doubles up to `reconnect_max_ms` until a queue is heard again.
        reconnect_max_ms: the longest pause.
        jitter: random part of a pause.
        context: to make sockets in; None: the worker has its own.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of the sockets, e.g. CURVE keys.

    Raises:
        ValueError: no endpoint, or numbers out of their range.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        handler: Callable[[list[bytes]], Any],
        *,
        simple: bool = False,
        heartbeat_ms: float = 1000,
        liveness: int = 3,
        heartbeat_busy: bool = False,
        reconnect_ms: float = 1000,
        reconnect_max_ms: float = 32_000,
        jitter: float = 0.1,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(context, security, socket_options)
        self._log = RateLimitedLog(log)
        self._timer = supervision.current().timer("pirate worker clock", self._tick)
        self._endpoints = tuple(endpoints_to_connect(endpoints))
        if not self._endpoints:
            raise ValueError("there is no endpoint")
        check_counts(liveness=liveness)
        check_positive(reconnect_ms=reconnect_ms, reconnect_max_ms=reconnect_max_ms)
        check_not_negative(jitter=jitter)
        if reconnect_ms > reconnect_max_ms:
            raise ValueError(f"reconnect_ms is {reconnect_ms}, more than reconnect_max_ms, {reconnect_max_ms}")
        limits = SessionLimits(
            simple=simple,
            several=len(self._endpoints) > 1,
            heartbeat_s=checked_heartbeat_s(heartbeat_ms),
            liveness=liveness,
            heartbeat_busy=heartbeat_busy,
            wait_min_s=reconnect_ms / 1000,
            wait_max_s=reconnect_max_ms / 1000,
            jitter=jitter,
        )
        self._handler = handler
        self._simple = simple
        self._session = WorkerSession(limits, runtime.current().chance().random)
        self._socket: core.Socket | None = None
        self._running = RunningHandlers(1)
        self._stopping = False

    async def _start(self) -> None:
        self._apply(self._session.start(self._loop.time()))

    async def _stop(self) -> None:
        self._stopping = True
        try:
            await self._running.cancel()
        finally:
            socket, self._socket = self._socket, None
            if socket is not None:
                socket.close(linger=LINGER_MS)
                await socket.wait_closed()

    @property
    def counters(self) -> Counter[str]:
        """Requests handled and dropped, by name."""
        return self._session.counters

    @property
    def state(self) -> SessionState:
        """State of the session with the queue."""
        return self._session.state

    async def drain(self, timeout_s: float) -> bool:
        """Take no further request and wait for the current one; return whether it was answered in time.

        The protocol has no message for leaving: what the queue sends before it notices is lost, and its client retries.
        """
        self._stopping = True
        return await self._running.drain(timeout_s)

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Open(number):
                    self._connect(self._endpoints[number % len(self._endpoints)])
                case Close(wait_s):
                    self._close_socket(wait_s)
                case Send(frames):
                    self._send(frames)
                case StartHandler(body):
                    self._start_handler(body)
                case CancelHandler():
                    self._running.interrupt()
        self._wake_at(self._session.deadline())

    def _connect(self, endpoint: str) -> None:
        if self._stopping:
            return
        kind = core.REQ if self._simple else core.DEALER
        socket = self._socket = self._context.socket(kind, **{"tell_limits": 1, **with_connect_times(self._options), "linger": 0})
        socket.set_receiver(
            lambda batch: self._receive(socket, batch),
            on_peer=lambda _, joined: self._on_peer_changed(socket, joined),
        )
        socket.on_event(lambda _: self._on_trouble(socket), TROUBLES)
        socket.connect(endpoint)

    def _close_socket(self, wait_s: float) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)  # queued messages are not for a queue that returns (HB-06)
            self._socket = None
        if wait_s:
            log.warning("no queue, reconnecting later", extra={"after_ms": round(wait_s * 1000)})

    def _send(self, frames: list[bytes]) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send_multipart(frames, core.NOBLOCK)
        except (core.Again, core.MessageTooLarge) as error:  # the queue does not read, takes less, or has just disconnected
            if isinstance(error, core.MessageTooLarge):
                self._log.warning("too large", "reply dropped, too large for the queue", reason=str(error))
            self._apply(self._session.lost(self._loop.time()))

    def _receive(self, socket: core.Socket, batch: list[list[bytes]]) -> None:
        now = self._loop.time()
        for frames in batch:
            if socket is self._socket:
                self._apply(self._session.receive(frames, now))

    def _on_peer_changed(self, socket: core.Socket, joined: bool) -> None:
        if socket is not self._socket:
            return
        now = self._loop.time()
        if joined:
            log.info("worker ready")
        self._apply(self._session.joined(now) if joined else self._session.lost(now))

    def _on_trouble(self, socket: core.Socket) -> None:
        if socket is self._socket:
            self._session.unreachable(self._loop.time())
            self._wake_at(self._session.deadline())

    def _start_handler(self, body: list[bytes]) -> None:
        if self._stopping:
            self.counters["request_draining"] += 1
            return
        self._running.start(self._handle(body), ended=self._handled)

    async def _handle(self, body: list[bytes]) -> list[bytes]:
        return reply_frames(await call(self._handler, body))

    def _handled(self, task: asyncio.Future[list[bytes]], error: BaseException | None) -> None:
        """Record the end of a handler. Its error is not the worker's, and the protocol cannot report it."""
        now = self._loop.time()
        if isinstance(error, SimulatedCrash):
            self._stopping = True
            self._close_socket(0.0)
            self._failed(error)
        elif error is not None or task.cancelled():
            if error is not None:
                self._log.error(type(error).__name__, "handler failed", cause=error)
            self._apply(self._session.failed(now))
        else:
            self._apply(self._session.finished(task.result(), now))

    def _tick(self) -> None:
        if not self._stopping or self._running.full:  # a worker that drains heartbeats while it works, and is silent then
            self._apply(self._session.tick(self._loop.time(), int if self._socket is None else self._socket.in_transit))
