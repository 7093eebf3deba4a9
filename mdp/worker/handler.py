"""Handlers of a worker: their kinds, their signatures, the decorator that names their service, their return values.

A handler takes an `mdp.Request` and returns the reply's body, `bytes` for one frame or a list of `bytes`. It is one of

    async function       runs concurrently on the event loop; cancelled when its request is
    async generator      each value is sent as a part of the reply (PARTIAL) when it is yielded; MDP/0.1 gets them joined at the end,
                         up to `parts_max_bytes`
    plain function       runs in a thread, with the context variables of the worker; cannot be stopped, so check `request.cancelled`
    the same, inline     `@mdp.service(…, inline=True)`: called on the event loop, for handlers that take microseconds and never wait

A decorated function may take one `mdp.Request`, or the arguments that its annotations name:

    async def handler(request): ...                                         one request
    async def handler(request: mdp.Request) -> bytes: ...                   one request
    async def handler(width: float, height: float = 1.0) -> float: ...      arguments
    async def handler(request: mdp.Request, width: float) -> float: ...     arguments, and the request with them

Annotations decide, default values never do: a function whose first parameter is a request, and whose others are annotated and have
defaults, could be either, and is refused. The decorator marks the function itself; there is no registry.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, Unpack

from mdp.typed.calls import Signature

if TYPE_CHECKING:
    from types import ModuleType

    from mdp.request import Request
    from mdp.wire.policies import Rate, Retry

Body: TypeAlias = "bytes | Sequence[bytes]"
Handler: TypeAlias = "Callable[[Request], Awaitable[Body] | AsyncIterator[Body] | Body]"

_MARK = "__mdp_service__"
_HANDLER = "__mdp_handler__"  # of a function of an app: the handler that it is served by
# Entry of a worker's metadata: the format of the tables it takes.
BATCH_METADATA = "batch"
_BATCH_FORMATS = ("", "arrow")
_REQUEST_NAMES = ("Request", "Any", "object")
H = TypeVar("H", bound=Callable[..., Any])


class WorkerSettings(TypedDict, total=False):
    """Fields of `mdp.WorkerOptions`, as keyword arguments."""

    concurrency: int
    credit: int | None
    connections: int
    dialect: str
    heartbeat_ms: float
    liveness: int
    reconnect_ms: float
    reconnect_max_ms: float
    drain_s: float
    cancel_s: float
    blocked_s: float
    stuck_s: float | None
    parts_max_bytes: int
    results_max: int
    results_max_bytes: int
    results_ms: float
    error_reply: Callable[[BaseException], Body] | None
    log_payloads: str
    version: str
    metadata: Mapping[str, Any] | None
    rate: Rate | None
    retry: Retry | None
    seed: int | None


class ServingSettings(WorkerSettings, total=False):
    """Keyword arguments of `mdp.Worker` without handler, context and security."""

    inline: bool
    socket_options: Mapping[str, Any] | None
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None
    middleware: Sequence[Callable[..., Awaitable[Any]]]


class BadReply(TypeError):
    """A handler returned a value that cannot be the body of a reply."""


class ReplyTooLarge(BadReply):
    """The reply is beyond the broker's limits; the message has both numbers."""


class PartsTooLarge(BadReply):
    """A generator yielded more than is kept for a broker that takes replies in one piece only (MDP/0.1)."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"the broker takes no parts, and what the generator yielded is more than parts_max_bytes, {limit_bytes}")


class HandlerKind(Enum):
    """The kinds of handlers."""

    COROUTINE = auto()
    GENERATOR = auto()
    THREAD = auto()
    INLINE = auto()


@dataclass(frozen=True, slots=True)
class ServiceMark:
    """The mark of `service` on a function."""

    name: str
    inline: bool
    options: WorkerSettings
    batch: str = ""  # format of the tables it takes, "" for a function of single requests


def service(name: str, *, inline: bool = False, batch: str = "", **options: Unpack[WorkerSettings]) -> Callable[[H], H]:
    """Name the service of a handler, for `mdp.Worker(broker, handler)` and `mdp worker --app`.

    Args:
        name: of the service.
        inline: call a plain function on the event loop instead of a thread. It must take microseconds: it blocks the loop.
        batch: "arrow" for a function from a `pyarrow.Table` to a table of as many rows; see `mdp.batch.handler`.
        options: keyword arguments of `mdp.Worker`, e.g. `concurrency=16`.

    Raises:
        ValueError: `batch` is another format.
        TypeError: (by the decorator) the function could take a request or arguments, an annotation cannot be resolved, or values of its
            type cannot be sent; the text says what to change.
    """
    if batch not in _BATCH_FORMATS:
        raise ValueError(f"batch is 'arrow', not {batch!r}")

    def mark(handler: H) -> H:
        if not batch:
            with suppress(ValueError):  # no signature; `mdp.Worker` checks it
                if is_typed(handler):
                    Signature(handler)
        try:
            setattr(handler, _MARK, ServiceMark(name, inline, options, batch))
        except AttributeError:  # a bound method, for example
            raise TypeError(f"{name_of(handler)} cannot be marked; give it to mdp.Worker as its handler") from None
        return handler

    return mark


def mark_of(handler: Any) -> ServiceMark | None:
    mark = getattr(handler, _MARK, None)
    return mark if isinstance(mark, ServiceMark) else None


def note_handler(function: Callable[..., Any], handler: Callable[..., Any]) -> None:
    """Note by which marked handler a function of an app is served; the function itself has no mark."""
    setattr(function, _HANDLER, handler)


def handler_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the marked handler by which a function is served: that of its app, or the function itself."""
    handler: Callable[..., Any] = getattr(function, _HANDLER, function)
    return handler


def services_of(module: ModuleType) -> list[Callable[..., Any]]:
    """Return the marked functions of a module; raises ValueError for two of one service."""  # each would get some of the requests
    found: dict[str, Callable[..., Any]] = {}
    for value in vars(module).values():
        if callable(value) and (mark := mark_of(value)) is not None and (first := found.setdefault(mark.name, value)) is not value:
            names = f"{name_of(first)} and {name_of(value)}"
            raise ValueError(f"module {module.__name__} has two handlers of the service {mark.name!r}: {names}")
    return [*found.values()]


def is_typed(function: Callable[..., Any]) -> bool:
    """Return whether a marked function takes arguments instead of one `mdp.Request`; raises TypeError: it could be either."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return True
    first, *others = parameters
    words = _words(first)
    if words and words not in _REQUEST_NAMES:
        return True
    # With another parameter without default, the first gets the request and the others are arguments.
    if words == "Request" and any(other.default is other.empty and other.kind is not other.VAR_KEYWORD for other in others):
        return True
    given = function.keywords if isinstance(function, functools.partial) else {}
    unclear = [other.name for other in others if other.default is not other.empty and _words(other) and other.name not in given]
    if words and unclear:
        name, names = getattr(function, "__qualname__", repr(function)), ", ".join(unclear)
        fix = f"put {first.name} behind them, as in ({names}: ... = ..., *, {first.name}: mdp.Request)"
        raise TypeError(
            f"{name}{inspect.signature(function)}: may callers give {names}, or are these defaults all there is? "
            f"For callers to give them, {fix}; else take {first.name} alone, with functools.partial or without annotations for the others"
        )
    return False


def _words(parameter: inspect.Parameter) -> str:
    """Return the last name of an annotation, which may be a string; empty without one."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return ""
    words = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "?")
    return words.strip("\"'").rpartition(".")[2] or "?"


def kind_of(handler: Callable[..., Any], *, inline: bool = False) -> HandlerKind:
    """Return the kind of a handler; raises TypeError: it cannot be called, or not with one argument."""
    if not callable(handler):
        raise TypeError(f"a handler is {type(handler).__name__}, it must be a function")
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        name = getattr(handler, "__qualname__", repr(handler))
        raise TypeError(f"{name} must take one argument, an mdp.Request; or annotate its parameters, and callers give them") from None
    except ValueError:
        pass  # some builtins have no signature
    function = _unwrapped(handler)
    if not inspect.isroutine(function):
        function = type(function).__call__  # an object with __call__
    if inspect.iscoroutinefunction(function):
        return HandlerKind.COROUTINE
    if inspect.isasyncgenfunction(function):
        return HandlerKind.GENERATOR
    return HandlerKind.INLINE if inline else HandlerKind.THREAD


def _unwrapped(function: Any) -> Any:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return function


def name_of(handler: Callable[..., Any]) -> str:
    function = _unwrapped(handler)
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def first_step(coroutine: Coroutine[Any, None, Any]) -> tuple[bool, Any]:
    """Run a handler until it waits or ends; return whether it waits, and its future or value."""
    # Here because this module is not compiled: a StopIteration that reaches compiled code costs a traceback, 4,000 instructions.
    try:
        return True, coroutine.send(None)
    except StopIteration as end:
        return False, end.value


def reply_frames(value: Any) -> Sequence[bytes]:
    """Return the value of a handler as body frames; raises BadReply."""
    if type(value) is bytes:
        return (value,)
    if not isinstance(value, (list, tuple)):
        raise BadReply(f"the handler returned {type(value).__name__}, it must return bytes or a list of bytes")
    if not value:
        raise BadReply("the handler returned no frame, a reply has one at least")
    for frame in value:
        if type(frame) is not bytes:
            raise BadReply(f"the handler returned a frame of type {type(frame).__name__}, it must be bytes")
    return value
