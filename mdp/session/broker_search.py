"""The search of a client or worker for a broker: which one, in which dialect, and when to try again.

                        ┌──────────────── waited ────────────────┐
                        ▼                                         │
    start ─────────► PROBING ──dialect known──► JOINING ──up──► UP │
                        │  ▲                        │            │ │
      no answer in time │  └── next of several ◄─────┘            │ │
                        └────────── all were tried ──► WAITING ◄─┴─┘ lost, silent, disconnected

Pure. Brokers are in order of preference: each new search begins with the first, and a broker that cannot be reached in time is followed by
the next (BEY-03). A single broker is not given up; its socket reconnects by itself. Waits grow exponentially with jitter up to a cap
(BEY-05) and are short again after the broker has answered us (`confirmed`). A TCP connection alone does not count, or a broker that
disconnects every worker would be contacted without pause (MDP-18).

What is far is not away: when none of several brokers could be connected to in time, each has twice the time in the next round, until one
has answered us.

Of a Binary Star pair of brokers one serves and the other refuses, with the time after which to retry. When both were asked in vain, the one
that refused is asked first, because the other machine may be gone. If it refuses again and again it hears the other half, which is far and
has more time then, but no more than a fail-over may wait for. Ballots that were seen only grow (BST-33).

Of a broker of several shards a worker connects to the shard of its service (`mdp.wire.shards`). If that cannot be reached in time, the
broker is asked again, and the worker connects to the broker itself, which forwards. After a DISCONNECT of a shard the service may belong to
another one: the broker is asked again after a short wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Final

from bstar.machine.ballot import NO_BALLOT
from core.machine.backoff import backoff_s
from mdp.wire.commands import DIALECTS, V03
from mdp.wire.shards import shard_endpoint, shard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bstar.machine.ballot import Ballot
    from mdp.wire.commands import Dialect


# Rounds in a row in which a passive half refuses that a fail-over may take: one before a vote counts, one while the lease of the other half
# has not ended.
_FAIL_OVER_ROUNDS: Final = 2
# Time of the other half from which it becomes no longer.
_BESIDE_S: Final = 4.0
# Connections in a row after which a DISCONNECT of a shard is like that of any broker.
_DISCONNECTS_MAX: Final = 2


class SearchState(Enum):
    """State of a search."""

    IDLE = auto()  # not started, or closed
    WAITING = auto()  # until `deadline`
    PROBING = auto()  # asking the broker for its dialect
    JOINING = auto()  # waiting for the connection itself
    UP = auto()


class Action(Enum):
    """An action for the shell."""

    PROBE = auto()  # ask the broker at `endpoint` for its dialect, report `reached` and `probed`
    OPEN = auto()  # connect to `endpoint` in `dialect`, report `joined`
    CLOSE = auto()  # close what PROBE or OPEN opened, at once


class EndReason(Enum):
    """Reason for the end of a connection."""

    LOST = auto()  # closed by the peer or the network
    SILENT = auto()  # the broker missed its heartbeats
    DISCONNECTED = auto()  # the broker sent DISCONNECT


@dataclass(slots=True)
class SearchTimes:
    """Waits of a search."""

    reconnect_s: float = 2.5  # first wait after silence or DISCONNECT, as in the guide (MDP-20)
    reconnect_max_s: float = 32.0  # cap of the waits
    away_max_s: float = inf  # another cap, while brokers cannot be reached; not after a DISCONNECT, which says that we are not wanted
    lost_s: float = 0.1  # first wait after a lost connection: long enough to spread many clients (fault B10), too short to be noticed
    join_s: float = 1.0  # how long one of several brokers may take before the next is tried
    join_max_s: float = 10.0  # cap of that time, which doubles while none can be reached: five round trips of two seconds
    shard_s: float = 5.0  # how long a shard may take before the broker itself is used: a shard is started again within seconds

    def __post_init__(self) -> None:
        positive = (self.lost_s, self.reconnect_s, self.away_max_s, self.join_s, self.join_max_s, self.shard_s)
        if not (min(positive) > 0 and self.reconnect_s <= self.reconnect_max_s):
            raise ValueError(f"waits must be positive: {self}")


def chosen_dialect(name: str) -> Dialect | None:
    """Return the dialect of this name, None for "auto"; raises ValueError if there is none."""
    if name == "auto":
        return None
    for dialect in DIALECTS:
        if name == dialect:
            return dialect
    raise ValueError(f"dialect {name!r} is none of auto, {', '.join(DIALECTS)}")


class BrokerSearch:
    """The search for one of several brokers."""

    __slots__ = (
        "_brokers", "_chance", "_due", "_first", "_fixed", "_index", "_joined_at", "_refused_at", "_refused_until", "_actions", "_times",
        "_far", "_forwarded", "_refusals", "_unreached", "_most_s", "ballot", "dialect", "failures", "service", "shards", "state",
    )  # fmt: skip

    def __init__(self, brokers: Sequence[str], dialect: Dialect | None, times: SearchTimes, chance: Callable[[], float]) -> None:
        if not brokers:
            raise ValueError("there must be one broker at least")
        self._brokers = [*brokers]  # endpoints in order of preference, at least one
        self._fixed = dialect  # to use; None to ask the broker each time
        self._times = times  # waits
        self._chance = chance  # returns random numbers of 0 up to 1, for jitter
        self._index = 0
        self._first = 0  # first broker of the present round
        self._joined_at = -inf
        self._refused_at = 0  # the broker of this round that can be asked again first, and when
        self._refused_until = inf
        self._due = inf
        self._actions: list[Action] = []
        self._far = 0  # rounds in which no broker could be reached in time, since the last `confirmed`
        self._refusals = 0  # rounds in a row in which a broker refused and none could be connected to
        self._unreached: list[bool] = []  # brokers of this round that were not reached: whether that took too long
        self._forwarded = False  # the shard of our service could not be reached: connect to the broker next
        self._most_s = times.reconnect_max_s  # cap of the next wait
        self.service = b""  # of a worker, which connects to the shard of its service
        self.shards = 0  # of the present broker, 0 without any
        self.ballot: Ballot = NO_BALLOT
        self.state = SearchState.IDLE  # of the search
        self.dialect: Dialect = dialect or V03  # of the present connection, once it is known
        self.failures = 0  # connections that ended since the last `confirmed`

    @property
    def endpoint(self) -> str:
        return self._brokers[self._index]

    @property
    def target(self) -> str:
        """Endpoint to connect to: the broker's, or that of the shard of our service."""
        if not self.service or not self.shards or self._forwarded:
            return self.endpoint
        return shard_endpoint(self.endpoint, shard_of(self.service, self.shards)) or self.endpoint

    @property
    def slowness(self) -> float:
        """Factor of the usual time that brokers have at present to be connected to, and then to answer."""
        return backoff_s(1.0, self._times.join_max_s / self._times.join_s, self._far)

    @property
    def several(self) -> bool:
        return len(self._brokers) > 1

    def endpoints(self) -> str:
        return ", ".join(self._brokers)

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def start(self, now: float) -> None:
        if self.state is SearchState.IDLE:
            self._index = self._first = 0
            self._try(now)

    def reached(self, reached: bool, now: float) -> None:
        """Note that the broker accepted the connection of the probe, or dropped it."""
        if self.state is SearchState.PROBING:
            self._due = inf if reached else self._join_by(now)

    def probed(self, dialect: Dialect, now: float, shards: int = 0) -> None:
        if self.state is SearchState.PROBING:
            self.shards = shards
            self._actions.append(Action.CLOSE)
            self._open(dialect, now)

    def refused(self, retry_s: float, now: float) -> None:
        """Note that the broker is the passive one of a pair and may serve in `retry_s` seconds."""
        if self.state is not SearchState.PROBING:
            return
        self._actions.append(Action.CLOSE)
        if now + retry_s < self._refused_until:
            self._refused_at, self._refused_until = self._index, now + retry_s
        self._next(now)

    def unreachable(self, now: float) -> None:
        """Note that the endpoint refuses connections; if there are several brokers, the next is tried at once."""
        if self.state in (SearchState.PROBING, SearchState.JOINING) and len(self._brokers) > 1:
            self._actions.append(Action.CLOSE)
            self._is_away()
            self._unreached.append(False)
            self._next(now)

    def stopped_short(self, now: float) -> None:
        """Note that PROBE or OPEN failed in this process, for example for want of sockets; wait, and begin anew."""
        if self.state in (SearchState.PROBING, SearchState.JOINING):
            self._actions.append(Action.CLOSE)
            self._is_away()
            self._index = self._first = 0
            self._wait(self._times.reconnect_s, now)

    def joined(self, now: float) -> None:
        if self.state is SearchState.JOINING:
            self._joined_at = now
            self._refused_until = inf
            self._refusals = 0
            self._unreached.clear()
            self.state = SearchState.UP
            self._due = inf

    def confirmed(self) -> None:
        """Note that the broker has answered us: the next waits are short again."""
        self.failures = 0

    def failed(self, reason: EndReason, now: float) -> None:
        """Note that the connection ended; while joining, the socket reconnects by itself."""
        if self.state is not SearchState.UP:
            return
        self._actions.append(Action.CLOSE)
        at_shard = self.target != self.endpoint
        self._forwarded = False
        self._is_away()
        if reason is EndReason.DISCONNECTED:
            self._most_s = self._times.reconnect_max_s
        if reason is EndReason.LOST and (now - self._joined_at >= self._times.join_s or len(self._brokers) == 1):
            self._index = self._first = 0
            self._wait(self._times.lost_s, now)
        elif reason is EndReason.DISCONNECTED and at_shard and self.failures <= _DISCONNECTS_MAX:
            self._wait(self._times.lost_s, now)  # the service may belong to another shard now: ask the same broker again soon
        else:
            # A broker that closes a new connection is treated like one that does not answer: a passive broker does this.
            if self.ballot != NO_BALLOT:
                self._first = self._index  # try the other broker of the pair at once
            self._next(now)

    def close(self) -> None:
        if self.state in (SearchState.PROBING, SearchState.JOINING, SearchState.UP):
            self._actions.append(Action.CLOSE)
        self.state = SearchState.IDLE
        self._due = inf

    def tick(self, now: float) -> None:
        """Continue after a wait; give up a broker that cannot be reached."""
        if now < self._due:
            return
        if self.state is SearchState.WAITING:
            self._try(now)
        elif self.state in (SearchState.PROBING, SearchState.JOINING):
            self._actions.append(Action.CLOSE)
            self._is_away()
            if self.state is SearchState.JOINING and self.target != self.endpoint:
                self._forwarded = True
                self._try(now)
            else:
                self._unreached.append(True)
                self._next(now)

    def deadline(self) -> float:
        return self._due

    def _is_away(self) -> None:
        if not self.failures:
            self._far = 0
        self.failures += 1
        self._most_s = min(self._times.away_max_s, self._times.reconnect_max_s)

    def _next(self, now: float) -> None:
        """Try the next broker at once; wait after the last one."""
        self._index = (self._index + 1) % len(self._brokers)
        if self._index != self._first:
            self._try(now)
            return
        self._refusals = self._refusals + 1 if self._refused_until < inf else 0
        if any(self._unreached):
            most_s = min(_BESIDE_S, self._times.away_max_s)
            hears_other = self._refusals > _FAIL_OVER_ROUNDS and self._times.join_s * self.slowness < most_s
            self._far += hears_other or len(self._unreached) >= len(self._brokers)
        self._unreached.clear()
        if self._refused_until < inf:
            self._index = self._first = self._refused_at
            # Clients that were refused together retry spread over the time of a first wait after a lost connection.
            self.state, self._due = SearchState.WAITING, max(now, self._refused_until) + self._times.lost_s * self._chance()
            self._refused_until = inf
        else:
            self._index = self._first = 0
            # In a pair the other broker takes over quickly, so use the short (still growing) wait.
            self._wait(self._times.lost_s if self.ballot != NO_BALLOT else self._times.reconnect_s, now)

    def _wait(self, first_s: float, now: float) -> None:
        doublings = (self.failures - 1) // len(self._brokers)
        self.state = SearchState.WAITING
        # Half of the wait is random, so that clients that lost their connections together do not return together.
        self._due = now + backoff_s(first_s, self._most_s, doublings, 0.5, self._chance())

    def _try(self, now: float) -> None:
        if self._fixed is not None:
            self._open(self._fixed, now)
            return
        self.state = SearchState.PROBING
        self._due = self._join_by(now)
        self._actions.append(Action.PROBE)

    def _join_by(self, now: float) -> float:
        return now + self._times.join_s * self.slowness if len(self._brokers) > 1 else inf

    def _open(self, dialect: Dialect, now: float) -> None:
        self.dialect = dialect
        self.state = SearchState.JOINING
        if self.target != self.endpoint:
            self._due = now + self._times.shard_s
        else:
            self._due = self._join_by(now)
        self._actions.append(Action.OPEN)
