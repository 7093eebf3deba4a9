"""Connections of a client to shards: how many there are, whatever its brokers say.

Rules of specs/mdp.md: SHD-06.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mdp.shards.direct_connections import ShardEngines


class Engines:
    """Makes stand-ins of engines, and counts them."""

    def __init__(self) -> None:
        self.endpoints: list[str] = []
        self.closed = 0
        self.restored: list[str] = []

    def new(self, endpoint: str) -> Any:
        self.endpoints.append(endpoint)
        machine = SimpleNamespace(connected=True, in_flight=1, endpoint=endpoint, take_over=self.take_over)
        return SimpleNamespace(endpoint=endpoint, machine=machine, start=lambda: None, close=self.close)

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
    broker.on_shards("ipc://a", 2)
    assert len(engines.endpoints) == 5


def test_requests_that_wait_for_a_shard_wait_for_the_broker_when_the_shards_change() -> None:
    engines, broker, direct = shards()
    broker.on_shards("ipc://a", 2)
    broker.on_shards("ipc://a", 3)
    assert engines.restored == ["ipc://a.0", "ipc://a.1"]
    assert [engine.endpoint for engine in direct.engines] == ["ipc://a.0", "ipc://a.1", "ipc://a.2"]  # type: ignore[attr-defined]


def test_no_shard_is_connected_to_when_one_has_no_place() -> None:
    engines, broker, direct = shards()
    broker.on_shards("tcp://127.0.0.1:65530", 64)
    assert engines.endpoints == []
    assert direct.engine_for(b"echo") is broker
