"""The one way to start tasks, threads and timers. A fault in one is logged, counted, shown, and answered.

    supervisor = supervision.current()
    self._task = supervisor.task("titanic upkeep", self._run)               # restarted after a fault, with back-off
    self._timer = supervisor.timer("mdp broker clock", self._on_time)       # a fault in one tick never stops the timer
    self._thread = supervisor.thread("titanic writer", self._write, failed=self._writer_failed)

The owner decides what follows a fault: `restart=` runs it again, `failed=` calls the owner, `raises=True` raises the fault to the owner
that awaits the task: that is how a daemon ends with an exit code. To cancel a task is not a fault; a cancellation without a call of
`cancel` is one, and so is any other error that is no `Exception`: it would end what it is raised in without a word. `SystemExit` and
`KeyboardInterrupt` end the program, but for `SystemExit` in a thread, which would end that alone.

One supervisor serves one daemon (`core.daemon.run` makes it), or the part of another program that first called `current()`; tasks
inherit it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from core.daemon.metrics import Family
from core.machine.backoff import backoff_s
from core.machine.log_rate import LogRate
from core.runtime.loop_timers import call_at
from core.runtime.runtime import Runtime
from core.runtime.runtime import current as current_runtime

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from core.runtime.loop_timers import SetTimer

    Failed = Callable[[Exception], object] | None  # called with a fault

log = logging.getLogger("core.supervision")

T = TypeVar("T")
P = ParamSpec("P")

# A timer that fails in each tick must not fill the disk: one traceback per name and interval, with the number of those left out.
LOG_EVERY_S: Final = 10.0
# Faults are shown by name, and names are literals in the code: more would be a programming error.
NAMES_MAX: Final = 256
REASON_CHARACTERS_MAX: Final = 200  # of an error's text on the readiness page
PROGRAM_ENDS: Final = (SystemExit, KeyboardInterrupt)
_COROUTINE_ENDS: Final = (*PROGRAM_ENDS, GeneratorExit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Delays before a restart after a fault."""

    first_s: float = 0.1  # before the first restart; short, because most faults do not repeat
    most_s: float = 30.0  # the delay doubles up to this; long enough that a permanent fault costs nothing
    jitter: float = 0.25  # random part of the delay, so that many processes do not restart together
    steady_s: float = 1.0  # after running for so long without a fault it counts as healthy, and the next delay is the first one again

    def delay_s(self, faults: int, chance: float) -> float:
        """Return the delay after so many faults in a row, 1 for the first; `chance` is between 0 and 1."""
        return backoff_s(self.first_s, self.most_s, faults - 1, self.jitter, chance)

    def in_a_row(self, faults: int, ran_s: float) -> int:
        """Return how many faults have come in a row, given those before and how long it has run since."""
        return faults + 1 if ran_s < self.steady_s else 1


RESTART: Final = Restart()
ONCE: Final = None  # `restart=ONCE`: what serves one call or one connection is not restarted


class _Record:
    """Faults and state of everything that runs under one name."""

    __slots__ = ("faults", "name", "restarts", "unwell")

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults = 0
        self.restarts = 0
        self.unwell: dict[object, tuple[str, float]] = {}  # run -> why, and when it counts as healthy again


class Supervisor:
    """Starts tasks, threads and timers, and reports their faults; may be used from any thread."""

    def __init__(self, probe: Callable[[str], None] | None = None, runtime: Runtime | None = None) -> None:
        self.runtime = runtime if runtime is not None else current_runtime()
        self._now = self.runtime.monotonic
        self._chance = self.runtime.chance().random
        self._probe = probe  # for tests; called with the name before each run, and what it raises is a fault of that run
        self._records: dict[str, _Record] = {}
        self._rate = LogRate(LOG_EVERY_S, NAMES_MAX)
        self._lock = self.runtime.lock()
        self.ran_out: Callable[[str], object] = lambda name: None  # in any thread: no memory in the middle of a change

    # ---- starting

    def task(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],  # makes the coroutine, once for each run
        *,
        restart: Restart | None = RESTART,  # when to run it again after a fault; `ONCE` for never
        failed: Failed = None,
        raises: bool = False,  # raise the fault to the awaiter of the task, instead of running it again
        expects: tuple[type[Exception], ...] = (),  # answers to the awaiter, not faults: raised, neither logged nor counted
        among: set[asyncio.Task[None]] | None = None,  # the owner's tasks; contains this one while it runs
    ) -> asyncio.Task[None]:
        """Run a coroutine on the loop; the task never ends with an error unless `raises`.

        Its name is for log, status and metrics, and the same for all tasks of a kind.
        """
        record = self._record(name)
        task = begin(lambda: self._run(record, work, None if raises else restart, failed, raises, expects), name)
        if among is not None:
            among.add(task)
            task.add_done_callback(among.discard)
        return task

    async def _run(
        self,
        record: _Record,
        work: Callable[[], Coroutine[Any, Any, None]],
        restart: Restart | None,
        failed: Failed,
        raises: bool,
        expects: tuple[type[Exception], ...],
    ) -> None:
        this, faults = object(), 0
        try:
            while True:
                began = self._now()
                try:
                    if self._probe is not None:
                        self._probe(record.name)
                    await work()
                    return
                except expects:
                    raise
                except _COROUTINE_ENDS:
                    raise
                except BaseException as raised:
                    if isinstance(raised, asyncio.CancelledError) and _is_cancelled():
                        raise
                    error = _as_exception(raised)
                    self._fault(record, error, failed)
                    if raises:
                        raise error from error.__cause__
                    if restart is None:
                        return
                    faults = restart.in_a_row(faults, self._now() - began)
                    record.unwell[this] = (_reason(error), float("inf"))
                await asyncio.sleep(restart.delay_s(faults, self._chance()))
                self._restarted(record, this, restart)
        finally:
            record.unwell.pop(this, None)

    def thread(
        self,
        name: str,
        work: Callable[[], None],
        *,
        restart: Restart | None = ONCE,
        failed: Failed = None,
        pause: Callable[[float], object] | None = None,
    ) -> threading.Thread:
        """Start a thread. A fault that ends it stays in `troubles`, because its work is no longer done.

        `failed` is called in the thread. `pause` waits before a restart, by default the runtime's;
        an owner that may end meanwhile passes the `wait` of its event.
        """
        record = self._record(name)
        run = partial(copy_context().run, self._run_thread, record, work, restart, failed, pause or self.runtime.pause)
        return self.runtime.thread(name, run)

    def _run_thread(
        self, record: _Record, work: Callable[[], None], restart: Restart | None, failed: Failed, pause: Callable[[float], object]
    ) -> None:
        this, faults = object(), 0
        while True:
            began = self._now()
            try:
                if self._probe is not None:
                    self._probe(record.name)
                work()
            except BaseException as raised:
                error = _as_exception(raised)
                record.unwell[this] = (_reason(error), float("inf"))
                self._fault(record, error, failed)
                if restart is None:
                    return
                faults = restart.in_a_row(faults, self._now() - began)
            else:
                record.unwell.pop(this, None)
                return
            pause(restart.delay_s(faults, self._chance()))
            self._restarted(record, this, restart)

    def timer(self, name: str, call: Callable[[], object], *, restart: Restart = RESTART) -> Timer:
        """Return a timer that is not set yet and may be moved."""
        return Timer(self, self._record(name), call, restart)

    def later(self, name: str, delay_s: float, call: Callable[..., object], *arguments: Any, failed: Failed = None) -> asyncio.TimerHandle:
        """Call something once, after a time: for one connection or one call. A fault is passed to `failed`."""
        return asyncio.get_running_loop().call_later(delay_s, partial(self.call, name, call, *arguments, failed=failed))

    def call(self, name: str, call: Callable[..., object], *arguments: Any, failed: Failed = None) -> None:
        """Call something now, for callbacks of the loop or a signal; a fault is passed to `failed`."""
        try:
            if self._probe is not None:
                self._probe(name)
            call(*arguments)
        except PROGRAM_ENDS:
            raise
        except BaseException as error:
            self._fault(self._record(name), _as_exception(error), failed)

    def guarded(self, name: str, call: Callable[P, object], failed: Callable[Concatenate[Exception, P], object]) -> Callable[P, None]:
        """Return a wrapper of `call` for frequent use; a fault is passed to `failed(error, *arguments)` and not raised."""
        record = self._record(name)

        def run(*arguments: P.args, **named: P.kwargs) -> None:
            try:
                if self._probe is not None:
                    self._probe(name)
                call(*arguments, **named)
            except PROGRAM_ENDS:
                raise
            except BaseException as error:
                self._fault(record, _as_exception(error), lambda error: failed(error, *arguments, **named))

        return run

    def each(self, name: str, work: Callable[[Iterator[T]], object], items: Iterator[T], failed: Failed = None) -> None:
        """Call `work(items)`, which takes items one by one; after a fault again, for the others.

        The loop is in `work`, so that the guard costs nothing per item; `failed` is called with each fault.
        """
        while True:
            try:
                if self._probe is not None:
                    self._probe(name)
                work(items)
                return
            except PROGRAM_ENDS:
                raise
            except BaseException as error:
                self._fault(self._record(name), _as_exception(error), failed)

    # ---- faults

    def fault(self, name: str, error: Exception) -> None:
        """Log and count a fault that was caught elsewhere."""
        self._fault(self._record(name), error)

    def count(self, name: str) -> None:
        """Count a fault that was caught and logged elsewhere."""
        record = self._record(name)
        with self._lock:
            record.faults += 1

    def _fault(self, record: _Record, error: Exception, failed: Failed = None) -> None:
        """Count and log a fault, and call the owner; an error in that call is one more fault."""
        if isinstance(error, MemoryError):
            self.ran_out(record.name)
        now = self._now()
        with self._lock:
            record.faults += 1
            left_out = self._rate.admit(record.name, now)
        if left_out is not None:
            # Without memory a traceback cannot be made either (P4).
            trace = None if isinstance(error, MemoryError) else (type(error), error, error.__traceback__)
            log.error("%s: %s", record.name, _reason(error), exc_info=trace, extra={"supervised": record.name, "left_out": left_out})
        if failed is not None:
            try:
                failed(error)
            except Exception as second:
                self._fault(record, second)

    def _restarted(self, record: _Record, this: object, restart: Restart) -> None:
        with self._lock:
            record.restarts += 1
        reason, _ = record.unwell[this]
        record.unwell[this] = (reason, self._now() + restart.steady_s)

    def _record(self, name: str) -> _Record:
        with self._lock:
            found = self._records.get(name)
            if found is None:
                found = _Record(name)
                if len(self._records) < NAMES_MAX:
                    self._records[name] = found
            return found

    # ---- how they are

    @property
    def faults(self) -> Mapping[str, int]:
        """Number of faults by name, without zeros."""
        return {record.name: record.faults for record in self._known() if record.faults}

    @property
    def restarts(self) -> Mapping[str, int]:
        """Number of restarts by name, without zeros."""
        return {record.name: record.restarts for record in self._known() if record.restarts}

    @property
    def troubles(self) -> Mapping[str, str]:
        """Reason by name, for everything that does not run or has just been restarted."""
        now = self._now()
        found: dict[str, str] = {}
        for record in self._known():
            reasons = [reason for reason, well_at in list(record.unwell.values()) if now < well_at]
            if reasons:
                found[record.name] = reasons[-1]
        return found

    def not_ready(self) -> str:
        """Return in one line what does not run and why; "" when everything runs."""
        return "; ".join(f"{name}: {reason}" for name, reason in self.troubles.items())

    def families(self) -> list[Family]:
        return [
            Family("supervised_faults", "counter", "Faults of tasks, threads and timers.", ("name",), _samples(self.faults)),
            Family("supervised_restarts", "counter", "Restarts after a fault.", ("name",), _samples(self.restarts)),
            Family("supervised_down", "gauge", "1 for what does not run now.", ("name",), _samples(dict.fromkeys(self.troubles, 1))),
        ]

    def _known(self) -> list[_Record]:
        with self._lock:
            return list(self._records.values())


class Timer:
    """A timer of one owner.

    A call that fails is made again after a back-off, unless it has set the timer itself. Made by `Supervisor.timer`.
    """

    __slots__ = ("_call", "_cancelled", "_faults", "_handle", "_record", "_restart", "_supervisor", "when")

    def __init__(self, supervisor: Supervisor, record: _Record, call: Callable[[], object], restart: Restart) -> None:
        self._supervisor = supervisor
        self._record = record
        self._call = call
        self._restart = restart
        self._faults = 0  # in a row
        self._handle: SetTimer | None = None
        self.when: float | None = None  # the loop time it is set to, None if it is not set

    def at(self, when: float) -> None:
        before, self._handle = self._handle, call_at(when, self._fire)
        if before is not None:
            before.cancel()
        self._cancelled = False  # by its owner, since now
        self.when = when

    def after(self, delay_s: float) -> None:
        self.at(asyncio.get_running_loop().time() + delay_s)

    def cancel(self) -> None:
        """Unset the timer. It may be set again."""
        self._cancelled = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = self.when = None
        if self._faults:
            self._well()

    def _fire(self) -> None:
        self._handle = self.when = None
        supervisor = self._supervisor
        try:
            if supervisor._probe is not None:
                supervisor._probe(self._record.name)
            self._call()
        except PROGRAM_ENDS:
            raise
        except BaseException as raised:
            error = _as_exception(raised)
            supervisor._fault(self._record, error)
            if self._cancelled:
                return  # by the call itself, which then failed: nothing is to be done again
            self._faults += 1
            self._record.unwell[self] = (_reason(error), float("inf"))
            if self._handle is None:
                self.after(self._restart.delay_s(self._faults, supervisor._chance()))
        else:
            if self._faults:
                self._well()

    @property
    def failing(self) -> bool:
        return self._faults > 0

    def _well(self) -> None:
        self._faults = 0
        self._record.unwell.pop(self, None)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _as_exception(error: BaseException) -> Exception:
    """Return what is reported for an error: itself, or an exception with its type and text."""
    if isinstance(error, Exception):
        return error
    fault = RuntimeError(_reason(error))
    fault.__cause__ = error
    return fault


def _reason(error: BaseException) -> str:
    text = str(error)[:REASON_CHARACTERS_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _samples(numbers: Mapping[str, int]) -> list[tuple[tuple[str, ...], Any]]:
    return [((name,), float(number)) for name, number in numbers.items()]


_CURRENT: Final[ContextVar[Supervisor]] = ContextVar("core.runtime.supervision")


def current() -> Supervisor:
    """Return the supervisor of this daemon or part of a program; made on the first call."""
    found = _CURRENT.get(None)
    if found is None:
        found = Supervisor()
        _CURRENT.set(found)
    return found


def begin(work: Callable[[], Coroutine[Any, Any, None]], name: str, context: Context | None = None) -> asyncio.Task[None]:
    """Start a task whose first step is not within this call.

    With `asyncio.eager_task_factory` it would be, when its owner does not know it yet.
    """
    returned = False

    async def later() -> None:
        if not returned:
            await asyncio.sleep(0)
        await work()

    task = asyncio.get_running_loop().create_task(later(), name=name, context=context)
    returned = True
    return task


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for their end, whatever they raise."""
    tasks = [*tasks]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def to_the_end(close: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Coroutine[Any, Any, None]]:
    """Let a close that frees locks and threads go on when it is cancelled, and raise that at its end.

    Not for a close that waits for tasks which may call it themselves.
    """

    @wraps(close)
    async def run(*arguments: P.args, **named: P.kwargs) -> None:
        task = begin(partial(close, *arguments, **named), "core close")
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        task.result()
        if cancelled is not None:
            raise cancelled

    return run


@contextmanager
def scope(supervisor: Supervisor) -> Iterator[Supervisor]:
    """Make a supervisor the current one within the block."""
    token = _CURRENT.set(supervisor)
    try:
        yield supervisor
    finally:
        _CURRENT.reset(token)
