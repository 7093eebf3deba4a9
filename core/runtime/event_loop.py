"""The event loop of a program: uvloop where it is installed, else asyncio's own.

Loop factories only; event-loop policies are process-wide state and deprecated in Python.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from core.runtime import runtime
from core.runtime.loop_timers import is_uvloop
from core.runtime.supervision import cancel_all

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")


def has_uvloop() -> bool:
    """Return whether uvloop is installed; it does not exist for Windows."""
    return find_spec("uvloop") is not None


def loop_factory(*, uvloop: bool | None = None) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of the event loop; True requires uvloop (ImportError), False excludes it, None prefers it."""
    if uvloop is False or (uvloop is None and not has_uvloop()):
        return asyncio.new_event_loop
    from uvloop import new_event_loop

    factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return factory


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the loop's clock; for uvloop, which rounds to milliseconds, the same clock unrounded."""
    return runtime.current().monotonic if is_uvloop(loop) else loop.time


def run(main: Coroutine[Any, Any, T], *, uvloop: bool | None = None, debug: bool | None = None) -> T:
    """Run a coroutine to its end on a new loop and return its result.

    Ctrl-C cancels it and raises KeyboardInterrupt, as `asyncio.run` does; daemons have `core.daemon.run_daemon`.

    Args:
        main: the coroutine.
        uvloop: as for `loop_factory`.
        debug: asyncio's debug mode; None leaves it to the environment.

    Raises:
        ImportError: uvloop is required and not installed.
    """
    try:
        factory = loop_factory(uvloop=uvloop)
    except ImportError:
        main.close()
        raise
    with asyncio.Runner(loop_factory=factory, debug=debug) as runner, _woken_by_signals(runner.get_loop()):
        return runner.run(main)


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Wake the loop at each signal, so that a handler runs at once.

    Python runs handlers between two steps of the main thread. An idle loop takes none: a signal that came right before the loop began to
    wait, or to another thread, was handled with the next message or timer, hours later. uvloop and the loop of Windows wake by themselves.
    """
    if not isinstance(loop, asyncio.SelectorEventLoop) or threading.current_thread() is not threading.main_thread():
        yield
        return
    woken, told = socket.socketpair()
    with woken, told:
        woken.setblocking(False)
        told.setblocking(False)
        loop.add_reader(woken, woken.recv, 4096)
        before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(woken)


async def until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Wait until one of several coroutines ends, and raise its error; cancel the others and wait for their end. Cancel-safe."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        await cancel_all(tasks)
