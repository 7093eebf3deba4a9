"""What can go wrong with a pair, a witness or a client of theirs, as exceptions.

    BinaryStarError
      NotActive           this server may not answer now; `active` says which of the two does, when that is known
      NoServer            the client: neither server answered in time; `attempts` and `after_s` say how it tried
      HandlerError        the server's handler failed; `reason` names the failure
      Overrun             the client: more requests wait than may
      ClientClosed        the client: its block was left while the request was open, or before it was made
      PairFault           abstract: the pair cannot go on, and this server has stopped (BST-06)
        DualActive        both servers were active (compatible mode only)
        DualPassive       both servers were passive (compatible mode only)
        Misconfigured     both have the same role, the same node id, or one hears itself (BST-08)
      StoreDamaged        the ballot file is not one of ours or fails its checksum; the operator decides
      StoreLocked         another process has the ballot file
      MalformedMessage    a peer sent something that is not of this protocol; it is counted and dropped

Numbers are fields; the text is one lower-case clause. Pure.
"""

from __future__ import annotations

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
    """Root of everything this package raises on purpose."""


class NotActive(BinaryStarError):
    """This server is not the active one, or may not answer at this moment.

    Args:
        reason: one lower-case clause.
        active: `primary` or `backup` when the asked server knows who is active, else empty.
        retry_s: seconds after which asking again can have another outcome.
    """

    def __init__(self, reason: str = "not the active server", *, active: str = "", retry_s: float = 0.0) -> None:
        super().__init__(f"{reason}; {active} is active" if active else reason)
        self.reason = reason
        self.active = active
        self.retry_s = retry_s


class NoServer(BinaryStarError, TimeoutError):
    """Neither server answered the request within the client's limits; it may have been executed.

    Args:
        attempts: how often the request was sent.
        after_s: seconds between the first sending and this error.
    """

    def __init__(self, *, attempts: int, after_s: float) -> None:
        super().__init__(f"no active server after {after_s:.3f} s and {attempts} attempts")
        self.attempts = attempts
        self.after_s = after_s


class HandlerError(BinaryStarError):
    """The server's handler failed on this request; it was executed in part, perhaps.

    Args:
        reason: name of the failure, as the server gives it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"handler failed: {reason}")
        self.reason = reason


class Overrun(BinaryStarError):
    """More requests wait for a server than may; this one was not taken.

    Args:
        waiting_max: the limit.
    """

    def __init__(self, waiting_max: int) -> None:
        super().__init__(f"{waiting_max} requests wait already")
        self.waiting_max = waiting_max


class ClientClosed(BinaryStarError):
    """The client was closed while the request was open, and it may have been executed; or before it was made."""

    def __init__(self) -> None:
        super().__init__("the client was closed")


class PairFault(BinaryStarError):
    """The pair met a state it cannot leave by itself; this server accepts nothing any more."""


class DualActive(PairFault):
    """Both servers were active at once: the network was split with clients on both sides (BST-19)."""

    def __init__(self, reason: str = "the peer is active as well: both servers stop") -> None:
        super().__init__(reason)


class DualPassive(PairFault):
    """Both servers were passive at once."""

    def __init__(self, reason: str = "the peer is passive as well: both servers stop") -> None:
        super().__init__(reason)


class Misconfigured(PairFault):
    """Both ends were configured alike. Start-up is refused: mend the configuration of one of them."""


class StoreDamaged(BinaryStarError):
    """The ballot file cannot be believed.

    Args:
        reason: one lower-case clause.
        path: the file, empty when only octets were looked at.
    """

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path


class StoreLocked(BinaryStarError):
    """Another process uses this ballot file; one server, one file.

    Args:
        path: the file.
        pid: of the holder, 0 when unknown.
    """

    def __init__(self, path: str, *, pid: int = 0) -> None:
        super().__init__(f"{path}: in use by " + (f"process {pid}" if pid else "another process"))
        self.path = path
        self.pid = pid


class MalformedMessage(BinaryStarError):
    """Octets from a peer are not a message of this protocol.

    Args:
        reason: one lower-case clause, never holding peer octets undecorated.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
