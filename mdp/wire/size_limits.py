"""The error for a request or reply that is beyond what the next peer on its way takes; and how it is found out before sending.

Pure. Every peer of MDP/0.3 takes 1,024 frames and 64 MiB a message, unless its connection told other limits (`core.zmtp.limits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.zmtp.limits import PeerLimits
from mdp.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TOO_LARGE", "USUAL", "TooLarge", "too_large"]

TOO_LARGE: Final = "TOO_LARGE"
USUAL: Final = PeerLimits()  # of a peer of MDP/0.3 that has told nothing
_DIGITS_MAX: Final = 18  # of a number a peer writes


class TooLarge(RequestError):
    """Request or reply is beyond what the next peer on its way takes, and was not sent there.

    A client finds it out before a byte is sent. From a broker or worker it comes as ERROR: when it is the reply, the handler has run.

    Args:
        what: what there is too much of: "frames of the request", "octets of the reply" …
        size: how much there is.
        limit: how much is taken.
        service: name of the service.
        attempts: how many times the request was sent.
        after_s: seconds between the first sending and this error.
        text: as on the wire; made of the numbers when left out.
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
        """See `RequestError`; the numbers are in the text, zeros where a peer wrote another one."""
        what, _, numbers = text.partition(": ")
        size, _, limit = numbers.partition(", at most ")
        if not all(number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX for number in (size, limit)):
            what, size, limit = text, "0", "0"
        return cls(what, int(size), int(limit), service=service, attempts=attempts, after_s=after_s, text=text)


def too_large(
    whose: str, body: Sequence[bytes], limits: PeerLimits | None, parts: int, octets: int, *, service: str = ""
) -> TooLarge | None:
    """Return why a peer would refuse a message, None if it would not.

    Args:
        whose: "request" or "reply".
        body: frames `[body…]`, the last of which may be `core.Encoded`.
        limits: of the peer, None where they are not known: then nothing is refused.
        parts: frames of the envelope that goes before the body.
        octets: and how many octets those have.
        service: for the error.
    """
    if limits is None:
        return None
    error = limits.judge(body, parts=parts, octets=octets)
    if error is None:
        return None
    if error.what == "octets of a frame":
        return TooLarge(f"octets of a frame of the {whose}", error.size, error.limit, service=service)
    added = parts if error.what == "frames of a message" else octets
    return TooLarge(f"{error.what.split()[0]} of the {whose}", error.size - added, max(0, error.limit - added), service=service)
