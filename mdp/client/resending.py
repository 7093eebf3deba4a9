"""Resending after a lost connection: how often, and how the request that makes the broker close it is found.

A broker that closes a connection because of one request closes it for all that are in flight, and gives no reason. So each sending counts
as an attempt, and a request's last attempt is made alone: the next request is sent when that one is answered, or when nothing has happened
for `PROOF_S`. A request whose last attempt ends the connection has failed; requests that were cleared in this way are sent again.

    lost ──► all at once, while attempts are left ──► one at a time ──► after `SINGLES` of them two, four, eight …

Pure.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from core.machine.requests import SETTLED
from mdp.client.calls import PendingRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

PROOF_S: Final = 0.25  # a broker that closes a connection does so when it reads: within a round trip
SINGLES: Final = 8  # requests sent alone before groups grow: a thousand one by one would take minutes
_SPARE: Final = 4  # further sendings of a request that was cleared, because on a slow connection that is no proof

P = TypeVar("P", bound=PendingRequest)


def sendings_max(pending: PendingRequest) -> int:
    """Return how often a request may be sent: once per attempt, but twice if it has only one attempt."""
    return max(2, pending.call.attempts)


def is_spent(pending: PendingRequest, *, cleared: bool) -> bool:
    """Return whether a request whose connection was lost may not be sent again."""
    return pending.sent >= sendings_max(pending) + (_SPARE if cleared else 0)


class Resending(Generic[P]):
    """The requests that are sent for the last time on one connection, and which of them were cleared.

    Attributes:
        allowed: how many of them may be sent before the broker has answered one.
        due: when silence clears them too, `inf` if nothing waits for it.
    """

    __slots__ = ("_cleared", "_rounds", "allowed", "due", "group")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.allowed = 1
        self.group: list[P] = []
        self.due = inf
        self._rounds = 0
        self._cleared: set[P] = set()

    def sent(self, pending: P) -> None:
        self.allowed -= 1
        self.group.append(pending)

    def wait(self, now: float) -> None:
        if self.due == inf:
            self.due = now + PROOF_S

    @property
    def answered(self) -> bool:
        """Whether the broker has answered one of the group."""
        return any(pending.stage == SETTLED for pending in self.group)

    def clear_group(self) -> None:
        """Clear the group: the broker has read it and kept the connection."""
        self._cleared.update(self.group)
        self.group = []
        self.due = inf
        self._rounds += 1
        self.allowed = 1 if self._rounds < SINGLES else 2 ** min(self._rounds - SINGLES + 1, 16)

    @property
    def undecided(self) -> list[P]:
        """A group of several requests: any of them may have ended the connection, so each has another attempt."""
        return self.group if len(self.group) > 1 else []

    def split(self, in_flight: Iterable[P]) -> tuple[list[P], list[P]]:
        """Return the requests that may have ended the connection, the likeliest first, and the cleared ones."""
        suspects: list[P] = []
        innocent: list[P] = []
        for pending in in_flight:
            (innocent if pending in self._cleared else suspects).append(pending)
        suspects.sort(key=lambda pending: pending not in self.group)
        return suspects, innocent
