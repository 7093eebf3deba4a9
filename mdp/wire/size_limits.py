"""The error for a request or reply beyond the limits of the next peer, and the check before sending.

Pure. Every peer of MDP/0.3 accepts 1,024 frames and 64 MiB per message, unless it has announced other limits (`core.zmtp.limits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from core.machine.peer_text import decimal
from core.zmtp.limits import PeerLimits
from mdp.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TOO_LARGE", "USUAL", "TooLarge", "too_large"]

TOO_LARGE: Final = "TOO_LARGE"
USUAL: Final = PeerLimits()  # of a peer of MDP/0.3 that has announced none


@mypyc_attr(native_class=False)
class TooLarge(RequestError):
    """Request or reply is beyond the limits of the next peer on its way, and was not sent to it.

    A client checks before it sends. A broker or worker sends it as ERROR; when it is about the reply, the handler has run.

    Args:
        what: what is too large: "frames of the request", "bytes of the reply" …
        size: actual size.
        limit: greatest size.
        service: name of the service.
        attempts: how many times the request was sent.
        after_s: seconds between the first sending and this error.
        text: as on the wire; made from the numbers when left out.
    """

    default_code = TOO_LARGE
    clause = "too large"

    def __init__(
        self,
        what: str = "",
        size: int = 0,
        limit: int = 0,
        *,
        service: str = "",
        attempts: int = 0,
        after_s: float = 0.0,
        text: str = "",
    ) -> None:
        super().__init__(service, attempts=attempts, after_s=after_s, text=text or f"{what}: {size}, at most {limit}")
        self.what = what
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return super().__str__() if self.attempts else f"{self.service or 'request'}: {self.clause} ({self.code}): {self.text}"

    @classmethod
    def rebuilt(cls, service: str, attempts: int, after_s: float, text: str, code: str) -> RequestError:
        """See `RequestError`; the numbers come from the text, 0 if they are not there."""
        what, _, numbers = text.partition(": ")
        size, _, limit = numbers.partition(", at most ")
        measured, allowed = decimal(size.encode(errors="replace")), decimal(limit.encode(errors="replace"))
        if measured is None or allowed is None:
            what, measured, allowed = text, 0, 0
        return cls(what, measured, allowed, service=service, attempts=attempts, after_s=after_s, text=text)


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
