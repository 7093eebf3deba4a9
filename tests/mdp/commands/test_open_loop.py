"""Arrivals of a Poisson process, and requests sent at their times."""

from __future__ import annotations

import asyncio
import time
from math import exp, inf
from random import Random

import pytest

from core.runtime import runtime
from mdp.commands.bench import AT_ONCE, PAUSE_S, poisson_times, send_at


def test_arrivals_have_the_mean_and_the_spread_of_a_poisson_process() -> None:
    times = list(poisson_times(200.0, 20_000, Random(5).random))
    gaps = [late - early for early, late in zip([0.0, *times], times, strict=False)]
    assert min(gaps) >= 0
    assert times[-1] == pytest.approx(100, rel=0.03)
    for gap in (0.001, 0.005, 0.02):  # the share of gaps that are longer
        assert sum(one > gap for one in gaps) / len(gaps) == pytest.approx(exp(-200 * gap), abs=0.01)


def test_a_chance_of_nought_is_an_arrival_at_once() -> None:
    assert list(poisson_times(10.0, 2, lambda: 0.0)) == [0.0, 0.0]
    assert max(poisson_times(10.0, 3, lambda: 1 - 2**-53)) < inf


async def test_nothing_is_sent_before_its_time_and_each_gets_the_time_it_was_meant_for() -> None:
    sent: list[tuple[float, float]] = []
    times = [0.0, 0.001, 0.001, 0.03]
    began = await send_at(times, lambda due: sent.append((due, time.perf_counter())))
    assert [due for due, _ in sent] == [began + at for at in times]
    assert all(now >= due for due, now in sent)


async def test_overdue_requests_leave_the_loop_time_for_their_replies() -> None:
    sent = 0
    most = since = 0

    def send(_: float) -> None:
        nonlocal sent, since, most
        sent, since = sent + 1, since + 1
        most = max(most, since)

    done = asyncio.ensure_future(send_at([0.0] * 1000, send))
    while not done.done():
        since = 0
        await asyncio.sleep(0)
    assert (sent, most) == (1000, AT_ONCE)


async def test_the_processor_is_left_to_others_between_requests() -> None:
    pauses: list[float] = []
    turns = 0

    class Counting(runtime.Runtime):
        @staticmethod
        def pause(seconds: float) -> None:
            pauses.append(seconds)
            time.sleep(seconds)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count_turns())
    with runtime.scope(Counting()):
        await send_at([0.001 * number for number in range(1, 30)], lambda _: None)
    counting.cancel()
    assert pauses
    assert max(pauses) <= PAUSE_S
    assert turns > len(pauses)  # replies are read between the pauses
