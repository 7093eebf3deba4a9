"""Ballots, their plausible range, and the lease that makes one of them unique.

Source: rules BST-26 to BST-33 and BEY-12 of `specs/bstar.md`.

A ballot is a pair (counter, node id), ordered first by counter. Two nodes never draw the same ballot because their ids differ; one node
never draws the same one twice because it writes the counter to disk before use. The counter alone is not enough: after a crash a state
message may make both servers continue from the same number.

A lease is a promise of the witness that no other server gets one until it ends. Both ends measure it by their own clocks, so the holder
counts from the moment it **sent** its question, and a little less than was promised; the witness counts from the moment it answered.
However long the answer took, the holder stops first.

Pure: `now` in monotonic seconds. The shells do the disk (`bstar/net/ballot_file.py`) and the wire.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

# A counter that grows every millisecond takes 8,900 years to get here; higher ones are errors or lies.
COUNTER_MAX: Final = (1 << 48) - 1

# Two quartz clocks drift apart by 0.02 %, a badly slewed one by 0.05 %. Forty times that is still only 40 ms of 2 s.
LEASE_MARGIN: Final = 0.02

# Maximum step to a ballot a voter has seen. It only numbers the ballot of that vote, so many lies exhaust nothing.
CLIENT_JUMP_MAX: Final = 1 << 16

# Maximum step for a node that knows nothing yet: a pair that claims every second for a century reaches 2^32. Members accept more than the
# witness, so that both servers can always draw a higher ballot than it was made to grant.
WITNESS_JUMP_MAX: Final = 1 << 32
MEMBER_JUMP_MAX: Final = 1 << 40
# Further growth of the limit; no pair is faster, since a claim takes a write to disk.
CLAIMS_PER_S_MAX: Final = 1000


class Ballot(NamedTuple):
    """Right to serve: the higher counter wins, the node id decides between equals."""

    counter: int
    node: int

    def __str__(self) -> str:
        return f"{self.counter}.{self.node:016x}" if self.counter else "none"


NO_BALLOT: Final = Ballot(0, 0)


def next_counter(*known: int) -> int:
    return max(known) + 1


class Ceiling(NamedTuple):
    """Highest plausible counter in a message; a higher one is ignored as an error or a lie.

    Without it one message with the maximum counter would use up all ballots. It rises with time, so that many messages reach no further
    than one: 2^48 takes 8,900 years.
    """

    base: int  # counter known at the start
    jump: int  # step allowed at once
    since: float  # time of the start, monotonic seconds

    def at(self, now: float) -> int:
        return min(COUNTER_MAX, self.base + self.jump + int(max(0.0, now - self.since) * CLAIMS_PER_S_MAX))


class HighestBallot:
    """Filter of a client against replies of a deposed master."""

    __slots__ = ("dropped", "seen")

    def __init__(self) -> None:
        self.seen = NO_BALLOT  # highest ballot of an accepted reply; sent along with each request
        self.dropped = 0  # replies refused because their ballot was lower

    def accept(self, ballot: Ballot, *, vouched: bool = False) -> bool:
        """Return whether to accept a reply under this ballot, and remember the ballot if so.

        A lower ballot is accepted if it is `vouched`: its server has confirmed that no server is active under the one we have seen.
        """
        if ballot < self.seen and not vouched:
            self.dropped += 1
            return False
        self.seen = ballot
        return True


# --- what survives a crash; the format is in `ballot_slots.py` -----------------------------------------------------------------


class RecordRole(IntEnum):
    """Owner of a ballot file; a witness must not use the file of a server."""

    SERVER = 1
    WITNESS = 2


class Record(NamedTuple):
    """Contents of a ballot file."""

    owner: RecordRole
    node: int
    incarnation: int
    counter: int


# --- the lease ----------------------------------------------------------------------------------------------------------------


def lease_expiry(asked_at: float, lease_s: float) -> float:
    """Return the time until which the holder may rely on a lease; `asked_at` is when the question was sent."""
    return asked_at + lease_s * (1.0 - LEASE_MARGIN)


class Answer(NamedTuple):
    """Answer of the witness."""

    granted: bool  # the server has the lease for `wait_s` from now
    ballot: Ballot  # the holder's, after this answer
    highest: Ballot  # highest ballot ever granted; a lower one must be replaced by a new one
    wait_s: float  # granted: length of the lease; refused: seconds after which another question may succeed


class LeaseTable(NamedTuple):
    """State of the witness: holder and end of the lease, and the highest ballot ever granted.

    A restarted witness does not know the holder. Until every lease it may have granted has ended (`closed_until`) it grants nothing new. It
    renews a lease whose holder says it still has it: there can be only one. During that time the *same node* gets no new ballot either,
    because its claim to hold the lease may come from a delayed question.
    """

    holder: Ballot = NO_BALLOT
    until: float = 0.0
    highest: Ballot = NO_BALLOT
    closed_until: float = 0.0

    def ask(self, ballot: Ballot, *, holding: bool, lease_s: float, now: float) -> tuple[LeaseTable, Answer]:
        """Answer a server that asks for the lease; `holding`: it had an unexpired lease for this ballot when it asked."""
        free = now >= self.until
        if ballot < self.highest:
            wait_s = 0.0  # waiting does not help: a higher ballot does
        elif now < self.closed_until and not holding:
            wait_s = self.closed_until - now
        elif not free and ballot.node != self.holder.node:
            wait_s = self.until - now
        else:
            table = self._replace(holder=ballot, until=now + lease_s, highest=ballot)
            return table, Answer(True, ballot, ballot, lease_s)
        holder = NO_BALLOT if free else self.holder
        return self, Answer(False, holder, self.highest, wait_s)

    def release(self, ballot: Ballot, now: float) -> LeaseTable:
        """End the lease of a server that has stopped serving; a release by another server changes nothing."""
        return self._replace(until=now) if ballot == self.holder else self
