"""The check of requests and replies against the limits of the next peer, before they are sent.

Pure. Every peer of MDP/0.3 accepts 1,024 frames and 64 MiB per message, unless it has announced other limits (`core.zmtp.limits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.zmtp.limits import PeerLimits
from mdp.errors import TooLarge
from mdp.wire.commands import NUMBERED_BYTES, V01, V03

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.wire.commands import Dialect

ANY_SIZE: Final = 2**61  # more than any message has; compiled, larger integers are slow
TOO_LARGE: Final = "TOO_LARGE"
USUAL: Final = PeerLimits()  # of a peer of MDP/0.3 that has announced none
# The envelope of a reply is smaller, in bytes and frames: the longest address has 255 octets.
_ENVELOPE_BYTES: Final = 512
_ENVELOPE_FRAMES: Final = 5


def too_large(
    whose: str, body: Sequence[bytes], limits: PeerLimits | None, parts: int, octets: int, *, service: str = ""
) -> TooLarge | None:
    """Return the error for a message beyond the limits of a peer, None within them.

    Args:
        whose: "request" or "reply".
        body: frames `[body…]`, the last of which may be `core.Encoded`.
        limits: of the peer, None if unknown: then nothing is refused.
        parts: frames of the envelope before the body.
        octets: size of the envelope in bytes.
        service: for the error.
    """
    if limits is None:
        return None
    error = limits.judge(body, parts=parts, octets=octets)
    if error is None:
        return None
    if error.what == "bytes of a frame":
        return TooLarge(f"bytes of a frame of the {whose}", error.size, error.limit, service=service)
    added = parts if error.what == "frames of a message" else octets
    return TooLarge(f"{error.what.split()[0]} of the {whose}", error.size - added, max(0, error.limit - added), service=service)


def reply_too_large(body: Sequence[bytes], size: int, limits: PeerLimits | None, dialect: Dialect, address: bytes) -> TooLarge | None:
    """Return the error for a reply or a part of one, `[body…]` of this size; None within the limits."""
    if limits is None or size + 9 * len(body) + _ENVELOPE_BYTES <= limits.small:
        return None
    # FINAL and PARTIAL have equal envelopes: one frame in MDP/0.3; in the others from the header to the address and "".
    octets = NUMBERED_BYTES if dialect == V03 else 7 + len(address)
    return too_large("reply", body, limits, {V03: 1, V01: 5}.get(dialect, 4), octets)


def takes_replies(limits: PeerLimits | None, octets: int, frames: int) -> bool:
    """Return whether a broker takes every reply of so many bytes and frames."""
    if limits is None:
        return True
    return min(limits.message_bytes, limits.frame_bytes) >= octets + _ENVELOPE_BYTES and limits.parts >= frames + _ENVELOPE_FRAMES
