"""Pair key: servers and witness authenticate their messages with it, in addition to the connection (BST-46). Pure.

A peer that may connect to the witness, or publish where a server listens, is not necessarily a member of the pair. With a key each state
message, question and answer has a MAC, and messages without one are ignored. Sequence numbers and nonces protect against replay, CURVE
against recording.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

__all__ = ["KEY_OCTETS", "MAC_OCTETS", "PairKey", "Trust"]

KEY_OCTETS: Final = 32
MAC_OCTETS: Final = 16  # first half of HMAC-SHA-256: a forger needs 2^128 messages

_DERIVED: Final = b"Binary Star pair key 1"


class PairKey:
    """Secret of both servers of a pair and its witness; raises ValueError for another length than 32 bytes."""

    __slots__ = ("_octets",)

    def __init__(self, octets: bytes) -> None:
        if len(octets) != KEY_OCTETS:
            raise ValueError(f"a pair key has {KEY_OCTETS} bytes, not {len(octets)}")
        self._octets = octets

    @classmethod
    def derived(cls, secret: bytes) -> PairKey:
        """Derive the pair key from another shared secret, the CURVE key."""
        return cls(hmac.digest(secret, _DERIVED, sha256))

    def __repr__(self) -> str:
        return "<PairKey>"

    def mac(self, octets: bytes) -> bytes:
        return hmac.digest(self._octets, octets, sha256)[:MAC_OCTETS]

    def signed(self, octets: bytes) -> bytes:
        return octets + self.mac(octets)

    def proves(self, octets: bytes, mac: bytes) -> bool:
        return hmac.compare_digest(self.mac(octets), mac)


class Trust:
    """Rule for the messages of one connection: with a key only signed ones are accepted.

    A derived key is not demanded before the first message signed with it: the other side may not have it.
    """

    __slots__ = ("key", "required")

    def __init__(self, key: PairKey | None, *, required: bool) -> None:
        self.key = key
        self.required = required and key is not None  # whether unsigned messages are refused

    def admits(self, *, signed: bool) -> bool:
        """Return whether to accept a message; the first signed one proves that the other side has the key."""
        self.required = self.required or signed
        return signed or not self.required
