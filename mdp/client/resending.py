"""How often a request may go out again after its connection was lost, and how the one that makes the broker end it is found.

A broker that ends a connection because of one request does so for all that are in flight on it, and says nothing. So each sending
counts as an attempt, and the last one a request has is made alone: the next request goes out when that one is answered, or nothing
has happened for `PROOF_S`. A request whose last attempt ends the connection has failed; those that had been cleared in this way are
sent again, for it was not their fault.

    lost ──► all at once, as long as further attempts are left ──► one at a time ──► after `SINGLES` of them two, four, eight …

Pure.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mdp.client.calls import SETTLED, PendingRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PROOF_S", "SINGLES", "Resending", "is_spent", "sendings_max"]

PROOF_S: Final = 0.25  # a broker that ends a connection does so on reading: within a round trip
SINGLES: Final = 8  # requests that are sent alone before groups grow: a thousand one by one would take minutes
_SPARE: Final = 4  # sendings beyond its attempts that a request may have that was cleared: on a slow connection that is no proof

P = TypeVar("P", bound=PendingRequest)


def sendings_max(pending: PendingRequest) -> int:
    """Return how often a request may be sent: as often as it has attempts, and once more after a lost connection if it has one."""
    return max(2, pending.call.attempts)


def is_spent(pending: PendingRequest, *, cleared: bool) -> bool:
    """Return whether a request whose connection was lost may not be sent again."""
    return pending.sent >= sendings_max(pending) + (_SPARE if cleared else 0)


class Resending(Generic[P]):
    """What is known of the requests that are sent for the last time on one connection.

    Attributes:
        room: how many of them may be sent before the broker has given a sign.
        group: those sent since its last sign.
        due: when no sign is one too, `inf` while none is waited for.
    """

    __slots__ = ("_cleared", "_signs", "due", "group", "room")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Know nothing: the connection is new."""
        self.room = 1
        self.group: list[P] = []
        self.due = inf
        self._signs = 0
        self._cleared: set[P] = set()

    def took(self, pending: P) -> None:
        """Note that one was sent."""
        self.room -= 1
        self.group.append(pending)

    def wait(self, now: float) -> None:
        """Wait for a sign before more is sent."""
        if self.due == inf:
            self.due = now + PROOF_S

    @property
    def answered(self) -> bool:
        """Whether one of them was answered: so the broker has read it."""
        return any(pending.stage == SETTLED for pending in self.group)

    def sign(self) -> None:
        """The broker has read what was sent, and has not ended the connection."""
        self._cleared.update(self.group)
        self.group = []
        self.due = inf
        self._signs += 1
        self.room = 1 if self._signs < SINGLES else 2 ** min(self._signs - SINGLES + 1, 16)

    @property
    def undecided(self) -> list[P]:
        """Those of which one has ended the connection, where that may be any of several: they have another attempt, and go first."""
        return self.group if len(self.group) > 1 else []

    def sort(self, in_flight: Iterable[P]) -> tuple[list[P], list[P]]:
        """Return those that may have ended the connection, the likeliest first, and those that have not."""
        suspects: list[P] = []
        innocent: list[P] = []
        for pending in in_flight:
            (innocent if pending in self._cleared else suspects).append(pending)
        suspects.sort(key=lambda pending: pending not in self.group)
        return suspects, innocent
