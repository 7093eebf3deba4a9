"""core.runtime.loop_timers: timers are made at their time, in their context, whatever waits for it."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core.runtime.loop_timers import call_at, is_uvloop
from core.runtime.supervision import Supervisor
from tests.descriptors import few_descriptors
from tests.scenes.forked_child import in_child

if TYPE_CHECKING:
    from collections.abc import Callable

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")
LATE_S = 3600.0
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="timer descriptors are Linux's")


def descriptors() -> set[str]:
    """Return the timer descriptors of this process; those of other tests' loops may go at any time."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(entry) == "anon_inode:[timerfd]":
                found.add(entry.name)
        except FileNotFoundError:
            pass  # that of the listing
    return found


def on_uvloop(main: Callable[[], object]) -> None:
    """Call something on a new uvloop, which is left open with its timers."""

    async def call() -> None:
        main()

    uvloop = pytest.importorskip("uvloop")
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(call())
    finally:
        loop.close()


async def test_timers_are_made_in_the_order_of_their_times_and_none_before() -> None:
    loop = asyncio.get_running_loop()
    made: list[tuple[str, bool]] = []
    done = loop.create_future()
    start = loop.time()
    for name, delay_s in (("third", 0.03), ("first", 0.0), ("second", 0.01), ("past", -1.0)):
        call_at(start + delay_s, lambda name=name, when=start + delay_s: made.append((name, loop.time() >= when)))  # type: ignore[misc]
    call_at(start + 0.04, lambda: done.set_result(None))
    await done
    assert made == [("past", True), ("first", True), ("second", True), ("third", True)]


async def test_a_timer_that_is_set_earlier_than_all_others_does_not_wait_for_them() -> None:
    loop = asyncio.get_running_loop()
    late = call_at(loop.time() + LATE_S, lambda: None)
    done = loop.create_future()
    call_at(loop.time() + 0.01, lambda: done.set_result("soon"))
    assert await done == "soon"
    late.cancel()


async def test_a_timer_has_the_context_variables_of_its_caller() -> None:
    loop = asyncio.get_running_loop()
    seen = loop.create_future()
    late = call_at(loop.time() + LATE_S, lambda: None)  # makes what the others use
    WHO.set("the caller")
    call_at(loop.time(), lambda: seen.set_result(WHO.get()))
    WHO.set("nobody again")
    assert await seen == "the caller"
    late.cancel()


async def test_a_timer_that_was_cancelled_is_not_made() -> None:
    loop = asyncio.get_running_loop()
    made: list[str] = []
    done = asyncio.Event()
    cancelled = call_at(loop.time() + 0.001, lambda: made.append("cancelled"))
    cancelled.cancel()
    cancelled.cancel()
    now = loop.time()
    first = call_at(now, lambda: second.cancel())
    second = call_at(now, lambda: made.append("cancelled by another one of the same time"))
    call_at(now + 0.01, done.set)
    await done.wait()
    first.cancel()  # was made
    assert made == []


async def test_an_error_of_one_timer_is_the_loops_and_the_others_are_made() -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    done = asyncio.Event()
    broken = ValueError("of a timer")

    def fail() -> None:
        raise broken

    now = loop.time()
    call_at(now, fail)
    call_at(now, done.set)
    await done.wait()
    assert errors == [broken]


@on_linux
async def test_all_timers_of_a_uvloop_have_one_descriptor_while_one_is_set() -> None:
    loop = asyncio.get_running_loop()
    before, fired = descriptors(), asyncio.Event()
    expected = 1 if is_uvloop(loop) else 0
    timers = [call_at(loop.time() + LATE_S, lambda: None) for _ in range(100)]
    assert len(descriptors() - before) == expected
    call_at(loop.time(), fired.set)
    await fired.wait()
    assert len(descriptors() - before) == expected
    for timer in timers:
        timer.cancel()
    assert not descriptors() - before
    fired.clear()
    call_at(loop.time(), fired.set)
    await fired.wait()
    assert not descriptors() - before


@on_linux
async def test_a_supervised_timer_that_is_moved_keeps_the_descriptor() -> None:
    loop = asyncio.get_running_loop()
    before, fired = descriptors(), asyncio.Event()
    timer = Supervisor().timer("a timer", fired.set)
    for delay_s in (LATE_S, 2 * LATE_S, LATE_S / 2):
        timer.after(delay_s)
        assert len(descriptors() - before) == is_uvloop(loop)
    timer.after(0)
    await fired.wait()
    assert not descriptors() - before


@on_linux
async def test_without_a_free_descriptor_timers_are_made_too() -> None:
    loop = asyncio.get_running_loop()
    before, done = descriptors(), loop.create_future()
    with few_descriptors(0):  # the next one is refused
        timer = call_at(loop.time() + LATE_S, lambda: None)
        call_at(loop.time() + 0.001, lambda: done.set_result("soon"))
    assert await done == "soon"
    timer.cancel()
    assert not descriptors() - before


@on_linux
def test_a_loop_that_is_closed_before_its_timers_leaves_no_descriptor() -> None:
    before = descriptors()
    kept: list[object] = []
    on_uvloop(lambda: kept.append(call_at(asyncio.get_running_loop().time() + LATE_S, lambda: None)))
    (timer,) = kept
    timer.cancel()  # type: ignore[attr-defined]
    assert not descriptors() - before
    on_uvloop(lambda: call_at(asyncio.get_running_loop().time() + LATE_S, lambda: None))
    gc.collect()
    assert not descriptors() - before


@on_linux
def test_each_loop_has_its_own_timers() -> None:
    fired: list[str] = []

    def work(name: str) -> None:
        async def main() -> None:
            done = asyncio.Event()
            call_at(asyncio.get_running_loop().time() + 0.01, done.set)
            await done.wait()
            fired.append(name)

        uvloop = pytest.importorskip("uvloop")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fired) == [f"thread {number}" for number in range(4)]


@on_linux
async def test_a_forked_child_that_cancels_a_timer_does_not_cancel_that_of_its_parent() -> None:
    loop = asyncio.get_running_loop()
    fired = asyncio.Event()
    timer = Supervisor().timer("a timer", fired.set)
    start = loop.time()
    timer.at(start + 0.2)
    registered = asyncio.Event()
    call_at(start + 0.01, registered.set)
    await registered.wait()  # the loop has waited for the descriptor

    def cancel() -> str:
        timer.cancel()
        return "cancelled"

    assert in_child(cancel) == "cancelled"
    await fired.wait()
    assert loop.time() > start + 0.19
