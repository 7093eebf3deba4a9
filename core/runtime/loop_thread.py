"""An event loop on a thread of its own, for synchronous clients.

Any number of threads may submit work. Submitted work is done or refused, never lost.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from core.errors import WrongOwner
from core.runtime import supervision
from core.runtime.event_loop import loop_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")


class LoopThread:
    """A running loop and its thread, until `end`.

    `last` makes a coroutine that fails open work; it is run when a fault ends the loop before `end`, because callers wait for answers that
    only the loop could give.
    """

    def __init__(self, name: str, closed: Callable[[], Exception], last: Callable[[], Coroutine[Any, Any, Any]] | None = None) -> None:
        self._closed_error = closed  # makes the error for work that is submitted too late
        self._last = last
        self._pid = os.getpid()
        self._ended = False
        self._lock = threading.RLock()  # work reaches the loop before it is stopped, or is refused; a collection may call within a call
        self._loop = loop_factory()()
        self._thread = supervision.current().thread("core loop thread", self._serve, failed=lambda _: self._finish())
        self._thread.name = name

    def start(self, coroutine: Coroutine[Any, Any, T], *, waits: bool = False) -> Future[T]:
        """Run a coroutine on the loop; any thread can wait for the future, cancelling it cancels the coroutine.

        Raises what `closed` makes if the loop has ended, RuntimeError in a process forked from the thread's, and WrongOwner on the loop's
        own thread if the caller `waits`.
        """
        try:
            if waits:
                self._check_caller()
            with self._lock:
                self._check()
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its end; Ctrl-C cancels it. Raises like `start`."""
        return self.wait(self.start(coroutine, waits=True))

    def wait(self, done: Future[T]) -> T:
        """Wait for work of the loop; Ctrl-C cancels it. Raises WrongOwner on the loop's own thread."""
        try:
            self._check_caller()
            return done.result()
        except BaseException:
            done.cancel()
            raise

    def call_soon(self, call: Callable[[], object]) -> None:
        with self._lock:
            self._check()
            self._loop.call_soon_threadsafe(call)

    def end(self, last: Callable[[], Coroutine[Any, Any, Any]] | None = None) -> None:
        """Run a last coroutine, end the loop and wait for the thread; from any thread, and more than once.

        Does nothing in a forked child: the thread and the connections are its parent's. Raises WrongOwner on the thread itself.
        """
        if os.getpid() != self._pid:
            return
        self._check_caller()
        with self._lock:
            first, self._ended = not self._ended, True
        if first:
            try:
                if last is not None:
                    # Work that other threads have submitted runs before this; later work is refused.
                    asyncio.run_coroutine_threadsafe(last(), self._loop).result()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _check_caller(self) -> None:
        if self.is_current():
            raise WrongOwner(msg="a blocking call of a function that runs on the event loop would wait for itself")

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"this client belongs to process {self._pid}: make another one after the fork")
        if self._ended:
            raise self._closed_error()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._finish()

    def _finish(self) -> None:
        """Refuse further work and end the open tasks, because the loop no longer runs."""
        with self._lock:
            early, self._ended = not self._ended, True
        if self._loop.is_closed():
            return
        self._loop.run_until_complete(asyncio.sleep(0))  # runs work that was just submitted
        if early and self._last is not None:
            with suppress(Exception):  # the fault that ended the loop is the one to report
                self._loop.run_until_complete(self._last())
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
