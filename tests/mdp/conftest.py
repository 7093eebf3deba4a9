"""A broker with a client of it, and a broker that does what the test says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdp.broker.broker import Broker
from mdp.client.client import Client
from mdp.worker.session import WorkerSession
from tests.scenes.mdp_runner_check import RunnerCheck
from tests.scenes.mdp_scripted_broker import StandIn
from tests.scenes.mdp_worker_sessions import as_frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(autouse=True)
def runner_check(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunnerCheck]:
    """Fail the test for a worker of it that ends with fewer runners than it should have."""
    check = RunnerCheck(monkeypatch)
    yield check
    if check.troubles:
        pytest.fail(f"runners: {check.troubles}", pytrace=False)


@pytest.fixture(params=["frames", "octets"])
def frames_and_octets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a session of a worker get its messages as frames, and as bytes."""
    if request.param == "frames":
        monkeypatch.setattr(WorkerSession, "receive", as_frames)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(start_hold_ms=0) as made:
        made.bind("tcp://127.0.0.1:*")
        yield made


@pytest.fixture
async def endpoint(broker: Broker) -> str:
    return broker.endpoints[0]


@pytest.fixture
async def client(endpoint: str) -> AsyncIterator[Client]:
    async with Client(endpoint, attempts=1, timeout=100) as made:
        yield made


@pytest.fixture
async def stand_in() -> AsyncIterator[StandIn]:
    async with StandIn() as made:
        yield made
