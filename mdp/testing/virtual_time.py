"""An event loop in virtual time: it never sleeps.

When nothing is to be done until the next timer, the clock is put there: an hour of heartbeats, retries and time-outs takes milliseconds,
and it takes the same course each time. Randomness of the toolkit is drawn from a seed.

While a plain function runs in a thread the clock stands still; after `REAL_GRACE_S` it runs as the real one, so that a function that
waits for a cancellation gets one. The clock is that of the loop (`loop.time`, `asyncio.sleep`, `asyncio.timeout`) and of the toolkit;
`time.monotonic` and `time.time` are the system's. Sockets of the system answer in real time: test over `inproc`.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeVar

from core.runtime.runtime import SYSTEM, Runtime, scope

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor, Future

__all__ = ["LIMIT_S", "VirtualLoop", "VirtualTimeout", "run"]

T = TypeVar("T")

# Virtual time that a test may take: more than any time-out, and a test that waits for what never comes ends after some seconds.
LIMIT_S: Final = 10_000.0
# Of the monotonic clock and of the wall clock; the same in each run.
BEGIN_S: Final = 1_000.0
BEGIN_WALL_NS: Final = 1_700_000_000_000_000_000
# Real time that a function in a thread may take before the virtual clock goes on.
REAL_GRACE_S: Final = 0.2
# Longest real wait without a look at the threads.
REAL_WAIT_S: Final = 0.05


class VirtualTimeout(Exception):
    """A test has not ended within its virtual time, or waits for something that nothing can cause.

    Args:
        text: which of both.
    """


class _Clock(selectors.BaseSelector):
    """The selector of a loop in virtual time, and its clock."""

    def __init__(self, limit_s: float) -> None:
        self.now_s = BEGIN_S
        self.busy = 0  # calls in threads whose result the loop gets
        self._end_s = BEGIN_S + limit_s
        self._limit_s = limit_s
        self._waited_s = 0.0  # real time for the threads, since they were busy
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; let time pass if nothing is."""
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.busy:
            return self._wait_for_threads(timeout)
        self._waited_s = 0.0
        if timeout is None:
            ready = self._real.select(REAL_GRACE_S)  # for threads that the loop did not start
            if ready or len(self._real.get_map()) > 1:  # more than the loop's own: a socket of the system
                return ready
            raise VirtualTimeout("the test waits for something that nothing can cause: no timer is set and no thread runs")
        self.now_s += timeout
        if self.now_s > self._end_s:
            raise VirtualTimeout(f"the test has not ended within {self._limit_s:g} s of virtual time")
        return []

    def _wait_for_threads(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        begun = SYSTEM.monotonic()
        ready = self._real.select(REAL_WAIT_S)
        took = SYSTEM.monotonic() - begun
        self._waited_s += took
        if self._waited_s > REAL_GRACE_S and not ready:
            self.now_s += took if timeout is None else min(took, timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class _Jobs(SimpleQueue[Any]):
    """A queue of jobs for threads; one is done when its thread asks for the next."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._at_work: set[int] = set()  # threads

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if item is not None:  # the end of the thread
            self._loop.began()
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        thread = get_ident()
        if thread in self._at_work:
            self._at_work.discard(thread)
            self._loop.ended()
        item = super().get(block, timeout)
        if item is not None:
            self._at_work.add(thread)
        return item

    def get_nowait(self) -> Any:
        """Take one more job to that which is being done; both are done then at the same moment."""
        item, thread = super().get_nowait(), get_ident()
        if item is not None:
            if thread in self._at_work:
                self._loop.ended()
            self._at_work.add(thread)
        return item


class _Pool(ThreadPoolExecutor):
    """Threads whose work virtual time waits for."""

    def __init__(self, threads: int, name: str, loop: VirtualLoop) -> None:
        super().__init__(threads, name)
        self._loop = loop

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        self._loop.began()
        future.add_done_callback(lambda _: self._loop.ended())
        return future


class _VirtualRuntime(Runtime):
    """The system with the virtual clock, and randomness from a seed."""

    def __init__(self, clock: _Clock, loop: VirtualLoop, seed: int) -> None:
        self._clock = clock
        self._loop = loop
        self._random = random.Random(seed)
        self.monotonic = self.boot_clock = lambda: clock.now_s
        self.random_bytes = self._random.randbytes

    def wall_ns(self) -> int:
        return BEGIN_WALL_NS + int((self._clock.now_s - BEGIN_S) * 1e9)

    def chance(self, seed: int | None = None) -> random.Random:
        return random.Random(self._random.getrandbits(64) if seed is None else seed)

    def pool(self, threads: int, name: str) -> ThreadPoolExecutor:
        return _Pool(threads, name, self._loop)

    def queue(self) -> SimpleQueue[Any]:
        return _Jobs(self._loop)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, and the runtime of all that is made while it is open.

    For `asyncio.Runner(loop_factory=VirtualLoop)` and frameworks that take a factory; `run` for everything else.

    Args:
        seed: of the toolkit's randomness.
        limit_s: virtual seconds after which VirtualTimeout is raised.
    """

    def __init__(self, seed: int = 0, limit_s: float = LIMIT_S) -> None:
        self._virtual = _Clock(limit_s)
        super().__init__(self._virtual)
        self._scope = scope(_VirtualRuntime(self._virtual, self, seed))
        self._scope.__enter__()

    def time(self) -> float:
        return self._virtual.now_s

    def close(self) -> None:
        if not self.is_closed():
            with suppress(ValueError):  # closed in another context than it was made in, which has ended with it
                self._scope.__exit__(None, None, None)
        super().close()

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """As the usual one; virtual time waits for the result."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._virtual.busy += 1
        future.add_done_callback(lambda _: self._finished())
        return future

    async def shutdown_default_executor(self, *arguments: Any, **options: Any) -> None:
        """As the usual one: it waits for a thread."""
        self._virtual.busy += 1
        try:
            await super().shutdown_default_executor(*arguments, **options)
        finally:
            self._virtual.busy -= 1

    def began(self) -> None:
        """Note that a thread has work whose result the loop gets."""
        self._virtual.busy += 1

    def ended(self) -> None:
        """Note, from that thread, that it has done it."""
        with suppress(RuntimeError):  # the loop is closed
            self.call_soon_threadsafe(self._finished)

    def _finished(self) -> None:
        self._virtual.busy -= 1


def run(main: Coroutine[Any, Any, T], *, seed: int = 0, limit_s: float = LIMIT_S) -> T:
    """Run a coroutine to its end in virtual time, and return its result.

    Args:
        main: the coroutine.
        seed: of the toolkit's randomness; another one is another course of events.
        limit_s: virtual seconds it may take.

    Raises:
        VirtualTimeout: it has not ended within this time, or waits for something that nothing can cause.
    """
    with asyncio.Runner(loop_factory=partial(VirtualLoop, seed, limit_s)) as runner:
        return runner.run(main)
