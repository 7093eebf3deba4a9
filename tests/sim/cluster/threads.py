"""Threads in lock step: one runs at a time, from one blocking call to its next.

They are threads of the system, because product code blocks in them; a baton goes from the loop to a thread and back. So what they do is
as repeatable as the loop. A thread of a process that has crashed is unwound by `Killed`.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from tests.sim.cluster.loop import Escaped

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from tests.sim.cluster.loop import Owner, SimLoop

__all__ = ["Killed", "SimCondition", "SimEvent", "SimLock", "SimPool", "SimQueue", "SimThread", "blocked"]

# The loop gives the baton back when a thread that has it stays away for so long in real time: it waits for something of the real system.
ESCAPED_S = 60.0


class Killed(BaseException):
    """The process of this thread has ended."""


class SimThread(threading.Thread):
    """A thread of a simulated process; it ends with it."""

    def __init__(self, loop: SimLoop, owner: Owner, name: str, work: Callable[[], object], threads: list[SimThread]) -> None:
        super().__init__(name=name, daemon=True)
        self.loop = loop
        self._owner = owner
        self._work = work
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._wake_at: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None
        self._expired = False
        self.ended = False
        self._joining: list[SimThread] = []
        self._threads = threads
        threads.append(self)

    def start(self) -> None:
        super().start()
        self._wake(False)

    def run(self) -> None:
        self._go.acquire()
        try:
            if self._owner.alive:
                self._work()
        except Killed:
            pass
        finally:
            self.ended = True
            self._threads.remove(self)
            for other in self._joining:
                other.wake()
            self._back.release()

    # ---- in the loop

    def wake(self) -> None:
        """Let it run in a later step; from the loop or from another thread."""
        if not self.ended and self._turn is None:
            self._wake(False)

    def _wake(self, expired: bool) -> None:
        self._expired = expired
        if self._wake_at is not None:
            self._wake_at.cancel()
            self._wake_at = None
        # In the context of what wakes it, which is of the same process.
        if self._turn is None:
            self._turn = self.loop.call_soon(self._run_on)

    def _run_on(self) -> None:
        self._turn = None
        if self.ended:
            return
        self._go.release()
        if not self._back.acquire(timeout=ESCAPED_S):
            raise Escaped(f"thread {self.name} waits for something of the real system")

    def kill(self) -> None:
        """Unwind it; its process is not alive any more."""
        if not self.ended:
            self._run_on()

    # ---- in the thread

    def block(self, timeout_s: float | None = None) -> bool:
        """Give the baton back until `wake`, or for some seconds; return whether it was woken."""
        if not self._owner.alive:
            raise Killed
        if timeout_s is not None:
            self._wake_at = self.loop.call_at(self.loop.time() + timeout_s, self._wake, True)
        self._back.release()
        self._go.acquire()
        if not self._owner.alive:
            raise Killed
        return not self._expired

    def join(self, timeout: float | None = None) -> None:
        if self.ended:
            return
        if not isinstance(threading.current_thread(), SimThread):
            # The loop waits for a thread that is about to end: it may run, but not block any more.
            while self._turn is not None and not self.ended:
                self._turn.cancel()
                self._run_on()
            if not self.ended:
                raise Escaped(f"the event loop joins thread {self.name}, which does not end")
            return
        me = blocked("joins a thread")
        self._joining.append(me)
        while not self.ended:
            if not me.block(timeout):
                return


def blocked(what: str) -> SimThread:
    """Return the running simulated thread; the event loop may not block."""
    thread = threading.current_thread()
    if not isinstance(thread, SimThread):
        raise Escaped(f"the event loop {what}")
    return thread


class SimLock:
    """A lock between threads in lock step; the event loop never finds it taken."""

    def __init__(self) -> None:
        self._holder: object = None
        self._waiting: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._holder is not None:
            if not blocking:
                return False
            thread = blocked("waits for a lock that a thread holds")
            self._waiting.append(thread)
            thread.block()
        self._holder = threading.current_thread()
        return True

    def release(self) -> None:
        self._holder = None
        if self._waiting:
            self._waiting.popleft().wake()

    def locked(self) -> bool:
        return self._holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimCondition(threading.Condition):
    """A condition; `wait` gives the baton back."""

    def __init__(self) -> None:
        self._mutex = SimLock()
        self._sleeping: deque[SimThread] = deque()

    def __enter__(self) -> bool:
        return self._mutex.acquire()

    def __exit__(self, *_: object) -> None:
        self._mutex.release()

    def wait(self, timeout: float | None = None) -> bool:
        thread = blocked("waits for a condition")
        self._sleeping.append(thread)
        self._mutex.release()
        try:
            return thread.block(timeout)
        finally:
            if thread in self._sleeping:
                self._sleeping.remove(thread)
            self._mutex.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        loop = blocked("waits for a condition").loop
        until = None if timeout is None else loop.time() + timeout
        while not (result := predicate()):
            left_s = None if until is None else until - loop.time()
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._sleeping))):
            self._sleeping.popleft().wake()

    def notify_all(self) -> None:
        self.notify(len(self._sleeping))


class SimEvent(threading.Event):
    """An event; `wait` gives the baton back."""

    def __init__(self) -> None:
        self._is_set = False
        self._sleeping: list[SimThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        sleeping, self._sleeping = self._sleeping, []
        for thread in sleeping:
            thread.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            thread = blocked("waits for an event")
            self._sleeping.append(thread)
            thread.block(timeout)
            if thread in self._sleeping:
                self._sleeping.remove(thread)
        return self._is_set


class SimQueue(SimpleQueue[Any]):
    """A queue; `get` gives the baton back while it is empty."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._getting: deque[SimThread] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        if self._getting:
            self._getting.popleft().wake()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._items:
            if not block:
                raise Empty
            thread = blocked("waits for a queue")
            self._getting.append(thread)
            woken = thread.block(timeout)
            if not woken and not self._items:
                if thread in self._getting:
                    self._getting.remove(thread)
                raise Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    put_nowait = put

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class SimPool(ThreadPoolExecutor):
    """A pool of simulated threads."""

    def __init__(self, begin: Callable[[str, Callable[[], object]], SimThread], threads: int, name: str) -> None:
        super().__init__(threads)
        self._begin = begin
        self._most = threads
        self._name = name
        self._jobs = SimQueue()
        self._running = self._idle = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((future, copy_context(), fn, args, kwargs))
        if self._idle < self._jobs.qsize() and self._running < self._most:
            self._running += 1
            self._begin(f"{self._name}-{self._running}", self._work)
        return future

    def _work(self) -> None:
        while True:
            self._idle += 1
            job = self._jobs.get()
            self._idle -= 1
            if job is None:
                self._jobs.put(None)
                return
            future, context, call, arguments, named = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = context.run(call, *arguments, **named)
            except Killed:
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, job, call, arguments, named, context

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._jobs.put(None)
