"""Cancelled and dropped requests: their runners are stuck or interrupted, and each request ends once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from core.runtime.runtime import Runtime, scope
from tests.scenes.mdp_runner_ledger import NOW, staged, turns, until

if TYPE_CHECKING:
    from mdp.request import Request


LIMIT_S = 1_000  # longer than any test: no clock of the system looks meanwhile


class Parked:
    """A handler that ignores cancellation until the test lets it return; `fails` fails, `fine` returns."""

    def __init__(self) -> None:
        self.running: dict[bytes, asyncio.Event] = {}
        self.failing = False

    async def __call__(self, request: Request) -> bytes:
        (name,) = request.body
        if name == b"fails":
            raise ValueError
        if name != b"fine":
            event = self.running[name] = asyncio.Event()
            while not event.is_set():
                with suppress(asyncio.CancelledError):
                    await event.wait()
            if self.failing:
                raise ValueError
        return name


class Clock(Runtime):
    """A clock that the test turns on."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.parametrize("behind", [b"fine", b"fails", b"late", b"dropped"])
async def test_runners_are_stuck_while_requests_wait_and_nothing_that_is_wanted_runs_or_ends(behind: bytes) -> None:
    """Each end of a handler is progress and restarts the time."""
    parked = Parked()
    with scope(clock := Clock()):
        stage, _ = staged(parked, 2, cancel_s=LIMIT_S)
    stuck = stage.runners.stuck
    assert stuck() == ""
    first, second, next_one, last = (stage.request(name) for name in (b"first", b"second", b"next", b"last"))
    between = stage.request(behind)
    between.expires_at = NOW if behind == b"late" else None
    stage.runners.put([first, second])
    await until(lambda: len(parked.running) == 2)
    stage.runners.drop(first)
    assert stuck() == ""
    stage.runners.drop(second)
    assert stuck() == "", "nobody waits"
    stage.runners.put([between, next_one, last])
    clock.seconds += LIMIT_S
    assert stuck().startswith(f"3 requests wait and nothing runs for {LIMIT_S} s; 2 handlers do not end")
    if behind == b"dropped":
        stage.runners.drop(between)
    parked.failing = True  # which for a cancelled one counts as cancelled
    parked.running[b"second"].set()
    await until(lambda: b"next" in parked.running)
    stage.runners.drop(next_one)
    assert stuck() == "", "two have ended since"
    assert stuck() == "", "it begins again"
    clock.seconds += LIMIT_S
    assert stuck().startswith("1 requests wait")
    for name in (b"first", b"next"):
        parked.running[name].set()
    await until(lambda: b"last" in parked.running)
    parked.running[b"last"].set()
    await stage.done()
    assert stuck() == ""
    await stage.runners.close()


async def test_runners_have_been_stuck_since_all_places_were_taken_and_not_since_a_request_waits() -> None:
    parked = Parked()
    stage, _ = staged(parked, cancel_s=0.05)
    first = stage.request(b"first")
    stage.runners.put([first])
    await until(lambda: parked.running)
    stage.runners.drop(first)
    assert stage.runners.stuck() == ""
    await asyncio.sleep(0.06)  # longer than it may be so
    assert stage.runners.stuck() == "", "nobody waits"
    stage.runners.put([stage.request(b"fine")])
    assert stage.runners.stuck().startswith("1 requests wait and nothing runs")
    parked.running[b"first"].set()
    await stage.done()
    await stage.runners.close()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_handler_that_drops_its_own_request_is_interrupted_when_it_waits(waits: bool, at_once: bool) -> None:
    async def handler(request: Request) -> bytes:
        if request.body[0] != b"fine":
            assert stage.runners.drop(request) is False
            if waits:
                await asyncio.Event().wait()
        return request.body[0]

    stage, ledger = staged(handler)
    await stage.warm()
    for _ in range(3):
        requests = [stage.request(b"drops"), stage.request(b"fine")]
        for some in [requests] if not at_once else [[one] for one in requests]:
            stage.give(*some)
        await until(lambda: requests[-1] in ledger.ends)  # noqa: B023
        await turns(3)
        assert [ledger.ends[one] for one in requests] == ["CANCELLED" if waits else "answered", "answered"]
    assert stage.runners.counters.replaced == 0
    await stage.runners.close()


@pytest.mark.parametrize("held", [True, False])
async def test_what_was_cancelled_is_refused_only_where_its_session_still_holds_it(held: bool) -> None:
    """After a lost connection nothing is sent."""
    begun = asyncio.Event()

    async def handler(request: Request) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        return b""

    stage, ledger = staged(handler)
    ledger.held = held
    request = stage.request()
    stage.runners.put([request])
    await begun.wait()
    stage.runners.drop(request)
    await stage.done()
    assert ledger.ends == ({request: "CANCELLED"} if held else {})
    assert (stage.flushes, stage.runners.counters.cancelled, stage.runners.counters.errors) == (held, 1, 0)
    await stage.runners.close()


async def test_waiting_requests_that_are_dropped_do_not_start_and_running_ones_end() -> None:
    """And after `close` nothing is begun, answered or counted."""
    parked = Parked()
    stage, ledger = staged(parked)
    requests = [stage.request(name) for name in (b"runs", b"forgotten", b"behind")]
    stage.runners.put(requests[:2])
    await until(lambda: parked.running)
    stage.runners.forget_waiting()
    assert stage.runners.waiting == 0
    parked.running[b"runs"].set()
    await stage.done()
    assert ([*parked.running], [*ledger.ends]) == ([b"runs"], requests[:1])
    await stage.runners.close()
    waits = asyncio.Event()

    async def wait(request: Request) -> bytes:
        waits.set()
        await asyncio.Event().wait()
        return b""

    stage, ledger = staged(wait, 1)
    stage.runners.put(requests[1:])
    await waits.wait()
    await stage.runners.close()
    counters = stage.runners.counters
    assert (ledger.ends, stage.runners.waiting, stage.runners.running) == ({}, 0, {})
    assert (counters.handled, counters.errors, counters.cancelled, counters.replaced, counters.left) == (0, 0, 0, 0, 0)
