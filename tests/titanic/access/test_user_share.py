"""One user cannot fill the store: its requests have a limit, and refusals state the numbers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgpack
import pytest

import mdp
import titanic
from tests.titanic.access.test_verbs import RULES, Scene, plain
from titanic.wire import tsp
from titanic.wire.batch_frames import encode_rows

if TYPE_CHECKING:
    from pathlib import Path


class Small(Scene):
    """The same with a store of few requests."""

    limits = titanic.Limits(requests_max=10, bytes_max=100_000, user_share=30)

    async def open_store(self) -> None:
        disk = titanic.RealDisk(str(self.directory)) if self.directory is not None else None
        stored = titanic.Store(disk, titanic.JournalOptions() if disk is not None else None, self.limits)
        options = titanic.ServiceOptions(permission_ms=20, **self.options)
        self.store = titanic.Service(self.where, stored, options, security=plain("store"), seed=1)
        await self.store.__aenter__()


async def test_a_user_has_a_share_of_the_requests() -> None:
    async with Small() as scene:
        mine = [await scene.submit("ann", "own-absent") for _ in range(3)]
        with pytest.raises(titanic.StoreFull, match=r"user_share of requests_max \(3 of 3 in use\)"):
            await scene.submit("ann", "own-absent")
        await scene.submit("bob", "own-absent")
        assert scene.store.store.status["over_share"] == 1
        assert scene.store.figures()["counters"]["requests_over_share"] == 1
        assert await scene.ask("ann", tsp.CLOSE, mine[0]) == [b"200"]
        await scene.submit("ann", "own-absent")


async def test_a_user_has_a_share_of_the_bytes_over_restarts(tmp_path: Path) -> None:
    async with Small(directory=tmp_path) as scene:
        ann = await scene.client("ann")
        await ann.submit("own-absent", bytes(25_000))
        with pytest.raises(titanic.StoreFull, match="user_share of bytes_max"):
            await ann.submit("own-absent", bytes(6_000))
        await scene.restart()
        with pytest.raises(titanic.StoreFull, match="user_share of bytes_max"):
            await ann.submit("own-absent", bytes(6_000))
        assert await scene.submit("bob", "own-absent")
        index = scene.store.store.index
        assert sum(mine.octets for mine in index.owned.values()) == index.bytes_used


async def test_an_answer_counts_for_its_request_until_it_is_closed(tmp_path: Path) -> None:
    async with Small(directory=tmp_path) as scene:
        index = scene.store.store.index
        ann = await scene.client("ann")
        ticket = await ann.submit("echo", bytes(10_000))
        await ticket.result(100)
        assert index.owned[b"ann"].octets == index.bytes_used > 20_000
        await ticket.close()
        assert index.owned == {}


async def test_a_batch_beyond_the_share_is_refused_and_not_begun() -> None:
    async with Small(RULES) as scene:
        rows = encode_rows([(b"%d" % number, [b"x"]) for number in range(2)])
        assert await scene.ask("ann", b"titanic.batch", b"stage", b"job/0/1", b"0", b"60000", b"own-absent", rows) == [b"200"]
        stages = msgpack.packb([[b"job/0/1", 1]])
        reply = await scene.ask("ann", b"titanic.batch", b"commit", b"job", stages)
        assert reply[0] == b"500"
        assert reply[1].startswith(b"TOO_LARGE: 2 rows in 1 chunks, and one user may have 3 requests")
        assert [row["service"] for row in await scene.rows("root")] == ["titanic.staged"]
        rows = encode_rows([(b"9", [b"x"])])
        assert await scene.ask("bob", b"titanic.batch", b"stage", b"job/0/1", b"0", b"60000", b"own-absent", rows) == [b"200"]
        assert (await scene.ask("bob", b"titanic.batch", b"commit", b"job", stages))[0] == b"200"


async def test_without_users_there_is_no_share() -> None:
    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        store = titanic.Store(None, None, titanic.Limits(requests_max=4, user_share=1))
        async with titanic.Service(where, store), titanic.Client(where) as client:
            await asyncio.gather(*(client.submit("absent", b"x") for _ in range(4)))
            with pytest.raises(titanic.StoreFull, match="requests_max"):
                await client.submit("absent", b"x")


@pytest.mark.parametrize("share", [0, -1, 101])
def test_a_share_is_a_part(share: int) -> None:
    with pytest.raises(ValueError, match="1 to 100 percent"):
        titanic.Limits(user_share=share)
    assert titanic.Limits().user_share == 50
