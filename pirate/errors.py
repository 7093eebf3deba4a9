"""What can go wrong in the pirate patterns, as exceptions.

    PirateError
      NoReply             no usable reply within all attempts; `attempts` and `after_s` say how it was tried
      Busy                a client makes one request at a time; this one was not taken
      ClientClosed        the client's block was left while the request was outstanding
      MalformedMessage    a peer sent something that is not of this protocol; it is counted and dropped
      SimulatedCrash      a worker that was asked to misbehave plays dead

Numbers are fields; the text is one lower-case clause. Pure.
"""

from __future__ import annotations

__all__ = ["Busy", "ClientClosed", "MalformedMessage", "NoReply", "PirateError", "SimulatedCrash"]


class PirateError(Exception):
    """Root of everything this package raises on purpose."""


class NoReply(PirateError, TimeoutError):
    """Nobody answered in any of the attempts; the request may have been executed, once for each of them.

    Args:
        attempts: how often the request was sent.
        after_s: seconds between the call and this error.
    """

    def __init__(self, *, attempts: int, after_s: float) -> None:
        super().__init__(f"no reply to {attempts} attempt{'s' * (attempts != 1)} within {after_s:.3f} s")
        self.attempts = attempts
        self.after_s = after_s


class Busy(PirateError):
    """The client has a request outstanding; several at once need several clients."""

    def __init__(self) -> None:
        super().__init__("the client has a request outstanding; a Lazy Pirate makes one at a time")


class ClientClosed(PirateError):
    """The client was closed while the request was outstanding, or is not open; the request may have been executed."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


class MalformedMessage(PirateError):
    """A message from a peer is not one of this protocol.

    Args:
        reason: one lower-case clause, without the peer's octets.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SimulatedCrash(PirateError):
    """The worker was asked to misbehave now and then, and this time it plays dead."""

    def __init__(self) -> None:
        super().__init__("simulated crash")
