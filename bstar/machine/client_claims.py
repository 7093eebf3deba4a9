"""Claims of clients about ballots higher than ours, and the questions they cause (BST-45). Pure: `now` in monotonic seconds.

A client that was served under a higher ballot refuses our replies. It may be right (we are a deposed master), it may lie, or those ballots
may be lost because both servers lost their files. Its claim decides nothing. It makes us ask the peer and the witness, at most once a
heartbeat, with one of three results:

    the peer or the witness knows a higher ballot                we stop
    the peer has received the question and is not active, or     no server is active under the claimed ballot: we **vouch** for that,
    the witness has renewed our lease since                      and the client forgets it
    neither answers                                              the client is refused
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bstar.machine.ballot import Ballot

# Maximum number of remembered ballots; correct clients name a few.
NAMED_MAX: Final = 64
# How long a named ballot is remembered: clients ask again after one heartbeat, many of them within a few.
VALID_HEARTBEATS: Final = 8


class ClientClaims:
    """Higher ballots that clients have named while this server is active."""

    __slots__ = ("_asked_at", "_cleared_at", "_heartbeat_s", "_named", "_sequence")

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._named: dict[Ballot, float] = {}  # when it was first named
        self._asked_at = self._cleared_at = float("-inf")
        self._sequence: int | None = None  # of the state message that was the question, until the peer has received it

    def named(self, seen: Ballot, now: float) -> bool:
        """Note a ballot named by a client; return whether to ask about it now."""
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
        self._sequence = sequence

    def peer_heard(self, sequence: int, *, serves: bool) -> None:
        """Process a message of the peer: our newest message it has received, and whether it is active."""
        if self._sequence is not None and sequence >= self._sequence and not serves:
            self._cleared_at, self._sequence = self._asked_at, None

    def renewed(self, asked_at: float) -> None:
        """Note that the witness has renewed our lease for a question sent at `asked_at`: no other server has one."""
        self._cleared_at = max(self._cleared_at, asked_at)

    def vouched(self, seen: Ballot, now: float) -> bool:
        """Return whether it is known, since a client named this ballot, that no server is active under it."""
        at = self._named.get(seen)
        return at is not None and at <= self._cleared_at and now < at + VALID_HEARTBEATS * self._heartbeat_s

    def forget(self) -> None:
        self._named.clear()
        self._asked_at = self._cleared_at = float("-inf")
        self._sequence = None
