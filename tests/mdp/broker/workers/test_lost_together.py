"""MDP-37, faults B6 and B7: workers lost together, noticed one by one; requests that end every worker."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mdp
from mdp.wire.commands import worker_disconnect, worker_final, worker_heartbeat, worker_ready
from mdp.wire.events import Failure, Final, Heartbeat, Ping, Work, parse_at_client, parse_at_worker
from mdp.wire.options import encode_options
from tests.scenes.mdp_dispatcher import DIALECTS, ECHO, Scene
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mdp.wire.commands import Dialect

ROOT = Path(__file__).parents[4]
STEP_S = 0.1


class Fleet(Scene):
    """Workers of which some live: these beat, and answer what they are given; the others are silent."""

    def __init__(self, **options: float) -> None:
        super().__init__(**options)
        self.living: dict[bytes, Dialect] = {}
        self.beats: dict[bytes, float] = {}
        self.answers: list[bytes] = []
        self.codes: list[str] = []

    def join(self, peers: Iterable[bytes], dialect: Dialect = "0.3", credit: int = 4) -> None:
        options = encode_options({"credit": credit, "concurrency": credit}) if dialect == "0.3" else b""
        for peer in peers:
            self.living[peer] = dialect
            self.beats[peer] = self.now
            self.send(peer, worker_ready(dialect, ECHO, options=options))

    def silence(self, peers: Iterable[bytes]) -> None:
        for peer in peers:
            del self.living[peer]

    def end(self, peers: Iterable[bytes], how: Callable[[bytes], object]) -> None:
        """Let workers end in one instant, noticed one after the other."""
        ended = list(peers)
        self.silence(ended)
        for peer in ended:
            how(peer)

    def serve(self, *, but: bytes = b"") -> list[bytes]:
        """Serve all living workers; return those that were given a body `but`, which is not answered."""
        met = []
        for peer, dialect in list(self.living.items()):
            for event in [parse_at_worker(frames) for frames in self.got(peer)]:
                if isinstance(event, Work):
                    if but and event.body[0] == but:
                        met.append(peer)
                    else:
                        self.send(peer, worker_final(dialect, event.id, [*event.body]))
                elif isinstance(event, Ping):
                    self.send(peer, worker_heartbeat(dialect))
                else:
                    assert isinstance(event, Heartbeat), event
            if self.now - self.beats[peer] >= 2.5:
                self.beats[peer] = self.now
                self.send(peer, worker_heartbeat(dialect))
        for client in (b"C1", b"C2"):
            for told in [parse_at_client(frames) for frames in self.got(client)]:
                if isinstance(told, Final):
                    self.answers.append(told.body[0])
                else:
                    assert isinstance(told, Failure), told
                    self.codes.append(told.code)
        return met

    def go_on(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.serve()
            self.wait(STEP_S)
        self.serve()


def names(prefix: bytes, count: int) -> list[bytes]:
    return [b"%s%d" % (prefix, i) for i in range(count)]


@pytest.mark.parametrize(
    ("dead", "requests", "credit", "deliveries_max"), [(300, 600, 4, 5), (300, 600, 1, 2), (40, 200, 16, 2), (12, 90, 3, 2)]
)
@pytest.mark.parametrize("dialect", ["0.3", "0.1"])
def test_no_dead_letter_when_the_workers_of_a_host_fall_silent(
    dialect: Dialect, dead: int, requests: int, credit: int, deliveries_max: int
) -> None:
    """They expire one shortly after another: one loss for a request, and then it is answered."""
    chance = random.Random(dead + requests)
    scene = Fleet(deliveries_max=deliveries_max, busy_ms=10_000)
    host, elsewhere = names(b"H", dead), names(b"E", 4)
    for peer in [*host, *elsewhere]:
        scene.join([peer], dialect if peer in host else "0.3", credit)
        scene.now += chance.random() * 2 / (dead + 4)
    scene.silence(host)
    for i in range(requests):
        scene.ask("0.3", b"C1", b"%d" % i)
    scene.go_on(40.0)
    assert scene.codes == []
    assert sorted(scene.answers) == sorted(b"%d" % i for i in range(requests))
    assert scene.counters["redelivered"] > 0
    assert not scene.machine.dead_letters
    scene.check()


@pytest.mark.parametrize("how", ["connection", "disconnect"])
@pytest.mark.parametrize(("dead", "requests", "credit"), [(40, 200, 4), (300, 600, 2), (7, 60, 16)])
def test_no_dead_letter_when_the_workers_of_a_process_end(how: str, dead: int, requests: int, credit: int) -> None:
    """Their connections close in one instant; what they held was given to one of them more than once before."""
    scene = Fleet(deliveries_max=2)
    process, elsewhere = names(b"P", dead), names(b"E", 4)
    scene.join([*process, *elsewhere], credit=credit)
    for i in range(requests):
        scene.ask("0.3", b"C1", b"%d" % i)
    scene.end(process, scene.lose if how == "connection" else lambda peer: scene.send(peer, worker_disconnect("0.3")))
    scene.go_on(15.0)
    assert scene.codes == []
    assert sorted(scene.answers) == sorted(b"%d" % i for i in range(requests))
    assert not scene.machine.dead_letters
    scene.check()


@pytest.mark.parametrize("deliveries_max", [1, 2, 5])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_that_ends_every_worker_it_meets_meets_so_many(dialect: Dialect, deliveries_max: int) -> None:
    """B7: however many wait for work, and however quickly they end; everything else is answered."""
    scene = Fleet(deliveries_max=deliveries_max)
    scene.join(names(b"W", 30), dialect)
    scene.ask("0.3", b"C1", b"poison")
    for i in range(100):
        scene.ask("0.3", b"C2", b"%d" % i)
    met = 0
    for _ in range(1000):
        for peer in scene.serve(but=b"poison"):
            met += 1
            scene.end([peer], scene.lose)
        scene.wait(0.05)
    assert met == deliveries_max
    assert scene.codes == ["DEAD_LETTER"]
    assert len(scene.answers) == 100
    scene.check()


def test_workers_of_ours_are_asked_whether_they_live() -> None:
    """With nothing else to do, requests of workers lost together wait for a sixteenth of an interval.

    They do not wait for the next heartbeat.
    """
    scene = Fleet()
    scene.join([b"W1", b"W2", b"W3"])
    scene.ask("0.3", b"C1")
    scene.end([b"W1", b"W3"], scene.lose)
    scene.wait(0.17)
    assert scene.at_worker(b"W2") == [Ping()]
    scene.send(b"W2", worker_heartbeat("0.3"))
    assert isinstance(scene.at_worker(b"W2")[0], Work)
    scene.check()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_request_of_a_worker_lost_alone_goes_on_when_that_is_known(dialect: Dialect) -> None:
    """To one that was heard from lately, though it does not say a word: after the sixteenth of an interval."""
    scene = Scene()
    scene.ready(dialect, b"W1")
    scene.ready("0.3", b"OLD")
    scene.wait(5)
    scene.ask("0.3", b"C1", b"first")
    scene.send(b"W1", worker_heartbeat(dialect))
    scene.ready(dialect, b"W2")
    (busy,) = [peer for peer in (b"W1", b"OLD") if scene.machine.directory.workers[peer].in_flight]
    scene.got(b"W2")
    scene.lose(busy)
    scene.wait(0.15)
    assert scene.at_worker(b"W2") == []
    scene.wait(0.01)
    assert isinstance(scene.at_worker(b"W2")[0], Work)
    scene.check()


def test_a_worker_that_comes_after_the_loss_has_it_at_once() -> None:
    scene = Fleet()
    scene.join([b"W1", b"W2"])
    scene.ask("0.3", b"C1")
    scene.lose(b"W1")
    scene.join([b"W3"])
    assert isinstance(scene.at_worker(b"W3")[0], Work)
    assert scene.at_worker(b"W2") == []
    scene.check()


def test_nobody_is_waited_for_longer_than_a_liveness_window() -> None:
    """A worker whose own interval is long says nothing in that time, and may get the request."""
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.send(b"W2", worker_ready("0.3", ECHO, options=encode_options({"heartbeat_ms": 30_000})))
    scene.ready("0.3", b"W3")
    scene.ask("0.3", b"C1")
    scene.lose(b"W1")
    scene.lose(b"W3")
    scene.wait(7.4)
    assert scene.at_worker(b"W2") == []
    scene.wait(0.2)
    assert isinstance(scene.at_worker(b"W2")[0], Work)
    scene.check()


def test_what_waits_for_a_sign_of_life_ends_like_any_request() -> None:
    """Once each, and nothing is left.

    It is cancelled, its deadline passes, its client goes, the service is taken out, the broker stops.
    """
    scene = Scene(manage=True, client_queue_max=100)
    scene.ready("0.3", b"W1", credit=10)
    scene.ready("0.1", b"W2")
    scene.ready("0.1", b"W3")
    scene.ask("0.3", b"C1", b"deadline", options={"deadline_ms": 400})
    for client in (b"C2", b"C3", b"C4", b"C5"):
        scene.ask("0.3", client)
    scene.lose(b"W1")
    scene.lose(b"W2")
    scene.lose(b"W3")
    scene.ready("0.1", b"W4")
    scene.check()
    scene.lose(b"C2")
    scene.wait(0.5)
    assert scene.failure(b"C1") == "DEADLINE_EXCEEDED"
    scene.check()
    scene.both("drain")
    scene.beat(b"W4")
    scene.check()
    scene.both("stop")
    assert scene.machine.idle


@pytest.mark.parametrize("seed", range(12))
def test_each_disaster_is_one_loss_to_a_request(seed: int) -> None:
    """Several workers end in one instant, by silence or with their connections, again and again: fewer losses than disasters suffice."""
    chance = random.Random(seed)
    disasters = 4
    scene = Fleet(deliveries_max=disasters + 1, busy_ms=9000)
    scene.join([b"survivor"], credit=chance.randrange(1, 4))
    asked = serial = 0
    for _ in range(disasters):
        for dialect in DIALECTS:
            scene.join(names(b"%d-" % serial, chance.randrange(1, 12)), dialect, chance.randrange(1, 6))
            serial += 1
        for _ in range(chance.randrange(20, 120)):
            scene.ask("0.3", b"C%d" % chance.randrange(1, 3), b"%d" % asked)
            asked += 1
        if chance.random() < 0.5:
            scene.go_on(chance.random())
        doomed = [peer for peer in scene.living if peer != b"survivor" and chance.random() < 0.9]
        chance.shuffle(doomed)
        if chance.random() < 0.6:
            scene.end(doomed, scene.lose)
        else:
            scene.silence(doomed)
        scene.go_on(30.0 if chance.random() < 0.5 else chance.random() * 2)
    scene.go_on(60.0)
    assert scene.codes == []
    assert sorted(scene.answers) == sorted(b"%d" % i for i in range(asked))
    scene.check()


CROWD = """
import asyncio, sys
from contextlib import AsyncExitStack
import mdp

async def slowly(request):
    await asyncio.sleep(0.02)
    return request.body

async def main():
    async with AsyncExitStack() as stack:
        for _ in range(40):
            await stack.enter_async_context(mdp.Worker(sys.argv[1], "echo", handler=slowly))
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_request_that_goes_on_for_who_has_more_time_keeps_its_place() -> None:
    """Its worker was lost; its first client's time ends as a worker is heard from.

    The request behind it goes to another worker that is heard from.
    """
    scene = Scene(heartbeat_ms=1000)
    scene.ready("0.3", b"W1", credit=2)
    scene.ask("0.3", b"A", b"keyed", options={"key": b"k", "deadline_ms": 500})
    scene.ask("0.3", b"B", b"keyed", options={"key": b"k", "deadline_ms": 60_000})
    scene.ask("0.3", b"C", b"plain")
    for peer in (b"W2", b"W3"):
        scene.ready("0.3", peer)
    deadline = scene.now + 0.5
    scene.lose(b"W1")
    scene.now = deadline
    scene.send(b"W2", worker_heartbeat("0.3"))
    assert scene.failure(b"A") == "DEADLINE_EXCEEDED"
    assert scene.work(b"W2").body == [b"keyed"]
    scene.send(b"W3", worker_heartbeat("0.3"))
    assert scene.work(b"W3").body == [b"plain"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "suspended"])
async def test_forty_workers_of_a_process_end_under_load(tmp_path: Path, number: signal.Signals) -> None:
    """Four workers elsewhere answer everything; no dead letter, though two lost workers would make one."""

    async def quickly(request: mdp.Request) -> list[bytes]:
        await asyncio.sleep(0.005)
        return request.body

    (tmp_path / "crowd.py").write_text(CROWD)
    async with mdp.Broker(deliveries_max=2) as broker:
        endpoint = broker.bind(f"ipc://{tmp_path / 'broker'}")
        crowd = subprocess.Popen([sys.executable, str(tmp_path / "crowd.py"), endpoint], env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            async with mdp.Client(endpoint, timeout=100) as client, AsyncExitStack() as stack:
                for _ in range(4):
                    await stack.enter_async_context(mdp.Worker(endpoint, "echo", handler=quickly))
                await eventually(lambda: len(broker.machine.directory.workers) == 44)
                asked = [client.request("echo", b"%d" % i) for i in range(3000)]
                await eventually(lambda: broker.counters["replies"] > 100)
                crowd.send_signal(number)
                assert [await one for one in asked] == [[b"%d" % i] for i in range(3000)]
                assert broker.counters["redelivered"] > 0
                assert not broker.machine.dead_letters
        finally:
            crowd.kill()
            crowd.wait()
