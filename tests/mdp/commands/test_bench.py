"""mdp.commands.bench: percentiles, counting and the report."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mdp.broker.broker import Broker
from mdp.client.client import Client
from mdp.commands.bench import WARM_UP_REQUESTS, Figures, Load, measure, measure_open, percentile, report
from mdp.worker.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from mdp.request import Request


@pytest.mark.parametrize(
    "values,share,expected",
    [
        ([], 0.5, None),
        ([7.0], 0.5, 7.0),
        ([7.0], 0.999, 7.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(number) for number in range(1, 1001)], 0.5, 500.0),
        ([float(number) for number in range(1, 1001)], 0.99, 990.0),
        ([float(number) for number in range(1, 1001)], 0.999, 999.0),
        ([float(number) for number in range(1, 101)], 0.999, 100.0),
    ],
)
def test_percentile_is_a_value_that_occurred(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


async def test_what_fails_is_lost_and_what_warms_up_is_not_counted(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def every_tenth_fails(request: Request) -> bytes:
        seen.append(request.body[0])
        if len(seen) % 10 == 0:
            raise ValueError("tenth")
        return b"ok"

    async with Broker() as broker:
        endpoint = broker.bind(f"ipc://{tmp_path}/b")
        async with Worker(endpoint, "work", handler=every_tenth_fails), Client(endpoint) as client:
            await client.request("work", b"here?", wait=True)
            del seen[:]
            load = Load("work", requests=50, window=7, size=3)
            figures = await measure(client, load)
    assert len(seen) == 50 + min(WARM_UP_REQUESTS, 50)
    assert set(seen) == {bytes(3)}
    assert (figures.replies, figures.lost, figures.errors) == (45, 5, {"HANDLER_ERROR": 5})
    assert figures.rate == pytest.approx(45 / figures.elapsed_s)
    assert figures.p50_ms is not None
    assert figures.as_dict(load)["window"] == 7


async def test_an_open_loop_asks_whether_it_is_answered_or_not(tmp_path: Path) -> None:
    """The worker answers nothing before it has seen all requests, and a closed loop would wait for it."""
    warm_up, count = 40, 40
    seen: list[bytes] = []
    every = asyncio.Event()

    async def late(request: Request) -> bytes:
        seen.append(request.body[0])
        if len(seen) == warm_up + count:
            every.set()
        if len(seen) > warm_up:
            await every.wait()
        return b"ok"

    async with Broker() as broker:
        endpoint = broker.bind(f"ipc://{tmp_path}/b")
        async with Worker(endpoint, "work", handler=late, concurrency=100), Client(endpoint, window=100, timeout=60) as client:
            await client.request("work", b"here?", wait=True)
            del seen[:]
            figures = await measure_open(client, Load("work", count, window=100, size=3, rate=10_000.0))
    assert len(seen) == warm_up + count
    assert (figures.replies, figures.lost, figures.errors) == (count, 0, {})
    assert figures.p50_ms is not None


async def test_what_the_client_refuses_is_lost_in_an_open_loop(tmp_path: Path) -> None:
    release = asyncio.Event()
    seen = 0

    async def late(request: Request) -> bytes:
        nonlocal seen
        seen += 1
        if seen > 10:  # after the warm-up
            await release.wait()
        return b"ok"

    async with Broker() as broker:
        endpoint = broker.bind(f"ipc://{tmp_path}/b")
        async with Worker(endpoint, "work", handler=late, concurrency=100), Client(endpoint, window=4, waiting_max=3, timeout=60) as client:
            await client.request("work", b"here?", wait=True)
            seen = 0
            asyncio.get_running_loop().call_later(0.2, release.set)
            figures = await measure_open(client, Load("work", 10, window=4, size=3, rate=1e9))
    assert (figures.replies, figures.lost, figures.errors) == (7, 3, {"BUSY": 3})


def test_report_says_all_figures() -> None:
    figures = Figures("0.3", 1998, 2, {"TIMEOUT": 1, "B\x1b": 1}, 2.0, 999.0, 1.2345, 1234.5, None)
    assert report(Load("echo", 2000, 10, 16), figures).splitlines() == [
        "service echo: 2,000 requests of 16 bytes, 10 in flight, MDP/0.3",
        "rate    999 replies/s in 2.000 s",
        "p50     1.234 ms",
        "p99     1,234.500 ms",
        "p99.9   -",
        "lost    2 (B\\x1b 1, TIMEOUT 1)",
    ]
    assert report(Load("echo", 2000, 10, 16, 1500.0), figures).splitlines()[0] == (
        "service echo: 2,000 requests of 16 bytes, at 1,500/s, MDP/0.3"
    )
