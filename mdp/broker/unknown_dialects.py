"""Peers whose messages are of no known dialect: one description of each, for the log. Pure.

A description has the number and lengths of the first frames and the first octets of two of them, where a header would be: enough to
recognise an implementation, and nothing of a payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# Descriptions that wait for the log, which is written each second; beyond, peers are only counted.
WAITING_MAX: Final = 60
_LENGTHS_MAX: Final = 6
_HEADS_MAX: Final = 2
_HEAD_BYTES: Final = 8  # a header of MDP has 6


class Strangers:
    """Peers that are connected and have sent a message without a known header."""

    def __init__(self) -> None:
        self._peers: set[bytes] = set()
        self._waiting: list[tuple[bytes, str]] = []

    def note(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Take a message of a peer; return whether it is the first."""
        if peer in self._peers:
            return False
        self._peers.add(peer)
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append((peer, describe(frames)))
        return True

    def forget(self, peer: bytes) -> None:
        self._peers.discard(peer)

    def take(self) -> list[tuple[bytes, str]]:
        """Remove and return the peers that are not described in the log yet, and what to write."""
        waiting, self._waiting = self._waiting, []
        return waiting


def describe(frames: Sequence[bytes]) -> str:
    """Return number and lengths of the frames of a message, and the first octets of the first ones."""
    lengths = ", ".join(str(len(frame)) for frame in frames[:_LENGTHS_MAX]) + (", …" if len(frames) > _LENGTHS_MAX else "")
    heads = ", ".join(frame[:_HEAD_BYTES].hex() or "nothing" for frame in frames[:_HEADS_MAX])
    return f"{len(frames)} frames of {lengths} bytes, the first begin with {heads}"
