"""bstar.net.callbacks: in order, one after the other, and what becomes of their errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from bstar.net.callbacks import Callbacks
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def made() -> tuple[Callbacks, list[str], list[BaseException]]:
    failures: list[BaseException] = []
    return Callbacks(failures.append), [], failures


def slow(seen: list[str], name: str) -> Callable[[], Awaitable[None]]:
    async def callback() -> None:
        seen.append(f"{name} begins")
        await asyncio.sleep(1)
        seen.append(f"{name} ends")

    return callback


@in_virtual_time
async def test_those_of_a_change_wait_for_those_of_the_one_before() -> None:
    callbacks, seen, failures = made()
    callbacks.on_active += [slow(seen, "active"), lambda: seen.append("second")]
    callbacks.on_passive.append(slow(seen, "passive"))
    callbacks.enter_active(lambda: seen.append("then"))
    assert callbacks.entering == 1
    callbacks.enter_passive()
    callbacks.enter_active(lambda: seen.append("again"))
    assert (callbacks.entering, seen) == (2, [])
    await asyncio.sleep(1.5)
    assert (callbacks.entering, seen) == (1, ["active begins", "active ends", "second", "then", "passive begins"])
    await asyncio.sleep(2)
    assert (callbacks.entering, seen[5:]) == (0, ["passive ends", "active begins", "active ends", "second", "again"])
    await callbacks.close()
    assert failures == []


@in_virtual_time
async def test_a_callback_that_fails_ends_the_pair_and_lets_nothing_be_served() -> None:
    callbacks, seen, failures = made()
    error = LookupError("state is gone")

    def fail() -> None:
        raise error

    callbacks.on_active.append(fail)
    callbacks.enter_active(lambda: seen.append("then"))
    await asyncio.sleep(1)
    assert (failures, seen, callbacks.entering) == ([error], [], 0)
    await callbacks.close()


@in_virtual_time
async def test_a_timer_calls_again_and_makes_up_for_nothing() -> None:
    callbacks, seen, failures = made()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    callbacks.every(2.0, lambda: seen.append(f"{loop.time() - begun:.1f}"))
    await asyncio.sleep(1.9)
    assert seen == []
    await asyncio.sleep(4.2)
    assert seen == ["2.0", "4.0", "6.0"]
    loop.call_soon(setattr, loop._selector, "now_s", loop.time() + 7.0)  # type: ignore[attr-defined]  # a machine that stood still: it is 13.1
    await asyncio.sleep(0)
    await asyncio.sleep(4.5)
    assert seen[3:] == ["13.1", "13.1", "15.1", "17.1"]
    await callbacks.close()
    await asyncio.sleep(10)
    assert (len(seen), failures) == (7, [])


@in_virtual_time
async def test_a_coroutine_of_a_timer_may_fail() -> None:
    callbacks, _, failures = made()
    error = LookupError()

    async def fail() -> None:
        raise error

    callbacks.every(1.0, fail)
    await asyncio.sleep(1.5)
    assert failures == [error]
    await callbacks.close()


@in_virtual_time
async def test_closing_ends_what_runs() -> None:
    callbacks, seen, failures = made()
    callbacks.on_passive.append(slow(seen, "passive"))
    callbacks.enter_passive()
    await asyncio.sleep(0.5)
    await callbacks.close()
    await asyncio.sleep(5)
    assert (seen, failures) == (["passive begins"], [])


@pytest.mark.faults
async def test_all_hear_that_it_serves_and_what_happens() -> None:
    callbacks, seen, failures = made()
    callbacks.on_serving += [lambda: seen.append("one"), lambda: seen.append("two")]
    callbacks.serve()
    assert seen == ["one", "two"]

    def fail(_: dict[str, Any]) -> None:
        raise LookupError

    events: list[dict[str, Any]] = []
    callbacks.on_event += [fail, events.append]
    callbacks.notify({"event": "x"})
    assert (events, failures) == ([{"event": "x"}], [])


@pytest.mark.parametrize(("ends", "whole"), [([True, True], True), ([True, False], False), ([], True)])
async def test_a_handover_waits_for_all_who_finish_and_can_be_taken_back(ends: list[bool], whole: bool) -> None:
    callbacks, seen, _ = made()
    for end in ends:

        async def finish(drain_s: float, end: bool = end) -> bool:
            seen.append(f"{drain_s}")
            return end

        callbacks.on_handover.append((finish, lambda: seen.append("resumed")))
    assert await callbacks.finish(3.0) is whole
    assert seen == ["3.0"] * len(ends)
    callbacks.resume()
    assert seen[len(ends) :] == ["resumed"] * len(ends)
