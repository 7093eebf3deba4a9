"""Exceptions of pairs, witnesses and their clients: numbers are fields, the text is one lower-case clause. Pure."""

from __future__ import annotations

from core import errors
from core.machine.value_copies import KeepsFields

__all__ = [
    "BinaryStarError",
    "ClientClosed",
    "DualActive",
    "DualPassive",
    "HandlerError",
    "MalformedMessage",
    "Misconfigured",
    "NoServer",
    "NotActive",
    "Overrun",
    "PairFault",
    "StoreDamaged",
    "StoreLocked",
]


class BinaryStarError(KeepsFields, Exception):
    """Base of all exceptions of this package."""


class NotActive(BinaryStarError):
    """This server is not the active one, or may not answer at this moment.

    Args:
        reason: one lower-case clause.
        active: `primary` or `backup` if the server knows which one is active, else empty.
        retry_s: seconds after which another attempt may succeed.
    """

    def __init__(self, reason: str = "not the active server", *, active: str = "", retry_s: float = 0.0) -> None:
        super().__init__(f"{reason}; {active} is active" if active else reason)
        self.reason = reason
        self.active = active
        self.retry_s = retry_s


class NoServer(BinaryStarError, errors.NoReply):
    """Neither server answered in time; the request may have been executed. See `attempts` and `after_s`."""

    text = "no active server after {after_s:.3f} s and {attempts} attempt{s}"


class HandlerError(BinaryStarError):
    """The handler of the server failed; the request may have been executed in part.

    Args:
        reason: name of the failure.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"handler failed: {reason}")
        self.reason = reason


class Overrun(BinaryStarError):
    """Too many requests are waiting for a server; this one was not accepted.

    Args:
        waiting_max: the limit.
    """

    def __init__(self, waiting_max: int) -> None:
        super().__init__(f"{waiting_max} requests wait already; wait for one of them, or raise waiting_max")
        self.waiting_max = waiting_max


class ClientClosed(BinaryStarError, errors.ClientClosed):
    """The client was closed while the request was open (it may have been executed), or before."""


class PairFault(BinaryStarError):
    """Base of faults: the pair is in a state it cannot leave by itself; this server has stopped (BST-06)."""


class DualActive(PairFault):
    """Both servers were active, in compatible mode: the network was split with clients on both sides (BST-19)."""

    def __init__(self, reason: str = "the peer is active as well: both servers stop") -> None:
        super().__init__(reason)


class DualPassive(PairFault):
    """Both servers were passive, in compatible mode."""

    def __init__(self, reason: str = "the peer is passive as well: both servers stop") -> None:
        super().__init__(reason)


class Misconfigured(PairFault):
    """Both servers have the same role or node id, or one hears itself; correct one of them (BST-08)."""


class StoreDamaged(BinaryStarError):
    """The ballot file is malformed or fails its checksum; the operator decides.

    Args:
        reason: one lower-case clause.
        path: the file, "" if only bytes were checked.
    """

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path


class StoreLocked(BinaryStarError):
    """Another process uses this ballot file; each server needs its own.

    Args:
        path: the file.
        pid: of the holder, 0 when unknown.
    """

    def __init__(self, path: str, *, pid: int = 0) -> None:
        super().__init__(f"{path}: in use by " + (f"process {pid}" if pid else "another process"))
        self.path = path
        self.pid = pid


class MalformedMessage(BinaryStarError, errors.MalformedMessage):
    """Bytes from a peer are not a message of this protocol; they are counted and dropped."""
