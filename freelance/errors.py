"""What can go wrong between a client and its servers, as exceptions.

    FreelanceError
      NoServer            no server answered in time; `attempts` and `after_s` say how it was tried
      TooLarge            no server that is there takes a request so large; `what`, `size` and `limit` say which number it is
      Overrun             more requests are outstanding than may; this one was not taken
      ClientClosed        the client's block was left while the request was outstanding
      MalformedMessage    a peer sent something that is not of this protocol; it is counted and dropped
      CatalogFull         a name server keeps no more names, or no more endpoints of one
      NamesRefused        a name server did not do what it was asked; `code` and `reason` are its own

Numbers are fields; the text is one lower-case clause. Pure.
"""

from __future__ import annotations

from core.errors import MessageTooLarge

__all__ = ["CatalogFull", "ClientClosed", "FreelanceError", "MalformedMessage", "NamesRefused", "NoServer", "Overrun", "TooLarge"]


class FreelanceError(Exception):
    """Root of everything this package raises on purpose."""


class NoServer(FreelanceError, TimeoutError):
    """No server answered the request within the client's limits; it may have been executed.

    Args:
        attempts: how often the request was sent, to all servers together.
        after_s: seconds between the call and this error.
    """

    def __init__(self, *, attempts: int, after_s: float) -> None:
        super().__init__(f"no server answered within {after_s:.3f} s; the request was sent {attempts} times")
        self.attempts = attempts
        self.after_s = after_s


class TooLarge(FreelanceError, MessageTooLarge):
    """Every server that is there has told that it takes no request so large; it was not sent.

    Args:
        what: what there is too much of: "frames of the request", "octets of the request" …
        size: how much there is.
        limit: how much is taken.
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)

    @classmethod
    def of(cls, error: MessageTooLarge, parts: int, octets: int) -> TooLarge:
        """Return the error for a body, of that for a message with so much more in front of it."""
        unit = error.what.partition(" ")[0]
        added = 0 if error.what == "octets of a frame" else parts if unit == "frames" else octets
        what = "octets of a frame of the request" if error.what == "octets of a frame" else f"{unit} of the request"
        return cls(what, error.size - added, max(0, error.limit - added))


class Overrun(FreelanceError):
    """More requests are outstanding than may; this one was not taken.

    Args:
        outstanding_max: the limit.
    """

    def __init__(self, outstanding_max: int) -> None:
        super().__init__(f"{outstanding_max} requests are outstanding already")
        self.outstanding_max = outstanding_max


class ClientClosed(FreelanceError):
    """The client was closed while the request was outstanding; it may have been executed."""

    def __init__(self) -> None:
        super().__init__("the client was closed")


class MalformedMessage(FreelanceError):
    """A message from a peer is not one of this protocol.

    Args:
        reason: one lower-case clause, without the peer's octets.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CatalogFull(FreelanceError):
    """A name server has no room; nothing was changed.

    Args:
        what: is too many, in words.
        limit: how many there may be.
    """

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"{limit} {what} are kept at most")
        self.what = what
        self.limit = limit


class NamesRefused(FreelanceError):
    """A name server did not do what it was asked; asking again will not help.

    Args:
        code: 400 (the request is not valid) or 507 (it has no room); 0 is a reply that is none.
        reason: in the server's words.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the name server refused: {code} {reason}")
        self.code = code
        self.reason = reason
