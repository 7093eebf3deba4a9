"""Unexpected errors in the threads and tasks of a store: nothing unsynced is acknowledged, and the error is visible."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import mdp
import titanic
from core.daemon.http import supervised_page
from core.runtime import supervision
from core.runtime.runtime import Runtime, scope
from core.runtime.supervision import Supervisor
from tests.scenes.bstar_sockets import until
from tests.scenes.titanic_pair import JOURNAL, Two
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.scenes.programs import Programs

pytestmark = pytest.mark.faults


class Broken(Exception):
    """An unexpected error."""


class BreakableDisk(titanic.RealDisk):
    """A disk with a fault that can be switched on."""

    broken = False

    def sync(self, handle: int) -> None:
        if self.broken:
            raise Broken("sync")
        super().sync(handle)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with supervision.scope(Supervisor()) as made:
        yield made


def asked(store: titanic.Store, body: bytes, key: bytes = b"") -> asyncio.Future[list[bytes]]:
    answered: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    store.submit([b"nobody", body], answered.set_result)
    return answered


def remove_segment(directory: Path) -> None:
    (directory / "000000000001.seg").unlink()


@pytest.mark.parametrize("remove", [shutil.rmtree, remove_segment])
async def test_a_store_whose_files_were_removed_acknowledges_nothing_and_can_still_be_read(
    tmp_path: Path, remove: Callable[[Path], None]
) -> None:
    """S13, TSP-06: what is written to a file without a name is lost with the process."""
    async with titanic.Store(titanic.RealDisk(tmp_path / "store"), JOURNAL) as store:
        first = await asked(store, b"before")
        remove(tmp_path / "store")
        for _ in range(2):
            refused = await asked(store, b"after")
            assert refused[0] == b"500"
            assert b"a file was removed while it was in use" in refused[1]
        assert store.status["state"] == "wounded"
        found: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        store.fetch([first[1]], found.set_result)
        assert await found == [b"300"]


class FilesWithoutLinks:
    """The system's files, on a file system that says of each file that it has no name."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fstat(self, number: int) -> os.stat_result:
        return os.stat_result([*os.fstat(number)[:3], 0, *os.fstat(number)[4:]])


class WithoutLinks(Runtime):
    files: Any = FilesWithoutLinks()


async def test_a_file_system_that_counts_no_names_holds_a_store(tmp_path: Path) -> None:
    with scope(WithoutLinks()):
        disk = titanic.RealDisk(tmp_path / "store")
    async with titanic.Store(disk, JOURNAL) as store:
        assert (await asked(store, b"here"))[0] == b"200"


async def test_a_writer_that_ends_with_an_unexpected_error_wounds_the_store(tmp_path: Path, supervisor: Supervisor) -> None:
    """Only synced records are acknowledged, state and readiness say why; acknowledged ones survive a restart."""
    disk = BreakableDisk(tmp_path / "store")
    async with mdp.Broker() as broker:
        service = titanic.Service(broker.bind(f"ipc://{tmp_path}/b"), titanic.Store(disk, JOURNAL))
        async with service:
            store = service.store
            page = supervised_page(service.page(), supervisor)
            first = await asked(store, b"before")
            assert first[0] == b"200"
            await eventually(lambda: page.not_ready() == "")
            disk.broken = True
            replies = await asyncio.gather(*(asked(store, b"%d" % n) for n in range(3)))
            assert {reply[0] for reply in replies} == {b"500"}
            assert b"Broken: sync" in replies[0][1]
            assert (await asked(store, b"later"))[0] == b"500"
            assert store.status["state"] == "wounded"
            assert "Broken: sync" in page.not_ready()
            assert supervisor.faults == {"titanic writer": 1}
            gauges = service.figures()["gauges"]
            assert gauges["journal_wounded"] == 1
            with pytest.raises(titanic.Wounded, match="Broken: sync"):
                await service.until_failed()
            after: list[Any] = []
            store.after((lambda *told: after.append(told), "it"))
            await eventually(lambda: after)  # and no error is left on the loop
            assert after[0][:2] == ("it", None)
    async with titanic.Store(titanic.RealDisk(tmp_path / "store"), JOURNAL) as store:
        found: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        store.fetch([first[1]], found.set_result)
        assert await found == [b"300"]


async def test_a_mistake_in_a_handler_leaves_the_rest_of_its_batch_acknowledged(tmp_path: Path, supervisor: Supervisor) -> None:
    """Those that meet it are delivered too: they are stored, and their key would be acknowledged."""
    async with titanic.Store(titanic.RealDisk(tmp_path / "store"), JOURNAL) as store:
        replies: list[Any] = []
        waiting: list[bytes] = []
        store.on_waiting = lambda entry: waiting.append(entry.uuid)

        def broken(_: list[bytes]) -> None:
            raise Broken

        for number in range(9):
            store.submit([b"nobody", b"%d" % number], broken if number % 4 == 1 else replies.append)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store.after((lambda argument, *_: done.set_result(argument), None))
        await done
        assert len(replies) == 7
        assert waiting == list(store.index.entries)
        assert len(waiting) == 9
        assert {reply[0] for reply in replies} == {b"200"}
        assert supervisor.faults == {"titanic acknowledgement": 2}


async def test_a_mistake_in_reading_is_an_answer(tmp_path: Path, supervisor: Supervisor) -> None:
    class Unreadable(titanic.RealDisk):
        broken = False

        def read(self, handle: int, size: int, offset: int) -> bytes:
            if self.broken:
                raise Broken
            return super().read(handle, size, offset)

    disk = Unreadable(tmp_path / "store")
    async with titanic.Store(disk, JOURNAL) as store:
        uuid = (await asked(store, b"x"))[1]
        store.answer(bytes.fromhex(uuid.decode()), [b"reply"])
        await eventually(lambda: store.status["answered"])
    disk = Unreadable(tmp_path / "store")
    async with titanic.Store(disk, JOURNAL) as store:
        disk.broken = True
        found: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        store.fetch([uuid], found.set_result)
        assert (await found)[0] == b"500"
        disk.broken = False
        again: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        store.fetch([uuid], again.set_result)
        assert await again == [b"200", b"reply"]
    assert supervisor.faults == {"titanic reader": 1}


async def test_maintenance_continues_after_a_fault(tmp_path: Path) -> None:
    """Otherwise segments would stay."""
    runs = 0

    def probe(name: str) -> None:
        nonlocal runs
        if name == "titanic upkeep":
            runs += 1
            if runs == 1:
                raise Broken

    with supervision.scope(Supervisor(probe)) as supervisor:
        async with titanic.Store(titanic.RealDisk(tmp_path / "store"), JOURNAL) as store:
            await eventually(lambda: supervisor.restarts)
            assert supervisor.troubles == {"titanic upkeep": "Broken"}
            for number in range(40):  # several segments, which nobody needs
                reply = await asked(store, b"%d" % number * 4000)
                closed: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
                store.close_request([reply[1]], closed.set_result)
                await closed
            await eventually(lambda: store.maintenance_counts["dropped"])
        assert supervisor.faults == {"titanic upkeep": 1}


@pytest.mark.parametrize("mistake", ["LookupError", "CancelledError", "SystemExit"])
def test_the_process_of_a_store_that_can_never_write_again_ends_with_74(programs: Programs, mistake: str) -> None:
    programs.start("mdp", "broker", "--bind", "ipc://b").said("broker serves")
    store = programs.start("tests.scenes.titanic_broken_writer", "serve", "--broker", "ipc://b", "--store", "s", MISTAKE=mistake)
    store.said(f"{mistake}: a mistake")
    ended = store.end()
    assert ended.code == 74
    cause = f"the writer thread has ended: {mistake}: a mistake"
    assert ended.err.splitlines()[-1] == f"titanic: store is wounded: {cause}; it takes nothing until it is started again"


async def test_the_other_one_takes_over_from_a_store_that_can_never_write_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[str] = []
    sync = titanic.RealDisk.sync

    def breakable(disk: titanic.RealDisk, handle: int) -> None:
        if str(disk.directory) in broken:
            raise Broken
        sync(disk, handle)

    monkeypatch.setattr(titanic.RealDisk, "sync", breakable)
    async with Two(tmp_path) as two:
        await two.start(0)
        await two.start(1)
        first = await two.settled()
        kept = await two.submit("kept")
        one = two.running[first]
        assert one is not None
        broken.append(str(two.store(first)))
        with pytest.raises(titanic.Wounded):
            await two.client.submit("echo", b"refused")
        with pytest.raises(titanic.Wounded, match="Broken"):
            await one.serve_forever()
        await two.stop(first)  # as the process does that ends with this error
        await until(lambda: two.serving(1 - first), "the other one serves")
        assert await two.answered(kept) == ["kept"]
