"""The front does not read from peers and shards whose messages do not leave.

Rules of specs/mdp.md: SHD-10.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from mdp.broker.limits import BrokerOptions
from mdp.shards.backpressure import Backpressure, Queue
from tests.scenes.fault_injection import Saboteur
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_shards import Sharded
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20
BODY = b"x" * (MIB // 8)
COUNT = 160  # bodies: twenty times what the front keeps for a peer, and more than the buffers of the system


class Row:
    """A queue of a test, and what was done to its sender."""

    def __init__(self, most: int = 100_000) -> None:
        self.waiting = 0
        self.done: list[str] = []
        self.queue = Queue(lambda: self.waiting, lambda: self.done.append("hold"), lambda: self.done.append("release"), most)

    def send(self, pressure: Backpressure, size: int) -> None:
        self.waiting += size
        pressure.sent(self.queue, size)


async def test_a_sender_is_held_at_the_mark_and_read_from_at_half_of_it() -> None:
    pressure = Backpressure(MIB, lambda: 2)
    row, other = Row(), Row()
    row.send(pressure, 99_999)
    assert row.done == []
    row.send(pressure, 1)
    row.send(pressure, 1)
    assert row.done[0] == "hold"
    other.send(pressure, 60_000)
    row.waiting = 50_001
    await asyncio.sleep(0.05)
    assert set(row.done) == {"hold"}
    row.waiting = 50_000
    await eventually(lambda: row.done[-1] == "release")
    assert (pressure.times, pressure.held, other.done) == (1, {}, [])
    row.send(pressure, 50_000)
    assert row.done[-1] == "hold"
    pressure.forget(row.queue)
    assert row.done[-1] == "release"
    pressure.close()


async def test_the_marks_of_many_queues_are_lower() -> None:
    pressure = Backpressure(MIB, lambda: 64)
    row = Row()
    row.send(pressure, MIB // 64)
    assert row.done == ["hold"]
    crowd = Backpressure(MIB, lambda: 10_000)
    row = Row()
    row.send(crowd, 4095)
    assert row.done == []  # what one write takes is never held back
    row.send(crowd, 1)
    assert row.done == ["hold"]
    for one in (pressure, crowd):
        one.close()


@pytest.mark.faults
async def test_a_look_is_repeated_after_a_fault() -> None:
    with supervision.scope(Supervisor(Saboteur(["mdp front clock"]))) as supervisor:
        pressure, row = Backpressure(MIB, lambda: 1), Row()
        row.send(pressure, MIB)
        row.waiting = 0
        await eventually(lambda: row.done == ["hold", "release"])
    assert supervisor.faults == {"mdp front clock": 1}


async def test_a_stock_client_that_reads_late_gets_every_reply(tmp_path: Path) -> None:
    limits = BrokerOptions(unread_max_bytes=MIB)
    async with asyncio.timeout(PATIENCE_S), Sharded(f"ipc://{tmp_path}/b", limits=limits) as sharded, core.Context() as context:
        name, counters = sharded.names(1)[0], sharded.front.counters
        async with mdp.Worker(sharded.endpoint, name, handler=echo), context.socket(core.DEALER, linger=0, rcvhwm=1, sndhwm=0) as stock:
            stock.connect(sharded.endpoint)
            for number in range(COUNT):
                await stock.send_multipart([b"MDPC02", b"\x01", name.encode(), b"%d" % number, BODY])
            await eventually(lambda: sharded.front.stats()["front_held"])
            replies = [await stock.recv_multipart() for _ in range(COUNT)]
            assert [reply[3] for reply in replies] == [b"%d" % number for number in range(COUNT)]
            assert (counters["cut"], counters["links_opened"]) == (0, 1)
            await eventually(lambda: not sharded.front.stats()["front_held"])
            assert sharded.front.stats()["front_holds"] >= 1


async def test_a_stock_client_of_a_shard_that_is_being_started_waits(tmp_path: Path) -> None:
    limits = BrokerOptions(unread_max_bytes=MIB)
    async with asyncio.timeout(PATIENCE_S), Sharded(f"ipc://{tmp_path}/b", limits=limits) as sharded, core.Context() as context:
        name = sharded.names(1)[0]
        await sharded.stop(1)
        async with context.socket(core.DEALER, linger=0, rcvhwm=0, sndhwm=0) as stock:
            stock.connect(sharded.endpoint)
            for number in range(COUNT):
                await stock.send_multipart([b"MDPC02", b"\x01", name.encode(), b"%d" % number, BODY])
            await eventually(lambda: sharded.front.stats()["front_held"])
            await sharded.start(1)
            async with mdp.Worker(sharded.endpoint, name, handler=echo):
                replies = [await stock.recv_multipart() for _ in range(COUNT)]
        assert [reply[3] for reply in replies] == [b"%d" % number for number in range(COUNT)]
        assert sharded.front.counters["cut"] == 0
