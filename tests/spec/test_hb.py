"""HB: heartbeats between queue and worker, over sockets; the machines' side of each rule is in `tests/pirate`."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import pytest

import core
import pirate
from core.machine.liveness import Liveness
from core.rpc.handlers import echo
from pirate.ppp import checked_heartbeat_s
from pirate.worker_session import SessionState
from tests.scenes.waiting import eventually
from tests.sim.virtual_time import VirtualTime, run

if TYPE_CHECKING:
    import selectors
    from pathlib import Path

    from tests.spec.conftest import Make

ANY = "tcp://127.0.0.1:*"
READY, HEARTBEAT = b"\1", b"\2"


async def test_hb_01_both_ways_on_the_socket_of_the_data_unasked(make: Make) -> None:
    async with pirate.Queue(ANY, ANY, heartbeat_ms=10, liveness=1000) as queue:
        worker = make(core.DEALER, connect=queue.backend)
        await worker.send(READY)
        assert [await worker.recv() for _ in range(3)] == [HEARTBEAT] * 3  # and it has said nothing since
    router = make(core.ROUTER, bind=ANY)
    async with pirate.Worker(router.last_endpoint, echo, heartbeat_ms=10, liveness=1000):
        name, *frames = await router.recv_multipart()
        assert frames == [READY]
        for _ in range(3):
            assert await router.recv_multipart() == [name, HEARTBEAT]


async def test_hb_02_anything_counts_as_a_heartbeat(make: Make) -> None:
    """Noise too: a peer that makes it is alive."""
    async with pirate.Queue(ANY, ANY, heartbeat_ms=20) as queue:
        worker = make(core.DEALER, connect=queue.backend)
        await worker.send(READY)
        for _ in range(30):
            await worker.send(b"noise")
            await asyncio.sleep(0.005)
        assert queue.idle == 1
        await eventually(lambda: queue.idle == 0)  # and now it says nothing
        assert queue.counters["worker_expired"] == 1


async def test_hb_03_two_peers_do_not_speed_each_other_up(make: Make) -> None:
    async with (
        pirate.Queue(ANY, ANY, heartbeat_ms=50, liveness=100) as queue,
        pirate.Worker(queue.backend, echo, heartbeat_ms=50, liveness=100) as worker,
        pirate.Client(queue.frontend, timeout=100) as client,
    ):
        began = time.monotonic()
        for number in range(300):
            await client.request(b"%d" % number)
        intervals = (time.monotonic() - began) / 0.05
        assert worker.counters["heartbeat_sent"] <= intervals + 1
        assert queue.counters["heartbeat_sent"] <= intervals + 1


def test_hb_04_liveness_counts_missed_intervals() -> None:
    peer = Liveness(1.0, 3, 0.0)
    assert [peer.is_dead(now) for now in (0.0, 1.0, 2.0, 2.999, 3.0)] == [False, False, False, False, True]
    peer.heard(3.0)
    assert [peer.is_dead(now) for now in (3.0, 5.999, 6.0)] == [False, False, True]


@pytest.mark.parametrize("heartbeat_ms", [10, 2500, 30_000])
async def test_hb_05_from_10_ms_to_30_s(heartbeat_ms: float) -> None:
    assert checked_heartbeat_s(heartbeat_ms) == heartbeat_ms / 1000
    async with (
        pirate.Queue(ANY, ANY, heartbeat_ms=heartbeat_ms, liveness=100) as queue,
        pirate.Worker(queue.backend, echo, heartbeat_ms=heartbeat_ms, liveness=100),
        pirate.Client(queue.frontend, timeout=100) as client,
    ):
        assert await client.request(b"x") == [b"x"]


@pytest.mark.parametrize("heartbeat_ms", [9.9, 30_001, 0, -1])
def test_hb_05_and_no_further(heartbeat_ms: float) -> None:
    with pytest.raises(ValueError):
        pirate.Queue(ANY, ANY, heartbeat_ms=heartbeat_ms)
    with pytest.raises(ValueError):
        pirate.Worker("tcp://127.0.0.1:9", echo, heartbeat_ms=heartbeat_ms)


async def test_hb_06_a_queue_that_returns_gets_no_backlog(make: Make) -> None:
    """The worker's heartbeats of the time nobody listened go with their socket."""
    silent = make(core.ROUTER, bind=ANY)
    async with pirate.Worker(silent.last_endpoint, echo, heartbeat_ms=10, reconnect_ms=10, jitter=0) as worker:
        await eventually(lambda: worker.counters["queue_silent"] >= 3)
        said: dict[bytes, list[bytes]] = {}
        async with asyncio.timeout(100):
            while len(said) < 3:
                name, frame = await silent.recv_multipart()
                said.setdefault(name, []).append(frame)
        postponed = worker.counters["verdict_postponed"]
    for frames in list(said.values())[:2]:
        assert frames[0] == READY
        assert set(frames[1:]) <= {HEARTBEAT}
        assert len(frames) <= 1 + 4 + postponed  # what fits into three intervals, however long the outage is


class Busy(VirtualTime):
    """A clock that jumps in some event-loop iterations, as on a shared processor, or steadily in each.

    Times between half an interval and one and a half are left out: a tick may not notice them.
    """

    def __init__(self, chance: random.Random, turn_s: float = 0.0) -> None:
        super().__init__()
        self._chance, self._turn_s = chance, turn_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        lost_s = self._turn_s or (self._chance.uniform(0.0155, 0.05) if self._chance.random() < 0.2 else 0.0005)
        self.now_s += lost_s
        return super().select(None if timeout is None else max(0.0, timeout - lost_s))


@pytest.mark.parametrize(
    ("seed", "turn_ms"), [(seed, 0) for seed in range(30)] + [(0, turn_ms) for turn_ms in (1, 2, 16, 20, 24, 29.9, 50)]
)
def test_no_false_failures_while_the_loop_is_busy(seed: int, turn_ms: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 ms intervals, and a loop that has something else to do for longer than that, again and again.

    In virtual time, and over Unix sockets: what is sent is there at once, and nothing depends on the real scheduler.
    """

    async def busy() -> None:
        async with (
            pirate.Queue(f"ipc://{tmp_path}/f", f"ipc://{tmp_path}/b", heartbeat_ms=10) as queue,
            pirate.Worker(queue.backend, echo, heartbeat_ms=10) as worker,
            pirate.Client(queue.frontend, timeout=100) as client,
        ):
            for number in range(40):
                assert await client.request(b"%d" % number) == [b"%d" % number]
                await asyncio.sleep(0.015)
            assert worker.state is SessionState.IDLE
            assert (worker.counters["queue_silent"], queue.counters["worker_expired"]) == (0, 0)
            assert worker.counters["heartbeat"] > 0

    run(busy(), Busy(random.Random(seed), turn_ms / 1000), monkeypatch)
