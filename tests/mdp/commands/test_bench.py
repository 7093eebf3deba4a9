"""mdp.commands.bench: percentiles, counting and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdp.broker.broker import Broker
from mdp.client.client import Client
from mdp.commands.bench import WARM_UP_REQUESTS, Figures, Load, measure, percentile, report
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
