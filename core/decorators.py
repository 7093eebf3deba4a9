"""Contexts and sockets for the time of a function call, as decorators: `core.decorators` in place of `zmq.decorators`.

    @context()
    @socket(core.PUSH)
    def work(ctx, push): ...

A coroutine function gets `core.Context` and `core.Socket`, any other function the blocking ones. Each is given as the last positional
argument, or under a name: `@socket("push", core.PUSH)`.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from core.blocking.context import Context as BlockingContext
from core.sockets.context import Context

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["context", "socket"]

F = TypeVar("F", bound="Callable[..., Any]")


def context(*args: Any, **kwargs: Any) -> Callable[[F], F]:
    """Give a function a new context, which ends with the call.

    Args:
        args: a name for the argument, if wanted, and arguments of the context.
        kwargs: `name`, and arguments of the context.
    """
    name, arguments, options = _named(args, kwargs)
    return _decorator(name, lambda kind, *_: kind(*arguments, **options))


def socket(*args: Any, **kwargs: Any) -> Callable[[F], F]:
    """Give a function a new socket, which is closed with the call.

    Its context is the argument called `context_name`, or the first context among the arguments, or the shared one of the process.

    Args:
        args: a name for the argument, if wanted, and arguments of `Context.socket`.
        kwargs: `name`, `context_name` ("context" when left out), and arguments of `Context.socket`.
    """
    name, arguments, options = _named(args, kwargs)
    context_name = options.pop("context_name", "context")

    def make(kind: type[Context | BlockingContext], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        contexts = (value for value in (named.get(context_name), *given) if isinstance(value, kind))
        return (next(contexts, None) or kind.instance()).socket(*arguments, **options)

    return _decorator(name, make)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the name of the argument, "" without one, and what is left of the arguments."""
    options = dict(kwargs)
    if isinstance(options.get("name"), str):
        return options.pop("name"), args, options
    if args and isinstance(args[0], str):
        return args[0], args[1:], options
    return "", args, options


def _decorator(name: str, make: Callable[..., Any]) -> Callable[[F], F]:
    def decorate(function: Any) -> Any:
        def with_one(made: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not name:
                return function(*args, made, **kwargs)
            if name in kwargs:
                raise TypeError(f"{function.__name__}() got multiple values for argument {name!r}")
            return function(*args, **kwargs, **{name: made})

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with make(BlockingContext, args, kwargs) as made:
                return with_one(made, args, kwargs)

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            async with make(Context, args, kwargs) as made:
                return await with_one(made, args, kwargs)

        return call_async if inspect.iscoroutinefunction(function) else call

    return decorate
