"""Queue as a server: two ROUTER sockets and a timer around the machine of `lru_queue.py`.

The frontend is read message by message, because the machine decides after each whether it wants another one (LRU-02); the backend is
always read.
"""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import TYPE_CHECKING, Any, Final

import core
from core.daemon.logs import RateLimitedLog
from core.machine.value_copies import check_counts, check_not_negative
from core.machine.worker_table import WorkerState
from core.rpc.drained import Drained
from core.rpc.service import Service, sent
from core.runtime import supervision
from core.zmtp.limits import less_by
from pirate.lru_queue import Complaint, QueueLimits, ToClient, ToWorker, WorkerQueue
from pirate.ppp import checked_heartbeat_s

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from core.security.credentials import Secured
    from pirate.lru_queue import Effect

__all__ = ["Queue"]

log = logging.getLogger(__name__)

LINGER_MS: Final = 1000  # time for written replies to leave when the queue closes
TTL_S: Final = 7.5  # a Lazy Pirate with default options has given up by then: 3 attempts of 2.5 s


class Queue(Service):
    """Queue that gives each request to the longest idle worker.

    Args:
        frontend: endpoint for clients.
        backend: endpoint for workers.
        simple: workers are REQ sockets without heartbeats (Simple Pirate); otherwise they speak PPP (Paranoid Pirate).
        heartbeat_ms: between heartbeats, both ways; 10 to 30,000.
        liveness: silent intervals after which a worker gets no requests.
        ttl: seconds a request waits for a worker before it is dropped, at least as long as clients wait. None: 7.5 if paranoid, 0 if
            simple. With 0 requests stay in the sockets and nothing is dropped.
        guide_compatible: a heartbeat of an unknown worker registers it (PPP-10), for workers that do not say READY again.
        waiting_max: waiting requests.
        context: to make the sockets in; None: the queue has its own.
        security: of its own context: `core.Curve` or `core.Plain`.
        socket_options: of both sockets, e.g. CURVE keys.

    Raises:
        ValueError: numbers out of their range.
    """

    def __init__(
        self,
        frontend: str,
        backend: str,
        *,
        simple: bool = False,
        heartbeat_ms: float = 1000,
        liveness: int = 3,
        ttl: float | None = None,
        guide_compatible: bool = False,
        waiting_max: int = 1000,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(context, security, socket_options)
        self._timer = supervision.current().timer("pirate queue clock", self._tick)
        check_counts(liveness=liveness, waiting_max=waiting_max)
        check_not_negative(inf, ttl=ttl)
        if ttl is None and not simple:
            ttl = TTL_S
        self._limits = QueueLimits(
            simple=simple,
            heartbeat_s=checked_heartbeat_s(heartbeat_ms),
            liveness=liveness,
            ttl_s=ttl or None,
            guide_compatible=guide_compatible,
            waiting_max=waiting_max,
        )
        self._binds = (frontend, backend)
        self._reader: asyncio.Task[None] | None = None
        self._log = RateLimitedLog(log)

    async def _start(self) -> None:
        self._machine = WorkerQueue(self._limits, self._loop.time())
        self._wanted = asyncio.Event()
        self._drained = Drained(lambda: not self._machine.unfinished)
        # A message to a worker has the client's address in front and, for a REQ socket, an empty frame.
        self._frontend = self._router(self._binds[0], linger_ms=LINGER_MS, **less_by(2))
        # A worker that restarts with its id takes it over.
        self._backend = self._router(self._binds[1], linger_ms=0, router_handover=1)
        self._frontend.set_receiver(None, on_peer=self._client_changed)
        self._machine.silences.in_transit = self._backend.in_transit
        self._backend.set_receiver(self._receive, on_peer=self._worker_changed)
        self._reader = supervision.current().task("pirate queue frontend", self._read_frontend)
        self._apply([])

    async def _stop(self) -> None:
        if self._reader is not None:
            await supervision.cancel_all([self._reader])

    @property
    def frontend(self) -> str:
        """Endpoint for clients."""
        return self._frontend.last_endpoint

    @property
    def backend(self) -> str:
        """Endpoint for workers."""
        return self._backend.last_endpoint

    @property
    def counters(self) -> Counter[str]:
        """Messages forwarded and dropped, by name."""
        return self._machine.counters

    @property
    def idle(self) -> int:
        """Workers that wait for a request."""
        return self._machine.count(WorkerState.IDLE)

    @property
    def busy(self) -> int:
        """Workers with a request that were heard within `liveness` intervals."""
        return self._machine.count(WorkerState.BUSY)

    @property
    def waiting(self) -> int:
        """Requests in the queue that wait for a worker; without `ttl` they wait in the socket, uncounted."""
        return self._machine.waiting

    async def drain(self, timeout_s: float) -> bool:
        """Read no more requests and wait for outstanding replies; return whether all came in time."""
        self._machine.draining = True
        self._apply([])
        return await self._drained.wait(timeout_s)

    def _router(self, bind: str, *, linger_ms: int, **options: int) -> core.Socket:
        # MANDATORY: an undeliverable message raises instead of being dropped silently (BEY-14).
        return self._bound(core.ROUTER, bind, linger_ms=linger_ms, **{"tell_limits": 1, **options, **self._options, "router_mandatory": 1})

    async def _read_frontend(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                await self._frontend.poll()
                if not self._wanted.is_set():  # the last worker has left meanwhile
                    continue
                frames: list[bytes] = await self._frontend.recv_multipart()
            except core.ZMQError as error:  # the socket is closed: `serve_forever` raises it
                self._failed(error)
                return
            self._apply(self._machine.request(frames, self._loop.time()))

    def _receive(self, batch: list[list[bytes]]) -> None:
        now = self._loop.time()
        for frames in batch:
            self._apply(self._machine.receive(frames, now))

    def _worker_changed(self, name: bytes, joined: bool) -> None:
        # Whether it has gone, or a new connection has its id: its request was given to the old one.
        self._apply(self._machine.worker_gone(name, self._loop.time()))

    def _client_changed(self, name: bytes, joined: bool) -> None:
        if not joined:
            self._machine.client_gone(name)
            self._apply([])

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToWorker(frames):
                    self._to_worker(frames)
                case ToClient(frames):
                    self._send_reply(self._frontend, frames, self.counters)
                case Complaint(peer, reason):
                    self._log.warning("malformed", "malformed message dropped", peer=peer, reason=reason)
        machine = self._machine
        if machine.wants_request:
            self._wanted.set()
        else:
            self._wanted.clear()
        self._drained.look()
        self._wake_at(machine.deadline())

    def _to_worker(self, frames: list[bytes]) -> None:
        try:
            if not sent(self._backend, frames):
                self._apply(self._machine.not_sent(frames, self._loop.time()))
        except core.MessageTooLarge as error:
            self._context.warnings.warning("request_too_large", "request dropped: %s", error)
            self._apply(self._machine.too_large(frames, self._loop.time()))

    def _tick(self) -> None:
        self._apply(self._machine.tick(self._loop.time()))
