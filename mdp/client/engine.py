"""A client's line to its broker: the shell that drives search, machine and connection in the turns of the event loop.

There is no task in it: connections, timers and callers call in, and everything that is due is done in that turn. What callers
ask for in one turn leaves in one write; the first request of a turn leaves at once.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import get_running_loop
from math import inf
from typing import TYPE_CHECKING, Any

import core
from core.machine.deadlines import TIMER_S_MIN
from core.runtime import supervision
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
    """Connects to a broker, sends, receives and keeps time for one client.

    Args:
        search: which broker to be connected to.
        epoch: of the request numbers, see `numbers_from`.
        limits: bounds.
        context: to make sockets in; None for one of its own.
        socket_options: of the sockets.
        security: of its own context.

    Attributes:
        counters: what happened.
        machine: what decides; another one when the dialect changes.
        now: when this turn began, loop time.
        loop: where it lives, once it is started.
        clock: reads the time.
        closed: after `close`.
        connections: how often a broker was found to talk to.
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
        self.clock: Callable[[], float] = time.monotonic
        self.now = 0.0
        self._submitted = False  # since the broker was last heard or a turn ended
        self._end_scheduled = False  # something waits for the end of this turn
        self.closed = False
        self.connections = 0
        self._context = context
        self._owns_context = context is None
        self._socket_options = socket_options
        self._security = security
        self._reconnector: Reconnector | None = None
        self._transport: Transport | None = None
        self._ticker = supervision.current().timer("mdp client clock", self._tick)
        self._timer_at = inf

    # ------------------------------------------------------------------------------------------------------------ callers

    def start(self) -> asyncio.AbstractEventLoop:
        """Begin to connect, on the running loop; does nothing when begun already.

        Raises:
            ClientClosed: it was closed.
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
        """Look at the clock once a turn; returns whether this is the first since the broker was last heard, to be sent at once.

        What follows it is collected until the turn ends. Nothing is scheduled for the first, so that a caller who asks, waits
        and asks again costs no extra turn of the loop.

        Raises:
            ClientClosed: it was closed.
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
        """Send a request, at once if it is the first of this turn.

        Raises:
            Busy: too many requests wait.
            ClientClosed: the client was closed.
        """
        # Hot path: `begin_iteration` and `flush_all` for the first request of a turn, without the calls.
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
        """Take a request back, unless it is settled."""
        if pending.stage == SETTLED or self.closed:
            return
        if self.loop is not None and not self.loop.is_running():  # whoever ran it cancels what is left, from outside: nobody can be told
            self.machine.cancel(pending, self.now)
            return
        at_once = self.begin_iteration()
        self.machine.cancel(pending, self.now)
        if at_once:
            self.flush_all()

    def flush_all(self) -> None:
        """Send what was submitted in this turn, and see to the timer."""
        if self._transport is not None:
            self._transport.flush()
        if self.machine.deadline() < self._timer_at:
            self._arm()

    def flush(self) -> None:
        """Send what the machine has for the broker."""
        if self._transport is not None:
            self._transport.flush()

    async def close(self) -> None:
        """Fail what is open with `ClientClosed`, close the connection and wait for its end."""
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
        """What the broker has told that it takes."""
        return None if self._transport is None else self._transport.limits

    # ------------------------------------------------------------------------------------------------------ turns and time

    def _end_iteration(self) -> None:
        self._end_scheduled = self._submitted = False
        if not self.closed:
            self.flush_all()

    def _arm(self) -> None:
        """Have the timer fire when the first thing is due; one that fires too early costs less than moving it each time."""
        due = min(self.search.deadline(), self.machine.deadline())
        if due >= self._timer_at or self.loop is None or self.closed:
            return
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
        news = machine.tick(now)
        if isinstance(machine, Requester) and machine.dead:
            self.search.failed(EndReason.SILENT, now)
        self._notify(news)
        self.flush()
        self._reconnector.run_actions()

    @staticmethod
    def _notify(news: Iterable[PendingRequest]) -> None:
        for pending in news:
            pending.notify()

    # --------------------------------------------------------------------------------------------------------- connection

    def _open(self) -> None:
        """Connect in the dialect of the search, with the machine that speaks it."""
        reconnector = self._reconnector
        if reconnector is None:
            return
        dialect, old = self.search.dialect, self.machine
        where = reconnector.context, reconnector.socket_options, self.clock
        callbacks: dict[str, Any] = {"on_joined": self._on_joined, "on_news": self._on_news, "on_lost": self._on_lost}
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
            self.machine.answers_heartbeats = True  # it is one of ours: its silence means something from the first moment
        self._arm()

    def _on_news(self, news: list[Any]) -> None:
        # Hot path: once per batch.
        self._submitted = False
        for pending in news:
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
