"""Ballots, how far they may rise, and the lease that makes one of them the only one.

Source: rules BST-26 to BST-33 and BEY-12 of `specs/bstar.md`.

A ballot is a pair (counter, node id), ordered first by counter. Two nodes never draw the same one because their ids differ; one
node never draws the same one twice because it writes the counter to disk before it uses it. An order without the node id is not
enough: a state message from before a crash makes both servers count on from the same number.

A lease is a promise of the witness: *until then nobody else gets one*. The two ends count it by their own clocks, so the holder
counts from the moment it **sent** its question, and a little less than was promised; the witness counts from the moment it
answered. However long the answer took, the holder stops first.

Pure: `now` in monotonic seconds. The shells do the disk (`bstar/net/ballot_file.py`) and the wire.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

__all__ = [
    "CLAIMS_PER_S_MAX",
    "CLIENT_JUMP_MAX",
    "COUNTER_MAX",
    "LEASE_MARGIN",
    "MEMBER_JUMP_MAX",
    "NO_BALLOT",
    "WITNESS_JUMP_MAX",
    "Answer",
    "Ballot",
    "Ceiling",
    "HighestBallot",
    "LeaseTable",
    "RecordRole",
    "Record",
    "lease_expiry",
    "next_counter",
]

# A counter that grew once a millisecond would need 8,900 years to get here; above it the number is somebody's invention.
COUNTER_MAX: Final = (1 << 48) - 1

# Two quartz clocks drift apart by 0.02 %, a badly slewed one by 0.05 %. Forty times that is still only 40 ms of 2 s.
LEASE_MARGIN: Final = 0.02

# How far above what we know a ballot may be that a voter has seen. It only numbers the ballot of that vote; a billion lies exhaust nothing.
CLIENT_JUMP_MAX: Final = 1 << 16

# What somebody who knows nothing yet may be told at once: a pair that claims every second for a century comes to 2^32. Members take more
# than the witness does: whatever that one was made to grant, both servers can still draw a higher ballot.
WITNESS_JUMP_MAX: Final = 1 << 32
MEMBER_JUMP_MAX: Final = 1 << 40
# Beyond that, counters rise with time only. No pair is faster: a claim takes a write to disk.
CLAIMS_PER_S_MAX: Final = 1000


class Ballot(NamedTuple):
    """The right to serve, comparable: the higher counter wins, the node id decides between equals."""

    counter: int
    node: int

    def __str__(self) -> str:
        return f"{self.counter}.{self.node:016x}" if self.counter else "none"


NO_BALLOT: Final = Ballot(0, 0)


def next_counter(*known: int) -> int:
    """Return the counter of a new ballot: one above everything known."""
    return max(known) + 1


class Ceiling(NamedTuple):
    """How high a counter may be that others tell us: one that is above is an error or a lie, and is not taken over.

    Without it one message with the highest counter there is would leave no ballot for anybody. It rises with time, so that many messages
    reach no further than one: 2^48 takes 8,900 years.

    Attributes:
        base: counter known when we started.
        jump: what it may be above that at once.
        since: when we started, monotonic seconds.
    """

    base: int
    jump: int
    since: float

    def at(self, now: float) -> int:
        """Return the highest counter that may be believed."""
        return min(COUNTER_MAX, self.base + self.jump + int(max(0.0, now - self.since) * CLAIMS_PER_S_MAX))


class HighestBallot:
    """What a client keeps so that a deposed master cannot answer it.

    Attributes:
        seen: the highest ballot an accepted reply carried; sent along with each request.
        dropped: replies refused because their ballot was lower.
    """

    __slots__ = ("dropped", "seen")

    def __init__(self) -> None:
        self.seen = NO_BALLOT
        self.dropped = 0

    def accept(self, ballot: Ballot, *, vouched: bool = False) -> bool:
        """Return whether a reply under this ballot may be believed, and remember the ballot if so.

        Args:
            ballot: of the reply.
            vouched: its server was told what we have seen, and has since heard that nobody serves under that any more.
        """
        if ballot < self.seen and not vouched:
            self.dropped += 1
            return False
        self.seen = ballot
        return True


# --- what survives a crash; its octets are in `ballot_slots.py` -----------------------------------------------------------------


class RecordRole(IntEnum):
    """Who writes the file: a witness started on the file of a server would forget the server's ballots."""

    SERVER = 1
    WITNESS = 2


class Record(NamedTuple):
    """What survives a crash."""

    owner: RecordRole
    node: int
    incarnation: int
    counter: int


# --- the lease ----------------------------------------------------------------------------------------------------------------


def lease_expiry(asked_at: float, lease_s: float) -> float:
    """Return until when the asker may count on a lease, by its own clock.

    Args:
        asked_at: when the question was sent, not when the answer came.
        lease_s: seconds the witness granted.
    """
    return asked_at + lease_s * (1.0 - LEASE_MARGIN)


class Answer(NamedTuple):
    """What the witness says.

    Attributes:
        granted: the asker has the lease for `wait_s` from now.
        ballot: the holder's, after this answer.
        highest: highest ballot ever granted; an asker below it has to draw a new one.
        wait_s: granted: length of the lease; refused: seconds after which asking again can succeed.
    """

    granted: bool
    ballot: Ballot
    highest: Ballot
    wait_s: float


class LeaseTable(NamedTuple):
    """The witness's whole state: who has the lease, until when, and the highest ballot it ever granted.

    A witness that was restarted has forgotten who held the lease. Until every lease it may have granted has run out
    (`closed_until`) it grants nothing new. It does renew a lease whose holder says it still has it: that one is the only one
    there can be. During that time the *same node* gets no new ballot either, because what it calls its lease may be a question
    that was old when it arrived.
    """

    holder: Ballot = NO_BALLOT
    until: float = 0.0
    highest: Ballot = NO_BALLOT
    closed_until: float = 0.0

    def ask(self, ballot: Ballot, *, holding: bool, lease_s: float, now: float) -> tuple[LeaseTable, Answer]:
        """Answer a server that wants, or wants to keep, the lease.

        Args:
            ballot: under which it wants to serve.
            holding: it has a lease for this ballot that had not run out when it asked.
            lease_s: how long it wants it for.
            now: monotonic seconds.
        """
        free = now >= self.until
        if ballot < self.highest:
            wait_s = 0.0  # waiting does not help: a higher ballot does
        elif now < self.closed_until and not holding:
            wait_s = self.closed_until - now
        elif not free and ballot.node != self.holder.node:
            wait_s = self.until - now
        else:
            book = self._replace(holder=ballot, until=now + lease_s, highest=ballot)
            return book, Answer(True, ballot, ballot, lease_s)
        holder = NO_BALLOT if free else self.holder
        return self, Answer(False, holder, self.highest, wait_s)

    def release(self, ballot: Ballot, now: float) -> LeaseTable:
        """Take the lease back from a server that has stopped serving; a release that is not the holder's changes nothing."""
        return self._replace(until=now) if ballot == self.holder else self
