"""core.runtime.supervision: a fault in a task, thread or timer is logged, counted, shown and handled."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from typing import TYPE_CHECKING

import pytest

from core.daemon.http import supervised_page
from core.daemon.metrics import figures_page
from core.runtime import supervision
from core.runtime.supervision import LOG_EVERY_S, ONCE, Restart, Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.faults  # these are wanted

QUICK = Restart(first_s=0.0, most_s=0.001, jitter=0.0, steady_s=60.0)


class Broken(Exception):
    """An unforeseen error."""


class Panic(BaseException):
    """An error that is no `Exception`, as extension modules in Rust raise."""


NO_EXCEPTIONS = pytest.mark.parametrize(
    "error", [asyncio.CancelledError("by whom?"), Panic("index out of range")], ids=["cancelled", "panic"]
)


@NO_EXCEPTIONS
async def test_a_task_is_begun_again_after_what_is_no_exception(error: BaseException) -> None:
    supervisor, runs, well = Supervisor(), [0], asyncio.Event()

    async def work() -> None:
        runs[0] += 1
        if runs[0] == 1:
            raise error
        well.set()
        await asyncio.Event().wait()

    task = supervisor.task("a task", work, restart=QUICK)
    await well.wait()
    assert supervisor.troubles == {"a task": f"RuntimeError: {type(error).__name__}: {error}"}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert supervisor.faults == {"a task": 1}


@NO_EXCEPTIONS
async def test_an_owner_gets_what_is_no_exception_as_one(error: BaseException) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__) as caught:
        await Supervisor().task("a task", work, raises=True)
    assert caught.value.__cause__ is error


@NO_EXCEPTIONS
async def test_timers_calls_and_batches_survive_what_is_no_exception(error: BaseException) -> None:
    supervisor, ticks, again, told, taken = Supervisor(), [0], asyncio.Event(), list[Exception](), list[int]()

    def tick() -> None:
        ticks[0] += 1
        if ticks[0] == 1:
            raise error
        again.set()

    def fail(number: int = 0) -> None:
        raise error

    def tell(error: Exception, number: int) -> None:
        told.append(error)

    def take(items: Iterator[int]) -> None:
        for item in items:
            if item in (1, 3):
                raise error
            taken.append(item)

    timer = supervisor.timer("a timer", tick, restart=QUICK)
    timer.after(0)
    await again.wait()
    supervisor.call("a call", fail, failed=told.append)
    supervisor.guarded("guarded", fail, tell)(7)
    supervisor.each("a batch", take, iter(range(6)))
    assert taken == [0, 2, 4, 5]
    assert [type(one) for one in told] == [RuntimeError] * 2
    assert supervisor.faults == {"a timer": 1, "a call": 1, "guarded": 1, "a batch": 2}


@pytest.mark.parametrize(
    "error", [SystemExit(5), Panic("index out of range"), asyncio.CancelledError()], ids=["exit", "panic", "cancelled"]
)
def test_a_thread_that_ends_with_what_is_no_exception_is_missed(error: BaseException) -> None:
    supervisor, told = Supervisor(), list[Exception]()

    def work() -> None:
        raise error

    supervisor.thread("a thread", work, failed=told.append).join()
    assert type(error).__name__ in supervisor.troubles["a thread"]
    assert [one.__cause__ for one in told] == [error]


@pytest.mark.parametrize("error", [SystemExit(5), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_what_ends_the_program_is_no_fault(error: BaseException) -> None:
    supervisor = Supervisor()

    def fail(*_: object) -> None:
        raise error

    async def main() -> None:
        supervisor.timer("a timer", fail).after(0)
        await asyncio.Event().wait()

    with pytest.raises(type(error)):
        supervisor.call("a call", fail)
    with pytest.raises(type(error)):
        supervisor.guarded("guarded", fail, fail)()
    with pytest.raises(type(error)):
        supervisor.each("a batch", fail, iter([1]))
    with pytest.raises(type(error)):
        asyncio.run(main())
    assert supervisor.faults == {}


async def test_a_task_is_begun_again_and_its_faults_are_counted_logged_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor()
    runs = 0
    well = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise Broken(f"run {runs}")
        well.set()
        await asyncio.Event().wait()

    task = supervisor.task("a task", work, restart=QUICK)
    await well.wait()
    assert supervisor.faults == {"a task": 2}
    assert supervisor.restarts == {"a task": 2}
    assert supervisor.troubles == {"a task": "Broken: run 2"}  # it has not run for steady_s yet
    assert supervisor.not_ready() == "a task: Broken: run 2"
    (record,) = [record for record in caplog.records if record.name == "core.supervision"]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[0] is Broken
    assert LOG_EVERY_S > 0  # the second one is left out, and counted
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert supervisor.troubles == {}


async def test_a_task_that_has_been_steady_counts_as_well_again() -> None:
    supervisor = Supervisor()
    failed = False

    async def work() -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise Broken
        while supervisor.troubles:
            await asyncio.sleep(0.001)

    await supervisor.task("a task", work, restart=Restart(first_s=0.0, steady_s=0.01))
    assert supervisor.faults == {"a task": 1}


async def test_what_serves_one_call_is_not_begun_again() -> None:
    supervisor = Supervisor()
    told: list[Exception] = []

    async def work() -> None:
        raise Broken

    await supervisor.task("a call", work, restart=ONCE, failed=told.append)
    assert [type(error) for error in told] == [Broken]
    assert supervisor.faults == {"a call": 1}
    assert supervisor.troubles == {}


async def test_a_task_raises_to_its_owner() -> None:
    supervisor = Supervisor()

    async def work(error: Exception) -> None:
        raise error

    with pytest.raises(Broken):
        await supervisor.task("a task", lambda: work(Broken()), raises=True)
    with pytest.raises(OSError, match="foreseen"):
        await supervisor.task("a task", lambda: work(OSError("foreseen")), raises=True, expects=(OSError,))
    assert supervisor.faults == {"a task": 1}


async def test_a_fault_in_what_the_owner_does_about_a_fault_is_one_more() -> None:
    supervisor = Supervisor()

    async def work() -> None:
        raise Broken

    def failed(error: Exception) -> None:
        raise LookupError from error

    await supervisor.task("a call", work, restart=ONCE, failed=failed)
    assert supervisor.faults == {"a call": 2}


async def test_a_tick_that_fails_does_not_stop_the_clock() -> None:
    supervisor = Supervisor()
    loop = asyncio.get_running_loop()
    ticks = 0
    well = asyncio.Event()

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 1:
            raise Broken
        if ticks == 2:
            timer.at(loop.time())
            raise Broken
        if ticks == 3:
            assert supervisor.troubles == {"a clock": "Broken"}
            timer.after(0)
        if ticks == 4:
            well.set()

    timer = supervisor.timer("a clock", tick, restart=QUICK)
    assert timer.when is None
    timer.at(loop.time())
    await well.wait()
    assert ticks == 4  # a clock that was set by a tick that failed is not set twice
    assert supervisor.faults == {"a clock": 2}
    assert supervisor.troubles == {}
    assert timer.when is None


async def test_a_clock_that_is_stopped_is_in_no_trouble() -> None:
    supervisor = Supervisor()
    ticked = asyncio.Event()

    def tick() -> None:
        ticked.set()
        raise Broken

    timer = supervisor.timer("a clock", tick)
    timer.after(0)
    await ticked.wait()
    assert timer.when is not None
    assert supervisor.troubles
    timer.cancel()
    assert timer.when is None
    assert supervisor.troubles == {}


async def test_a_clock_that_its_owner_stops_in_a_tick_that_fails_stays_stopped() -> None:
    supervisor = Supervisor()
    ticked = asyncio.Event()

    def tick() -> None:
        ticked.set()
        timer.cancel()
        raise Broken

    timer = supervisor.timer("a clock", tick, restart=QUICK)
    timer.after(0)
    await ticked.wait()
    assert timer.when is None
    assert supervisor.faults == {"a clock": 1}
    assert supervisor.troubles == {}


async def test_what_is_called_once_tells_its_owner() -> None:
    supervisor = Supervisor()
    told = asyncio.get_running_loop().create_future()

    def over(what: str) -> None:
        raise Broken(what)

    supervisor.later("a connection", 0, over, "handshake", failed=told.set_result)
    assert str(await told) == "handshake"
    supervisor.call("a connection", over, "reload")
    assert supervisor.faults == {"a connection": 2}


async def test_the_others_of_a_batch_get_theirs() -> None:
    supervisor = Supervisor()
    done: list[int] = []

    def work(items: Iterator[int]) -> None:
        for item in items:
            if item % 2:
                raise Broken
            done.append(item)

    supervisor.each("a batch", work, iter(range(6)))
    assert done == [0, 2, 4]
    assert supervisor.faults == {"a batch": 3}


def test_a_thread_that_fails_is_missed_or_begun_again() -> None:
    supervisor = Supervisor()
    told: list[Exception] = []
    runs = 0

    def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise Broken

    supervisor.thread("a thread", work, failed=told.append).join()
    assert supervisor.troubles == {"a thread": "Broken"}
    supervisor.thread("another thread", work, restart=QUICK, pause=threading.Event().wait).join()
    assert supervisor.restarts == {"another thread": 1}
    assert supervisor.faults == {"a thread": 1, "another thread": 1}
    assert list(supervisor.troubles) == ["a thread"]
    assert len(told) == 1


def test_the_delay_grows_up_to_its_limit_and_is_spread() -> None:
    restart = Restart(first_s=1.0, most_s=8.0, jitter=0.0)
    assert [restart.delay_s(faults, 0.5) for faults in (1, 2, 3, 4, 5, 10_000)] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    spread = {Restart(first_s=1.0, jitter=0.5).delay_s(1, chance / 50) for chance in range(50)}
    assert len(spread) > 10
    assert 0.5 <= min(spread) <= max(spread) <= 1.0


def test_what_is_shown_says_what_failed_and_that_the_daemon_is_not_ready() -> None:
    supervisor = Supervisor()
    page = supervised_page(figures_page("a daemon", "thing", lambda: {"requests": 7}), supervisor)
    assert page.not_ready() == ""

    def work() -> None:
        raise Broken("oh")

    supervisor.thread("a thread", work).join()
    assert page.not_ready() == "a thread: Broken: oh"
    assert page.snapshot().figures["a thread"] == "Broken: oh"
    assert page.snapshot().counters == {"fault: a thread": 1.0}
    samples = {family.name: family.samples for family in page.families()}
    assert samples["supervised_faults"] == samples["supervised_down"] == [(("a thread",), 1.0)]


async def test_what_a_task_starts_has_its_supervisor() -> None:
    found: list[supervision.Supervisor] = []

    async def inner() -> None:
        found.append(supervision.current())
        thread = supervision.current().thread("a thread", lambda: found.append(supervision.current()))
        await asyncio.to_thread(thread.join)

    with supervision.scope(Supervisor()) as supervisor:
        await asyncio.create_task(inner())
    assert found == [supervisor, supervisor]
    assert supervision.current() is supervision.current()
    assert supervision.current() is not supervisor


class Collecting(str):
    """A name at whose use garbage is collected, as may happen at any allocation."""

    __slots__ = ()

    def __hash__(self) -> int:
        gc.collect()
        return super().__hash__()


async def test_a_fault_that_is_found_by_a_collection_while_another_is_counted_is_counted_too() -> None:
    """As a daemon counts errors that nothing has waited for; the process stood still."""
    supervisor = Supervisor()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: supervisor.count("not waited for"))
    lost = loop.create_future()
    lost.set_exception(Broken())
    circle: list[object] = [lost]
    circle.append(circle)
    del lost, circle
    supervisor.fault(Collecting("a timer"), Broken())
    assert supervisor.faults == {"not waited for": 1, "a timer": 1}
