"""Base of servers that run within an `async with` block: their context, sockets, clock and end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

from core.constants import NOBLOCK
from core.errors import Again, ContextTerminated, HostUnreachable, MessageTooLarge
from core.machine.deadlines import TIMER_S_MIN
from core.security.credentials import context_for

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping
    from types import TracebackType

    from core.runtime.supervision import Timer
    from core.security.credentials import Secured
    from core.sockets.context import Context
    from core.sockets.socket import Socket


def sent(socket: Socket, frames: list[bytes]) -> bool:
    """Send a message now; return whether that was possible. Raises MessageTooLarge."""
    try:
        socket.send_multipart(frames, NOBLOCK)
    except (HostUnreachable, Again, ContextTerminated):
        return False
    return True


class Service(ABC):
    """A server within its block; without a context it makes its own, with this security."""

    def __init__(self, context: Context | None, security: Secured | None, socket_options: Mapping[str, Any] | None) -> None:
        self._own_context = context is None
        self._security = security
        self._context = context_for(context, security)
        self._options = dict(socket_options or {})
        self._stack = AsyncExitStack()  # ended last
        self._sockets: list[tuple[Socket, int]] = []  # with the linger in ms
        self._timer: Timer | None = None  # made by the subclass

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        try:
            if self._own_context:
                if self._context.closed:  # entered again, after a start that failed
                    self._context = context_for(None, self._security)
                await self._stack.enter_async_context(self._context)
            self._context.on_end[self._context_ended] = self._loop
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._end()

    async def serve_forever(self) -> None:
        """Wait for the end of the block; requests are served without it too. Raises the error that ends the server."""
        await asyncio.shield(self._ended)

    @abstractmethod
    async def _start(self) -> None:
        """Open the sockets; if that fails, `_stop` is called too."""

    @abstractmethod
    async def _stop(self) -> None:
        """End what runs, before the sockets are closed."""

    def _bound(self, kind: int, endpoint: str, *, linger_ms: int, **options: Any) -> Socket:
        socket = self._context.socket(kind, **options)
        self._sockets.append((socket, linger_ms))
        socket.bind(endpoint)
        return socket

    def _context_ended(self) -> None:
        """Give up: the program has ended the context, and every call on a socket fails."""
        if self._timer is not None:
            self._timer.cancel()
        self._failed(ContextTerminated())

    def _failed(self, error: BaseException) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _wake_at(self, at: float | None) -> None:
        """Set the timer to a deadline, unless it is earlier: an early timer costs less than setting one each time."""
        timer = self._timer
        if timer is None or at is None or (timer.when is not None and timer.when <= at):
            return  # the usual case
        if self._ended.done():
            return
        at = max(at, self._loop.time() + TIMER_S_MIN)
        if timer.when is None or at < timer.when:
            timer.at(at)

    def _send_reply(self, socket: Socket, frames: list[bytes], counters: Counter[str]) -> None:
        """Send a reply, or drop it: its client has given up, does not read, or takes no message so large."""
        try:
            if not sent(socket, frames):
                counters["reply_undelivered"] += 1
        except MessageTooLarge as error:
            counters["reply_too_large"] += 1
            self._context.warnings.warning("reply_too_large", "reply dropped: %s", error)

    async def _end(self) -> None:
        self._context.on_end.pop(self._context_ended, None)
        try:
            if self._timer is not None:
                self._timer.cancel()
            await self._stop()
        finally:  # also when that fails or is cancelled: nothing stays open, and no caller waits for an end that is over
            await self._close()

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()  # what ended meanwhile may have set it again
        for socket, linger_ms in self._sockets:
            socket.close(linger=linger_ms)
        try:
            async with self._stack:
                for socket, _ in self._sockets:
                    await socket.wait_closed()
        finally:
            if not self._ended.done():
                self._ended.set_result(None)
            elif not self._ended.cancelled():
                self._ended.exception()  # `serve_forever` need not be awaited
