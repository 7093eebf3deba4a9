"""The front and its shards with our clients and workers, direct ones and such as the front forwards.

Rules of specs/mdp.md: SHD-02 to SHD-07, 09, 11 and 12.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from mdp.wire.commands import worker_disconnect, worker_ready
from tests.scenes.fault_injection import Saboteur
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_shards import Sharded
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mdp.wire.commands import Dialect

QUICK: dict[str, Any] = {"reconnect_ms": 50, "reconnect_max_ms": 200}


@pytest.fixture
async def sharded(tmp_path: Path) -> AsyncIterator[Sharded]:
    async with asyncio.timeout(PATIENCE_S), Sharded(f"ipc://{tmp_path}/b", manage=True) as serving:
        yield serving


def workers_at(sharded: Sharded) -> list[int]:
    return [0 if shard is None else len(shard.machine.directory.workers) for shard in sharded.shards]


def is_direct(client: mdp.Client) -> bool:
    return bool(client._shards.engines) and all(engine.machine.connected for engine in client._shards.engines)


@pytest.mark.parametrize("dialect", ["auto", "0.1", "0.2", "0.3"])
async def test_services_of_all_shards_are_served_in_all_dialects(sharded: Sharded, dialect: str) -> None:
    names = [*sharded.names(0, 2), *sharded.names(1, 2)]
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(mdp.Worker(sharded.endpoint, name, handler=echo, dialect=dialect, **QUICK))
        client = await stack.enter_async_context(mdp.Client(sharded.endpoint, dialect=dialect, timeout=PATIENCE_S))
        await eventually(lambda: workers_at(sharded) == [2, 2])
        for name in names:
            assert await client.request(name, b"hello", b"", b"x" * 70_000) == [b"hello", b"", b"x" * 70_000]
        assert await client.mmi("service", names[0]) == "200"
        assert await client.mmi("service", "absent") == "404"
        outcomes = [outcome async for outcome in client.map(names[1], [b"%d" % n for n in range(500)])]
        assert [outcome.reply for outcome in outcomes] == [[b"%d" % n] for n in range(500)]
    await eventually(lambda: workers_at(sharded) == [0, 0])


async def test_limits_of_a_peer_count_behind_the_front(sharded: Sharded) -> None:
    """A message beyond them ended the connection of the peer, which then sent or got the request again."""
    name = sharded.names(1)[0]

    async def twice(request: mdp.Request) -> bytes:
        return request.body[0] * 2

    narrow = {"maxmsgsize": 1000}
    options: dict[str, Any] = {"dialect": "0.3", "timeout": PATIENCE_S}
    async with (
        mdp.Client(sharded.endpoint, socket_options=narrow, **options) as client,
        mdp.Client(sharded.endpoint, **options) as other,
    ):
        async with mdp.Worker(sharded.endpoint, name, handler=twice, **QUICK):
            assert await client.request(name, bytes(400), wait=True) == [bytes(800)]
            with pytest.raises(mdp.TooLarge):
                await client.request(name, bytes(900))
        async with mdp.Worker(sharded.endpoint, name, handler=twice, dialect="0.3", socket_options=narrow, **QUICK):
            # A worker of a fixed dialect knows of no shards.
            assert await other.request(name, bytes(400), wait=True) == [bytes(800)]
            with pytest.raises(mdp.TooLarge):
                await other.request(name, bytes(1900))
    assert sharded.front.counters["cut"] == 0


async def test_workers_and_clients_of_mdp_03_connect_to_the_shards(sharded: Sharded) -> None:
    name = sharded.names(1)[0]
    async with mdp.Worker(sharded.endpoint, name, handler=echo, **QUICK), mdp.Client(sharded.endpoint) as client:
        await client.request(name, b"x", wait=True)
        await eventually(lambda: is_direct(client))
        before = sharded.front.counters["to_shards"]
        for number in range(100):
            assert await client.request(name, b"%d" % number) == [b"%d" % number]
        assert [part async for part in client.stream(name, b"y")] == [[b"y"]]
        assert sharded.front.counters["to_shards"] == before
        assert sharded.front.stats()["front_links"] <= 1  # of the first request, before the shards were connected


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
async def test_a_shard_answers_workers_of_other_shards_services_with_disconnect(sharded: Sharded, dialect: Dialect) -> None:
    name = sharded.names(1)[0].encode()
    async with core.Context() as context, context.socket(core.DEALER, linger=0) as worker:
        worker.connect(f"{sharded.endpoint}.0")
        await worker.send_multipart(worker_ready(dialect, name))
        assert await worker.recv_multipart() == worker_disconnect(dialect)
    first = sharded.shards[0]
    assert first is not None
    assert (first.counters["ready_elsewhere"], workers_at(sharded)) == (1, [0, 0])


async def test_mmi_of_the_whole_broker(sharded: Sharded) -> None:
    names = [sharded.names(0)[0], sharded.names(1)[0]]
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(mdp.Worker(sharded.endpoint, name, handler=echo, **QUICK))
        clients = [
            await stack.enter_async_context(mdp.Client(sharded.endpoint, dialect=dialect)) for dialect in ("0.1", "0.2", "0.3", "auto")
        ]
        await eventually(lambda: workers_at(sharded) == [1, 1])
        for client in clients:
            code, services = await client.request("mmi.services", b"")
            assert (code, sorted(row["name"] for row in json.loads(services))) == (b"200", sorted(names))
            _, workers = await client.request("mmi.workers", b"")
            assert sorted(row["service"] for row in json.loads(workers)) == sorted(names)
            _, one = await client.request("mmi.workers", names[1].encode())
            assert [row["service"] for row in json.loads(one)] == [names[1]]
            _, stats = await client.request("mmi.stats", b"")
            assert {name: json.loads(stats)[name] for name in ("services", "workers", "shards", "extra")} == {
                "services": 2,
                "workers": 2,
                "shards": 2,
                "extra": 1,
            }
            assert await client.mmi("protocol", "0.2") == "200"
            assert await client.mmi("protocol", "0.4") == "404"
            assert await client.mmi("protocol", "0.3", "x") == "400"
            assert await client.mmi("dlq.show", "17") == "404"
            assert await client.mmi("nonsense", "") == "501"
        assert await clients[3].mmi("disable", names[1]) == "200"
        with pytest.raises(mdp.Busy):
            await clients[3].request(names[1], b"x", attempts=1)
        assert await clients[0].mmi("enable", names[1]) == "200"


async def test_a_question_for_mmi_without_a_body_says_nothing_about_the_next(sharded: Sharded) -> None:
    names = [sharded.names(shard)[0].encode() for shard in (0, 1)]
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(mdp.Worker(sharded.endpoint, name.decode(), handler=echo, **QUICK))
        await eventually(lambda: workers_at(sharded) == [1, 1])
        context = await stack.enter_async_context(core.Context())
        asking = await stack.enter_async_context(context.socket(core.DEALER, linger=0))
        asking.connect(sharded.endpoint)
        for body in ([], [names[0]], [names[1]], [], [names[1]]):
            await asking.send_multipart([b"MDPC02", b"\x01", b"mmi.service", *body])
            await asking.send_multipart([b"MDPC02", b"\x01", names[1], b"x" * 300])
        answers = [await asking.recv_multipart() for _ in range(8)]
        assert [answer[3] for answer in answers if answer[2] == b"mmi.service"] == [b"200"] * 3


async def test_an_answer_without_the_shard_that_is_away(sharded: Sharded) -> None:
    name = sharded.names(0)[0]
    await sharded.stop(1)
    async with mdp.Worker(sharded.endpoint, name, handler=echo, **QUICK), mdp.Client(sharded.endpoint, timeout=PATIENCE_S) as client:
        await eventually(lambda: workers_at(sharded) == [1, 0])
        _, services, silent = await client.request("mmi.services", b"")
        assert [row and row["name"] for row in json.loads(services)] == [name, None]
        assert silent == b"[1]"
        assert await client.mmi("dlq.drop", "1") == "504"


@pytest.mark.parametrize("dialect", ["auto", "0.1", "0.2", "0.3"])
async def test_peers_return_to_a_shard_that_is_started_again(sharded: Sharded, dialect: str) -> None:
    name, other = sharded.names(0)[0], sharded.names(1)[0]
    async with AsyncExitStack() as stack:
        for service in (name, other):
            await stack.enter_async_context(mdp.Worker(sharded.endpoint, service, handler=echo, dialect=dialect, **QUICK))
        client = await stack.enter_async_context(mdp.Client(sharded.endpoint, dialect=dialect, timeout=0.5, attempts=200))
        assert await client.request(name, b"1", wait=dialect in ("auto", "0.3")) == [b"1"]
        await eventually(lambda: workers_at(sharded) == [1, 1])
        kept = [*sharded.shards][1]
        assert kept is not None
        joined = kept.counters["workers_registered"]
        await sharded.crash(0)
        assert await client.request(other, b"2") == [b"2"]
        await sharded.start(0)
        assert await client.request(name, b"3", wait=dialect in ("auto", "0.3")) == [b"3"]
        await eventually(lambda: workers_at(sharded) == [1, 1])
        assert kept.counters["workers_registered"] == joined


async def test_a_request_in_flight_is_sent_again_when_its_shard_has_ended(sharded: Sharded) -> None:
    name = sharded.names(1)[0]
    begun: list[bytes] = []
    go = asyncio.Event()

    async def wait(request: mdp.Request) -> list[bytes]:
        begun.append(request.body[0])
        await go.wait()
        return request.body

    async with mdp.Worker(sharded.endpoint, name, handler=wait, **QUICK), mdp.Client(sharded.endpoint, timeout=PATIENCE_S) as client:
        await eventually(lambda: is_direct(client) and workers_at(sharded) == [0, 1])
        asked = client.request(name, b"x")
        await eventually(lambda: begun)
        await sharded.crash(1)
        await sharded.start(1)
        await eventually(lambda: len(begun) > 1)
        go.set()
        assert await asked == [b"x"]


async def test_a_cancelled_request_is_cancelled_at_its_worker_directly_and_through_the_front(sharded: Sharded) -> None:
    name = sharded.names(1)[0]
    ended: list[str] = []

    async def wait(request: mdp.Request) -> list[bytes]:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return request.body

    for dialect in ("auto", "0.3"):
        ended.clear()
        async with (
            mdp.Worker(sharded.endpoint, name, handler=wait, **QUICK) as worker,
            mdp.Client(sharded.endpoint, dialect=dialect) as client,
        ):
            await eventually(lambda: workers_at(sharded) == [0, 1])
            asked = client.request(name, b"x")
            await eventually(lambda worker=worker: worker.running)  # type: ignore[misc]
            asked.cancel()
            await eventually(lambda: ended == ["cancelled"])
        await eventually(lambda: workers_at(sharded) == [0, 0])


async def test_the_next_connection_is_used_when_a_shard_cannot_be_reached(tmp_path: Path) -> None:
    """The broker is reachable, its shards are not from here: everything goes through the front."""
    async with asyncio.timeout(PATIENCE_S), Sharded(f"ipc://{tmp_path}/b") as sharded:
        name = sharded.names(0)[0]
        alias = tmp_path / "elsewhere"
        alias.symlink_to(tmp_path / "b")
        async with mdp.Worker(f"ipc://{alias}", name, handler=echo, dialect="0.3"), mdp.Client(f"ipc://{alias}") as client:
            assert await client.request(name, b"x", wait=True) == [b"x"]
            assert not is_direct(client)


@pytest.mark.faults
async def test_a_question_is_closed_after_a_fault_of_its_timer(tmp_path: Path) -> None:
    with supervision.scope(Supervisor(Saboteur(["mdp front question"]))) as supervisor:
        async with asyncio.timeout(PATIENCE_S), Sharded(f"ipc://{tmp_path}/b") as sharded:
            await sharded.stop(1)
            async with mdp.Client(sharded.endpoint, timeout=2.0, attempts=50) as client:
                assert (await client.request("mmi.services", b""))[0] == b"200"
    assert supervisor.faults == {"mdp front question": 1}


async def test_a_peer_with_many_questions_displaces_its_own(tmp_path: Path) -> None:
    question = [b"MDPC02", b"\x01", b"mmi.services", b""]
    async with asyncio.timeout(PATIENCE_S), Sharded(f"ipc://{tmp_path}/b") as sharded, core.Context() as context:
        await sharded.stop(1)  # each question waits for its answer
        asked = sharded.front.counters
        async with context.socket(core.DEALER, linger=0) as flood, mdp.Client(sharded.endpoint, timeout=PATIENCE_S) as client:
            flood.connect(sharded.endpoint)
            await client.mmi("service", sharded.names(0)[0])  # it is connected
            for _ in range(64):
                await flood.send_multipart(question)
            await eventually(lambda: asked["questions"] == 64)
            reply = client.request("mmi.services", b"")
            await eventually(lambda: asked["questions"] == 65)
            for _ in range(70):
                await flood.send_multipart(question)
            assert (await reply)[0] == b"200"
            await eventually(lambda: asked["questions"] == 135)
        assert asked["questions_dropped"] > 0


def test_endpoints_without_place_for_shards_are_refused() -> None:
    async def bind(endpoint: str) -> None:
        from mdp.shards.front import Front

        async with Front(2) as front:
            front.bind(endpoint)

    for endpoint in ("tcp://127.0.0.1:*", "tcp://127.0.0.1:65534", "inproc://x"):
        with pytest.raises(core.InvalidEndpoint):
            asyncio.run(bind(endpoint))
