"""A chain of functions around a call: each gets what is called and the next call, and returns the result."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")


def chained(
    middleware: Sequence[Callable[[T, Callable[[T], Awaitable[Any]]], Awaitable[Any]]], innermost: Callable[[T], Awaitable[Any]]
) -> Callable[[T], Awaitable[Any]]:
    """Return the innermost call within the middleware, the first one outermost."""
    chain = innermost
    for one in reversed(middleware):
        chain = partial(_through, one, chain)
    return chain


async def _through(one: Callable[[T, Callable[[T], Awaitable[Any]]], Awaitable[Any]], call_next: Any, called: T) -> Any:
    return await one(called, call_next)
