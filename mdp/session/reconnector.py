"""Carries out the actions of a `BrokerSearch`: probes, opens, closes; for clients and workers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import KW_ONLY, dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

from core.daemon.logs import RateLimitedLog
from core.errors import ZMQError
from core.rpc.connect_times import REFUSED_IVL_MS
from core.runtime.event_loop import clock_of
from core.security.credentials import Curve
from mdp.session.broker_search import Action, BrokerSearch, EndReason, SearchState
from mdp.session.connection import LOG_INTERVAL_S
from mdp.session.probe import Probe
from mdp.wire.shards import shard_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import core
    from bstar.machine.ballot import Ballot
    from mdp.session.connection import Connection
    from mdp.session.shared_connection import Channel
    from mdp.wire.commands import Dialect

# A client logs it only after this time, as the broker may be starting together with it, or at once if it was refused.
LOG_AFTER_S: Final = 1.0
# Reconnect interval of a socket of `core`.
RECONNECT_MS: Final = 100


@dataclass(eq=False, repr=False)  # socket options may hold keys
class Reconnector:
    """Connects to the broker that its search chooses, on the running loop."""

    search: BrokerSearch
    context: core.Context  # makes the sockets
    socket_options: Mapping[str, Any]
    _: KW_ONLY
    on_open: Callable[[], None]  # called to connect to `search.endpoint` in `search.dialect`
    on_close: Callable[[], Iterable[Connection | Channel]]  # called to close what was opened; returns the connections it closed
    on_change: Callable[[], None]  # called when the search's deadline may have changed
    ending_max: int = 8  # connections that may be closing at the same time
    votes: bool = False  # we are a client; see `Probe`
    name: str = ""  # of the client or worker, for the log; empty for no log
    lines: RateLimitedLog | None = None  # of workers that share connections, so that one of them says that a broker cannot be reached

    def __post_init__(self) -> None:
        self._log = logging.getLogger("mdp.client" if self.votes else "mdp.worker")
        self._lines = RateLimitedLog(self._log, LOG_INTERVAL_S) if self.lines is None else self.lines
        self._away_since: float | None = None
        self._up = self._was_up = self._began = False
        self._refusal = ""  # why the broker that accepted the last probe does not serve
        self._loop = asyncio.get_running_loop()
        self._clock = clock_of(self._loop)
        self._probe: Probe | None = None
        # The last connections that were closed; earlier ones have ended.
        self._ending: deque[Connection | Channel] = deque(maxlen=self.ending_max)

    @property
    def trouble(self) -> str:
        """Why the probe cannot connect, for people; empty when unknown."""
        trouble = "" if self._probe is None else self._probe.connection.trouble
        return trouble or self._refusal

    def run_actions(self) -> None:
        """Carry out what the search wants; after an error of a socket it waits and begins anew.

        Raises:
            core.ZMQError: a socket could not be made at the first time, which is the start of a client or worker; the search is idle again.
        """
        while actions := self.search.take_actions():
            for action in actions:
                if action is Action.CLOSE:
                    self._close()
                    continue
                try:
                    self._connect(action)
                except ZMQError as error:
                    if not self._began:
                        self.search.close()
                        self._close()
                        self.search.take_actions()
                        raise
                    self.search.stopped_short(self._clock())
                    self.log_unreachable(str(error), refused=True)
        self._began = True
        self.on_change()

    def _connect(self, action: Action) -> None:
        if action is Action.OPEN:
            self.on_open()
            return
        self._probe = Probe(
            self.context,
            self.search.endpoint,
            self.socket_options,
            on_reached=self._reached,
            on_dialect=self._probed,
            on_refused=self._refused,
            on_unreachable=self._unreachable,
            seen=self.search.ballot,
            votes=self.votes,
            slowness=self.search.slowness,
        )

    def _close(self) -> None:
        if self._up:
            self._up, self._away_since = False, self._clock()
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.close()
            self._ending.append(probe.connection)
        self._ending.extend(self.on_close())

    def run_actions_soon(self) -> None:
        """Carry them out in the next loop iteration: a socket must not be closed from its own callback."""
        self._loop.call_soon(self.run_actions)

    def connected(self) -> None:
        if self.name and self._away_since is not None:
            again = "again " if self._was_up else ""
            self._log.info("%s: connected %safter %.1f s, to %s", self.name, again, self._clock() - self._away_since, self.search.target)
        self._away_since = None
        self._up = self._was_up = True

    def log_unreachable(self, trouble: str, *, refused: bool = False) -> None:
        if not self.name:
            return
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if self.votes and not refused and now - self._away_since < LOG_AFTER_S:
            return
        due = self.search.deadline()
        option, usual = ("refused_ivl", REFUSED_IVL_MS) if refused else ("reconnect_ivl", RECONNECT_MS)
        next_s = due - now if due < inf else self.socket_options.get(option, usual) / 1000
        place = self.search.target if self.search.state is SearchState.JOINING else self.search.endpoint
        text = "%s: cannot reach the broker at %s: %s; next try in %.1f s"
        self._lines.warning(place, text, self.name, place, trouble or "reason unknown", max(0.0, next_s))

    def lost(self) -> None:
        self.search.failed(EndReason.LOST, self._clock())
        self.run_actions_soon()

    async def wait_closed(self) -> None:
        for connection in self._ending:
            await connection.wait_closed()

    def _reached(self, reached: bool) -> None:
        self.search.reached(reached, self._clock())
        self.on_change()

    def _probed(self, dialect: Dialect, ballot: Ballot, shards: int) -> None:
        if self.search.ballot.counter and not ballot.counter and self.search.several:
            # Both brokers of a pair speak MDP/0.3: this one did not answer, and is no older broker.
            self._unreachable()
            return
        self._refusal = ""
        security = self.context.security
        if shards and isinstance(security, Curve):
            for number in range(shards):
                place = shard_endpoint(self.search.endpoint, number)
                if place is not None:
                    security.expect_same(place, self.search.endpoint)
        self.search.ballot = ballot if ballot.counter else self.search.ballot  # lower than before only when the broker has checked it
        self.search.probed(dialect, self._clock(), shards)
        self.run_actions()

    def _refused(self, retry_s: float, why: str) -> None:
        self._refusal = why
        self.search.refused(retry_s, self._clock())
        self.run_actions()

    def _unreachable(self) -> None:
        self.log_unreachable(self.trouble, refused=self._probe is not None and self._probe.connection.refused)
        self.search.unreachable(self._clock())
        self.run_actions_soon()
