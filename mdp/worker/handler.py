"""What a worker calls: kinds of handlers, the decorator that names their service, and what may come back from them.

A handler takes an `mdp.Request` and returns the reply's body, `bytes` for one frame or a list of `bytes`. It is one of

    async function       runs beside others on the loop; cancelled when its request is
    async generator      each value is sent as a part of the reply (PARTIAL) as soon as it is yielded; MDP/0.1 gets them joined at the end,
                         up to `parts_max_bytes`
    plain function       runs in a thread, with the context variables of the worker; cannot be stopped, so look at `request.cancelled`
    the same, inline     `@mdp.service(…, inline=True)`: called on the loop, for handlers that take microseconds and never wait

Nothing is registered anywhere but on the function itself: two programs in one process know nothing of each other's services.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from types import ModuleType

    from mdp.request import Request

__all__ = [
    "BadReply",
    "Body",
    "Handler",
    "HandlerKind",
    "PartsTooLarge",
    "ReplyTooLarge",
    "ServiceMark",
    "is_typed",
    "kind_of",
    "mark_of",
    "name_of",
    "reply_frames",
    "service",
    "services_of",
]

Body: TypeAlias = "bytes | Sequence[bytes]"
Handler: TypeAlias = "Callable[[Request], Awaitable[Body] | AsyncIterator[Body] | Body]"

_MARK = "__mdp_service__"
_REQUEST_NAMES = ("Request", "Any", "object")
H = TypeVar("H", bound=Callable[..., Any])


class BadReply(TypeError):
    """A handler returned what cannot be the body of a reply."""


class ReplyTooLarge(BadReply):
    """The handler returned more than the broker takes; the message has both numbers."""


class PartsTooLarge(BadReply):
    """A generator yielded more than may be kept for a broker that wants the parts of a reply in one piece (MDP/0.1).

    Args:
        limit_bytes: the option `parts_max_bytes` of the worker.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"the broker takes no parts, and what the generator yielded is more than parts_max_bytes, {limit_bytes}")


class HandlerKind(Enum):
    """How a handler is called."""

    COROUTINE = auto()
    GENERATOR = auto()
    THREAD = auto()
    INLINE = auto()


@dataclass(frozen=True, slots=True)
class ServiceMark:
    """What `service` notes on a function.

    Attributes:
        name: of the service.
        inline: a plain function is called on the loop.
        options: further keyword arguments of `mdp.Worker`.
    """

    name: str
    inline: bool
    options: dict[str, Any]


def service(name: str, *, inline: bool = False, **options: Any) -> Callable[[H], H]:
    """Say which service a handler answers: `mdp.Worker(broker, handler)` and `mdp worker --app` need no more than the function then.

    Args:
        name: of the service.
        inline: call a plain function on the loop and not in a thread. It must take microseconds: nothing else happens meanwhile.
        options: keyword arguments of `mdp.Worker`, e.g. `concurrency=16`.

    Raises:
        TypeError: (by the decorator) the function could take a request or arguments; the text says what to write.
    """

    def mark(handler: H) -> H:
        with suppress(ValueError):  # what does not say what it takes is looked at by `mdp.Worker`
            is_typed(handler)
        try:
            setattr(handler, _MARK, ServiceMark(name, inline, options))
        except AttributeError:  # a bound method, for example
            raise TypeError(f"{name_of(handler)} cannot be marked; give it to mdp.Worker as its handler") from None
        return handler

    return mark


def mark_of(handler: Any) -> ServiceMark | None:
    """Return what `service` noted on a handler, None if it did not."""
    mark = getattr(handler, _MARK, None)
    return mark if isinstance(mark, ServiceMark) else None


def services_of(module: ModuleType) -> list[Callable[..., Any]]:
    """Return the handlers a module registers with `service`, in the order in which it defines them."""
    found = [value for value in vars(module).values() if callable(value) and mark_of(value) is not None]
    return list(dict.fromkeys(found))


def is_typed(function: Callable[..., Any]) -> bool:
    """Tell whether a function decorated with `mdp.service` takes arguments, or one `mdp.Request` as handlers do.

    Raises:
        TypeError: it could be either.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return True
    first, *others = parameters
    words = _words(first)
    if words and words not in _REQUEST_NAMES:
        return True
    # A second parameter without default, and the first gets the request beside the arguments.
    if words == "Request" and any(other.default is other.empty and other.kind is not other.VAR_KEYWORD for other in others):
        return True
    given = function.keywords if isinstance(function, functools.partial) else {}
    unclear = [other.name for other in others if other.default is not other.empty and _words(other) and other.name not in given]
    if words and unclear:
        name, names = getattr(function, "__qualname__", repr(function)), ", ".join(unclear)
        mend = f"put {first.name} behind them, as in ({names}: ... = ..., *, {first.name}: mdp.Request)"
        raise TypeError(
            f"{name}{inspect.signature(function)}: may callers give {names}, or are these defaults all there is? "
            f"For callers to give them, {mend}; else take {first.name} alone, with functools.partial or without annotations for the others"
        )
    return False


def _words(parameter: inspect.Parameter) -> str:
    """Return the last name of an annotation, which may be a text; empty for none."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return ""
    words = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "?")
    return words.strip("\"'").rpartition(".")[2] or "?"


def kind_of(handler: Callable[..., Any], *, inline: bool = False) -> HandlerKind:
    """Return how a handler is to be called.

    Raises:
        TypeError: it cannot be called, or not with one argument.
    """
    if not callable(handler):
        raise TypeError(f"a handler is {type(handler).__name__}, it must be a function")
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        name = getattr(handler, "__qualname__", repr(handler))
        raise TypeError(f"{name} must take one argument, an mdp.Request; or annotate its parameters, and callers give them") from None
    except ValueError:
        pass  # some builtins do not say what they take
    function = handler
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__  # an object with __call__
    if inspect.iscoroutinefunction(function):
        return HandlerKind.COROUTINE
    if inspect.isasyncgenfunction(function):
        return HandlerKind.GENERATOR
    return HandlerKind.INLINE if inline else HandlerKind.THREAD


def name_of(handler: Callable[..., Any]) -> str:
    """Return what a handler is called in the log."""
    function = handler
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def reply_frames(value: Any) -> Sequence[bytes]:
    """Return what a handler returned as body frames.

    Raises:
        BadReply: it is neither `bytes` nor a list or tuple of `bytes` with one item at least (MDP-07).
    """
    if type(value) is bytes:
        return (value,)
    if not isinstance(value, list | tuple):
        raise BadReply(f"the handler returned {type(value).__name__}, it must return bytes or a list of bytes")
    if not value:
        raise BadReply("the handler returned no frame, a reply has one at least")
    for frame in value:
        if type(frame) is not bytes:
            raise BadReply(f"the handler returned a frame of type {type(frame).__name__}, it must be bytes")
    return value
