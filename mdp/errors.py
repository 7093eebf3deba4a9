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

import sys
from typing import ClassVar, Final

__all__ = [
    "LATER",
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

# Error codes of modules that are imported later, with their classes: no program can take them before.
LATER: Final = {
    "CLOSED": "mdp.client.pending.ClientClosed",
    "NOT_SUPPORTED": "mdp.client.pending.NotSupported",
    "OVERRUN": "mdp.client.pending.Overrun",
    "TOO_LARGE": "mdp.wire.size_limits.TooLarge",
    "UNREACHABLE": "mdp.client.pending.Unreachable",
}


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
    holders: ClassVar[dict[str, tuple[str, tuple[str, str]]]] = {
        code: (name, ("", name)) for code, name in {"ERROR": "mdp.errors.RequestError", **LATER}.items()
    }

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
