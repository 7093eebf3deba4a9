"""The shell of a client: drives search, machine and connections in the iterations of the event loop.

It has no task: connections, timers and callers call it, and each call does everything that is due. The requests of one loop iteration are
sent in one write; the first of them is sent at once.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from math import inf
from typing import TYPE_CHECKING, Any

import core
from core.machine.deadlines import TIMER_S_MIN
from core.runtime import runtime, supervision
from mdp.client.calls import SETTLED, PendingRequest
from mdp.client.connections import LockstepTransport, PipelinedTransport
from mdp.client.pending import ClientClosed, RequesterCounters
from mdp.client.requester import Requester, numbers_from
from mdp.client.requester_01 import LockstepRequester
from mdp.client.timeouts import Timeouts
from mdp.session.broker_search import EndReason
from mdp.session.reconnector import Reconnector, clock_of
from mdp.wire.commands import V03

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from core.security.credentials import Secured
    from core.zmtp.limits import PeerLimits
    from mdp.client.connections import Transport
    from mdp.client.pending import RequesterLimits
    from mdp.session.broker_search import BrokerSearch
    from mdp.session.connection import Connection

__all__ = ["ClientEngine"]


class ClientEngine:
    """Connects to a broker, sends, receives and runs the timer of one client.

    Args:
        search: decides which broker is used.
        epoch: of the request numbers, see `numbers_from`.
        limits: of the client.
        context: of the sockets; the engine has its own when None.
        socket_options: of the sockets.
        security: of the engine's own context.

    Attributes:
        counters: of the client.
        machine: of the dialect; replaced when the dialect changes.
        now: begin of this loop iteration, loop time.
        loop: None before the start.
        clock: reads the time.
        closed: after `close`.
        connections: how many times a broker was connected to.
    """

    def __init__(
        self,
        search: BrokerSearch,
        epoch: int,
        limits: RequesterLimits,
        context: core.Context | None,
        socket_options: Mapping[str, Any],
        security: Secured | None = None,
    ) -> None:
        self.search = search
        self.counters = RequesterCounters()
        self._numbers = numbers_from(epoch)
        self._limits = limits
        self._timeouts: Timeouts[Any] = Timeouts()
        self.machine: Requester[Any] | LockstepRequester[Any] = Requester(self._numbers, limits, self._timeouts, self.counters)
        self.machine.destination = search.endpoints()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.clock: Callable[[], float] = runtime.current().monotonic
        self.now = 0.0
        self._submitted = False  # something, since the last message of the broker or end of an iteration
        self._end_scheduled = False  # `_end_iteration` will be called
        self.closed = False
        self.connections = 0
        self._context = context
        self._owns_context = context is None
        self._socket_options = socket_options
        self._security = security
        self._reconnector: Reconnector | None = None
        self._transport: Transport[Any] | None = None
        self._ticker = supervision.current().timer("mdp client clock", self._tick)
        self._timer_at = inf

    # ------------------------------------------------------------------------------------------------------------ callers

    def start(self) -> asyncio.AbstractEventLoop:
        """Start to connect, on the running loop; does nothing when started already.

        Raises:
            ClientClosed: the client was closed.
        """
        if self.closed:
            raise ClientClosed
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
            self.clock = clock_of(self.loop)
            if self._context is None:
                self._context = core.Context(security=self._security)
            self._reconnector = Reconnector(
                self.search,
                self._context,
                self._socket_options,
                on_open=self._open,
                on_close=self._close_connections,
                on_change=self._arm,
                ending_max=self._limits.connections_max + 8,
                votes=True,
                name="client",
            )
            self.search.start(self.clock())
            self._reconnector.run_actions()
        return self.loop

    def begin_iteration(self) -> bool:
        """Read the clock once per loop iteration; return whether this call is the first, whose request is sent now.

        Later requests are collected until the iteration ends. Nothing is scheduled for the first one, so a caller that sends one request
        after the other costs no extra iteration.

        Raises:
            ClientClosed: the client was closed.
            RuntimeError: called on another loop than the first time.
        """
        if self.closed:
            raise ClientClosed
        if self._end_scheduled:
            return False
        loop = self.loop or self.start()
        if asyncio.get_running_loop() is not loop:
            raise RuntimeError("this client belongs to another event loop; threads use mdp.SyncClient")
        self.now = self.clock()
        if not self._submitted:
            self._submitted = True
            return True
        self._end_scheduled = True
        loop.call_soon(self._end_iteration)
        return False

    def submit(self, pending: PendingRequest) -> None:
        """Send a request; at once if it is the first of this loop iteration.

        Raises:
            Busy: too many requests are waiting.
            ClientClosed: the client was closed.
        """
        # Hot path: `begin_iteration` and `flush_all` inlined for the first request of an iteration.
        machine = self.machine
        if self._submitted or self.loop is None or self.closed or get_running_loop() is not self.loop:
            at_once = self.begin_iteration()
            machine.submit(pending, self.now)
            if at_once:
                self.flush_all()
            return
        self._submitted = True
        self.now = now = self.clock()
        machine.submit(pending, now)
        if self._transport is not None:
            self._transport.flush()
        if machine.deadline() < self._timer_at:
            self._arm()

    def withdraw(self, pending: PendingRequest) -> None:
        """Cancel a request, unless it is settled."""
        if pending.stage == SETTLED or self.closed:
            return
        if self.loop is not None and not self.loop.is_running():  # cancelled from outside, when the loop has ended
            self.machine.cancel(pending, self.now)
            return
        at_once = self.begin_iteration()
        self.machine.cancel(pending, self.now)
        if at_once:
            self.flush_all()

    def flush_all(self) -> None:
        """Send what was submitted, and set the timer."""
        if self._transport is not None:
            self._transport.flush()
        if self.machine.deadline() < self._timer_at:
            self._arm()

    def flush(self) -> None:
        """Send the messages of the machine."""
        if self._transport is not None:
            self._transport.flush()

    async def close(self) -> None:
        """Fail open requests with `ClientClosed`, close the connection and wait for its end."""
        if self.closed:
            return
        self.closed = True
        self._ticker.cancel()
        self.search.close()
        if self._reconnector is None:
            return
        self._notify(self.machine.close(self.clock()))
        self._reconnector.run_actions()
        await self._reconnector.wait_closed()
        if self._owns_context:
            await self._reconnector.context.aclose(0)

    @property
    def limits(self) -> PeerLimits | None:
        """Limits the broker has announced."""
        return None if self._transport is None else self._transport.limits

    # ------------------------------------------------------------------------------------------------------ iterations and time

    def _end_iteration(self) -> None:
        self._end_scheduled = self._submitted = False
        if not self.closed:
            self.flush_all()

    def _arm(self) -> None:
        due = min(self.search.deadline(), self.machine.deadline())
        if due >= self._timer_at or self.loop is None or self.closed:
            return  # a timer that is too early is left, which costs less than moving it each time
        self._timer_at = due
        self._ticker.at(max(due, self.clock() + TIMER_S_MIN))

    def _tick(self) -> None:
        if self._reconnector is None or self.closed:
            return
        self._timer_at = inf
        now = self.clock()
        machine = self.machine
        trouble = self._reconnector.trouble or ("" if self._transport is None else self._transport.trouble)
        machine.destination = self.search.endpoints() + (f" ({trouble})" if trouble else "")
        self.search.tick(now)
        updates = machine.tick(now)
        if isinstance(machine, Requester) and machine.dead:
            self.search.failed(EndReason.SILENT, now)
        self._notify(updates)
        self.flush()
        self._reconnector.run_actions()

    @staticmethod
    def _notify(updates: Iterable[PendingRequest]) -> None:
        for pending in updates:
            pending.notify()

    # --------------------------------------------------------------------------------------------------------- connection

    def _open(self) -> None:
        reconnector = self._reconnector
        if reconnector is None:
            return
        dialect, old = self.search.dialect, self.machine
        where = reconnector.context, reconnector.socket_options, self.clock
        callbacks: dict[str, Any] = {"on_joined": self._on_joined, "on_updates": self._on_updates, "on_lost": self._on_lost}
        kept = self._limits, self._timeouts, self.counters
        if dialect == V03:
            numbered = old if isinstance(old, Requester) else Requester(self._numbers, *kept)
            self.machine, self._transport = numbered, PipelinedTransport(*where, numbered, **callbacks)
        else:
            lockstep = old if isinstance(old, LockstepRequester) else LockstepRequester(dialect, *kept)
            lockstep.dialect = dialect
            self.machine, self._transport = lockstep, LockstepTransport(*where, lockstep, **callbacks)
        if self.machine is not old:
            self.machine.destination = old.destination
            self.machine.restore(old.take_all())
        self.connections += 1
        reconnector.connected()
        self._transport.open(self.search.endpoint)

    def _close_connections(self) -> list[Connection]:
        transport, self._transport = self._transport, None
        return [] if transport is None else transport.close_all()

    def _on_joined(self) -> None:
        self.search.joined(self.clock())
        if self.search.ballot.counter and isinstance(self.machine, Requester):
            self.machine.answers_heartbeats = True  # brokers of a pair do, so silence counts from the start
        self._arm()

    def _on_updates(self, updates: list[Any]) -> None:
        # Hot path: once per batch.
        self._submitted = False
        for pending in updates:
            if pending.caller is not None:
                pending.notify()
        self.search.failures = 0
        if self._transport is not None:
            self._transport.flush()
        if self.machine.refused:
            self._arm()

    def _on_lost(self) -> None:
        if self._reconnector is not None:
            self._reconnector.lost()
