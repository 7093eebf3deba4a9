"""Exceptions of a request without a reply.

    RequestError              the request has no reply; `code` is the word on the wire and in the exit message
      NoService               NO_SERVICE         no worker offers the service
      Busy                    BUSY               a queue is full: try again later, nothing was executed
      Timeout                 TIMEOUT            no answer within the client's timeouts; whether it was executed is unknown
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

Numbers are fields; the message is one lower-case clause. Pure.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BadArguments",
    "BadRequest",
    "BadResult",
    "Busy",
    "Cancelled",
    "DeadLetter",
    "DeadlineExceeded",
    "Forbidden",
    "HandlerError",
    "NoService",
    "RequestError",
    "Timeout",
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
    """

    default_code: ClassVar[str] = "ERROR"
    clause: ClassVar[str] = "request failed"
    by_code: ClassVar[dict[str, type[RequestError]]] = {}

    def __init__(self, service: str = "", *, attempts: int = 1, after_s: float = 0.0, text: str = "", code: str = "") -> None:
        self.service = service
        self.attempts = attempts
        self.after_s = after_s
        self.text = text
        self.code = code or self.default_code
        super().__init__(service)

    def __init_subclass__(cls) -> None:
        # A class stands for a code on the wire if it defines one and has the constructor of the base class, or `rebuilt`. The first class
        # of a code keeps it, unless the same class is defined again.
        before_root = cls.__mro__[: cls.__mro__.index(RequestError)]
        made_alike = "rebuilt" in vars(cls) or not any("__init__" in vars(kind) for kind in before_root)
        if made_alike and "default_code" in vars(cls):
            known = RequestError.by_code.setdefault(cls.default_code, cls)
            if (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__):
                RequestError.by_code[cls.default_code] = cls

    def __str__(self) -> str:
        sent = "" if self.attempts == 1 else f" in {self.attempts} attempts"
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
    """A queue of the broker is full, or the broker is stopping; nothing was executed."""

    default_code = "BUSY"
    clause = "the broker takes no more requests now"


class Timeout(RequestError, TimeoutError):
    """No answer came within the client's timeouts; the request may have been executed."""

    default_code = "TIMEOUT"
    clause = "no answer"


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
