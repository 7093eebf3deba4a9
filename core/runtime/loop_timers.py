"""Timers of an event loop that wait in one descriptor of the system (a timerfd of Linux).

A timer of uvloop is a time limit of its poll, which the system sets and takes back whenever the program sleeps and wakes up. A descriptor
is set once and costs nothing until its time has come: one request at a time, through three programs that have a timer each, takes a
twentieth less CPU time. It exists while a timer is set.

On other loops and systems, and when no descriptor is free, these are timers of the loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextvars import copy_context
from functools import cache
from math import ceil, inf
from struct import pack
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary, ref

from core.machine.deadlines import Deadlines
from core.runtime.forks import process_id
from core.runtime.runtime import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable

_CLOCK_MONOTONIC: Final = 1  # the clock of event loops
_ABSOLUTE: Final = 1


class SetTimer(Protocol):
    """A timer that is set."""

    def cancel(self) -> None: ...


def is_uvloop(loop: asyncio.AbstractEventLoop) -> bool:
    return type(loop).__module__.startswith("uvloop")


def call_at(when: float, call: Callable[[], object]) -> SetTimer:
    """Call something at a time of the running loop, with the caller's context variables."""
    loop = asyncio.get_running_loop()
    if is_uvloop(loop) and (library := _c_library()) is not None:
        timers = _OF_LOOPS.get(loop)
        if timers is None:
            timers = _OF_LOOPS[loop] = _LoopTimers(loop, library)
        try:
            return timers.call_at(when, call)
        except OSError:  # no descriptor is free
            pass
    return loop.call_at(when, call)


class _Descriptor:
    """A timerfd, which is readable from a time on."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.number: int = library.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.number < 0:
            raise OSError("no timer descriptor")

    def __del__(self) -> None:
        self.close()  # its loop was closed before the timers were

    def set(self, when: float) -> None:
        """Set the time anew; it is not readable before."""
        # In whole milliseconds, as the clock of uvloop, which has come there then.
        seconds, ms = divmod(max(1, ceil(when * 1000)), 1000)
        self._library.timerfd_settime(self.number, _ABSOLUTE, pack("4l", 0, 0, seconds, ms * 1_000_000), None)

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


class _LoopTimers:
    """The timers of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, library: Any) -> None:
        self._loop = ref(loop)
        self._library = library
        self._pid = process_id()
        self._deadlines: Deadlines[_Timer] = Deadlines()
        self._descriptor: _Descriptor | None = None  # while a timer is set
        self._set_to = inf  # its time, inf once it has come

    def call_at(self, when: float, call: Callable[[], object]) -> _Timer:
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = _Descriptor(self._library)
            asyncio.get_running_loop().add_reader(descriptor.number, self._on_due)
            self._descriptor = descriptor
        timer = _Timer(self, call)
        self._deadlines.set(timer, when)
        self._follow(descriptor)
        return timer

    def discard(self, timer: _Timer) -> None:
        self._deadlines.discard(timer)
        if not len(self._deadlines):
            self._close()

    def _follow(self, descriptor: _Descriptor) -> None:
        """Set the descriptor to the first timer; a time that is too early is left."""
        deadline = self._deadlines.deadline()
        if deadline is not None and deadline < self._set_to:
            self._set_to = deadline
            descriptor.set(deadline)

    def _on_due(self) -> None:
        self._set_to = inf
        loop = asyncio.get_running_loop()
        for timer in self._deadlines.due(SYSTEM.monotonic()):
            timer.begin(loop)
        if self._descriptor is not None and len(self._deadlines):
            self._follow(self._descriptor)
        else:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor, self._set_to = self._descriptor, None, inf
        self._deadlines = Deadlines()  # without what it keeps of timers that were cancelled
        if descriptor is not None:
            loop = self._loop()
            # A forked child shares the poll of its parent's loop: to end it there would end it for the parent.
            if loop is not None and not loop.is_closed() and process_id() == self._pid:
                loop.remove_reader(descriptor.number)
            descriptor.close()


class _Timer:
    """A timer that is set."""

    __slots__ = ("_call", "_context", "_handle", "_timers")

    def __init__(self, timers: _LoopTimers, call: Callable[[], object]) -> None:
        self._timers: _LoopTimers | None = timers  # None when its time has come, or it was cancelled
        self._call: Callable[[], object] | None = call
        self._context = copy_context()
        self._handle: asyncio.Handle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the call; another one due at the same time may cancel it."""
        call, self._call, self._timers = self._call, None, None
        if call is not None:
            self._handle = loop.call_soon(call, context=self._context)

    def cancel(self) -> None:
        timers, self._call, self._timers = self._timers, None, None
        if timers is not None:
            timers.discard(self)
        elif self._handle is not None:
            self._handle.cancel()


@cache  # loaded with the first timer, not when a program starts
def _c_library() -> Any:
    """Return the C library, None if it has no such timers."""
    if sys.platform != "linux":
        return None
    try:
        from ctypes import CDLL  # a Python may be built without it
    except (ImportError, OSError):
        return None
    library = CDLL(None)
    return library if hasattr(library, "timerfd_create") else None


_OF_LOOPS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopTimers]] = WeakKeyDictionary()
