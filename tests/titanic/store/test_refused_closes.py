"""A CLOSE that the disk did not take: the request is as before, and ends at its time."""

from __future__ import annotations

import asyncio
import os
import threading
from errno import ENOSPC
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenes.waiting import eventually
from tests.titanic.store.test_store import answered, ask, store_on, submitted
from titanic.journal.disk import RealDisk
from titanic.store.index.limits import Limits
from titanic.wire.tsp import Options, encode_options

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.faults


class FullDisk(RealDisk):
    """A disk that is full, or fails, for a while, and says so when a gate is open."""

    error = ENOSPC

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.full = False
        self.gate = threading.Event()
        self.gate.set()

    def write(self, handle: int, buffers: Any, offset: int) -> None:
        self.gate.wait()
        if self.full:
            raise OSError(self.error, os.strerror(self.error))
        super().write(handle, buffers, offset)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.store.store.AGAIN_MS", 10)


@pytest.mark.parametrize("dead", [False, True])
async def test_an_answer_that_could_not_be_closed_at_its_time_is_closed_later(tmp_path: Path, dead: bool) -> None:
    """TSP-17: otherwise it would stay until a restart."""
    disk = FullDisk(tmp_path)
    async with store_on(disk, Limits(retain_ms=1)) as store:

        def fill(_: object) -> None:
            disk.full = True

        store.on_answered = fill
        uuid = await submitted(store, b"echo", b"x")
        if dead:
            store.dead_letter(store.index.entries[bytes.fromhex(uuid.decode())], "too many attempts")
        else:
            await answered(store, uuid, b"r")
        await eventually(lambda: store.counters["unavailable"] > 1)
        assert store.index.entries
        disk.full = False
        await eventually(lambda: not store.index.entries)
        assert store.counters["closed"] == 1


async def test_a_request_that_could_not_be_closed_is_delivered_again(tmp_path: Path) -> None:
    """A reply that came meanwhile was discarded. An answered one has nothing to deliver."""
    disk = FullDisk(tmp_path)
    async with store_on(disk) as store:
        uuid, other = [await submitted(store, b"echo", b"x") for _ in range(2)]
        await answered(store, other, b"r")
        waiting: list[tuple[bytes, int]] = []
        store.on_waiting = lambda entry: waiting.append((entry.uuid, entry.closing))
        disk.full = True
        closes = [asyncio.ensure_future(ask(store.close_request, [one])) for one in (uuid, uuid, other)]
        await asyncio.sleep(0)
        store.answer(bytes.fromhex(uuid.decode()), [b"late"])
        store.dead_letter(store.index.entries[bytes.fromhex(uuid.decode())], "late too")
        assert [(await close)[0] for close in closes] == [b"500"] * 3
        assert waiting == [(bytes.fromhex(uuid.decode()), 0)]
        assert (store.counters["unavailable"], store.counters["late"]) == (3, 1)
        disk.full = False
        await answered(store, uuid, b"again")


async def test_a_request_expires_though_it_was_being_closed_at_that_moment(tmp_path: Path) -> None:
    """Its client that waits is answered, also where no service takes requests."""
    disk = FullDisk(tmp_path)
    async with store_on(disk) as store:
        uuid = await submitted(store, b"echo", b"x", ttl_ms=50)
        waiting = asyncio.ensure_future(ask(store.wait, [uuid], 100.0))
        await asyncio.sleep(0)
        entry = store.index.entries[bytes.fromhex(uuid.decode())]
        disk.gate.clear()
        disk.full = True
        replies: list[list[bytes]] = []
        store.close_request([uuid], replies.append)
        await eventually(lambda: (store.index.deadline_ms() or 0) > entry.expires_ms)  # its time is up
        disk.gate.set()
        await eventually(lambda: replies)
        assert replies[0][0] == b"500"
        disk.full = False
        assert await waiting == [b"500", b"EXPIRED"]


async def test_a_request_that_is_not_stored_is_refused_and_counted(tmp_path: Path) -> None:
    """So is each that repeats it; nothing of it is kept, and the state says why."""
    disk = FullDisk(tmp_path)
    async with store_on(disk) as store:
        disk.full = True
        frames = [*encode_options(Options(key=b"k")), b"echo", b"x"]
        replies = await asyncio.gather(ask(store.submit, frames), ask(store.submit, frames))
        assert [reply[0] for reply in replies] == [b"500"] * 2
        assert (store.counters["unavailable"], store.counters["accepted"]) == (1, 0)
        assert not store.index.entries
        assert store.status["state"] == "full"
        store.journal.stalled = "the mirror is away"
        assert store.status["state"] == "stalled"
        assert store.wounded is None
        store.journal.stalled = None
        disk.full = False


@pytest.mark.parametrize("dead", [False, True])
async def test_an_end_that_could_not_be_stored_is_stored_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    """Its worker has done the work: without its reply it would be done again."""
    monkeypatch.setattr("titanic.store.store.RETRY_S", 0.01)
    disk = FullDisk(tmp_path)
    async with store_on(disk) as store:
        uuid = await submitted(store, b"echo", b"x")
        entry = store.index.entries[bytes.fromhex(uuid.decode())]
        disk.full = True
        if dead:
            store.dead_letter(entry, "nobody can")
        else:
            store.answer(entry.uuid, [b"r"])
        await eventually(lambda: store.counters["unavailable"] > 1)
        assert await ask(store.fetch, [uuid]) == [b"300"]
        disk.full = False
        assert await ask(store.wait, [uuid], 100.0) == ([b"500", b"nobody can"] if dead else [b"200", b"r"])
        assert (store.counters["dead"], store.counters["answered"], store.counters["late"]) == (int(dead), int(not dead), 0)
        assert entry.reply is not None
        assert entry.kept_bytes == entry.reply[2]  # the reply, which is about to be fetched


async def test_attempts_are_written_down_where_they_have_a_limit(tmp_path: Path) -> None:
    async with store_on(FullDisk(tmp_path)) as store:
        limited, free = [await submitted(store, b"echo", b"x", attempts=most) for most in (3, 0)]
        entries = [store.index.entries[bytes.fromhex(uuid.decode())] for uuid in (limited, free)]
        before = store.journal.acknowledged
        for entry in entries:
            store.attempted(entry)
        await answered(store, free, b"r")
        assert [entry.attempts for entry in entries] == [1, 1]
        assert store.journal.acknowledged == before + 2  # one attempt, and the reply
