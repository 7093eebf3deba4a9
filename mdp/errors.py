"""Exceptions of a request without a reply.

    RequestError              the request has no reply; `code` is the word on the wire and in the exit message
      NoService               NO_SERVICE         no worker offers the service
      Busy                    BUSY               a queue is full: try again later, nothing was executed
      Timeout                 TIMEOUT            no answer within the client's timeouts; whether it was executed is unknown
        Unreachable           UNREACHABLE        no broker was reached within them, and nothing was sent
      DeadlineExceeded        DEADLINE_EXCEEDED  the deadline passed at the broker or worker
      WorkerLost              WORKER_LOST        the worker was lost, and the request may not be given to another
      DeadLetter              DEAD_LETTER        several workers were lost while they had this request
      HandlerError            HANDLER_ERROR      the worker's handler failed; `text` says how; handlers may define other codes
      BadResult               BAD_RESULT         the result is not of the annotated type, or not of the type the caller wants
      Cancelled               CANCELLED          cancelled by this client
      Forbidden               FORBIDDEN          the rules of the broker do not allow this client to call the service
      BadRequest              BAD_REQUEST        the request broke a rule of the protocol; the caller's or the client's fault
        BadArguments          BAD_ARGUMENTS      the arguments are not those of the function
      TooLarge                TOO_LARGE          request or reply is beyond the limits of a peer on its way; see `mdp.wire.size_limits`
      NotSupported            NOT_SUPPORTED      the broker's dialect cannot carry the request, and nothing was sent
      Overrun                 OVERRUN            a slow reader has not taken the parts of the reply, and the request was cancelled
      ClientClosed            CLOSED             the client was closed, or its context ended, while the request was open

Numbers are fields; the message is one lower-case clause. Pure.
"""

from __future__ import annotations

import sys
from typing import ClassVar

__all__ = [
    "BadArguments",
    "BadRequest",
    "BadResult",
    "Busy",
    "Cancelled",
    "ClientClosed",
    "DeadLetter",
    "DeadlineExceeded",
    "Forbidden",
    "HandlerError",
    "NoService",
    "NotSupported",
    "Overrun",
    "RequestError",
    "Timeout",
    "TooLarge",
    "Unreachable",
    "WorkerLost",
]


class RequestError(Exception):
    """A request ended without a reply.

    Args:
        service: name of the service that was asked.
        attempts: how many times the request was sent by this client.
        after_s: seconds between the first sending and this error.
        text: of the other side, for people; may be empty.
        code: on the wire, if it is not that of the class.

    Raises:
        TypeError: a class is defined whose `default_code` is that of another class.
    """

    default_code: ClassVar[str] = "ERROR"
    clause: ClassVar[str] = "request failed"
    by_code: ClassVar[dict[str, type[RequestError]]] = {}
    # Code -> name of its class, and where that is defined: its file and the name in it.
    holders: ClassVar[dict[str, tuple[str, tuple[str, str]]]] = {"ERROR": ("mdp.errors.RequestError", ("", ""))}

    def __init__(self, service: str = "", *, attempts: int = 1, after_s: float = 0.0, text: str = "", code: str = "") -> None:
        self.service = service
        self.attempts = attempts
        self.after_s = after_s
        self.text = text
        self.code = code or self.default_code
        super().__init__(service)

    def __init_subclass__(cls) -> None:
        if "default_code" not in vars(cls):
            return
        code = cls.default_code
        name = f"{cls.__module__}.{cls.__qualname__}"
        place = (getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__, cls.__qualname__)
        holder, known_place = RequestError.holders.setdefault(code, (name, place))
        # The same class may be defined again: by a reloaded module, or by one with a second name, as `__main__` has.
        if name != holder and place != known_place:
            raise TypeError(f"error code {code!r} of {name} is that of {holder}; each error class has a code of its own")
        RequestError.holders[code] = (name, place)
        # A class stands for its code on the wire if it has the constructor of the base class, or `rebuilt`.
        before_root = cls.__mro__[: cls.__mro__.index(RequestError)]
        if "rebuilt" in vars(cls) or not any("__init__" in vars(kind) for kind in before_root):
            RequestError.by_code[code] = cls
        else:
            RequestError.by_code.pop(code, None)

    def __str__(self) -> str:
        sent = "" if self.attempts == 1 else f" in {self.attempts} attempts"
        if self.attempts == 1 and isinstance(self, Timeout):
            sent = " in 1 attempt"
        text = f": {self.text}" if self.text else ""
        return f"{self.service or 'request'}: {self.clause} after {self.after_s:.3f} s{sent} ({self.code}){text}"

    def __reduce__(self) -> tuple[object, ...]:
        # An exception keeps its fields when it is pickled for another process (Spark, pools).
        return (_rebuild, (type(self), self.service, self.attempts, self.after_s, self.text, self.code))

    @classmethod
    def of(cls, code: str, service: str, *, attempts: int = 1, after_s: float = 0.0, text: str = "") -> RequestError:
        """Return the error of a code on the wire; an unknown code, defined by a handler, gives a `HandlerError`."""
        return cls.by_code.get(code, HandlerError).rebuilt(service, attempts, after_s, text, code)

    @classmethod
    def rebuilt(cls, service: str, attempts: int, after_s: float, text: str, code: str) -> RequestError:
        """Make an error of this class from its fields, from the wire or from another process."""
        return cls(service, attempts=attempts, after_s=after_s, text=text, code=code)


def _rebuild(kind: type[RequestError], service: str, attempts: int, after_s: float, text: str, code: str) -> RequestError:
    return kind.rebuilt(service, attempts, after_s, text, code)


class NoService(RequestError):
    """No worker offers the service; nothing was executed."""

    default_code = "NO_SERVICE"
    clause = "no worker offers this service"


class Busy(RequestError):
    """A queue is full, the broker is stopping, or a worker has no thread for its handler; nothing was executed."""

    default_code = "BUSY"
    clause = "the broker takes no more requests now"


class Timeout(RequestError, TimeoutError):
    """No answer came within the client's timeouts; the request may have been executed."""

    default_code = "TIMEOUT"
    clause = "no answer"


class Unreachable(Timeout):
    """No broker was reached within the client's timeouts; the request was not sent, so it was not executed."""

    default_code = "UNREACHABLE"
    clause = "no broker could be reached"


class DeadlineExceeded(RequestError):
    """The request's deadline passed before it was answered; if it waited in a queue, it was not executed."""

    default_code = "DEADLINE_EXCEEDED"
    clause = "deadline passed"


class WorkerLost(RequestError):
    """The worker was lost and the request is at-most-once, or the broker stopped; it may have been executed."""

    default_code = "WORKER_LOST"
    clause = "the worker was lost"


class DeadLetter(RequestError):
    """As many workers as the broker allows were lost while they had this request."""

    default_code = "DEAD_LETTER"
    clause = "every worker that took it was lost"


class HandlerError(RequestError):
    """The worker's handler failed; `text` names the failure.

    A handler may raise it with its own text and code (capital letters and underscores, up to 32), which are sent to the caller. A subclass
    with its own `default_code` is raised at clients that have imported it.
    """

    default_code = "HANDLER_ERROR"
    clause = "the handler failed"


class BadResult(RequestError):
    """The function was executed; its result is not of the annotated type, or not of the type the caller wants."""

    default_code = "BAD_RESULT"
    clause = "the result is not of its type"


class Cancelled(RequestError):
    """The request was cancelled by this client; it may have been executed."""

    default_code = "CANCELLED"
    clause = "cancelled"


class Forbidden(RequestError):
    """The rules of the broker do not allow this client to call the service; nothing was executed."""

    default_code = "FORBIDDEN"
    clause = "not allowed"


class BadRequest(RequestError):
    """The request broke a rule of the protocol; nothing was executed."""

    default_code = "BAD_REQUEST"
    clause = "the request breaks the protocol"


class BadArguments(BadRequest):
    """The arguments do not match the function, which was not called; `text` names them and the expected types."""

    default_code = "BAD_ARGUMENTS"
    clause = "the arguments do not fit the function"


class TooLarge(RequestError):
    """Request or reply is beyond the limits of the next peer on its way, and was not sent to it.

    A client checks before it sends. A broker or worker sends it as ERROR; when it is about the reply, the handler has run.

    Args:
        what: what is too large: "frames of the request", "bytes of the reply" …
        size: actual size.
        limit: greatest size.
        service: name of the service.
        attempts: how many times the request was sent.
        after_s: seconds between the first sending and this error.
        text: as on the wire; made from the numbers when left out.
    """

    default_code = "TOO_LARGE"
    clause = "too large"

    def __init__(
        self,
        what: str = "",
        size: int = 0,
        limit: int = 0,
        *,
        service: str = "",
        attempts: int = 0,
        after_s: float = 0.0,
        text: str = "",
    ) -> None:
        super().__init__(service, attempts=attempts, after_s=after_s, text=text or f"{what}: {size}, at most {limit}")
        self.what = what
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return super().__str__() if self.attempts else f"{self.service or 'request'}: {self.clause} ({self.code}): {self.text}"

    @classmethod
    def rebuilt(cls, service: str, attempts: int, after_s: float, text: str, code: str) -> RequestError:
        """See `RequestError`; the numbers come from the text, 0 if they are not there."""
        from core.machine.peer_text import decimal  # late: a program that takes errors only loads nothing of `core`

        what, _, numbers = text.partition(": ")
        size, _, limit = numbers.partition(", at most ")
        measured, allowed = decimal(size.encode(errors="replace")), decimal(limit.encode(errors="replace"))
        if measured is None or allowed is None:
            what, measured, allowed = text, 0, 0
        return cls(what, measured, allowed, service=service, attempts=attempts, after_s=after_s, text=text)


class ClientClosed(RequestError):
    """The client was closed, or its context ended, while the request was open; it may have been executed."""

    default_code = "CLOSED"
    clause = "the client was closed"


class NotSupported(RequestError):
    """The broker speaks a dialect of MDP that cannot carry the request; nothing was sent."""

    default_code = "NOT_SUPPORTED"
    clause = "the broker's dialect cannot carry this request"


class Overrun(RequestError):
    """More parts of a reply arrived than are kept for a slow reader; the request was cancelled."""

    default_code = "OVERRUN"
    clause = "too many parts of the reply wait to be taken"
