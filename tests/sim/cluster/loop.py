"""An event loop in virtual time, shared by all simulated processes.

Nothing is waited for: when no callback is ready, the clock is put to the next timer. Each callback belongs to the process in whose context
it was made: it is dropped when that life of the process has ended, and held back while the process is suspended.
"""

from __future__ import annotations

import asyncio
import heapq
from contextvars import Context, ContextVar
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

__all__ = ["OWNER", "Escaped", "Owner", "SimLoop"]

CALLBACK_S = 2e-6  # what a callback takes; so that a chain of callbacks without end lets time pass
EARLY_S = 1e-6  # by which floating-point numbers of two clocks may differ
CANCELLED_MIN = 200  # cancelled timers before they are cleared away
_MOMENT = Struct("<dI")


class Escaped(AssertionError):
    """Product code asked something of the real system."""


class Owner(Protocol):
    """A life of a simulated process, as the loop sees it."""

    number: int
    alive: bool
    held: list[asyncio.Handle] | None  # callbacks of a suspended process, None while it runs
    name: str
    tasks: list[asyncio.Task[Any]]
    after: Callable[[], None] | None  # called after each of its callbacks: checks of what must always hold

    def local(self, now: float) -> float: ...  # time of its monotonic clock
    def world_time(self, local: float) -> float: ...  # the reverse

    # The network and the threads of the process.
    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]: ...
    def serve(self, factory: Callable[[], Any], sock: Any) -> Any: ...
    def in_pool(self, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]: ...
    def failed(self, context: dict[str, Any]) -> None: ...  # an error reached the loop


OWNER: ContextVar[Owner | None] = ContextVar("tests.sim.cluster.owner", default=None)


class SimLoop(asyncio.BaseEventLoop):
    """The loop.

    Attributes:
        now: virtual seconds of the world; `time()` is the clock of the process that asks.
        steps: callbacks so far.
        trace: checksum of every step: when, and of which process.
        each: called every `every` steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0
        self.trace = 0
        self.each: Callable[[], None] = lambda: None
        self.every = 1000
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = 0
        self._dropped = 0
        self.set_exception_handler(self._on_error)

    # ---- time

    def time(self) -> float:
        owner = OWNER.get()
        return self.now if owner is None else owner.local(self.now)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        owner = _owner(timer)
        timer._scheduled = True  # type: ignore[attr-defined]
        self._push(when if owner is None else owner.world_time(when), timer)
        return timer

    def _push(self, at: float, timer: asyncio.TimerHandle) -> None:
        self._order += 1
        heapq.heappush(self._timers, (at, self._order, timer))

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call something of the world, of no process, at a time of the world."""
        timer = asyncio.TimerHandle(when, callback, args, self, _WORLD)
        timer._scheduled = True  # type: ignore[attr-defined]
        self._push(when, timer)
        return timer

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self.at(self.now + delay_s, callback, *args)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._dropped += 1
        if self._dropped > CANCELLED_MIN and self._dropped * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._dropped = 0

    # ---- steps

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        if not ready and timers and timers[0][0] > self.now:
            self.now = timers[0][0]
        while timers and timers[0][0] <= self.now:
            _, _, timer = heapq.heappop(timers)
            if timer.cancelled():
                self._dropped = max(0, self._dropped - 1)
                continue
            owner = _owner(timer)
            if owner is not None:
                if not owner.alive:
                    continue
                if owner.held is None and self._is_early(owner, timer):
                    continue
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        if not ready and not timers:
            raise Escaped("nothing is due, and never will be")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            owner = _owner(handle)
            if owner is not None:
                if not owner.alive:
                    continue
                if owner.held is not None:
                    owner.held.append(handle)
                    continue
            self.steps += 1
            self.now += CALLBACK_S
            self.trace = crc32(_MOMENT.pack(self.now, 0 if owner is None else owner.number), self.trace)
            handle._run()
            if owner is not None and owner.after is not None and owner.alive:
                owner.after()
            if self.steps % self.every == 0:
                self.each()

    def forget(self) -> None:
        """Drop everything that is still to be called."""
        self._ready.clear()  # type: ignore[attr-defined]
        self._timers.clear()

    def note(self, octets: bytes) -> None:
        """Put something into the trace."""
        self.trace = crc32(octets, self.trace)

    def resume(self, handles: list[asyncio.Handle]) -> None:
        """Run what was held back, first; timers only if they are due by the clock of their process."""
        for handle in reversed(handles):
            owner = _owner(handle)
            if owner is None or not isinstance(handle, asyncio.TimerHandle) or not self._is_early(owner, handle):
                self._ready.appendleft(handle)  # type: ignore[attr-defined]

    def _is_early(self, owner: Owner, timer: asyncio.TimerHandle) -> bool:
        """Return whether a timer is not due by the clock of its process; then it is set again."""
        if timer.cancelled() or owner.local(self.now) >= timer.when() - EARLY_S:
            return False
        self._push(max(owner.world_time(timer.when()), self.now + CALLBACK_S), timer)
        return True

    # ---- the world

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await _process().connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if options.get("sock") is None:
            raise Escaped("a server without a simulated socket")
        return _process().serve(protocol_factory, options["sock"])

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        if executor is None:
            return _process().in_pool(func, *args)
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    async def getaddrinfo(self, *arguments: Any, **options: Any) -> Any:
        raise Escaped("a name is resolved by the real system")

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        owner = OWNER.get()
        if owner is None:
            self.default_exception_handler(context)
        elif owner.alive:
            owner.failed(context)

    def _process_events(self, event_list: Any) -> None: ...

    def _write_to_self(self) -> None: ...


_WORLD = Context()


def _owner(handle: asyncio.Handle) -> Owner | None:
    return handle._context.get(OWNER)  # type: ignore[attr-defined,no-any-return]


def _process() -> Owner:
    owner = OWNER.get()
    if owner is None:
        raise Escaped("this belongs to no process")
    return owner
