"""Base of synchronous clients: an asynchronous client and its event loop in a thread of its own.

Any number of threads may use one. A loop that runs in the caller's thread (a notebook's) is not affected.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from core.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from types import TracebackType


class AsyncClient(Protocol):
    """A client that runs within an `async with` block."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, kind: None, error: None, trace: None, /) -> object: ...


C = TypeVar("C", bound=AsyncClient)
T = TypeVar("T")


class SyncFacade(Generic[C]):
    """A client for code without an event loop; subclasses have its methods with their signatures.

    Args:
        client: runs from now on, until `close`.
        name: of the thread.
        closed: makes the error for calls after the end.

    Raises:
        Exception: those of entering the client.
    """

    def __init__(self, client: C, name: str, closed: Callable[[], Exception]) -> None:
        self._client = client
        self._closed_error = closed
        self._thread = LoopThread(name, closed, self._leave)
        try:
            self._run(client.__aenter__())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Fail open requests and end the thread; may be called from any thread, any number of times."""
        self._thread.end(self._leave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def _leave(self) -> None:
        await self._client.__aexit__(None, None, None)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        return self._run(_called(function, *arguments))

    def _iterate(self, parts: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Read an asynchronous generator from the caller's thread; leaving early ends it."""
        turn = asyncio.Lock()  # a step that Ctrl-C has cancelled ends before the iteration does
        try:
            while True:
                try:
                    part = self._run(_next(parts, turn))
                except StopAsyncIteration:
                    return
                yield part
        finally:
            with suppress(type(self._closed_error())):  # which has ended it already
                self._run(_close(parts, turn))


async def _called(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)


async def _next(parts: AsyncGenerator[T, None], turn: asyncio.Lock) -> T:
    async with turn:
        return await anext(parts)


async def _close(parts: AsyncGenerator[T, None], turn: asyncio.Lock) -> None:
    async with turn:
        await parts.aclose()
