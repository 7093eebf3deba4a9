"""Effects of the client machines of models 2 and 3. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from freelance.errors import TooLarge

__all__ = ["Effect", "Finished", "GaveUp", "Refused", "Send"]


class Send(NamedTuple):
    """Send `frames` to the named server."""

    name: bytes
    frames: list[bytes]


class Finished(NamedTuple):
    """A request has its reply."""

    number: int
    body: list[bytes]


class GaveUp(NamedTuple):
    """A request timed out; it was sent `attempts` times."""

    number: int
    attempts: int
    after_s: float


class Refused(NamedTuple):
    """No connected server takes a request so large."""

    number: int
    error: TooLarge


Effect = Send | Finished | GaveUp | Refused
