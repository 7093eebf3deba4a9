"""A fault injected into what a store does later: nothing that was answered, staged or committed is forgotten for it."""

from __future__ import annotations

import asyncio
import logging
import os
from errno import EIO, EMFILE, ENOMEM, ENOSPC
from typing import TYPE_CHECKING, Any

import pytest

import mdp
import titanic
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from tests.scenes.builds import replaces_names
from tests.scenes.fault_injection import Saboteur, sabotaged
from tests.scenes.titanic_pair import JOURNAL
from tests.scenes.waiting import eventually
from tests.titanic.store.test_batches import live, shop
from titanic.store.index.stored_request import State

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.faults


async def test_a_commit_is_carried_out_though_its_task_failed(tmp_path: Path) -> None:
    with sabotaged("titanic commit"):
        async with shop(tmp_path) as opened:
            await opened.stage("job/0/1", (b"a", b"1"), (b"b", b"2"))
            assert (await opened.commit("job", "job/0/1"))[1]["rows"] == 2
            assert opened.bodies() == {b"a", b"b"}


@replaces_names
async def test_what_a_commit_that_failed_has_still_to_read_is_not_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by an abort, and not because its time is up.

    The commit is begun again, and would be acknowledged without these rows.
    """
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 0.01)
    with supervision.scope(Supervisor()) as supervisor:
        async with shop(tmp_path) as opened:
            submit, fail = opened.store.submit, Saboteur(["submit"])

            def breakable(frames: Any, *arguments: Any) -> None:
                if b"echo" in frames:
                    fail("submit")
                submit(frames, *arguments)

            monkeypatch.setattr(opened.store, "submit", breakable)
            await opened.stage("job/0/1", (b"a", b"1"), (b"b", b"2"), ttl_ms=1)
            asked = asyncio.ensure_future(opened.commit("job", "job/0/1"))
            await eventually(lambda: supervisor.faults)
            assert await opened.ask("abort", "job") == [b"200", b"0"]
            assert (await asked)[1] == {"rows": 2, "refused": 0, "again": False, "closed": False}
            assert opened.bodies() == {b"a", b"b"}
            assert supervisor.faults == {"titanic commit": 1}
            await eventually(lambda: live(opened) == 3)  # the two requests and the commit: the stage is dropped now


async def test_staged_rows_go_when_their_time_is_up_though_their_clock_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 0.01)
    with sabotaged("titanic stage expiry"):
        async with shop(tmp_path) as opened:
            await opened.stage("job/0/1", (b"a", b"1"), ttl_ms=1)
            await eventually(lambda: not live(opened))


class FullDisk(titanic.RealDisk):
    """A disk that is full, or fails, for a while."""

    full = False
    error = ENOSPC

    def write(self, handle: int, buffers: Any, offset: int) -> None:
        if self.full:
            raise OSError(self.error, os.strerror(self.error))
        super().write(handle, buffers, offset)


@replaces_names
@pytest.mark.parametrize("dead", [False, True])
async def test_an_end_that_could_not_be_stored_is_stored_though_trying_again_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: bool
) -> None:
    monkeypatch.setattr("titanic.store.store.RETRY_S", 0.01)
    with sabotaged("titanic retry") as supervisor:
        disk = FullDisk(tmp_path / "store")
        async with titanic.Store(disk, JOURNAL) as store:
            submitted: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
            store.submit([b"nobody", b"x"], submitted.set_result)
            uuid = (await submitted)[1]
            entry = store.index.entries[bytes.fromhex(uuid.decode())]
            disk.full = True
            if dead:
                store.dead_letter(entry, "nobody can")
            else:
                store.answer(entry.uuid, [b"reply"])
            await eventually(lambda: supervisor.faults)
            disk.full = False
            await eventually(lambda: entry.state >= State.ANSWERED)
            found: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
            store.fetch([uuid], found.set_result)
            assert (await found)[0] == (b"500" if dead else b"200")


async def test_a_store_says_that_it_is_full_each_time_and_when_it_is_not_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("titanic.journal.group_commit.RESUME_S", 0.01)
    caplog.set_level(logging.INFO, "titanic")
    disk = FullDisk(tmp_path / "store")
    disk.error = EMFILE
    async with mdp.Broker() as broker:
        here, store = broker.bind("tcp://127.0.0.1:*"), titanic.Store(disk, JOURNAL)
        async with titanic.Service(here, store), titanic.Client(here) as client:
            for times in (1, 2):
                disk.full = True
                with pytest.raises(titanic.StoreFull, match=r"^store is full: open files$"):
                    await client.submit("echo", b"x")
                assert store.status["state"] == "full"
                disk.full = False
                await eventually(lambda times=times: caplog.messages.count("journal: requests are accepted again") == times)  # type: ignore[misc]
                await client.submit("echo", b"x")
                assert store.status["state"] == "serving"
    assert caplog.messages.count("journal: store is full: open files; 1 record refused") == 2


async def test_upkeep_that_fails_as_long_as_there_is_too_little_memory_is_not_a_line_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable(titanic.RealDisk):
        reads = 0

        def read(self, handle: int, size: int, offset: int) -> bytes:
            self.reads += 1
            raise OSError(ENOMEM, os.strerror(ENOMEM))

    monkeypatch.setattr("titanic.store.maintenance.LOOK_S", 0.001)
    disk = Unreadable(tmp_path / "store")
    options = titanic.JournalOptions(log=titanic.LogOptions(segment_bytes=65536), scrub_s=0.001)
    async with titanic.Store(disk, options) as store:
        for _ in range(2):  # in two segments, of which the first is read again and again
            stored: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
            store.submit([b"nobody", bytes(60_000)], stored.set_result)
            await stored
        await eventually(lambda: disk.reads > 9)
    assert len([line for line in caplog.messages if "upkeep" in line]) == 1


async def test_a_wounded_store_says_once_that_it_takes_nothing(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path / "store")
    disk.error = EIO
    async with mdp.Broker() as broker:
        here, store = broker.bind("tcp://127.0.0.1:*"), titanic.Store(disk, JOURNAL)
        async with titanic.Service(here, store), titanic.Client(here) as client:
            disk.full = True
            with pytest.raises(titanic.Wounded) as wounded:
                await client.submit("echo", b"x")
            assert wounded.value.cause == "Input/output error (EIO)"
            assert str(wounded.value) == "store is wounded: Input/output error (EIO); it takes nothing until it is started again"
