"""Messages that take many times as long as a peer may be silent (HB-02, MDP-36).

Their octets are signs of life, so nothing is given up or done twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

import freelance
import mdp
import pirate
from mdp.broker.limits import BrokerOptions
from tests.scenes.fault_injection import sabotaged
from tests.scenes.mdp_shards import Sharded
from tests.scenes.ports import kept_port
from tests.scenes.slow_line import slow_line

if TYPE_CHECKING:
    from pathlib import Path

    from mdp.wire.commands import Dialect

OCTETS_S: Final = 500_000
LARGE: Final = bytes(750_000)  # 1.5 s
HEARTBEAT_MS: Final = 100  # a peer is dead after three


class Counted:
    """A handler that counts its calls."""

    def __init__(self, reply: bytes = b"y", works_s: float = 0.0) -> None:
        self.calls = 0
        self.reply = reply
        self.works_s = works_s

    async def __call__(self, *_: object) -> list[bytes]:
        self.calls += 1
        await asyncio.sleep(self.works_s)
        return [self.reply]


@pytest.mark.parametrize(("request_body", "reply"), [(LARGE, b"y"), (b"x", LARGE)], ids=["to-worker", "from-worker"])
async def test_hb_02_a_worker_of_mdp_on_a_slow_line(request_body: bytes, reply: bytes) -> None:
    handler = Counted(reply)
    async with mdp.Broker(heartbeat_ms=HEARTBEAT_MS) as broker, mdp.Client(broker.bind("tcp://127.0.0.1:*"), timeout=100) as client:
        async with slow_line(broker.endpoints[0], OCTETS_S) as line:
            async with mdp.Worker(line, "echo", handler=handler, heartbeat_ms=HEARTBEAT_MS):
                assert await client.request("echo", request_body, wait=True) == [reply]
    assert handler.calls == 1


@pytest.mark.parametrize(("body", "reply"), [(2 * LARGE, b"y"), (b"x", 2 * LARGE)], ids=["to-broker", "from-broker"])
async def test_hb_02_a_client_of_mdp_on_a_slow_line(body: bytes, reply: bytes) -> None:
    handler = Counted(reply)
    async with mdp.Broker(heartbeat_ms=HEARTBEAT_MS) as broker, mdp.Worker(broker.bind("tcp://127.0.0.1:*"), "echo", handler=handler):
        async with slow_line(broker.endpoints[0], OCTETS_S) as line:
            # Three times as long: what a sender sees are the bytes that the line has taken, and the last of these are still on their way.
            async with mdp.Client(line, timeout=100, heartbeat_ms=3 * HEARTBEAT_MS) as client:
                assert await client.request("echo", body, wait=True) == [reply]
    assert handler.calls == 1


async def test_hb_02_a_client_whose_request_a_tunnel_has_taken() -> None:
    """Nothing moves at the client: the broker sees what moves, and says so."""
    handler = Counted()
    async with mdp.Broker(heartbeat_ms=HEARTBEAT_MS) as broker, mdp.Worker(broker.bind("tcp://127.0.0.1:*"), "echo", handler=handler):
        async with slow_line(broker.endpoints[0], OCTETS_S, taken_octets=10 * len(LARGE)) as line:
            async with mdp.Client(line, timeout=100, heartbeat_ms=3 * HEARTBEAT_MS) as client:
                assert await client.request("echo", 2 * LARGE, wait=True) == [b"y"]
                assert client.counters.repeated == 0
    assert handler.calls == 1


@pytest.mark.parametrize(("body", "reply"), [(LARGE, b"y"), (b"x", LARGE)], ids=["to-worker", "from-worker"])
@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
async def test_hb_02_a_worker_behind_the_front_of_shards(body: bytes, reply: bytes, dialect: Dialect, tmp_path: Path) -> None:
    """SHD-16: its shard sees no octets, and the front says that they move."""
    await _work_behind_a_front(dialect, body, reply, tmp_path)


@pytest.mark.faults
async def test_a_front_speaks_for_its_peers_after_a_fault(tmp_path: Path) -> None:
    with sabotaged("mdp front heartbeat"):
        await _work_behind_a_front("0.2", b"x", LARGE, tmp_path)


async def _work_behind_a_front(dialect: Dialect, body: bytes, reply: bytes, place: Path) -> None:
    works_s = 2.5 * HEARTBEAT_MS / 1000  # so that its shard knows that it sends heartbeats while it works
    handler, limits = Counted(reply, works_s), BrokerOptions(heartbeat_ms=HEARTBEAT_MS)
    async with Sharded(f"ipc://{place}/b", limits=limits, heartbeat_ms=HEARTBEAT_MS) as sharded, mdp.Client(sharded.endpoint) as client:
        service = sharded.names(1)[0]
        with kept_port() as port:
            endpoint = sharded.front.bind(f"tcp://127.0.0.1:{port}")
        async with slow_line(endpoint, OCTETS_S) as line:
            async with mdp.Worker(line, service, handler=handler, dialect=dialect, heartbeat_ms=HEARTBEAT_MS):
                assert await client.request(service, body, wait=True, timeout=100) == [reply]
    assert handler.calls == 1


async def test_hb_02_a_client_whose_request_to_a_front_a_tunnel_has_taken(tmp_path: Path) -> None:
    handler, limits = Counted(), BrokerOptions(heartbeat_ms=HEARTBEAT_MS)
    async with Sharded(f"ipc://{tmp_path}/b", limits=limits, heartbeat_ms=HEARTBEAT_MS) as sharded:
        service = sharded.names(1)[0]
        with kept_port() as port:
            endpoint = sharded.front.bind(f"tcp://127.0.0.1:{port}")
        async with mdp.Worker(sharded.endpoint, service, handler=handler), slow_line(endpoint, OCTETS_S, 10 * len(LARGE)) as line:
            async with mdp.Client(line, timeout=100, heartbeat_ms=3 * HEARTBEAT_MS) as client:
                assert await client.request(service, 2 * LARGE, wait=True) == [b"y"]
                assert client.counters.repeated == 0
    assert handler.calls == 1


@pytest.mark.parametrize(("body", "reply"), [(LARGE, b"y"), (b"x", LARGE)], ids=["to-worker", "from-worker"])
async def test_hb_02_a_worker_of_the_pirates_on_a_slow_line(body: bytes, reply: bytes) -> None:
    handler = Counted(reply)
    any_port = "tcp://127.0.0.1:*"
    async with pirate.Queue(any_port, any_port, heartbeat_ms=HEARTBEAT_MS) as queue, slow_line(queue.backend, OCTETS_S) as line:
        async with pirate.Worker(line, handler, heartbeat_ms=HEARTBEAT_MS), pirate.Client(queue.frontend, timeout=100) as client:
            assert await client.request(body) == [reply]
        assert queue.counters["worker_silent"] == 0
    assert handler.calls == 1


async def test_hb_02_a_server_of_freelance_on_a_slow_line() -> None:
    handler = Counted(LARGE)
    health = freelance.Health(ping_s=0.1, dead_s=0.3)
    async with freelance.Server("tcp://127.0.0.1:*", handler) as server, slow_line(server.endpoint, OCTETS_S) as line:
        async with freelance.Client([line], timeout=100, try_timeout=100, health=health) as client:
            assert await client.request(b"x") == [LARGE]
    assert handler.calls == 1
