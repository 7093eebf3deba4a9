"""Waiting until sockets are readable or writable."""

from __future__ import annotations

import asyncio
from functools import reduce
from math import isnan
from operator import or_
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from core.constants import PollEvent
from core.sockets.results.ready import Ready

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Collection, Mapping

    from core.sockets.results.futures import Awaitable

_POLLIN = int(PollEvent.POLLIN)  # plain integers: flag arithmetic on an enum is slow
_POLLOUT = int(PollEvent.POLLOUT)

T = TypeVar("T")
_NO_FILES: Final[Mapping[int, int]] = {}
# Waits for files of the system, by loop and descriptor, with their events.
_FILES: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, dict[asyncio.Future[None], int]]]] = WeakKeyDictionary()


class Pollable(Protocol):
    """A socket, as a poller sees it."""

    def check_open(self) -> None: ...  # raise SocketClosed or ContextTerminated after the end
    def readable(self) -> bool: ...  # whether a receive would return at once
    def writable(self) -> bool: ...  # whether a send would go through at once
    def add_poller(self, waiter: asyncio.Future[None]) -> None: ...  # complete a future when readability or writability may have changed


class Wait(Protocol):
    """A receive, a send or a poll that waits."""

    def done(self) -> bool: ...


W = TypeVar("W", bound=Wait)


def drop_ended(waits: deque[W] | list[W]) -> int:
    """Remove waits that have ended; return how many are left."""
    left = [wait for wait in waits if not wait.done()]
    waits.clear()
    waits.extend(left)
    return len(left)


def events_of(socket: Pollable, flags: int = PollEvent.POLLIN | PollEvent.POLLOUT) -> int:
    events = 0
    if flags & _POLLIN and socket.readable():
        events |= _POLLIN
    if flags & _POLLOUT and socket.writable():
        events |= _POLLOUT
    return events


def poll_one(socket: Pollable, timeout_ms: float | None, flags: int) -> Awaitable[int]:
    events = events_of(socket, flags)
    if events or timeout_ms == 0:
        return Ready(events)

    def found() -> int:
        socket.check_open()
        return events_of(socket, flags)

    return asyncio.ensure_future(wait_for([socket], found, timeout_ms))


async def wait_for(
    sockets: Collection[Pollable], found: Callable[[], T], timeout_ms: float | None, files: Mapping[int, int] = _NO_FILES
) -> T:
    """Return the first true result of `found`, or its last when the time is over.

    Events of the sockets and files (descriptor to events) cause a new call of `found`; `timeout_ms` None or negative is no limit.
    """
    if timeout_ms is not None and isnan(timeout_ms):
        raise ValueError("a timeout of nan ms")
    loop = asyncio.get_running_loop()
    deadline = None if timeout_ms is None or timeout_ms < 0 else loop.time() + timeout_ms / 1000
    while not (events := found()):
        if deadline is not None and loop.time() >= deadline:
            break
        waiter: asyncio.Future[None] = loop.create_future()
        for socket in sockets:
            socket.add_poller(waiter)
        timer = None if deadline is None else loop.call_at(deadline, _wake, waiter)
        try:
            for file, flags in files.items():
                _watch_file(loop, file, flags, waiter)
            await waiter
        finally:
            waiter.cancel()
            for file in files:
                _leave_file(loop, file, waiter)
            if timer is not None:
                timer.cancel()
    return events


def _watch_file(loop: asyncio.AbstractEventLoop, file: int, flags: int, waiter: asyncio.Future[None]) -> None:
    """Wake a waiter when a file is ready; the loop takes one callback for each direction, which all waiters share."""
    waits = _FILES.setdefault(loop, {}).setdefault(file, {})
    new = flags & ~_flags_of(waits)
    waits[waiter] = flags
    if new & _POLLIN:
        loop.add_reader(file, _wake_all, waits, _POLLIN)
    if new & _POLLOUT:
        loop.add_writer(file, _wake_all, waits, _POLLOUT)


def _leave_file(loop: asyncio.AbstractEventLoop, file: int, waiter: asyncio.Future[None]) -> None:
    waits = _FILES.get(loop, {}).get(file, {})
    last = waits.pop(waiter, 0) & ~_flags_of(waits)
    if last & _POLLIN:
        loop.remove_reader(file)
    if last & _POLLOUT:
        loop.remove_writer(file)
    if not waits:
        _FILES.get(loop, {}).pop(file, None)


def _flags_of(waits: dict[asyncio.Future[None], int]) -> int:
    return reduce(or_, waits.values(), 0)


def _wake_all(waits: dict[asyncio.Future[None], int], flag: int) -> None:
    for waiter, flags in waits.items():
        if flags & flag:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
