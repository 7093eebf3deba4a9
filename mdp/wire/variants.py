"""MDP/0.2 in other frames than RFC 18 has: a table of such variants, and the translation.

                       RFC 18                     majortomo, a package on PyPI
    client REQUEST     MDPC02 01 service body+    "" MDPC02 02 service body+
    to it  PARTIAL     MDPC02 02 service body+    "" MDPC02 03 body+
           FINAL       MDPC02 03 service body+    "" MDPC02 04 body+
    worker, both ways  MDPW02 command …           "" MDPW02 command …

A broker translates at its edge, peer by peer, so everything behind knows RFC 18 only. Pure; all messages are encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from core.zmtp.frames import decode_frames, encode_message, encode_prefix, split_frames
from mdp.wire.commands import EMPTY, MDPC02, MDPW02

if TYPE_CHECKING:
    from collections.abc import Sequence


class Head(NamedTuple):
    """A row of the table: how messages begin."""

    foreign: bytes
    rfc: bytes
    named: bool = False  # whether RFC 18 has the service next, and the variant does not


class Variant(NamedTuple):
    """The frames of one implementation."""

    name: str
    received: tuple[Head, ...]
    sent: tuple[Head, ...]

    def to_rfc(self, message: bytes) -> bytes:
        for head in self.received:
            if message.startswith(head.foreign):
                return head.rfc + message[len(head.foreign) :]
        return message

    def from_rfc(self, message: bytes) -> bytes:
        for head in self.sent:
            if message.startswith(head.rfc):
                rest = message[len(head.rfc) :]
                return head.foreign + (split_frames(rest, 1)[1] if head.named else rest)
        return message

    def frames_from_rfc(self, frames: Sequence[bytes]) -> list[bytes]:
        return decode_frames(self.from_rfc(encode_message(frames)))


_WORKER: Final = Head(encode_prefix([EMPTY, MDPW02]), encode_prefix([MDPW02]))
MAJORTOMO: Final = Variant(
    "majortomo",
    received=(Head(encode_prefix([EMPTY, MDPC02, b"\x02"]), encode_prefix([MDPC02, b"\x01"])), _WORKER),
    sent=(
        Head(encode_prefix([EMPTY, MDPC02, b"\x03"]), encode_prefix([MDPC02, b"\x02"]), named=True),
        Head(encode_prefix([EMPTY, MDPC02, b"\x04"]), encode_prefix([MDPC02, b"\x03"]), named=True),
        _WORKER,
    ),
)
_BY_HEAD: Final = {head.foreign: variant for variant in (MAJORTOMO,) for head in variant.received}
_HEADS: Final = tuple(_BY_HEAD)


def variant_of(octets: bytes, start: int = 0) -> Variant | None:
    """Return the variant of an encoded message that begins at `start`, None for RFC 18 and all others."""
    if not octets.startswith(_HEADS, start):
        return None
    return next(variant for head, variant in _BY_HEAD.items() if octets.startswith(head, start))


def in_rfc_frames(frames: Sequence[bytes]) -> tuple[Variant | None, Sequence[bytes]]:
    """Return the variant of a decoded message, and its frames in RFC 18."""
    if not frames or frames[0] != EMPTY:
        return None, frames
    octets = encode_message(frames)
    variant = variant_of(octets)
    return variant, frames if variant is None else decode_frames(variant.to_rfc(octets))
