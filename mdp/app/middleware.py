"""Middleware of handlers: functions that see each request on its way in and its reply on its way out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeAlias

from core.rpc.middleware import chained
from mdp.request import Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

CallNext: TypeAlias = Callable[[Request], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Request, CallNext], Awaitable[Any]]


def wrapped(middleware: Sequence[Middleware], call: Callable[[Request], Any], *, parts: bool) -> Callable[[Request], Any]:
    """Return a coroutine function, or a generator, that calls a handler through middleware, the first one outermost.

    Args:
        middleware: each takes the request and the next call, and returns the reply: body frames, or for a generator an asynchronous
            iterator of bodies. Errors of the handler come out of the next call; those of a generator out of its iterator.
        call: of the handler, on the event loop; its value may have to be awaited.
        parts: whether the handler is a generator.
    """

    async def innermost(request: Request) -> Any:
        reply = call(request)
        return await reply if isawaitable(reply) else reply

    chain = chained(middleware, innermost)
    return _parts(chain) if parts else _answer(chain)


def _answer(call: CallNext) -> Callable[[Request], Awaitable[Any]]:
    async def answer(request: Request) -> Any:
        return await call(request)

    return answer


def _parts(call: CallNext) -> Callable[[Request], AsyncIterator[Any]]:
    async def parts(request: Request) -> AsyncIterator[Any]:
        async with aclosing(await call(request)) as bodies:
            async for body in bodies:
                yield body

    return parts
