"""Ends of a stored request that meet: a close, an attempt that fails, an expiry, a full disk, a drain."""

from __future__ import annotations

import asyncio
import os
import threading
from errno import EIO, ENOSPC
from typing import TYPE_CHECKING, Any

import pytest

import titanic
from tests.scenes.builds import replaces_names
from tests.scenes.waiting import PATIENCE_S, eventually
from tests.titanic.store.test_refused_closes import FullDisk
from tests.titanic.store.test_service import FAST, Scene, scene
from tests.titanic.store.test_store import SMALL, ask, store_on, submitted
from tests.titanic.store.test_store_edges import entry_of
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal
from titanic.store.index.limits import Limits
from titanic.wire.tsp import Options, encode_options

if TYPE_CHECKING:
    from pathlib import Path

    import mdp

__all__ = ["scene"]
pytestmark = pytest.mark.faults


class SlowReads(RealDisk):
    """A disk that is read when a gate is open, and that fails the next reads."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.gate = threading.Event()
        self.gate.set()
        self.reading = False
        self.fails = 0

    def read(self, handle: int, size: int, offset: int) -> bytes:
        self.reading = not self.gate.is_set()
        self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise OSError(EIO, os.strerror(EIO))
        return super().read(handle, size, offset)


def service_on(scene: Scene, disk: RealDisk, **options: Any) -> titanic.Service:
    store = titanic.Store(disk, titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=4096)))
    return titanic.Service(scene.endpoint, store, titanic.ServiceOptions(**{"dispatch": FAST, **options}), context=scene.context, seed=1)


async def test_a_closed_request_does_not_come_back_because_its_attempt_failed_afterwards(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash, that is: nothing may follow its CLOSE on the disk."""
    working, go_on = asyncio.Event(), asyncio.Event()

    async def fails(_: mdp.Request) -> list[bytes]:
        working.set()
        await go_on.wait()
        raise ValueError("odd")

    async with scene.store(), scene.client() as client, scene.worker("fails", fails, concurrency=1):
        closed = await client.submit("fails", b"x", attempts=1)
        await working.wait()
        await closed.close()
        go_on.set()
        other = await client.submit("fails", b"x", attempts=1)
        with pytest.raises(titanic.DeadLettered):
            await other.result(PATIENCE_S)
    assert [text.split(" ")[1] for text in caplog.messages if "is given up" in text] == [other.uuid]
    (scene.directory / "checkpoint").unlink()
    async with scene.store() as service:
        assert [entry.uuid.hex().upper() for entry in service.store.index.entries.values()] == [other.uuid]


async def test_nothing_is_written_of_a_request_that_was_closed(tmp_path: Path) -> None:
    """TSP-11."""
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x", attempts=1)
        entry = entry_of(store, uuid)
        replies: list[list[bytes]] = []
        store.close_request([uuid], replies.append)
        store.attempted(entry)
        assert await ask(store.close_request, [uuid]) == [b"200"]
        before = store.journal.acknowledged
        store.attempted(entry)
        store.dead_letter(entry, "too late")
        store.answer(entry.uuid, [b"too late"])
        await submitted(store, b"echo", b"y")
        assert store.journal.acknowledged == before + 1
        assert replies == [[b"200"]]
    (tmp_path / "checkpoint").unlink()
    async with store_on(RealDisk(tmp_path)) as store:
        assert len(store.index.entries) == 1


@pytest.mark.parametrize("broken", [False, True])
async def test_a_request_that_was_closed_while_its_body_was_read_is_not_delivered(scene: Scene, broken: bool) -> None:
    """Nor is it damaged where it could not be read any more: its segment may be gone."""
    calls: list[bytes] = []

    async def worker(request: mdp.Request) -> list[bytes]:
        calls.append(request.body[0])
        return request.body

    disk = SlowReads(scene.directory)
    async with service_on(scene, disk) as service, scene.client() as client, scene.worker("echo", worker):
        disk.gate.clear()
        ticket = await client.submit("echo", b"closed", headers={"colour": "blue"})  # with headers it is read from the disk
        await eventually(lambda: disk.reading)
        await ticket.close()
        disk.fails = int(broken)
        disk.gate.set()
        assert await (await client.submit("echo", b"next", headers={"colour": "red"})).result(PATIENCE_S) == [b"next"]
        assert calls == [b"next"]
        assert service.store.status["state"] == "serving"


async def test_a_request_whose_body_is_read_when_a_drain_begins_is_not_delivered(scene: Scene) -> None:
    """The drain would wait for its worker; it is delivered after the next start."""
    calls: list[bytes] = []

    async def worker(request: mdp.Request) -> list[bytes]:
        calls.append(request.body[0])
        return request.body

    disk = SlowReads(scene.directory)
    async with scene.client() as client, scene.worker("echo", worker):
        async with service_on(scene, disk) as service:
            disk.gate.clear()
            ticket = await client.submit("echo", b"x", headers={"colour": "blue"})
            await eventually(lambda: disk.reading)
            draining = asyncio.ensure_future(service.drain(10 * PATIENCE_S))
            await asyncio.sleep(0)
            disk.gate.set()
            async with asyncio.timeout(PATIENCE_S):
                await draining
            assert calls == []
        async with scene.store():
            assert await ticket.result(PATIENCE_S) == [b"x"]


@replaces_names
async def test_an_expiry_that_a_full_disk_refuses_is_tried_again_by_one_timer_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else more and more of them write to a disk that is full."""
    monkeypatch.setattr("titanic.store.store.AGAIN_MS", 10)
    monkeypatch.setattr("titanic.store.store.RETRY_S", 1.0)
    disk = FullDisk(tmp_path)
    async with store_on(disk) as store:
        uuid = await submitted(store, b"echo", b"x", ttl_ms=30)
        disk.full = True
        await eventually(lambda: store.counters["unavailable"])
        looked: set[int | None] = set()

        def looked_often() -> bool:
            looked.add(store.index.deadline_ms())
            return len(looked) > 5

        await eventually(looked_often)
        assert store.counters["unavailable"] == 1
        disk.full = False
        assert await ask(store.wait, [uuid], PATIENCE_S) == [b"500", b"EXPIRED"]


@replaces_names
@pytest.mark.parametrize("dead", [False, True])
async def test_an_end_that_the_disk_refused_outlives_a_close_that_it_refuses_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    """The work has been done: the request is not delivered a second time, and no other end takes its place."""
    monkeypatch.setattr("titanic.store.store.RETRY_S", 0.05)
    disk = FullDisk(tmp_path)
    async with store_on(disk) as store:
        uuid, other = [await submitted(store, b"echo", b"x") for _ in range(2)]
        entry = entry_of(store, uuid)
        waiting: list[bytes] = []
        store.on_waiting = lambda one: waiting.append(one.uuid)
        disk.full = True
        if dead:
            store.dead_letter(entry, "nobody can")
        else:
            store.answer(entry.uuid, [b"r"])
        store.answer(entry_of(store, other).uuid, [b"s"])
        await eventually(lambda: store.counters["unavailable"] == 2)
        assert isinstance(store.journal, Journal)
        disk.gate.clear()
        closing = asyncio.ensure_future(ask(store.close_request, [uuid]))
        await asyncio.sleep(0)
        journal, before = store.journal, store.journal.backlog_bytes
        await eventually(lambda: journal.backlog_bytes > before)  # both are tried again while the CLOSE is being written
        disk.gate.set()
        assert (await closing)[0] == b"500"
        store.answer(entry.uuid, [b"another"])
        store.dead_letter(entry, "another")
        disk.full = False
        assert await ask(store.wait, [uuid], PATIENCE_S) == ([b"500", b"nobody can"] if dead else [b"200", b"r"])
        assert waiting == []


@replaces_names
async def test_requests_are_delivered_again_when_the_one_whose_end_was_refused_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is not wanted any more."""
    monkeypatch.setattr("titanic.store.store.RETRY_S", 1.0)
    disk = FullDisk(tmp_path)
    async with store_on(disk) as store:
        uuid = await submitted(store, b"echo", b"x")
        disk.full = True
        store.answer(entry_of(store, uuid).uuid, [b"r"])
        await eventually(lambda: not store.takes_replies)
        disk.full = False
        assert await ask(store.close_request, [uuid]) == [b"200"]
        assert not store.takes_replies
        await eventually(lambda: store.takes_replies)
        assert store.counters["answered"] == 0


async def test_what_is_due_while_its_end_is_being_written_is_looked_at_a_second_later(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    async with store_on(disk) as store:
        uuid = await submitted(store, b"echo", b"x", ttl_ms=20)
        disk.gate.clear()
        entry = entry_of(store, uuid)
        await eventually(lambda: entry.ending)
        assert (store.index.deadline_ms() or 0) >= entry.expires_ms + 1000
        disk.gate.set()
        assert await ask(store.wait, [uuid], PATIENCE_S) == [b"500", b"EXPIRED"]


@pytest.mark.parametrize("error", [ENOSPC, EIO])
@replaces_names
async def test_no_more_than_a_window_is_executed_whose_replies_the_disk_refuses(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """All of it would be executed again after a restart, and until then only memory has the replies."""
    monkeypatch.setattr("titanic.store.store.RETRY_S", 0.01)
    calls: list[bytes] = []

    async def worker(request: mdp.Request) -> list[bytes]:
        calls.append(request.body[0])
        return request.body

    disk = FullDisk(scene.directory)
    few = titanic.DispatchOptions(window=3, retry_s=0.02, probe_s=0.02)
    async with service_on(scene, disk, dispatch=few) as service, scene.client() as client:
        tickets = [await client.submit("late", b"%d" % number) for number in range(200)]
        disk.error, disk.full = error, True
        async with scene.worker("late", worker):
            await eventually(lambda: service.store.counters["unavailable"])
            most = len(calls) + few.window  # of these the worker may have got a window already
            seen = service.store.counters["unavailable"]
            await eventually(lambda: service.store.counters["unavailable"] > 10 * seen)
            assert len(calls) <= most
            assert service.store.status["state"] == ("full" if error == ENOSPC else "wounded")
            disk.full = False
            if error == ENOSPC:
                assert [await ticket.result(PATIENCE_S) for ticket in tickets] == [[b"%d" % number] for number in range(200)]
                assert len(calls) == 200


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_key_of_a_closed_request_is_forgotten_at_its_age(tmp_path: Path, restarted: bool) -> None:
    """IDM-04: by itself, where nothing else is ever due."""
    limits = Limits(key_age_ms=100)
    async with store_on(RealDisk(tmp_path), limits) as store:
        uuid = await submitted(store, b"echo", b"x", key=b"k")
        assert await ask(store.close_request, [uuid]) == [b"200"]
        if not restarted:
            await eventually(lambda: not store.index.keys_of_closed)
            assert await submitted(store, b"echo", b"y", key=b"k") != uuid
    if restarted:
        async with store_on(RealDisk(tmp_path), limits) as store:
            await eventually(lambda: not store.index.keys_of_closed)
            assert await submitted(store, b"echo", b"y", key=b"k") != uuid


async def test_a_wait_that_comes_after_all_waits_have_ended_ends_too(tmp_path: Path) -> None:
    """A store that drains answers 300 at once, also to a client whose request it has just stored."""
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x")
        store.end_waits()
        async with asyncio.timeout(PATIENCE_S):
            assert await ask(store.wait, [uuid], 10 * PATIENCE_S) == [b"300"]


class Unmarked(RealDisk):
    """A disk on which a store cannot write that it has a mirror."""

    def create(self, name: str) -> int:
        if name.startswith("mirror"):
            raise OSError(EIO, os.strerror(EIO))
        return super().create(name)


@pytest.mark.parametrize("served", [False, True])
async def test_a_store_that_cannot_begin_gives_its_directory_back(scene: Scene, served: bool) -> None:
    """When it was read already, too: another one may be opened in the same process."""
    store = titanic.Store(Unmarked(scene.directory), SMALL, mirror=titanic.MirrorLine("tcp://127.0.0.1:9"))
    with pytest.raises(OSError, match="Input/output"):
        await (titanic.Service(scene.endpoint, store, context=scene.context) if served else store).__aenter__()
    async with store_on(RealDisk(scene.directory)) as other:
        assert other.status["state"] == "serving"


async def test_a_key_that_is_repeated_while_its_request_is_stored_is_answered_with_it(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    async with store_on(disk) as store:
        disk.gate.clear()
        frames = [*encode_options(Options(key=b"k")), b"echo", b"x"]
        replies: list[list[bytes]] = []
        for _ in range(3):
            store.submit(frames, replies.append)
        assert replies == []
        disk.gate.set()
        await eventually(lambda: len(replies) == 3)
        assert {tuple(reply) for reply in replies} == {(b"200", next(iter(store.index.entries)).hex().upper().encode())}
