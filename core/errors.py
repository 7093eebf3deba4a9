"""Errors of the socket layer, by fault, with ZeroMQ's numbers.

    ZMQError(errno)                 the call failed; attributes and numbers as in ZeroMQ's Python binding
      Again                 EAGAIN          would have to wait
      ContextTerminated     ETERM           the context was terminated
      SocketClosed          ENOTSOCK        the socket was closed before the call
      BadState              EFSM            not now: REQ/REP alternation
      OperationNotSupported ENOTSUP         not with this socket type: recv on PUB
      HostUnreachable       EHOSTUNREACH    ROUTER_MANDATORY and no such routing id
      InvalidOption         EINVAL          option name, type or range
      MessageTooLarge       EMSGSIZE        beyond the limits of the peer; `what`, `size`, `limit`
      EndpointError                         has `endpoint`
        InvalidEndpoint     EINVAL …        not an endpoint (errno by TRN-01, 02, 04, 05, 10)
        EndpointNotFound    ENOENT          unbind or disconnect of an unknown endpoint
        AddressInUse        EADDRINUSE      another listener uses the address
          ZMQBindError                      no free port in the range
    ProtocolError                   abstract: bytes on the wire violate the protocol
      LocalProtocolError            the caller asked for bytes that must not be sent
      RemoteProtocolError(reason)   the peer violated the protocol; `code` as in MON-04
        LimitExceeded             … by exceeding a limit, with both numbers
        HandshakeError              … before the handshake was complete
          MechanismMismatch         … in the greeting
          AuthenticationRefused     … because the server said 300, 400 or 500

A peer can cause no other exception than `RemoteProtocolError` and its subclasses.
`ZMQError(errno)` makes the class that belongs to the number, like `OSError`, so both ways to catch work.
"""

from __future__ import annotations

import errno as _errno
import os
from typing import ClassVar, Self

from core.constants import ProtocolErrorCode
from core.machine.value_copies import KeepsFields

__all__ = ["EADDRINUSE", "EADDRNOTAVAIL", "EAFNOSUPPORT", "EAGAIN", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EFAULT", "EFSM"]
__all__ += ["EHOSTUNREACH", "EINPROGRESS", "EINVAL", "EMSGSIZE", "EMTHREAD", "ENAMETOOLONG", "ENETDOWN", "ENETRESET", "ENETUNREACH"]
__all__ += ["ENOBUFS", "ENOCOMPATPROTO", "ENODEV", "ENOENT", "ENOTCONN", "ENOTSOCK", "ENOTSUP", "EPROTONOSUPPORT", "ETERM", "ETIMEDOUT"]
__all__ += ["HAUSNUMERO"]
__all__ += ["AddressInUse", "Again", "AuthenticationRefused", "BadState", "ContextTerminated", "EndpointError", "EndpointNotFound"]
__all__ += ["HandshakeError", "HostUnreachable", "InvalidEndpoint", "InvalidOption", "LimitExceeded", "LocalProtocolError"]
__all__ += ["MechanismMismatch", "MessageTooLarge", "OperationNotSupported", "ProtocolError", "RemoteProtocolError", "SocketClosed"]
__all__ += ["WrongOwner", "ZMQBaseError", "ZMQBindError", "ZMQError", "strerror"]
__all__ += ["InterruptedSystemCall", "NotDone", "ZMQVersionError"]

# ZeroMQ's own numbers start here; the base is arbitrary and never changes.
HAUSNUMERO = 156384712

EAGAIN = _errno.EAGAIN
EFAULT = _errno.EFAULT
EINVAL = _errno.EINVAL
ENODEV = _errno.ENODEV
ENOENT = _errno.ENOENT
ENAMETOOLONG = _errno.ENAMETOOLONG
ENOTSUP: int = getattr(_errno, "ENOTSUP", HAUSNUMERO + 1)  # absent from Python's errno on some Windows builds
EPROTONOSUPPORT = _errno.EPROTONOSUPPORT
ENOBUFS = _errno.ENOBUFS
ENETDOWN = _errno.ENETDOWN
EADDRINUSE = _errno.EADDRINUSE
EADDRNOTAVAIL = _errno.EADDRNOTAVAIL
ECONNREFUSED = _errno.ECONNREFUSED
EINPROGRESS = _errno.EINPROGRESS
ENOTSOCK = _errno.ENOTSOCK
EMSGSIZE = _errno.EMSGSIZE
EAFNOSUPPORT = _errno.EAFNOSUPPORT
ENETUNREACH = _errno.ENETUNREACH
ECONNABORTED = _errno.ECONNABORTED
ECONNRESET = _errno.ECONNRESET
ENOTCONN = _errno.ENOTCONN
ETIMEDOUT = _errno.ETIMEDOUT
EHOSTUNREACH = _errno.EHOSTUNREACH
ENETRESET = _errno.ENETRESET
EFSM = HAUSNUMERO + 51
ENOCOMPATPROTO = HAUSNUMERO + 52
ETERM = HAUSNUMERO + 53
EMTHREAD = HAUSNUMERO + 54

_ROUTING_ID_BYTES_MAX = 255  # of those that peers can have; the first frame of a refused message may be longer
_TEXTS = {
    EFSM: "socket is in the wrong state for this call",
    ENOCOMPATPROTO: "transport does not go with this socket type",
    ETERM: "context is terminated",
    EMTHREAD: "no thread left",
}


def strerror(errno: int) -> str:
    """Return the text for an errno, the system's or one of ZeroMQ's own."""
    return _TEXTS.get(errno) or os.strerror(errno)


class ZMQBaseError(Exception):
    """Base of the errors of calls on sockets and contexts, as in ZeroMQ's Python binding."""


class ZMQError(ZMQBaseError):
    """A call failed with a ZeroMQ errno.

    Args:
        errno: the number; a text in its place is taken as `msg`, with the number of the class.
        msg: one lower-case clause; default: the standard text of the number.

    Attributes:
        errno: the number (None only if a bare text was given to this base class).
        strerror: the text.
    """

    default_errno: ClassVar[int | None] = None
    by_errno: ClassVar[dict[int | None, type[ZMQError]]] = {}

    def __new__(cls, errno: int | str | None = None, *args: object, **fields: object) -> Self:
        if cls is ZMQError and isinstance(errno, int):
            # The number selects the class, so `except Again` and `error.errno == EAGAIN` never disagree.
            return Exception.__new__(cls.by_errno.get(errno, cls), errno, *args)  # type: ignore[return-value]
        return Exception.__new__(cls, errno, *args)

    def __init__(self, errno: int | str | None = None, msg: str | None = None) -> None:
        if isinstance(errno, str):
            errno, msg = None, errno
        self.errno: int | None = self.default_errno if errno is None else int(errno)
        if msg is None:
            msg = "unknown error" if self.errno is None else strerror(self.errno)
        self.strerror: str = msg
        super().__init__(self.errno, msg)

    def __str__(self) -> str:
        return self.strerror

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strerror!r})"


class Again(ZMQError):
    """The call would have to wait and must not, or has waited for SNDTIMEO / RCVTIMEO (SOCK-13).

    Attributes:
        taken: messages of a `send_many` that were sent before; a caller that tries again begins with the next one.
    """

    default_errno = EAGAIN

    def __init__(self, errno: int | str | None = None, msg: str | None = None, *, taken: int = 0) -> None:
        super().__init__(errno, msg)
        self.taken = taken


class ContextTerminated(ZMQError):
    """The context was terminated before or during the call (SOCK-16)."""

    default_errno = ETERM


class SocketClosed(ZMQError):
    """The socket was closed before or during the call."""

    default_errno = ENOTSOCK

    def __init__(self, errno: int | str | None = None, msg: str | None = None) -> None:
        super().__init__(errno, msg or "the socket is closed")


class WrongOwner(ZMQError):
    """The socket belongs to another process, thread or event loop; each must make its own sockets."""

    default_errno = ENOTSOCK


class BadState(ZMQError):
    """The state machine of the socket does not allow the call now (REQ-02, REP-02)."""

    default_errno = EFSM


class OperationNotSupported(ZMQError):
    """The socket type does not have this direction or operation (SOCK-12)."""

    default_errno = ENOTSUP


class HostUnreachable(ZMQError):
    """ROUTER_MANDATORY is set, and no peer has this routing id (RTR-06).

    Attributes:
        routing_id: the first frame of the refused message.
    """

    default_errno = EHOSTUNREACH

    def __init__(self, errno: int | str | None = None, msg: str | None = None, *, routing_id: bytes = b"") -> None:
        if msg is None and routing_id:
            msg = f"no peer has this routing id, {routing_id[:_ROUTING_ID_BYTES_MAX]!r}"
        super().__init__(errno, msg)
        self.routing_id = routing_id


class InvalidOption(ZMQError):
    """The option does not exist, or the value has the wrong type or is out of range.

    Attributes:
        option: name of the option, as given.
    """

    default_errno = EINVAL

    def __init__(self, errno: int | str | None = None, msg: str | None = None, *, option: str = "") -> None:
        super().__init__(errno, msg)
        self.option = option


class MessageTooLarge(ZMQError):
    """The message exceeds the limits that the peer has announced; nothing of it was sent.

    Args:
        what: what exceeds the limit, such as "frames of a message"; a number is taken for the errno, as by `ZMQError`.
        size: of the message.
        limit: of the peer.
    """

    default_errno = EMSGSIZE

    def __init__(self, what: int | str | None = None, size: int = 0, limit: int = 0) -> None:
        text = what if isinstance(what, str) else "message"
        super().__init__(EMSGSIZE, f"{text}: {size}, the peer takes {limit}" if limit else None)
        self.what = text
        self.size = size
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.size, self.limit))


class EndpointError(ZMQError):
    """Something is wrong with one endpoint.

    Attributes:
        endpoint: as given.
    """

    default_errno = EINVAL

    def __init__(self, errno: int | str | None = None, msg: str | None = None, *, endpoint: str = "") -> None:
        super().__init__(errno, msg)
        self.endpoint = endpoint


class InvalidEndpoint(EndpointError):
    """Not an endpoint; errno as in TRN-01, 02, 04, 05, 10."""


class EndpointNotFound(EndpointError):
    """Unbind or disconnect of an endpoint this socket does not have (TRN-03, TRN-07)."""

    default_errno = ENOENT


class AddressInUse(EndpointError):
    """Another listener uses the address (TRN-06, TRN-12)."""

    default_errno = EADDRINUSE


class ZMQBindError(AddressInUse):
    """`bind_to_random_port` found no free port in its range."""


# Names for the except clauses of programs written for ZeroMQ's Python binding; nothing here raises them.


class NotDone(ZMQBaseError):
    """A wait for a message tracker has timed out; trackers here are done at once."""


class InterruptedSystemCall(ZMQError):
    """A signal has interrupted a call; calls here continue."""

    default_errno = _errno.EINTR


class ZMQVersionError(RuntimeError):
    """The version of libzmq lacks something."""


for _kind in (Again, ContextTerminated, SocketClosed, BadState, OperationNotSupported, HostUnreachable, EndpointNotFound, AddressInUse):
    ZMQError.by_errno[_kind.default_errno] = _kind


class ProtocolError(KeepsFields, Exception):
    """Bytes violate the protocol. Abstract: the subclasses say whose fault it is.

    Attributes:
        reason: one lower-case clause.
    """

    def __init__(self, reason: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("ProtocolError is abstract: raise LocalProtocolError or RemoteProtocolError")
        super().__init__(reason)
        self.reason = reason


class LocalProtocolError(ProtocolError):
    """The caller asked for bytes that the protocol does not allow, such as an identity of 256 bytes."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol; the connection is closed.

    Args:
        reason: one lower-case clause; never contains a peer's bytes unescaped (use `.hex()`).
        code: a `ProtocolErrorCode`, the value of the monitor event (MON-04).
        offset: position of the fault in the stream or body, if known.
    """

    default_code: ClassVar[int] = ProtocolErrorCode.ZMTP_UNSPECIFIED

    def __init__(self, reason: str, *, code: int | None = None, offset: int | None = None) -> None:
        super().__init__(reason)
        self.code = int(self.default_code if code is None else code)
        self.offset = offset


class LimitExceeded(RemoteProtocolError):
    """The peer sent more than a limit allows.

    Args:
        reason: one lower-case clause with both numbers.
        kind: of the limit; the counter is named `cut_` and this.
        size: received, or announced in a header.
        limit: the maximum.
    """

    def __init__(self, reason: str, *, kind: str, size: int, limit: int) -> None:
        super().__init__(reason)
        self.kind = kind
        self.size = size
        self.limit = limit


class HandshakeError(RemoteProtocolError):
    """The peer broke a rule before the handshake was complete."""


class MechanismMismatch(HandshakeError):
    """The greetings name different mechanisms, or both or neither side acts as server."""

    default_code = ProtocolErrorCode.ZMTP_MECHANISM_MISMATCH


class AuthenticationRefused(HandshakeError):
    """The server refused the credentials; they are not retried (ZMTP-47, ZAP-05).

    Args:
        status: three digits as on the wire, b"300" (temporary), b"400" (refused) or b"500" (authenticator failed).
        reason: one lower-case clause; default: made from the status.
    """

    def __init__(self, status: bytes, reason: str | None = None) -> None:
        super().__init__(reason or f"authentication refused with status {status.decode('ascii', 'backslashreplace')}")
        self.status = status


# What every package above sockets has too, as an error of its own tree: these are the common bases, not in __all__.


class MalformedMessage(KeepsFields, Exception):
    """A message from a peer is not valid in its protocol; `reason` is one lower-case clause, without the peer's bytes."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoReply(KeepsFields, TimeoutError):
    """No reply came in time; the request may have been executed.

    Args:
        attempts: how often the request was sent.
        after_s: seconds between the call and this error.

    Attributes:
        trouble: endpoints that could not be connected to then, and why; empty for none.
    """

    text: ClassVar[str]

    def __init__(self, *, attempts: int, after_s: float) -> None:
        super().__init__(self.text.format(attempts=attempts, s="s" * (attempts != 1), after_s=after_s))
        self.attempts = attempts
        self.after_s = after_s
        self.trouble = ""

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.trouble}" if self.trouble else str(self.args[0])


class ClientClosed(KeepsFields, Exception):
    """The client was closed, or its context ended; an open request may have been executed."""

    text: ClassVar[str] = "the client was closed"

    def __init__(self) -> None:
        super().__init__(self.text)
