"""Connections of a client to shards: how many there are, whatever its brokers say.

Rules of specs/mdp.md: SHD-06.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import core
from mdp.shards.direct_connections import REMEMBERED_MAX, ShardEngines
from mdp.wire.shards import shard_of

if TYPE_CHECKING:
    import pytest


class Engines:
    """Makes stand-ins of engines, and counts them."""

    def __init__(self) -> None:
        self.endpoints: list[str] = []
        self.closed = 0
        self.restored: list[str] = []
        self.refused = ""

    def new(self, endpoint: str) -> Any:
        self.endpoints.append(endpoint)
        machine = SimpleNamespace(connected=endpoint != self.refused, in_flight=1, endpoint=endpoint, take_over=self.take_over)
        return SimpleNamespace(endpoint=endpoint, machine=machine, start=lambda: self.start(endpoint), close=self.close)

    def start(self, endpoint: str) -> None:
        if endpoint == self.refused:
            raise core.InvalidEndpoint(msg="too long")

    def take_over(self, machine: Any) -> list[Any]:
        self.restored.append(machine.endpoint)
        return []

    async def close(self) -> None:
        self.closed += 1


def shards() -> tuple[Engines, Any, ShardEngines]:
    engines = Engines()
    broker = engines.new("broker")
    engines.endpoints.clear()
    return engines, broker, ShardEngines(broker, engines.new)


def place_of(engine: Any) -> str:
    place: str = engine.endpoint
    return place


async def test_a_client_that_changes_between_brokers_has_one_connection_to_each_shard() -> None:
    engines, broker, direct = shards()
    for _ in range(50):
        broker.on_shards("ipc://a", 2)
        broker.on_shards("ipc://b", 3)
        broker.on_shards("ipc://c", 0)
        assert direct.engine_for(b"echo") is broker
    assert sorted(engines.endpoints) == ["ipc://a.0", "ipc://a.1", "ipc://b.0", "ipc://b.1", "ipc://b.2"]
    assert direct.in_flight == 5
    await direct.close()
    assert engines.closed == 5
    broker.on_shards("ipc://d", 2)
    assert len(engines.endpoints) == 5


def test_requests_stay_with_their_shards_when_the_broker_is_connected_to_again() -> None:
    engines, broker, direct = shards()
    for _ in range(2):
        broker.on_shards("ipc://a", 2)
    assert engines.restored == []
    assert len(direct.engines) == 2


def test_no_more_services_are_remembered_than_the_limit() -> None:
    """Each of them is looked for again; names come from the program."""
    _, broker, direct = shards()
    broker.on_shards("ipc://a", 2)
    names = [b"%d" % number for number in range(REMEMBERED_MAX)]
    found = [direct.engine_for(name) for name in names]
    assert [direct.engine_for(name) for name in names] == found
    assert len(direct._by_service) == REMEMBERED_MAX
    assert direct.engine_for(b"one more") in direct.engines
    assert [*direct._by_service] == [b"one more"]


def test_requests_that_wait_for_a_shard_wait_for_the_broker_when_the_shards_change() -> None:
    engines, broker, direct = shards()
    services = [b"%d" % number for number in range(20)]
    for count in (2, 3):
        broker.on_shards("ipc://a", count)
        assert [place_of(direct.engine_for(service)) for service in services] == [
            f"ipc://a.{shard_of(service, count)}" for service in services
        ]
    assert engines.restored == ["ipc://a.0", "ipc://a.1"]
    assert [place_of(engine) for engine in direct.engines] == ["ipc://a.0", "ipc://a.1", "ipc://a.2"]


def test_the_broker_forwards_what_is_for_a_shard_that_cannot_be_connected_to(caplog: pytest.LogCaptureFixture) -> None:
    engines, broker, direct = shards()
    engines.refused = "ipc://a.1"
    broker.on_shards("ipc://a", 2)
    found = {shard: {place_of(direct.engine_for(b"%d" % n)) for n in range(20) if shard_of(b"%d" % n, 2) == shard} for shard in (0, 1)}
    assert found == {0: {"ipc://a.0"}, 1: {"broker"}}
    assert [record.getMessage() for record in caplog.records] == ["ipc://a.1 cannot be connected to, the broker forwards: too long"]


def test_no_shard_is_connected_to_when_one_has_no_place() -> None:
    engines, broker, direct = shards()
    broker.on_shards("tcp://127.0.0.1:65530", 64)
    assert engines.endpoints == []
    assert direct.engine_for(b"echo") is broker
