"""kill -9 of Titanic and its mirror while clients submit, fetch and close (TSP-06, TSP-16, IDM-03, P1, S9, G4, G19).

What was acknowledged is there with its own answer, what was closed never comes back, and a key means one request over all restarts.
`make soak` kills as often as `SOAK_KILLS` says (1,000); `SOAK_SEED` says when (printed, drawn anew by default).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest

import mdp
import titanic
from tests.scenes.titanic_processes import Nursery
from titanic.journal.disk import RealDisk
from titanic.journal.ownership import Step, read_mark
from titanic.store.repair import check, read_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from titanic.journal.inspection import Problem

T = TypeVar("T")

ONE_LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])  # the daemons are processes with loops of their own
KILLS_SOAK = int(os.environ.get("SOAK_KILLS", "1000"))
LANES = 12
OLD = 500  # closed requests that are asked for again
SEGMENT_BYTES = 65536  # so small that segments are ended, emptied and dropped all the time


async def until_taken(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the store is there and answers."""
    while True:
        try:
            return await ask()
        except (mdp.RequestError, titanic.Unavailable):
            await asyncio.sleep(0.01)


class Crowd:
    """Clients that submit, wait, close, leave things behind and come back to them, without pause.

    Attributes:
        kept: by UUID, the bodies of requests that were acknowledged and never asked to be closed.
        closed: the same of those whose close was acknowledged, the last few.
        worked: how often the worker got each body.
        done: acknowledgements so far.
    """

    def __init__(self, client: titanic.Client, chance: random.Random) -> None:
        self.client = client
        self.chance = chance
        self.kept: dict[str, bytes] = {}
        self.closed: deque[tuple[str, bytes]] = deque(maxlen=OLD)
        self.worked: Counter[bytes] = Counter()
        self.done = 0
        self._over = False
        self._lanes = [asyncio.ensure_future(self._live(lane)) for lane in range(LANES)]

    async def work(self, request: mdp.Request) -> bytes:
        self.worked[request.body[0]] += 1
        return b"done " + request.body[0]

    async def submit(self, body: bytes) -> str:
        return (await until_taken(partial(self.client.submit, "once", body, key=body))).uuid

    async def _live(self, lane: int) -> None:
        serial = 0
        while not self._over:
            serial += 1
            body = b"%d.%d" % (lane, serial)
            uuid = await self.submit(body)
            self.kept[uuid] = body
            self.done += 1
            if self.chance.random() < 0.85:
                await self._take(uuid, body)
            if self.chance.random() < 0.1:
                await self._come_back()

    async def _take(self, uuid: str, body: bytes) -> None:
        ticket = self.client.ticket(uuid)
        assert await ticket.result() == [b"done " + body]
        self.kept.pop(uuid, None)
        await until_taken(ticket.close)
        self.closed.append((uuid, body))
        self.done += 1

    async def _come_back(self) -> None:
        """Look at something old: what is closed stays closed, and its key gives the same ticket."""
        if self.closed:
            uuid, body = self.chance.choice(self.closed)
            await self.is_closed(uuid)
            assert await self.submit(body) == uuid

    async def is_closed(self, uuid: str) -> None:
        with pytest.raises(titanic.UnknownRequest):
            await until_taken(self.client.ticket(uuid).fetch)

    async def until(self, more: int) -> None:
        """Wait until so many more were acknowledged, or one has found what must not be."""
        wanted = self.done + more
        while self.done < wanted and not any(lane.done() for lane in self._lanes):
            await asyncio.sleep(0.001)

    async def judge(self) -> None:
        """Let all clients finish; then everything that was acknowledged is fetched, and nothing else is there."""
        self._over = True
        await asyncio.gather(*self._lanes)
        for uuid, body in self.kept.items():
            assert await self.client.ticket(uuid).result() == [b"done " + body]
            assert self.worked[body] >= 1
        for uuid, body in self.closed:
            await self.is_closed(uuid)
            assert await self.submit(body) == uuid


def held(directory: Path) -> set[str]:
    """Return the UUIDs in a directory that is not served; nothing in it is damaged."""
    problems, _, _ = check(RealDisk(directory))
    assert not_torn(problems) == []
    return {entry.uuid.hex().upper() for entry in read_store(RealDisk(directory))[1].entries.values()}


def not_torn(problems: list[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.code != "TORN"]


class Scene:
    """A Titanic, and a mirror if it has one, that are killed and started again."""

    def __init__(self, nursery: Nursery, folder: Path, broker: str, mirrored: bool) -> None:
        self.nursery = nursery
        self.store, self.copy = folder / "store", folder / "copy"
        self.kills = 0
        self._commands = [
            ("serve", "--broker", broker, "--store", str(self.store), "--segment-bytes", str(SEGMENT_BYTES)),
            ("mirror", "--bind", "ipc://mirror", "--store", str(self.copy)),
        ]
        if mirrored:
            self._commands[0] += ("--mirror", "ipc://mirror")
        else:
            self._commands.pop()
        self.running = [nursery.start(*command) for command in self._commands]

    def kill(self, *which: int) -> None:
        for one in which:
            self.nursery.kill(self.running[one])
            self.kills += 1

    def start(self, *which: int) -> None:
        for one in which:
            self.running[one] = self.nursery.start(*self._commands[one])

    async def go_on(self, crowd: Crowd, chance: random.Random) -> None:
        """Let some requests be answered, and kill a process, or one that has just been started."""
        await crowd.until(chance.randrange(1, 100))
        await asyncio.sleep(chance.random() / 50)
        which = [[0], [1], [0, 1], [1, 0]][chance.choice((0, 0, 0, 1, 1, 2, 3)) if len(self.running) > 1 else 0]
        self.kill(*which)
        while chance.random() < 0.2:  # in the middle of coming up
            self.start(*which)
            await asyncio.sleep(chance.random() / 5)
            self.kill(*which)
        if len(which) == 2:
            self.look(crowd)
        self.start(*which)

    def look(self, crowd: Crowd) -> None:
        """Both are dead: each directory holds what was acknowledged, and nothing that was closed; the mirror's if it says so."""
        mark = read_mark(RealDisk(self.copy))
        for directory in (self.store, *([self.copy] if mark is not None and mark.step is Step.IN_STEP else [])):
            there = held(directory)
            assert crowd.kept.keys() <= there
            assert there.isdisjoint(uuid for uuid, _ in crowd.closed)


async def kill_again_and_again(folder: Path, kills: int, seed: int, *, mirrored: bool = False) -> None:
    chance = random.Random(seed)
    async with mdp.Broker() as broker:
        endpoint = broker.bind(f"ipc://{folder}/broker")
        with Nursery(folder) as nursery:
            scene = Scene(nursery, folder, endpoint, mirrored)
            async with titanic.Client(endpoint, timeout=60.0, attempts=1) as client:
                crowd = Crowd(client, chance)
                async with mdp.Worker(endpoint, "once", handler=crowd.work):
                    while scene.kills < kills:
                        await scene.go_on(crowd, chance)
                    await crowd.judge()
                    assert await asyncio.to_thread(nursery.stop, scene.running[0]) == 0
                    if mirrored:
                        assert await asyncio.to_thread(nursery.stop, scene.running[1]) == 0
                        await serve_the_copy(nursery, scene, endpoint, crowd)
        assert crowd.kept.keys() == held(scene.store)
        assert "Traceback" not in nursery.said()
    twice = sum(times > 1 for times in crowd.worked.values())
    print(f"\n{scene.kills} killed, {crowd.done} acknowledged, {len(crowd.kept)} kept, {twice} worked on more than once")  # noqa: T201


async def serve_the_copy(nursery: Nursery, scene: Scene, endpoint: str, crowd: Crowd) -> None:
    """The first machine is gone: its mirror is promoted and holds the same."""
    assert crowd.kept.keys() == held(scene.copy)
    promoting = nursery.start("promote", "--store", str(scene.copy))
    assert await asyncio.to_thread(nursery.wait, promoting) == 0
    serving = nursery.start("serve", "--broker", endpoint, "--store", str(scene.copy))
    await crowd.judge()
    assert await asyncio.to_thread(nursery.stop, serving) == 0


@pytest.mark.long
@ONE_LOOP
@pytest.mark.timeout(300)  # many processes, on a machine that may be busy
async def test_kill_dash_nine_again_and_again_loses_nothing_acknowledged(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path, 30, seed=1)


@pytest.mark.long
@ONE_LOOP
@pytest.mark.timeout(300)
async def test_nothing_acknowledged_is_lost_when_the_mirror_is_killed_too(tmp_path: Path) -> None:
    """BEY-08: and each of the two directories holds it."""
    await kill_again_and_again(tmp_path, 10, seed=2, mirrored=True)


@pytest.mark.soak
@ONE_LOOP
@pytest.mark.parametrize("mirrored", [False, True], ids=["alone", "mirrored"])
async def test_kill_dash_nine_a_thousand_times_loses_nothing_acknowledged(tmp_path: Path, mirrored: bool) -> None:
    seed = int(os.environ.get("SOAK_SEED", str(time.time_ns())))
    print(f"\nSOAK_SEED={seed}")  # noqa: T201
    await kill_again_and_again(tmp_path, KILLS_SOAK, seed, mirrored=mirrored)
