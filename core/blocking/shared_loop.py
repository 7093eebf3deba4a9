"""The event loop of all blocking contexts of a process, on a thread of its own."""

from __future__ import annotations

import atexit
import inspect
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from core.errors import ContextTerminated
from core.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

__all__ = ["LOOP", "SharedLoop"]


async def _awaited(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    result = call(*arguments, **options)
    return await result if inspect.isawaitable(result) else result


class SharedLoop:
    """A loop thread that is started when it is needed and ended with its last user.

    Sockets of several contexts can be polled together and connected by a proxy, because they share it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._pid = 0
        self._thread: LoopThread | None = None

    def acquire(self) -> None:
        """Count a user, and start the thread for the first; a forked child starts its own."""
        with self._lock:
            self._running()
            self._users += 1

    def release(self) -> None:
        """End the thread after its last user; not from the thread itself, which a garbage collection may do."""
        with self._lock:
            if self._pid != os.getpid():
                return
            self._users = max(0, self._users - 1)
            if self._users or self._thread is None or self._thread.is_current():
                return
            thread, self._thread = self._thread, None
        thread.end()

    def run(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function on the loop and return its result, awaited if needed; Ctrl-C cancels it."""
        return self._running().run(_awaited(call, *arguments, **options))

    def start(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function on the loop; any thread can wait for the future of its result."""
        return self._running().start(_awaited(call, *arguments))

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function on the loop later; nothing happens if the loop has ended."""
        with self._lock:
            if self._thread is not None and self._pid == os.getpid():
                self._thread.call_soon(call)

    def end(self) -> None:
        """End the thread, whatever its users."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            thread.end()

    def _running(self) -> LoopThread:
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._pid, self._users = os.getpid(), 0
                self._thread = LoopThread("core blocking sockets", ContextTerminated)
            return self._thread


LOOP: Final = SharedLoop()
atexit.register(LOOP.end)
