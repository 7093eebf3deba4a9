"""Errors of the pirate patterns. Numbers are fields; the text is one lower-case clause. Pure."""

from __future__ import annotations

from core import errors
from core.machine.value_copies import KeepsFields

__all__ = ["Busy", "ClientClosed", "MalformedMessage", "NoReply", "PirateError", "SimulatedCrash"]


class PirateError(KeepsFields, Exception):
    """Root of this package's errors."""


class NoReply(PirateError, errors.NoReply):
    """No attempt was answered; the request may have been executed once for each of the `attempts` within `after_s`."""

    text = "no reply to {attempts} attempt{s} within {after_s:.3f} s"


class Busy(PirateError):
    """The client has a request outstanding; use several clients for several requests."""

    def __init__(self) -> None:
        super().__init__("the client has a request outstanding; a Lazy Pirate makes one at a time")


class ClientClosed(PirateError, errors.ClientClosed):
    """The client is closed; an outstanding request may have been executed."""

    text = "the client is closed or not entered"


class MalformedMessage(PirateError, errors.MalformedMessage):
    """A message from a peer is not valid in this protocol; it is counted and dropped."""


class SimulatedCrash(PirateError):
    """Simulated crash of a worker (see `Mishaps`)."""

    def __init__(self) -> None:
        super().__init__("simulated crash")
