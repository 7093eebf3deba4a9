"""What clients say about ballots higher than ours: whom it makes us ask, how often, and what the answers are worth (BST-45).

A client that was served under a higher ballot refuses us, and it may be right: we are a master of yesterday who has not heard of it. Or
it lies. Or it is right, and those ballots are gone for good, because both servers lost their files. Its word decides nothing. It makes us
ask our peer and the witness, once a heartbeat at most, and one of three things follows:

    the peer, or the witness, knows of a higher ballot           we stop, by their word
    the peer has heard the question and does not serve, or the
    witness has renewed our lease since                          nobody serves under what the client has seen: we **vouch**, which
                                                                 lets the client forget it
    neither answers                                              the client is refused

Pure: `now` in monotonic seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bstar.machine.ballot import NO_BALLOT

if TYPE_CHECKING:
    from bstar.machine.ballot import Ballot

__all__ = ["NAMED_MAX", "VALID_HEARTBEATS", "ClientClaims"]

# Different ballots that clients have named and that are remembered: honest clients name a few at most.
NAMED_MAX: Final = 64
# How long it is remembered when a ballot was named: clients come again after one heartbeat, a crowd of them within a few.
VALID_HEARTBEATS: Final = 8


class ClientClaims:
    """Ballots that clients have named while we serve under a lower one.

    Args:
        heartbeat_s: of the pair; so long it takes at least from one question to the next.
    """

    __slots__ = ("_asked_at", "_cleared_at", "_heartbeat_s", "_named", "_sequence")

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._named: dict[Ballot, float] = {}  # when it was first named
        self._asked_at = self._cleared_at = float("-inf")
        self._sequence: int | None = None  # of the state message that was the question, until the peer has heard it

    def named(self, seen: Ballot, now: float) -> bool:
        """Take a ballot a client has named; return whether to ask about it now."""
        oldest = now - VALID_HEARTBEATS * self._heartbeat_s
        self._named = {ballot: at for ballot, at in self._named.items() if at > oldest}
        if seen not in self._named:
            if len(self._named) >= NAMED_MAX:
                del self._named[next(iter(self._named))]
            self._named[seen] = now
        if self._cleared_at >= self._named[seen] or now < self._asked_at + self._heartbeat_s:
            return False
        self._asked_at = now
        return True

    def asked(self, sequence: int) -> None:
        """Note which state message was the question."""
        self._sequence = sequence

    def peer_heard(self, sequence: int, *, serves: bool) -> None:
        """Take the peer's word: the newest message of ours it has heard, and whether it serves itself."""
        if self._sequence is not None and sequence >= self._sequence and not serves:
            self._cleared_at, self._sequence = self._asked_at, None

    def renewed(self, asked_at: float) -> None:
        """Take the witness's: it has renewed our lease on a question of that moment, so nobody else has one."""
        self._cleared_at = max(self._cleared_at, asked_at)

    def vouched(self, seen: Ballot, now: float) -> bool:
        """Return whether we know, of a moment after a client named this ballot, that nobody serves under it."""
        at = self._named.get(seen)
        return at is not None and at <= self._cleared_at and now < at + VALID_HEARTBEATS * self._heartbeat_s

    def forget(self) -> None:
        """Begin anew: another term."""
        self._named.clear()
        self._asked_at = self._cleared_at = float("-inf")
        self._sequence = None

    def __contains__(self, seen: Ballot) -> bool:
        return seen != NO_BALLOT and seen in self._named
