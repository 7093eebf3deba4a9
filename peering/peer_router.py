"""Choice of the next peer: capacities of other brokers with their age, and the rules against loops.

Capacity belongs to a *subject*: brokers of `peering` have one, `b""`; those of Majordomo have one for each service. For each peer:

    unknown ──add──► DOWN ──joined──► UP ──heard──► capacity by subject, good for `missed_max` state intervals
                      ▲                │
                      └─────lost───────┘            and gone with the connection (PEER-08)

`choose` returns, among the peers with capacity, the one not asked for longest (PEER-10); `lend` lowers its remembered capacity until
its next state (PEER-09). A task is lent no further than `hops_max`, and never to a broker it has passed (PEER-03, fault N8).

Pure: `now` in monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from core.machine.value_copies import check_counts, check_positive
from peering.errors import BadName, DuplicateName, UnknownPeer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

__all__ = ["CAPACITY_MAX", "NAME_BYTES_MAX", "Peer", "PeerRouter", "check_name"]

# A broker's name is a routing id, which has up to 255 bytes.
NAME_BYTES_MAX: Final = 255
# Highest capacity of one peer and subject: as much as one worker of MDP/0.3 may grant.
CAPACITY_MAX: Final = 65_535


def check_name(name: bytes) -> bytes:
    """Return a name if it is valid for a broker, else raise BadName (PEER-06)."""
    if not name:
        raise BadName(name, "it is empty")
    if len(name) > NAME_BYTES_MAX:
        raise BadName(name, f"it has {len(name)} bytes, the limit is {NAME_BYTES_MAX}")
    if name[0] == 0:
        raise BadName(name, "it begins with the byte 00, as generated routing ids do")
    return name


@dataclass(slots=True, eq=False)
class Peer:
    """State of one peer."""

    name: bytes
    up: bool = False  # whether tasks can be sent to it
    capacity: dict[bytes, int] = field(default_factory=dict)  # remembered number of workers to lend, by subject
    heard_at: float | None = None  # time of its last state
    exhausted: set[bytes] = field(default_factory=set)  # subjects for which it has refused a task since then


class PeerRouter:
    """The peers of one broker.

    Args:
        name: of the broker.
        state_s: seconds between two states of a peer.
        missed_max: missed states after which a capacity counts as 0.
        hops_max: brokers a task may pass after the first one.
        peers_max: peers; each costs connections, and time for each choice.

    Raises:
        BadName: not a valid name of a broker.
        ValueError: a number is not positive.
    """

    def __init__(self, name: bytes, *, state_s: float = 1.0, missed_max: int = 3, hops_max: int = 1, peers_max: int = 64) -> None:
        check_positive(state_s=state_s)
        check_counts(missed_max=missed_max, hops_max=hops_max, peers_max=peers_max)
        self.name = check_name(name)
        self.hops_max = hops_max
        self._fresh_s = state_s * missed_max
        self._peers_max = peers_max
        self._peers: dict[bytes, Peer] = {}  # not asked for longest first

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    def __contains__(self, name: object) -> bool:
        return name in self._peers

    def __len__(self) -> int:
        return len(self._peers)

    # --- the peers (BEY-15) ------------------------------------------------------------------------------------------------

    def add(self, name: bytes) -> None:
        """Add a peer.

        Raises BadName, DuplicateName if this broker or another peer has that name, ValueError if the limit of peers is reached.
        """
        if check_name(name) == self.name or name in self._peers:
            raise DuplicateName(name)
        if len(self._peers) >= self._peers_max:
            raise ValueError(f"at most {self._peers_max} peers are allowed")
        self._peers[name] = Peer(name)

    def remove(self, name: bytes) -> None:
        """Remove a peer; raises UnknownPeer if there is none."""
        if self._peers.pop(name, None) is None:
            raise UnknownPeer(name)

    def joined(self, name: bytes) -> None:
        """Record that tasks can be sent to a peer."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.up = True

    def lost(self, name: bytes) -> None:
        """Record the end of the connection to a peer; its capacity is void."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.up = False
            peer.heard_at = None  # what it had to lend is void until its next state

    # --- what they have to lend -------------------------------------------------------------------------------------------

    def heard(self, name: bytes, capacity: Mapping[bytes, int], now: float) -> bool:
        """Replace the state of a peer; return whether the peer is known."""
        peer = self._peers.get(name)
        if peer is None:
            return False
        peer.capacity = {subject: min(count, CAPACITY_MAX) for subject, count in capacity.items() if count > 0}
        peer.heard_at = now
        peer.exhausted.clear()
        return True

    def capacity(self, name: bytes, subject: bytes, now: float) -> int:
        """Return the remembered capacity of a peer; 0 if it is too old or the peer is not connected (PEER-08)."""
        peer = self._peers.get(name)
        fresh = peer is not None and peer.heard_at is not None and now - peer.heard_at < self._fresh_s
        return peer.capacity.get(subject, 0) if peer is not None and peer.up and fresh else 0

    def choose(self, subject: bytes, now: float, *, refuse: Collection[bytes] = ()) -> bytes | None:
        """Return the peer with capacity that was not asked for longest, if any (PEER-10), without those in `refuse`."""
        return next((name for name in self._peers if name not in refuse and self.capacity(name, subject, now)), None)

    def lend(self, name: bytes, subject: bytes) -> None:
        """Record that a task was sent to a peer (PEER-09)."""
        peer = self._peers.pop(name, None)
        if peer is not None:
            peer.capacity[subject] = max(0, peer.capacity.get(subject, 0) - 1)
            self._peers[name] = peer

    def returned(self, name: bytes, subject: bytes) -> None:
        """Record that a peer answered a task: one of its workers is free, unless it refuses tasks."""
        peer = self._peers.get(name)
        if peer is not None and peer.heard_at is not None and subject not in peer.exhausted:
            peer.capacity[subject] = min(CAPACITY_MAX, peer.capacity.get(subject, 0) + 1)

    def exhausted(self, name: bytes, subject: bytes) -> None:
        """Set the capacity of a peer to 0 until its next state, whatever it answers."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.capacity.pop(subject, None)
            peer.exhausted.add(subject)

    def deadline(self, now: float) -> float | None:
        """Return when the next capacity becomes too old; None if there is none."""
        ends = [peer.heard_at + self._fresh_s for peer in self._peers.values() if peer.heard_at is not None and peer.capacity]
        return min((end for end in ends if end > now), default=None)

    # --- how far a task may go --------------------------------------------------------------------------------------------

    def passed(self, via: Collection[bytes]) -> frozenset[bytes] | None:
        """Return the brokers a task may not be sent to; None if it may not be lent at all.

        `via`: brokers that have forwarded it, including the first one.
        """
        if len(via) >= self.hops_max or self.name in via:
            return None
        return frozenset(via)
