"""The check of requests and replies against the limits of the next peer, before they are sent.

Pure. Every peer of MDP/0.3 accepts 1,024 frames and 64 MiB per message, unless it has announced other limits (`core.zmtp.limits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.zmtp.limits import PeerLimits
from mdp.errors import TooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

ANY_SIZE: Final = 2**61  # more than any message has; compiled, larger integers are slow
TOO_LARGE: Final = "TOO_LARGE"
USUAL: Final = PeerLimits()  # of a peer of MDP/0.3 that has announced none


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
