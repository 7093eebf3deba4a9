"""Middleware of handlers: functions that see each request on its way in and its reply on its way out."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from mdp.worker.handler import HandlerKind, kind_of, name_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from mdp.request import Request

__all__ = ["CallNext", "Middleware", "wrapped"]

CallNext: TypeAlias = "Callable[[Request], Awaitable[Any]]"
Middleware: TypeAlias = "Callable[[Request, CallNext], Awaitable[Any]]"


def wrapped(middleware: Sequence[Middleware], handler: Callable[..., Any], *, inline: bool) -> Callable[..., Any]:
    """Return a handler that goes through the middleware, the first one outermost; the handler itself if there is none.

    Args:
        middleware: each takes the request and the next call, and returns the reply: body frames, or for a generator an asynchronous
            iterator of bodies. Errors of the handler come out of the next call; those of a generator out of its iterator.
        handler: as for `mdp.Worker`.
        inline: call a plain function on the event loop, not in a thread.
    """
    if not middleware:
        return handler
    kind = kind_of(handler, inline=inline)

    async def innermost(request: Request) -> Any:
        if kind is HandlerKind.COROUTINE:
            return await handler(request)
        if kind is HandlerKind.THREAD:
            return await asyncio.to_thread(handler, request)
        return handler(request)  # a generator, or inline

    call: CallNext = innermost
    for one in reversed(middleware):
        call = partial(_through, one, call)
    return _named(_parts(call) if kind is HandlerKind.GENERATOR else _answer(call), name_of(handler))


async def _through(one: Middleware, call_next: CallNext, request: Request) -> Any:
    return await one(request, call_next)


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


def _named(handler: Any, name: str) -> Callable[..., Any]:
    handler.__qualname__ = name  # for the log
    return handler  # type: ignore[no-any-return]
