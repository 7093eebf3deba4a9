"""Errors between a client and its servers: numbers are fields, the text is one lower-case clause. Pure."""

from __future__ import annotations

from core import errors
from core.errors import MessageTooLarge
from core.machine.value_copies import KeepsFields

__all__ = ["CatalogFull", "ClientClosed", "FreelanceError", "MalformedMessage", "NamesRefused", "NoServer", "Overrun", "TooLarge"]


class FreelanceError(KeepsFields, Exception):
    """Root of this package's errors."""


class NoServer(FreelanceError, errors.NoReply):
    """No server answered the request in time; it may have been executed. See `attempts`, over all servers, and `after_s`."""

    text = "no server answered within {after_s:.3f} s; the request was sent {attempts} time{s}"


class TooLarge(FreelanceError, MessageTooLarge):
    """No connected server takes a request so large; it was not sent.

    Args:
        what: the quantity: "frames of the request", "bytes of the request" …
        size: its value.
        limit: the largest value the servers take.
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)

    @classmethod
    def of(cls, error: MessageTooLarge, parts: int, octets: int) -> TooLarge:
        """Return the error for a body from the error of a message with `parts` frames of `octets` bytes in front."""
        unit = error.what.partition(" ")[0]
        added = 0 if error.what == "bytes of a frame" else parts if unit == "frames" else octets
        what = "bytes of a frame of the request" if error.what == "bytes of a frame" else f"{unit} of the request"
        return cls(what, error.size - added, max(0, error.limit - added))


class Overrun(FreelanceError):
    """Too many requests are outstanding; this one was not sent.

    Args:
        outstanding_max: the limit.
    """

    def __init__(self, outstanding_max: int) -> None:
        super().__init__(f"{outstanding_max} requests are outstanding already; wait for one of them, or raise outstanding_max")
        self.outstanding_max = outstanding_max


class ClientClosed(FreelanceError, errors.ClientClosed):
    """The client was closed while the request was outstanding; it may have been executed."""


class MalformedMessage(FreelanceError, errors.MalformedMessage):
    """A message from a peer is not valid in this protocol; it is counted and dropped."""


class CatalogFull(FreelanceError):
    """A name server is full, or has too many endpoints of one name; nothing was changed.

    Args:
        what: the quantity that is limited.
        limit: its largest value.
    """

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{limit} {what} are kept at most")
        self.what = what
        self.limit = limit


class NamesRefused(FreelanceError):
    """A name server refused a request; trying again does not help.

    Args:
        code: 400 (the request is not valid) or 507 (the server is full); 0 for a reply that is not from a name server.
        reason: from the server.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the name server refused: {code} {reason}")
        self.code = code
        self.reason = reason
