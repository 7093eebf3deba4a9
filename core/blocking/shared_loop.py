"""The event loop of all blocking contexts of a process, on a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from core.errors import ContextTerminated
from core.runtime import runtime
from core.runtime.forks import tell_of_forks
from core.runtime.loop_thread import LoopThread
from core.sockets.results.pending import Pending, PendingReceive

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

__all__ = ["LOOP", "SharedLoop"]


async def _awaited(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    result = call(*arguments, **options)
    return await result if inspect.isawaitable(result) else result


class _Receive:
    """A receive on the loop for a thread; until the thread has the message, it can be put back."""

    def __init__(self) -> None:
        self.has_result = False  # set by the thread
        self._pending: PendingReceive | None = None

    async def run(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        found = call(*arguments, **options)
        if not isinstance(found, PendingReceive):
            return await found
        self._pending = found
        try:
            await asyncio.wait([cast("asyncio.Future[Any]", found)])  # which does not cancel it
        except asyncio.CancelledError:
            found.cancel()
            raise
        return Pending.result(found)  # which does not take it, as its own `result` does

    def settle(self) -> bool:
        """Take the message if the thread has it; return whether it has."""
        if self.has_result and self._pending is not None:
            self._pending.result()
        return self.has_result

    def put_back(self) -> None:
        if self._pending is not None:
            self._pending.cancel()


class SharedLoop:
    """A loop thread that is started when it is needed and ended with its last user.

    Sockets of several contexts can be polled together and connected by a proxy, because they share it.
    """

    def __init__(self) -> None:
        self._exits = False  # the program is about to exit
        self._begin()
        tell_of_forks(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._thread: LoopThread | None = None
        self._receives: list[_Receive] = []  # of which the loop does not know yet that their threads have the message

    def forked(self, parent: int) -> None:
        """Begin anew in a child process, where another thread of the parent may have had the lock."""
        self._begin()

    def acquire(self) -> None:
        """Count a user, and start the thread for the first; a forked child starts its own."""
        with self._lock:
            self._running()
            self._users += 1

    def release(self) -> None:
        """End the thread after its last user; not from the thread itself, which a garbage collection may do."""
        with self._lock:
            self._users = max(0, self._users - 1)
            if self._users or self._thread is None or self._thread.is_current():
                return
            thread, self._thread = self._thread, None
        thread.end()

    def run(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function on the loop and return its result, awaited if needed; Ctrl-C cancels it."""
        try:
            return self._running().run(_awaited(call, *arguments, **options))
        except CancelledError:
            raise self._ended() from None

    def receive(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a receive on the loop and return its message; an error raised in this thread meanwhile loses none.

        It may come from a signal handler at any time, also when the message is on its way to this thread.
        """
        receive = _Receive()
        done = self._running().start(self._receive(receive, call, *arguments, **options), waits=True)
        try:
            result = done.result()
            receive.has_result = True
        except CancelledError:
            raise self._ended() from None
        except BaseException:
            done.cancel()
            self.soon(partial(self._put_back, receive))
            raise
        return result

    async def _receive(self, receive: _Receive, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self._settle()
        self._receives.append(receive)
        return await receive.run(call, *arguments, **options)

    def _put_back(self, receive: _Receive) -> None:
        self._settle()  # a message that its thread has must not be exchanged for this one
        receive.put_back()
        if receive in self._receives:
            self._receives.remove(receive)

    def _settle(self) -> None:
        self._receives = [receive for receive in self._receives if not receive.settle()]

    def start(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function on the loop; any thread can wait for the future of its result."""
        return self._running().start(_awaited(call, *arguments))

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function on the loop later; nothing happens if the loop has ended."""
        with self._lock:
            if self._thread is not None:
                self._thread.call_soon(call)

    def end(self) -> None:
        """End the thread, whatever its users."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()

    def exit(self) -> None:
        """End the thread for good, because the program exits."""
        self._exits = True
        self.end()

    def _ended(self) -> ContextTerminated:
        """Return the error of a call that has no loop any longer."""
        # Threads that a program leaves in a call when it exits wait on, as with libzmq.
        if self._exits and threading.current_thread() is not threading.main_thread():
            runtime.current().event().wait()
        return ContextTerminated()

    def _running(self) -> LoopThread:
        if self._exits:
            raise self._ended()
        with self._lock:
            if self._thread is None:
                self._users, self._receives = 0, []
                self._thread = LoopThread("core blocking sockets", ContextTerminated)
            return self._thread


LOOP: Final = SharedLoop()
atexit.register(LOOP.exit)
