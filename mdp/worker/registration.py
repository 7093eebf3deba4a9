"""A worker's registration at a broker: the shell of one `WorkerSession`, with its connection and its timer.

In MDP/0.3 a worker has one registration with many requests in flight; in MDP/0.1 and 0.2 each registration has one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from math import inf
from typing import TYPE_CHECKING, Any

from core.machine.deadlines import TIMER_S_MIN
from core.runtime import supervision
from core.runtime.event_loop import clock_of
from core.runtime.forks import process_id
from mdp.session.broker_search import SearchState
from mdp.session.connection import Connection
from mdp.session.reconnector import Reconnector
from mdp.wire.commands import V03
from mdp.worker.replies.progress_reports import ProgressReports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import core
    from core.zmtp.scan import Batch
    from mdp.request import Request
    from mdp.session.shared_connection import Channel, ConnectionCalls, SharedConnections
    from mdp.worker.session import WorkerSession

log = logging.getLogger("mdp.worker")

# How long DISCONNECT and the last answers may take to be sent.
LINGER_MS = 1000
# Exit code of a process that a handler forked and that returned to the event loop: "internal software error".
_FORKED_EXIT = 70


class WorkerRegistration:
    """The connection and the timer of one session, for which it sends and receives.

    Args:
        on_recalled: called with requests to return if no handler was called for them.
        why_stuck: returns why the worker makes no progress, empty while it does.
        shared: connections that other workers use too (MDP/0.3); None for one of its own.
    """

    def __init__(
        self,
        session: WorkerSession,
        context: core.Context,
        socket_options: Mapping[str, Any],
        *,
        on_requests: Callable[[list[Request]], None],
        on_unwanted: Callable[[list[Request]], None],
        on_recalled: Callable[[list[Request]], None],
        on_joined: Callable[[WorkerRegistration], None],
        is_stuck: Callable[[], bool],
        why_stuck: Callable[[], str],
        shared: SharedConnections | None = None,
    ) -> None:
        self.session = session
        self._on_requests = on_requests
        self._on_unwanted = on_unwanted
        self._on_recalled = on_recalled
        self._on_joined = on_joined
        self._is_stuck = is_stuck
        self._why_stuck = why_stuck
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._pid = process_id()
        self._shared = shared
        self._connection: Connection | Channel | None = None
        self._ticker = supervision.current().timer("mdp worker clock", self._tick)
        self._due = inf  # what the timer is set for
        session.reports = self._reports = ProgressReports(session, self.flush)
        self._silent = False
        self._reconnector = Reconnector(
            session.search,
            context,
            socket_options,
            on_open=self._open,
            on_close=self._close_connections,
            on_change=self._arm,
            name=session.service.decode(),
            lines=None if shared is None else shared.lines,
        )

    @property
    def registered(self) -> bool:
        return self.session.search.state is SearchState.UP

    @property
    def awaits_recall(self) -> bool:
        """Whether the broker, which knows that the worker drains, has not recalled all that was not begun."""
        session = self.session
        return session.draining and session.takes_options and not session.suppress_heartbeats and session.in_flight > 0

    def start(self) -> None:
        self.session.search.start(self._clock())
        self._reconnector.run_actions()

    def flush(self, *, closing: bool = False) -> Awaitable[None] | None:
        """Send the session's messages; return an awaitable of capacity, None when there was nothing to send."""
        session, connection = self.session, self._connection
        if not session.outgoing or connection is None:
            return None
        if self._silent:
            session.outgoing.clear()
            return None
        if process_id() != self._pid:
            self._leave_fork()
        if session.draining and not closing and not self.registered:
            self._reconnector.run_actions_soon()  # which sends the last messages, and lets them leave
            return None
        return connection.send(session.take_outgoing(self._clock()))

    def give_back(self) -> None:
        """Leave the broker with requests unanswered and register again; see `WorkerSession.give_back`."""
        self.session.give_back(self._clock())
        self._after()
        self._reconnector.run_actions_soon()

    def drain(self) -> None:
        """Accept no new requests, and register no more."""
        self.session.drain()
        self._after()
        self.flush()
        self._reconnector.run_actions()

    def leave(self) -> None:
        self._ticker.cancel()
        self._reports.close()
        self.session.close()
        self._reconnector.run_actions()
        self._after()

    def leave_soon(self) -> None:
        """Leave in the next loop iteration: this may be a call of the connection."""
        self._loop.call_soon(self.leave)

    def vanish(self, *, silent: bool) -> None:
        """End without a word to the broker; `silent`: it does not see the connection end either."""
        self._silent = True
        self._ticker.cancel()
        self._reports.close()
        if not silent:
            self._abandon()
            self.session.close()
            self._reconnector.run_actions()

    async def wait_closed(self) -> None:
        await self._reconnector.wait_closed()

    # ---------------------------------------------------------------------------------------------------------- connection

    def _open(self) -> None:
        reconnector, search = self._reconnector, self.session.search
        place = reconnector.context, search.target, reconnector.socket_options
        calls: ConnectionCalls = {
            "on_joined": self._joined,
            "on_batch": self._received,
            "on_lost": self._lost,
            "on_refused": self._not_reached,
        }
        if self._shared is None or search.dialect != V03:
            self._connection = Connection(*place, **calls)
        else:
            self._connection = self._shared.open(*place, **calls, on_stray=self._count_stray)

    def _close_connections(self) -> list[Connection | Channel]:
        # A last DISCONNECT is sent before closing; nothing is sent after a DISCONNECT of the broker (MDP-17).
        has_last_messages = bool(self.session.outgoing) and not self._silent
        self.flush(closing=True)
        connection, self._connection = self._connection, None
        if connection is None:
            return []
        connection.close(LINGER_MS if has_last_messages else 0)
        return [connection]

    def _joined(self) -> None:
        connection = self._connection
        if connection is not None:
            self.session.joined(self._clock(), connection.limits, takes_options=connection.takes_channels)
        if not self.registered:
            return  # it drains since
        self.flush()
        self._arm()
        search = self.session.search
        log.info("%s: registered at %s, MDP/%s", self.session.service.decode(), search.target, search.dialect)
        self._reconnector.connected()
        self._on_joined(self)

    def _not_reached(self) -> None:
        if self._connection is not None and not self.registered:
            self._reconnector.log_unreachable(self._connection.trouble, refused=self._connection.refused)

    def _received(self, batch: Batch) -> None:
        # Hot path: once per batch.
        if self._silent:
            return
        session = self.session
        new = session.receive(batch, self._clock())
        if new:
            self._on_requests(new)
        if session.search.state is not SearchState.UP:
            log.warning("%s: disconnected by %s", session.service.decode(), session.search.target)
            self._reconnector.run_actions_soon()
        if session.unwanted or session.recalled:
            self._after()
        if session.outgoing:
            self.flush()

    def _count_stray(self, count: int) -> None:
        self.session.counters.stray += count

    def _lost(self) -> None:
        if self._silent:
            return
        log.warning("%s: connection to %s lost", self.session.service.decode(), self.session.search.target)
        self.session.lost(self._clock())
        self._reconnector.lost()
        self._after()

    def _after(self) -> None:
        session = self.session
        if session.unwanted:
            self._on_unwanted(session.take_unwanted())
        if session.recalled:
            self._on_recalled(session.take_recalled())

    def _abandon(self) -> None:
        if self._connection is not None:
            self._connection.abandon()

    def _leave_fork(self) -> None:
        """End a forked copy of this process: two processes would corrupt the connection, and clean-up would close it for both."""
        log.critical(
            "%s: a handler forked and the child process %d returned to the event loop; it ends here. "
            "Use multiprocessing with the spawn method, or end the child with os._exit",
            self.session.service.decode(),
            os.getpid(),
        )
        os._exit(_FORKED_EXIT)

    # ---------------------------------------------------------------------------------------------------------------- time

    def _arm(self) -> None:
        self._due = self.session.deadline()
        if self._due < inf and not self._silent:
            self._ticker.at(max(self._due, self._clock() + TIMER_S_MIN))

    def _tick(self) -> None:
        session, now = self.session, self._clock()
        was_registered = self.registered
        session.suppress_heartbeats = self._is_stuck()
        why = self._why_stuck()
        if why and not session.stuck:
            log.warning("%s: stuck: %s", session.service.decode(), why)
        session.stuck = bool(why)
        session.tick(now, self._due, int if self._connection is None else self._connection.in_transit)
        if was_registered and not self.registered:
            log.warning("%s: %s is silent", session.service.decode(), session.search.target)
            if self._connection is not None:
                self._connection.silent()
        self._after()
        self.flush()
        self._reconnector.run_actions()
