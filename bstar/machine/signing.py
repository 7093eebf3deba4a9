"""The key of a pair: what servers and witness prove to each other with it, on top of what the connection proves (BST-46).

Who may connect to the witness, or publish where a server listens, is not yet one of the pair. With a key each state message, question and
answer carries a MAC, and one without counts for nothing. It says who made the octets; against recording and repeating them there are
sequence numbers and nonces, and CURVE, which lets nobody record them.

Pure.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

__all__ = ["KEY_OCTETS", "MAC_OCTETS", "PairKey", "Trust"]

KEY_OCTETS: Final = 32
MAC_OCTETS: Final = 16  # of HMAC-SHA-256, the first half: 2^128 guesses, each one a message

_DERIVED: Final = b"Binary Star pair key 1"


class PairKey:
    """A secret that both servers of a pair and its witness have, and nobody else.

    Args:
        octets: 32 of them, random.

    Raises:
        ValueError: another number of them.
    """

    __slots__ = ("_octets",)

    def __init__(self, octets: bytes) -> None:
        if len(octets) != KEY_OCTETS:
            raise ValueError(f"a pair key has {KEY_OCTETS} octets, not {len(octets)}")
        self._octets = octets

    @classmethod
    def derived(cls, secret: bytes) -> PairKey:
        """Return the key of a pair whose members share a secret for something else: their CURVE key."""
        return cls(hmac.digest(secret, _DERIVED, sha256))

    def __repr__(self) -> str:
        return "<PairKey>"

    def mac(self, octets: bytes) -> bytes:
        """Return the MAC of a message."""
        return hmac.digest(self._octets, octets, sha256)[:MAC_OCTETS]

    def signed(self, octets: bytes) -> bytes:
        """Return a message with its MAC behind it."""
        return octets + self.mac(octets)

    def proves(self, octets: bytes, mac: bytes) -> bool:
        """Return whether the MAC is that of the message."""
        return hmac.compare_digest(self.mac(octets), mac)


class Trust:
    """What is believed on one line: with a key only what is signed with it.

    A key that was not given but derived is not demanded before something signed with it was heard: the other side may not have it.

    Args:
        key: of the pair, None for none: everything is believed.
        required: the key was given, so that the others have it too.

    Attributes:
        key: as given.
        required: whether what is not signed is refused.
    """

    __slots__ = ("key", "required")

    def __init__(self, key: PairKey | None, *, required: bool) -> None:
        self.key = key
        self.required = required and key is not None

    def admits(self, *, signed: bool) -> bool:
        """Return whether a message may be believed, and learn from one that is signed that the other side has the key."""
        self.required = self.required or signed
        return signed or not self.required
