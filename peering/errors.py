"""Errors between brokers. Numbers are fields; the text is one lower-case clause. Pure."""

from __future__ import annotations

from core import errors
from core.machine.value_copies import KeepsFields

__all__ = ["BadName", "DuplicateName", "MalformedMessage", "PeeringError", "TaskLost", "UnknownPeer"]


class PeeringError(KeepsFields, Exception):
    """Root of this package's errors."""


class BadName(PeeringError, ValueError):
    """The name is not valid for a broker (PEER-06)."""

    def __init__(self, name: bytes, reason: str) -> None:
        super().__init__(f"{name.decode('ascii', 'backslashreplace')!r} is no name of a broker: {reason}")
        self.name = name
        self.reason = reason


class DuplicateName(PeeringError, ValueError):
    """Two brokers that are peers have the same name (fault N8); `endpoints` are theirs, as far as known."""

    def __init__(self, name: bytes, *endpoints: str) -> None:
        where = f": {' and '.join(endpoints)}" if endpoints else ""
        super().__init__(f"two brokers are named {name.decode('ascii', 'backslashreplace')!r}{where}")
        self.name = name
        self.endpoints = endpoints


class UnknownPeer(PeeringError, LookupError):
    """No peer has this name."""

    def __init__(self, name: bytes) -> None:
        super().__init__(f"no peer is named {name.decode('ascii', 'backslashreplace')!r}")
        self.name = name


class MalformedMessage(PeeringError, errors.MalformedMessage):
    """A message from a peer is not valid in this protocol; it is counted and dropped."""


class TaskLost(PeeringError):
    """Tasks of a simulation had no reply in time (`lost`), or a reply that does not equal the task (`wrong`)."""

    def __init__(self, *, lost: int, wrong: int) -> None:
        super().__init__(f"{lost} tasks were lost and {wrong} replies were wrong")
        self.lost = lost
        self.wrong = wrong
