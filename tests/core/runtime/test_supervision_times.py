"""core.runtime.supervision: when something runs again, what is counted meanwhile, and where it is shown."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING

import pytest

from core.runtime import supervision
from core.runtime.runtime import Runtime
from core.runtime.supervision import NAMES_MAX, Restart, Supervisor, cancel_all
from tests.scenes.eager_tasks import make_tasks_eager
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.faults  # these are wanted

STEADY = Restart(first_s=1.0, most_s=4.0, jitter=0.0, steady_s=10.0)
# How long each run takes until it fails, and the delays that follow.
RUNS_S = [0.0, 9.0, 0.0, 0.0, 10.0, 0.0, 11.0]
DELAYS_S = [1.0, 2.0, 4.0, 4.0, 1.0, 2.0, 1.0]


class Broken(Exception):
    """An unforeseen error."""


class Clocked(Runtime):
    """A runtime whose clock a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.monotonic = lambda: self.now_s


def test_a_thread_runs_again_after_delays_that_grow_until_it_was_steady() -> None:
    runtime, left, delays = Clocked(), iter(RUNS_S), list[float]()

    def work() -> None:
        for run_s in left:
            runtime.now_s += run_s
            raise Broken

    Supervisor(runtime=runtime).thread("a thread", work, restart=STEADY, pause=delays.append).join()
    assert delays == DELAYS_S


@in_virtual_time
async def test_a_task_runs_again_after_delays_that_grow_until_it_was_steady() -> None:
    loop, left, delays, ended = asyncio.get_running_loop(), iter(RUNS_S), list[float](), 0.0

    async def work() -> None:
        nonlocal ended
        delays.append(loop.time() - ended)
        for run_s in left:
            await asyncio.sleep(run_s)
            ended = loop.time()
            raise Broken

    await Supervisor().task("a task", work, restart=STEADY)
    assert delays[1:] == pytest.approx(DELAYS_S)


@in_virtual_time
async def test_a_timer_calls_again_after_delays_that_grow_until_a_call_succeeds() -> None:
    loop, supervisor, calls, failing = asyncio.get_running_loop(), Supervisor(), list[float](), list[bool]()
    done = asyncio.Event()

    def call() -> None:
        calls.append(loop.time())
        failing.append(timer.failing)
        if len(calls) == 5:
            timer.after(100.0)
        elif len(calls) == 8:
            done.set()
        else:
            raise Broken

    timer = supervisor.timer("a timer", call, restart=STEADY)
    assert not timer.failing
    timer.after(7.0)
    assert timer.when == loop.time() + 7.0
    begun = loop.time()
    await done.wait()
    assert [*failing, timer.failing] == [False, True, True, True, True, False, True, True, False]
    assert [later - earlier for earlier, later in zip([begun, *calls], calls, strict=False)] == [7.0, 1.0, 2.0, 4.0, 4.0, 100.0, 1.0, 2.0]


@in_virtual_time
async def test_a_timer_has_one_time_and_calls_again_after_a_fault_though_it_was_cancelled_before() -> None:
    supervisor, calls, done = Supervisor(), list[int](), asyncio.Event()

    def call() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise Broken
        done.set()

    timer = supervisor.timer("a timer", call, restart=STEADY)
    timer.after(1.0)
    timer.cancel()
    await asyncio.sleep(2.0)
    timer.after(1.0)
    timer.after(3.0)
    await asyncio.sleep(2.0)
    assert calls == []
    await done.wait()
    assert supervisor.faults == {"a timer": 1}


def test_what_runs_again_counts_as_well_from_the_moment_on_in_which_it_was_steady() -> None:
    runtime, runs, seen = Clocked(), [0], list[str]()
    supervisor = Supervisor(runtime=runtime)

    def work() -> None:
        runs[0] += 1
        if runs[0] == 1:
            raise Broken("once")
        for now_s in (109.9, 110.0):
            runtime.now_s = now_s
            seen.append(supervisor.not_ready())

    supervisor.thread("a thread", work, restart=STEADY, pause=lambda _: None).join()
    assert seen == ["a thread: Broken: once", ""]


def test_of_several_that_have_ended_under_one_name_the_last_is_shown() -> None:
    supervisor = Supervisor()

    texts = iter(["one", "two"])

    def fail() -> None:
        raise Broken(next(texts))

    for _ in range(2):
        supervisor.thread("a thread", fail).join()
    assert supervisor.troubles == {"a thread": "Broken: two"}


async def test_the_probe_is_called_before_each_run_of_each_kind() -> None:
    names = list[str]()
    supervisor, rang = Supervisor(names.append), asyncio.Event()

    async def work() -> None:
        assert names == ["a task"]

    def take(items: Iterator[int]) -> None:
        assert [*items] == [1]

    await supervisor.task("a task", work)
    await asyncio.to_thread(supervisor.thread("a thread", lambda: None).join)
    supervisor.timer("a timer", rang.set).after(0)
    await rang.wait()
    supervisor.call("a call", int)
    supervisor.guarded("guarded", rang.clear, print)()
    supervisor.each("a batch", take, iter([1]))
    assert names == ["a task", "a thread", "a timer", "a call", "guarded", "a batch"]


async def test_an_owner_has_its_tasks_while_they_run() -> None:
    supervisor, mine, go = Supervisor(), set[asyncio.Task[None]](), asyncio.Event()

    async def work() -> None:
        await go.wait()

    task = supervisor.task("a task", work, among=mine)
    assert mine == {task}
    go.set()
    await task
    await eventually(lambda: not mine)


async def test_all_tasks_of_an_iterator_have_ended_when_they_are_cancelled() -> None:
    tasks = [asyncio.ensure_future(asyncio.Event().wait()) for _ in range(3)]
    await asyncio.sleep(0)
    await cancel_all(task for task in tasks)
    assert [task.cancelled() for task in tasks] == [True] * 3


@in_virtual_time
async def test_no_step_of_a_task_is_within_the_call_that_begins_it() -> None:
    """Also where the loop makes eager tasks; the first is in the next iteration, without a wait."""
    loop, steps = asyncio.get_running_loop(), list[float]()

    async def work() -> None:
        steps.append(loop.time())

    begun = loop.time()
    for eager in (False, True):
        if eager:
            make_tasks_eager()
        task = Supervisor().task("a task", work)
        assert len(steps) == eager
        await task
    assert steps == [begun, begun]


def test_what_ends_the_program_ends_it_in_a_task_too() -> None:
    supervisor = Supervisor()

    async def work() -> None:
        raise SystemExit(5)

    async def main() -> None:
        await supervisor.task("a task", work)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert supervisor.faults == {}


def test_faults_that_were_caught_elsewhere_are_counted_and_only_some_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor()
    supervisor.count("counted")
    supervisor.fault("told", Broken("one"))
    supervisor.fault("told", Broken("two"))
    assert supervisor.faults == {"counted": 1, "told": 2}
    assert [(record.getMessage(), vars(record)["left_out"]) for record in caplog.records] == [("told: Broken: one", 0)]


def test_no_more_names_are_shown_than_there_may_be() -> None:
    supervisor = Supervisor()
    for number in range(NAMES_MAX + 1):
        supervisor.count(f"name {number}")
    assert len(supervisor.faults) == NAMES_MAX
    assert f"name {NAMES_MAX}" not in supervisor.faults


def test_a_part_of_a_program_has_one_supervisor() -> None:
    first, second = (contextvars.Context() for _ in range(2))
    mine = [first.run(supervision.current) for _ in range(2)]
    assert mine[0] is mine[1]
    assert second.run(supervision.current) is not mine[0]


def test_a_thread_without_a_pause_of_its_own_has_that_of_the_runtime() -> None:
    runtime, paused, runs = Clocked(), list[float](), [0]
    runtime.pause = paused.append

    def work() -> None:
        runs[0] += 1
        if runs[0] == 1:
            raise Broken

    Supervisor(runtime=runtime).thread("a thread", work, restart=STEADY).join()
    assert paused == [1.0]
