"""A peer that comes again and again with a mistake costs a line of log, not a line each time."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
import freelance
import peering
import pirate
from core.machine.envelope import READY
from tests.scenes.bstar_sockets import Scene
from tests.scenes.waiting import PATIENCE_S, eventually
from titanic.journal.disk import RealDisk
from titanic.mirror.replica_server import Mirror
from titanic.wire.mirror_frames import Hello

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

ANY = "tcp://127.0.0.1:*"
TIMES = 30


def lines(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


async def counted(counters: Counter[str], name: str, least: int) -> None:
    await eventually(lambda: counters[name] >= least)


async def fails(*_: object) -> Any:
    raise LookupError("an input that its author did not think of")


async def test_calls_of_a_mirror_that_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Mirror(RealDisk(tmp_path)) as mirror, core.Context() as context, asyncio.timeout(PATIENCE_S):
        endpoint = mirror.bind(ANY)
        for number in range(TIMES):
            async with context.socket(core.DEALER, linger=0) as store:
                store.connect(endpoint)
                for mistake in (b"hello", b"swap"):
                    session = [os.urandom(8), bytes(8)]
                    if mistake == b"swap":
                        await store.send_multipart([*session, b"hello", Hello(bytes(16), 1, False).encode()])
                        assert (await store.recv_multipart())[2] == b"ok"
                    await store.send_multipart([*session, mistake, b"\x01" * number])
                    assert (await store.recv_multipart())[2] == b"no"
            await eventually(lambda: not mirror.connected)
        assert (mirror.figures["failed"], mirror.figures["refused"]) == (TIMES, TIMES)
    assert len(lines(caplog, "mirror: ")) <= 3
    assert len(lines(caplog, "the store is gone")) == 1


async def test_malformed_messages_to_a_queue(caplog: pytest.LogCaptureFixture) -> None:
    async with pirate.Queue(ANY, ANY) as queue, core.Context() as context, asyncio.timeout(PATIENCE_S):
        for number in range(TIMES):
            async with context.socket(core.DEALER, linger=0) as worker:
                worker.connect(queue.backend)
                await worker.send(b"\3")
                await counted(queue.counters, "worker_malformed", number + 1)
    assert len(lines(caplog, "malformed message dropped")) == 1


async def test_malformed_messages_to_a_broker_with_peers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with peering.Broker("DC7", {}, directory=str(tmp_path)) as broker, core.Context() as context, asyncio.timeout(PATIENCE_S):
        for number in range(TIMES):
            async with context.socket(core.DEALER, linger=0) as worker:
                worker.connect(broker.localbe)
                await worker.send(b"\3")
                await counted(broker.counters, "worker_malformed", number + 1)
    assert len([record for record in caplog.records if hasattr(record, "about")]) == 1


async def test_a_handler_of_a_freelance_server_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with freelance.Server(ANY, fails) as server, core.Context() as context, asyncio.timeout(PATIENCE_S):
        async with context.socket(core.DEALER, linger=0) as client:
            client.connect(server.endpoint)
            for number in range(TIMES):
                await client.send_multipart([b"%d" % number, b"request"])
            await eventually(lambda: server.counters["handler_failed"] == TIMES)
    assert len(lines(caplog, "handler failed")) == 1
    assert "an input that its author did not think of" in caplog.text


async def test_a_handler_of_a_pair_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with Scene() as scene:
        await scene.stop(0)
        await scene.start(0, fails)
        async with scene.client() as client:
            for _ in range(TIMES):
                with pytest.raises(bstar.HandlerError):
                    await client.request(b"x")
    assert len(lines(caplog, "handler failed")) == 1


async def test_a_handler_of_pirates_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        router = context.socket(core.ROUTER, linger=0)
        router.bind(ANY)
        async with pirate.Worker(router.last_endpoint, fails) as worker:
            while worker.counters["failed"] < TIMES:
                name, frame = await router.recv_multipart()
                if frame == READY:  # a session of its own after each failure
                    await router.send_multipart([name, b"client", b"", b"x"])
        router.close()
    assert len(lines(caplog, "handler failed")) == 1


async def test_a_handler_of_a_server_for_dealers_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with pirate.AsyncServer(ANY, fails) as server, core.Context() as context, asyncio.timeout(PATIENCE_S):
        async with context.socket(core.DEALER, linger=0) as client:
            client.connect(server.endpoint)
            for _ in range(TIMES):
                await client.send(b"x")
            await eventually(lambda: server.counters["handler_failed"] == TIMES)
    assert len(lines(caplog, "handler failed")) == 1
