"""What a broker that is one of a Binary Star pair says about it, and what a client says to it. Pure.

Bodies of MMI replies, so that every dialect can have them; ballots are text, `7.00000000000000ab`: counter and node id.

    mmi.protocol [dialect]      active: 200 [ballot]        passive: 300 [highest ballot known, or ""] [ms until asking again helps]
    mmi.pair     [ballot or ""] a client wants to be served, and has been served under this ballot: at the passive broker this is a
                                vote; an active one under a lower ballot asks its peer and the witness, and says 300 until it knows that
                                nobody serves under that ballot any more; answered as `mmi.protocol`

A ballot belongs to a connection: a broker that stops being active cuts all of them. So a client looks at the ballot when it connects, no
reply carries one, and a reply of a deposed broker can come only from a connection that is not made.

What a client says about ballots is no proof (BST-45): it makes a broker ask, and decides nothing. So 200 with a lower ballot than the
client has told says that there is no higher one, and the client forgets it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from bstar.machine.ballot import COUNTER_MAX, NO_BALLOT, Ballot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PAIR_SERVICE", "RETRY_S_USUAL", "Membership", "PairResponder", "ballot_text", "parse_ballot", "parse_membership", "refusal"]

PAIR_SERVICE: Final = b"mmi.pair"

_OK, _ELSEWHERE, _MALFORMED = b"200", b"300", b"400"
_BALLOT: Final = re.compile(rb"([1-9][0-9]{0,14})\.([0-9a-f]{16})")
# A peer's wish is taken within reason: no faster than a link can tell anything new, no slower than the longest fail-over (BST-15).
RETRY_S_MIN: Final = 0.02
RETRY_S_MAX: Final = 60.0
RETRY_S_USUAL: Final = 0.25  # where a broker says nothing about it
_RETRY_DIGITS: Final = 5


class Membership(NamedTuple):
    """What a broker says about its part in a pair.

    Attributes:
        active: whether it serves.
        ballot: under which it serves; of a passive one the highest it knows.
        retry_s: of a passive one: seconds until asking again can have another outcome.
    """

    active: bool
    ballot: Ballot = NO_BALLOT
    retry_s: float = 0.0


def ballot_text(ballot: Ballot) -> bytes:
    """Return a ballot as a frame, empty for none."""
    return b"%d.%016x" % ballot if ballot.counter else b""


def parse_ballot(frame: bytes) -> Ballot | None:
    """Return the ballot in a frame, `NO_BALLOT` for an empty one, None when it is neither."""
    if not frame:
        return NO_BALLOT
    match = _BALLOT.fullmatch(frame)
    if match is None:
        return None
    ballot = Ballot(int(match[1]), int(match[2], 16))
    return ballot if ballot.counter <= COUNTER_MAX and ballot.node else None


def refusal(known: Ballot, retry_s: float) -> list[bytes]:
    """Return the body with which a passive broker sends a client to the other one."""
    return [_ELSEWHERE, ballot_text(known), b"%d" % max(1, round(retry_s * 1000))]


def parse_membership(body: Sequence[bytes]) -> Membership | None:
    """Return what the body of an answer says about a pair; None when it says nothing, or nothing that makes sense."""
    if len(body) == 2 and body[0] == _OK:
        ballot = parse_ballot(body[1])
        return Membership(True, ballot) if ballot is not None and ballot.counter else None
    if len(body) == 3 and body[0] == _ELSEWHERE:
        ballot, retry = parse_ballot(body[1]), body[2]
        if ballot is not None and retry.isdigit() and len(retry) <= _RETRY_DIGITS:
            return Membership(False, ballot, min(RETRY_S_MAX, max(RETRY_S_MIN, int(retry) / 1000)))
    return None


class PairResponder:
    """What the active broker answers about itself.

    Args:
        ballot: under which it serves.
        vouches: returns whether nobody serves under a higher ballot, as far as peer and witness have said since it was named.
        retry_s: when a client is to come again after it has named a higher ballot: by then they have.

    Attributes:
        asker: routing id of the client that is answered.
        claimed: higher ballots clients have named and we did not vouch against, with their routing ids; of one batch, for who takes them.
    """

    __slots__ = ("asker", "ballot", "claimed", "retry_s", "vouches")

    def __init__(self, ballot: Ballot, vouches: Callable[[Ballot], bool] = lambda _: False, retry_s: float = RETRY_S_MIN) -> None:
        self.ballot = ballot
        self.vouches = vouches
        self.retry_s = retry_s
        self.asker = b""
        self.claimed: list[tuple[bytes, Ballot]] = []

    @property
    def greeting(self) -> list[bytes]:
        """The body that says that we serve."""
        return [_OK, ballot_text(self.ballot)]

    def answer(self, about: bytes) -> list[bytes]:
        """Return the reply to `mmi.pair [ballot]`, and remember a higher ballot."""
        seen = parse_ballot(about)
        if seen is None:
            return [_MALFORMED]
        if seen <= self.ballot or self.vouches(seen):
            return self.greeting
        self.claimed.append((self.asker, seen))
        return refusal(self.ballot, self.retry_s)
