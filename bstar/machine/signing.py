"""Pair key: servers and witness authenticate their messages with it, in addition to the connection (BST-46). Pure.

A peer that may connect to the witness, or publish where a server listens, is not necessarily a member of the pair. With a key each state
message, question and answer has a MAC, and messages without one are ignored. A message that was recorded and is sent again is recognized
by its sequence number or nonce; see `TakenNonces` for the witness.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

KEY_OCTETS: Final = 32
MAC_OCTETS: Final = 16  # first half of HMAC-SHA-256: a forger needs 2^128 messages

# Processes of servers whose nonces a witness knows. What an earlier one has said names a ballot that was outbid long ago.
PROCESSES_MAX: Final = 1000
# Questions of one process that may be lost in a row; a process asks eight times a second at most 100 days long.
NONCE_GAP_MAX: Final = 1 << 26

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


class TakenNonces:
    """Nonces of the signed questions that a witness has taken: none is taken twice.

    A process of a server begins with a random nonce of 64 bits and adds one for each question, so those of one process are one range. A
    question that was lost counts as taken once a later one was.
    """

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, int]] = []  # node, first and last nonce of a process, the latest process last

    def take(self, node: int, nonce: int) -> bool:
        """Return whether a question is new, and take its nonce then."""
        known = [one for one in self._ranges if one[0] == node and one[1] <= nonce <= one[2] + NONCE_GAP_MAX]
        if any(nonce <= last for _, _, last in known):
            return False
        if known:
            self._ranges.remove(known[-1])
            self._ranges.append((node, known[-1][1], nonce))
            return True
        self._ranges.append((node, nonce, nonce))
        if len(self._ranges) > PROCESSES_MAX:
            del self._ranges[0]
        return True
