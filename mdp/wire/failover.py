"""Messages between clients and the brokers of a Binary Star pair. Pure.

They are bodies of MMI requests and replies, so every dialect has them; ballots are text, `7.00000000000000ab`: counter and node id.

    mmi.protocol [dialect]      active: 200 [ballot]        passive: 300 [highest ballot known, or ""] [ms after which to retry]
    mmi.pair     [ballot or ""] a client wants to be served, and was last served under this ballot. At the passive broker this is a vote.
                                An active broker with a lower ballot asks its peer and the witness, and answers 300 until it knows that
                                no broker serves under the client's ballot. Answered as `mmi.protocol`.

A ballot belongs to a connection, because a broker that stops being active closes all of them. So a client checks the ballot when it
connects, and replies carry none.

The ballot of a client is a claim and no proof (BST-45): it makes a broker ask, and decides nothing. 200 with a lower ballot than the
client's means that the higher one is gone, and the client forgets it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from bstar.machine.ballot import COUNTER_MAX, NO_BALLOT, Ballot
from core.machine.peer_text import decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PAIR_SERVICE: Final = b"mmi.pair"

_OK, _ELSEWHERE, _MALFORMED = b"200", b"300", b"400"
_BALLOT: Final = re.compile(rb"([1-9][0-9]{0,14})\.([0-9a-f]{16})")
# Limits of the retry time of a peer: no shorter than news between the brokers takes, no longer than the longest fail-over (BST-15).
RETRY_S_MIN: Final = 0.02
RETRY_S_MAX: Final = 60.0
RETRY_S_USUAL: Final = 0.25  # when a broker gives none
_RETRY_DIGITS: Final = 5


class Membership(NamedTuple):
    """The role of a broker in its pair."""

    active: bool
    ballot: Ballot = NO_BALLOT  # under which it serves; of a passive one the highest it knows
    retry_s: float = 0.0  # of a passive one: seconds after which to retry


def ballot_text(ballot: Ballot) -> bytes:
    """Return the frame of a ballot, empty for `NO_BALLOT`."""
    return b"%d.%016x" % ballot if ballot.counter else b""


def parse_ballot(frame: bytes) -> Ballot | None:
    """Return the ballot in a frame, `NO_BALLOT` for an empty frame, None for an invalid one."""
    if not frame:
        return NO_BALLOT
    match = _BALLOT.fullmatch(frame)
    if match is None:
        return None
    ballot = Ballot(int(match[1]), int(match[2], 16))
    return ballot if ballot.counter <= COUNTER_MAX and ballot.node else None


def refusal(known: Ballot, retry_s: float) -> list[bytes]:
    """Return the body with which a passive broker redirects a client to the other one."""
    return [_ELSEWHERE, ballot_text(known), b"%d" % max(1, round(retry_s * 1000))]


def parse_membership(body: Sequence[bytes]) -> Membership | None:
    """Return the role in the body of an answer; None when it has none, or is invalid."""
    if len(body) == 2 and body[0] == _OK:
        ballot = parse_ballot(body[1])
        return Membership(True, ballot) if ballot is not None and ballot.counter else None
    if len(body) == 3 and body[0] == _ELSEWHERE:
        ballot, retry_ms = parse_ballot(body[1]), decimal(body[2], _RETRY_DIGITS)
        if ballot is not None and retry_ms is not None:
            return Membership(False, ballot, min(RETRY_S_MAX, max(RETRY_S_MIN, retry_ms / 1000)))
    return None


class PairResponder:
    """The answers of the active broker of a pair about itself.

    Args:
        vouches: returns whether peer and witness have denied a ballot since it was claimed.
        retry_s: after which a client with a higher ballot retries; by then they have answered.
    """

    __slots__ = ("asker", "ballot", "claimed", "retry_s", "vouches")

    def __init__(self, ballot: Ballot, vouches: Callable[[Ballot], bool] = lambda _: False, retry_s: float = RETRY_S_MIN) -> None:
        self.ballot = ballot
        self.vouches = vouches
        self.retry_s = retry_s
        self.asker = b""
        # higher ballots of clients that were not denied, with routing ids; the caller removes them after each batch
        self.claimed: list[tuple[bytes, Ballot]] = []

    @property
    def greeting(self) -> list[bytes]:
        """The answer of a broker that serves."""
        return [_OK, ballot_text(self.ballot)]

    def answer(self, about: bytes) -> list[bytes]:
        """Return the reply to `mmi.pair [ballot]`; note a higher ballot."""
        seen = parse_ballot(about)
        if seen is None:
            return [_MALFORMED]
        if seen <= self.ballot or self.vouches(seen):
            return self.greeting
        self.claimed.append((self.asker, seen))
        return refusal(self.ballot, self.retry_s)
