"""Size limits of a broker's peers, so that no request or reply is sent that would end a connection.

Pure. A message received within the broker's own limits fits every peer with the same limits and dialect, so the hot paths need no check.
Checked are peers with lower limits (`narrow`), and messages whose envelope grows on the way: MDP/0.1 and 0.2 have more frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.zmtp.frames import Encoded, frame_at
from mdp.wire.channels import connection_of, is_channel, within
from mdp.wire.commands import ID_BYTES, NUMBERED_BYTES, V02, V03
from mdp.wire.size_limits import ANY_SIZE, USUAL, too_large

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.zmtp.limits import PeerLimits
    from mdp.errors import TooLarge
    from mdp.wire.commands import Dialect

# Maximum size of an envelope before a body, headers included: names and addresses have up to 255 bytes, options 8 KiB.
_ENVELOPE_BYTES: Final = 9 * 1024
_ENVELOPE_FRAMES: Final = 5
# A body of this size fits any peer with the usual limits in any dialect: at least 2 bytes a frame, and five frames before it.
_SMALL_BYTES: Final = 2 * (USUAL.parts - _ENVELOPE_FRAMES)


def _unknown(peer: bytes) -> PeerLimits | None:
    return None


class Hops:
    """The limits of all peers of one broker; `told` returns those that the peer of a connection has sent."""

    __slots__ = ("_own", "_told_by", "_uneven", "narrow")

    def __init__(self, own: PeerLimits = USUAL, told: Callable[[bytes], PeerLimits | None] = _unknown) -> None:
        self._own = own
        self._told_by = told
        # Limits so low that the envelope matters: then every message is checked.
        self._uneven = min(own.message_bytes, own.frame_bytes) < 2 * _ENVELOPE_BYTES or own.parts < 16
        self.narrow: set[bytes] = set()

    def joined(self, peer: bytes) -> None:
        if self._uneven or not self._covers(self._told(peer) or USUAL):
            self.narrow.add(peer)

    def is_narrow(self, peer: bytes) -> bool:
        """Return whether a peer, or the connection of a channel, has lower limits."""
        return connection_of(peer) in self.narrow

    def _told(self, peer: bytes) -> PeerLimits | None:
        told = self._told_by(connection_of(peer))
        return told if told is None or not is_channel(peer) else within(told)

    def left(self, peer: bytes) -> None:
        self.narrow.discard(peer)

    def of(self, peer: bytes, dialect: Dialect) -> PeerLimits | None:
        """Return a peer's limits if known; an MDP/0.3 peer that has sent none has the usual ones."""
        told = self._told(peer)
        if told is None and dialect == V03:
            return within(USUAL) if is_channel(peer) else USUAL
        return told

    def small(self, peer: bytes, dialect: Dialect) -> int:
        """Return the maximum encoded bytes of a request that needs no check against a worker's limits."""
        limits = self.of(peer, dialect)
        if limits is None:
            return ANY_SIZE
        return _SMALL_BYTES if not self.is_narrow(peer) else min(_SMALL_BYTES, limits.small - _ENVELOPE_BYTES)

    def surely(self, peer: bytes, dialect: Dialect, tail: bytes) -> bool:
        """Return whether an encoded request surely fits a worker; otherwise it needs the full check, which copies it."""
        limits = self.of(peer, dialect)
        if limits is None:
            return True
        if len(tail) + _ENVELOPE_BYTES > min(limits.message_bytes, limits.frame_bytes):
            return False
        most, frames, at, end = limits.parts - _ENVELOPE_FRAMES, 0, 0, len(tail)
        while at < end and frames <= most:
            at = frame_at(tail, at)[2]
            frames += 1
        return frames <= most

    def work(self, peer: bytes, dialect: Dialect, body: bytes, options_bytes: int) -> TooLarge | None:
        """Return why a request with an encoded body exceeds a worker's limits, None if it fits."""
        if dialect == V03:
            parts, octets = 2, NUMBERED_BYTES + options_bytes
        else:
            parts, octets = 4 if dialect == V02 else 5, 7 + ID_BYTES
        return too_large("request", [Encoded(body)], self.of(peer, dialect), parts, octets)

    def reply(self, peer: bytes, dialect: Dialect, name: bytes, body: bytes) -> TooLarge | None:
        """Return why a reply or part with an encoded body exceeds a client's limits, None if it fits."""
        if dialect == V03:
            return too_large("reply", [Encoded(body)], self.of(peer, dialect), 1, NUMBERED_BYTES) if peer in self.narrow else None
        limits = self._told(peer)
        if limits is None:
            return None
        return too_large("reply", [Encoded(body)], limits, 3, (7 if dialect == V02 else 6) + len(name))

    def _covers(self, limits: PeerLimits) -> bool:
        own = self._own
        return limits.parts >= own.parts and limits.message_bytes >= own.message_bytes and limits.frame_bytes >= own.frame_bytes
