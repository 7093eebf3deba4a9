"""Exceptions of pairs, witnesses and their clients.

    BinaryStarError
      NotActive           this server may not answer now; `active` names the active one if known
      NoServer            client: neither server answered in time; see `attempts` and `after_s`
      HandlerError        the handler of the server failed; `reason` names the failure
      Overrun             client: too many requests are waiting
      ClientClosed        client: closed while the request was open, or before
      PairFault           abstract: the pair has failed, and this server has stopped (BST-06)
        DualActive        both servers were active (compatible mode only)
        DualPassive       both servers were passive (compatible mode only)
        Misconfigured     both have the same role, the same node id, or one hears itself (BST-08)
      StoreDamaged        the ballot file is malformed or fails its checksum; the operator decides
      StoreLocked         another process has the ballot file
      MalformedMessage    a peer sent something that is not of this protocol; it is counted and dropped

Numbers are fields; the text is one lower-case clause. Pure.
"""

from __future__ import annotations

from core import errors

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


class BinaryStarError(Exception):
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

    text = "no active server after {after_s:.3f} s and {attempts} attempts"


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
        super().__init__(f"{waiting_max} requests wait already")
        self.waiting_max = waiting_max


class ClientClosed(BinaryStarError, errors.ClientClosed):
    """The client was closed while the request was open (it may have been executed), or before."""


class PairFault(BinaryStarError):
    """The pair is in a state it cannot leave by itself; this server has stopped."""


class DualActive(PairFault):
    """Both servers were active: the network was split with clients on both sides (BST-19)."""

    def __init__(self, reason: str = "the peer is active as well: both servers stop") -> None:
        super().__init__(reason)


class DualPassive(PairFault):
    """Both servers were passive."""

    def __init__(self, reason: str = "the peer is passive as well: both servers stop") -> None:
        super().__init__(reason)


class Misconfigured(PairFault):
    """Both servers have the same configuration; correct one of them."""


class StoreDamaged(BinaryStarError):
    """The ballot file is damaged.

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
    """Bytes from a peer are not a message of this protocol."""
