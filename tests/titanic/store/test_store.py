"""Store: when each operation is answered, and what is left after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.disk import SimDisk
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.inspection import segment_name
from titanic.journal.record_bodies import Tick
from titanic.journal.segment_log import LogOptions
from titanic.store.index.limits import Limits
from titanic.store.index.stored_request import State
from titanic.store.repair import read_store
from titanic.store.store import Store
from titanic.wire.tsp import OPTIONS_MARK, Options, encode_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from titanic.journal.disk import Disk
    from titanic.journal.record import Location
    from titanic.store.index.stored_request import Entry

SMALL = JournalOptions(log=LogOptions(segment_bytes=65_536, reserve_bytes=4096))


def drop_from_memory(store: Store) -> None:
    """Have the bodies of all requests read from the disk."""
    for entry in store.index.entries.values():
        store.bodies.forget(entry, None)


def store_on(disk: Disk | None, limits: Limits | None = None) -> Store:
    return Store(disk, SMALL if disk is not None else None, limits)


async def ask(call: Callable[..., None], *arguments: Any) -> list[bytes]:
    """Return what a method of the store answers."""
    future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    call(*arguments, future.set_result)
    return await future


async def submitted(store: Store, *frames: bytes, **options: Any) -> bytes:
    code, uuid = await ask(store.submit, [*encode_options(Options(**options)), *frames])
    assert code == b"200"
    return uuid


async def answered(store: Store, uuid: bytes, *frames: bytes) -> None:
    """Answer as a worker would, and wait until the reply can be fetched."""
    store.answer(bytes.fromhex(uuid.decode()), frames)
    assert (await ask(store.wait, [uuid], 10.0))[0] == b"200"


@pytest.fixture(params=["disk", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk | None:
    return RealDisk(tmp_path) if request.param == "disk" else None


async def test_a_request_cannot_be_found_before_it_is_stored(disk: Disk | None) -> None:
    """TSP-06: not even with a guessed UUID."""
    async with store_on(disk) as store:
        stored = asyncio.ensure_future(submitted(store, b"echo", b"a"))
        await asyncio.sleep(0)
        (entry,) = store.index.entries.values()
        assert entry.state == State.STORING
        uuid = entry.uuid.hex().upper().encode()
        assert await ask(store.fetch, [uuid]) == [b"400"]
        assert await stored == uuid
        assert await ask(store.fetch, [uuid]) == [b"300"]


async def test_the_cycle_of_a_request(disk: Disk | None) -> None:
    """TSP-08, TSP-09, TSP-10, TSP-20."""
    async with store_on(disk) as store:
        uuid = await submitted(store, b"echo", b"a", b"", b"b")
        assert len(uuid) == 32
        assert uuid == uuid.upper()
        assert await ask(store.fetch, [uuid]) == [b"300"]
        await answered(store, uuid, b"", b"reply", b"")
        for _ in range(3):
            assert await ask(store.fetch, [uuid.lower()]) == [b"200", b"", b"reply", b""]
        assert await ask(store.close_request, [uuid]) == [b"200"]
        assert await ask(store.fetch, [uuid]) == [b"400"]
        assert await ask(store.close_request, [uuid]) == [b"200"]


@pytest.mark.parametrize("frames", [[b""], [b"../victim"], [b"0" * 32], [b"0" * 32, b"x"], [b"\xff" * 32], [b"a" * 100_000]])
async def test_an_unknown_or_garbage_uuid_is_400_to_reply_and_200_to_close(tmp_path: Path, frames: list[bytes]) -> None:
    """TSP-03, TSP-08, TSP-10, TI2: and no file is touched."""
    outside = tmp_path / "victim"
    outside.write_text("still here")
    async with store_on(RealDisk(tmp_path / "store")) as store:
        before = sorted(path.name for path in (tmp_path / "store").iterdir())
        assert await ask(store.fetch, frames) == [b"400"]
        assert await ask(store.close_request, frames) == [b"200"]
        assert await ask(store.wait, frames, 5.0) == [b"400"]
        assert sorted(path.name for path in (tmp_path / "store").iterdir()) == before
    assert outside.read_text() == "still here"


@pytest.mark.parametrize(
    "frames", [[b"echo"], [b"mmi.service", b"x"], [b"titanic.request", b"x"], [b"", b"x"], [OPTIONS_MARK, b"\xc1", b"e", b"x"]]
)
async def test_a_request_that_cannot_be_stored_is_400_with_a_reason(disk: Disk | None, frames: list[bytes]) -> None:
    """TSP-07, TSP-19."""
    async with store_on(disk) as store:
        code, reason = await ask(store.submit, frames)
        assert (code, bool(reason)) == (b"400", True)
        assert store.counters["refused"] == 1


async def test_a_full_store_is_500_and_says_what_is_full(disk: Disk | None) -> None:
    """TSP-07."""
    async with store_on(disk, Limits(requests_max=1)) as store:
        uuid = await submitted(store, b"echo", b"x")
        assert await ask(store.submit, [b"echo", b"y"]) == [b"500", b"store is full: requests_max (1 of 1 in use)"]
        assert await ask(store.close_request, [uuid]) == [b"200"]
        await submitted(store, b"echo", b"y")


async def test_one_thousand_submits_with_one_key_are_one_request(tmp_path: Path) -> None:
    """IDM-03, TI1, G19: at once, later, and after restarts."""
    uuids = set()
    for _ in range(3):
        async with store_on(RealDisk(tmp_path)) as store:
            uuids |= set(await asyncio.gather(*(submitted(store, b"echo", b"x", key=b"k") for _ in range(300))))
            uuids.add(await submitted(store, b"echo", b"x", key=b"k"))
            assert len(store.index.entries) == 1
    assert len(uuids) == 1
    async with store_on(RealDisk(tmp_path)) as store:
        assert await ask(store.close_request, [*uuids]) == [b"200"]
    async with store_on(RealDisk(tmp_path)) as store:
        assert {await submitted(store, b"echo", b"x", key=b"k")} == uuids
        code, reason = await ask(store.submit, [*encode_options(Options(b"k")), b"echo", b"other"])
        assert code == b"400"
        assert reason.endswith(next(iter(uuids)))


async def test_a_repeated_submit_is_not_acknowledged_before_the_first_is_durable() -> None:
    """IDM-02, IDM-03: two at once, of which the first fails."""
    disk = SimDisk()
    async with store_on(disk) as store:

        def broken(_: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        disk.before = broken
        first, second = await asyncio.gather(*(ask(store.submit, [*encode_options(Options(b"k")), b"echo", b"x"]) for _ in range(2)))
        assert first[0] == second[0] == b"500"
        assert b"wounded" in first[1]
        assert store.index.entries == {}
        assert store.status["state"] == "wounded"
        disk.before = None


async def test_what_was_stored_and_not_answered_is_dispatched_again(tmp_path: Path) -> None:
    """TSP-15: and what was answered stays fetchable, what was closed is gone."""
    async with store_on(RealDisk(tmp_path)) as store:
        waiting = [await submitted(store, b"echo", b"%d" % n) for n in range(3)]
        done, closed = await submitted(store, b"echo", b"d"), await submitted(store, b"echo", b"c")
        await answered(store, done, b"reply")
        assert await ask(store.close_request, [closed]) == [b"200"]
    store = store_on(RealDisk(tmp_path))
    seen: list[Entry] = []
    store.on_waiting = seen.append
    async with store:
        store.start_dispatch()
        assert [entry.uuid.hex().upper().encode() for entry in seen] == waiting
        bodies: list[Any] = []
        for entry in seen:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def read(_: Entry, body: list[bytes] | None, headers: bytes, future: asyncio.Future[Any] = future) -> None:
                future.set_result(body)

            store.bodies.request_of(entry, read)
            bodies.append(await future)
        assert bodies == [[b"0"], [b"1"], [b"2"]]
        assert await ask(store.fetch, [done]) == [b"200", b"reply"]
        assert await ask(store.fetch, [closed]) == [b"400"]


async def test_an_answer_after_the_close_is_discarded(disk: Disk | None) -> None:
    """TSP-11: also while the close is being written."""
    async with store_on(disk) as store:
        uuid = await submitted(store, b"echo", b"x")
        raw = bytes.fromhex(uuid.decode())
        closing = asyncio.ensure_future(ask(store.close_request, [uuid]))
        await asyncio.sleep(0)
        store.answer(raw, [b"late"])
        assert await closing == [b"200"]
        store.answer(raw, [b"later"])
        assert store.counters["late"] == 2
        assert await ask(store.fetch, [uuid]) == [b"400"]
        assert store.counters["answered"] == 0


async def test_the_first_answer_stays(disk: Disk | None) -> None:
    """TSP-09: a second worker's answer to the same request is discarded."""
    async with store_on(disk) as store:
        uuid = await submitted(store, b"echo", b"x")
        raw = bytes.fromhex(uuid.decode())
        store.answer(raw, [b"one"])
        store.answer(raw, [b"two"])
        assert await ask(store.wait, [uuid], 10.0) == [b"200", b"one"]
        assert store.counters["late"] == 1


async def test_waiting_ends_with_the_answer_the_close_or_the_time(disk: Disk | None) -> None:
    async with store_on(disk) as store:
        answered_one, closed_one, never = [await submitted(store, b"echo", b"x") for _ in range(3)]
        waits = [asyncio.ensure_future(ask(store.wait, [uuid], 10.0)) for uuid in (answered_one, answered_one, closed_one)]
        short = asyncio.ensure_future(ask(store.wait, [never], 0.001))
        long = asyncio.ensure_future(ask(store.wait, [never], 10.0))
        await asyncio.sleep(0)
        store.answer(bytes.fromhex(answered_one.decode()), [b"r"])
        assert await ask(store.close_request, [closed_one]) == [b"200"]
        assert await asyncio.gather(*waits) == [[b"200", b"r"], [b"200", b"r"], [b"400"]]
        assert await short == [b"300"]
        store.end_waits()
        assert await long == [b"300"]
        assert store._waiters == {}


async def test_a_request_that_expires_is_500_and_stays_so(tmp_path: Path) -> None:
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x", ttl_ms=20)
        assert await ask(store.wait, [uuid], 10.0) == [b"500", b"EXPIRED"]
        assert store.counters["dead"] == 1
    async with store_on(RealDisk(tmp_path)) as store:
        assert await ask(store.fetch, [uuid]) == [b"500", b"EXPIRED"]


async def test_unclosed_answers_are_closed_after_retain_ms(tmp_path: Path) -> None:
    """TSP-17."""
    async with store_on(RealDisk(tmp_path), Limits(retain_ms=20)) as store:
        uuid = await submitted(store, b"echo", b"x")
        await answered(store, uuid, b"r")
        async with asyncio.timeout(100):
            while store.index.entries:
                await asyncio.sleep(0.001)
        assert await ask(store.fetch, [uuid]) == [b"400"]


async def test_dead_letters_are_closed_after_retain_ms(tmp_path: Path) -> None:
    """TSP-17, when the end of the request is the only one for long."""
    async with store_on(RealDisk(tmp_path), Limits(retain_ms=20)) as store:
        uuid = await submitted(store, b"echo", b"x")
        store.dead_letter(store.index.entries[bytes.fromhex(uuid.decode())], "too many attempts")
        assert await ask(store.wait, [uuid], 10.0) == [b"500", b"too many attempts"]
        async with asyncio.timeout(100):
            while store.index.entries:
                await asyncio.sleep(0.001)
        assert await ask(store.fetch, [uuid]) == [b"400"]


async def test_attempts_of_a_request_with_a_limit_outlive_a_restart(tmp_path: Path) -> None:
    """B7: a request that kills cannot have its count forgotten."""
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x", attempts=5)
        entry = store.index.entries[bytes.fromhex(uuid.decode())]
        store.attempted(entry)
        store.attempted(entry)
    async with store_on(RealDisk(tmp_path)) as store:
        entry = store.index.entries[bytes.fromhex(uuid.decode())]
        assert (entry.attempts, entry.attempts_max) == (2, 5)
        store.dead_letter(entry, "DEAD_LETTER after 2 attempts: worker lost")
        assert await ask(store.wait, [uuid], 10.0) == [b"500", b"DEAD_LETTER after 2 attempts: worker lost"]


async def run_upkeep(store: Store) -> None:
    assert store._maintenance is not None
    store._maintenance._task.cancel()  # two at once would empty the same segments
    await asyncio.gather(store._maintenance._task, return_exceptions=True)
    await store._maintenance._compact()


async def test_the_store_gives_back_the_room_of_closed_requests_while_it_serves(tmp_path: Path) -> None:
    """TSP-17, BEY-08."""
    async with store_on(RealDisk(tmp_path)) as store:
        kept = []
        for number in range(60):
            uuids = await asyncio.gather(*(submitted(store, b"echo", os.urandom(400)) for _ in range(40)))
            kept.append(uuids[0])
            await answered(store, uuids[0], b"%d" % number)
            await asyncio.gather(*(ask(store.close_request, [uuid]) for uuid in uuids[1:]))
        assert isinstance(store.journal, Journal)
        assert store.journal.log.number > 10  # segments there have been; on a slow machine upkeep had some of them already
        await run_upkeep(store)
        assert store.status["segments"] < 6
        for number, uuid in enumerate(kept):
            assert await ask(store.fetch, [uuid]) == [b"200", b"%d" % number]
        drop_from_memory(store)
        for number, uuid in enumerate(kept):
            assert await ask(store.fetch, [uuid]) == [b"200", b"%d" % number]
    async with store_on(RealDisk(tmp_path)) as store:
        assert store.problems == []
        assert {entry.uuid.hex().upper().encode() for entry in store.index.entries.values()} == set(kept)


async def test_nothing_closed_while_its_segment_is_emptied_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of a record must never follow its CLOSE."""
    monkeypatch.setattr("titanic.store.maintenance.LOOK_S", 1e6)  # on a busy machine the upkeep would empty it too
    async with store_on(RealDisk(tmp_path)) as store:
        uuids = [await submitted(store, b"echo", os.urandom(600)) for _ in range(400)]
        assert isinstance(store.journal, Journal)
        number = min(store.journal.log.spans)
        assert store._maintenance is not None
        emptying = asyncio.ensure_future(store._maintenance._empty(number))
        closing = []
        for uuid in uuids:
            closing.append(asyncio.ensure_future(ask(store.close_request, [uuid])))
            if len(closing) % 7 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(emptying, *closing)
        await store._maintenance._empty(number) if number in store.journal.log.spans else None
        assert store.index.entries == {}
    _, index = read_store(RealDisk(tmp_path))
    assert index.entries == {}


async def test_a_checkpoint_taken_while_everything_changes_is_as_good_as_none(tmp_path: Path) -> None:
    async with store_on(RealDisk(tmp_path)) as store:
        uuids = list(await asyncio.gather(*(submitted(store, b"echo", os.urandom(200), key=b"%d" % n) for n in range(2000))))
        assert store._maintenance is not None
        checkpoint = asyncio.ensure_future(store._maintenance._write_checkpoint())
        for uuid in uuids[::2]:
            store.answer(bytes.fromhex(uuid.decode()), [b"r"])
        await asyncio.gather(*(ask(store.close_request, [uuid]) for uuid in uuids[::3]))
        await checkpoint
        await asyncio.gather(*(submitted(store, b"echo", b"more") for _ in range(100)))
        expected = {uuid: entry.state for uuid, entry in store.index.entries.items()}
        store._maintenance._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await store._maintenance._task
        store._maintenance = None  # no further checkpoint at the end
    async with store_on(RealDisk(tmp_path)) as store:
        assert {uuid: entry.state for uuid, entry in store.index.entries.items()} == expected
        _, whole = read_store(RealDisk(tmp_path))
        assert {uuid: entry.state for uuid, entry in whole.entries.items()} == expected
        assert store.index.live == {n: size for n, size in whole.live.items() if n in store.index.live}


async def test_many_requests_of_a_checkpoint_are_a_backlog_after_a_restart(tmp_path: Path) -> None:
    """TSP-15: oldest first, with what is in the journal only; the journal is not read again up to the checkpoint."""
    async with store_on(RealDisk(tmp_path)) as store:
        uuids = list(await asyncio.gather(*(submitted(store, b"echo", b"%d" % n, key=b"%d" % n) for n in range(600))))
        late = await submitted(store, b"echo", b"late", delay_ms=3_600_000)
        await answered(store, uuids[1], b"reply")
    backlogs: list[tuple[bytes, Iterator[bytes], int]] = []
    seen: list[Entry] = []
    store = store_on(RealDisk(tmp_path))
    store.on_backlog, store.on_waiting = lambda *given: backlogs.append(given), seen.append
    async with store:
        assert isinstance(store.journal, Journal)
        assert store.journal.log.records < 20
        assert len(store.index.entries.unpacked()) == 2
        assert (await ask(store.submit, [*encode_options(Options(key=b"7")), b"echo", b"7"])) == [b"200", uuids[7]]
        new = await submitted(store, b"echo", b"new")
        store.start_dispatch()
        ((service, backlog, count),) = backlogs
        assert (service, count) == (b"echo", 600)  # 599 rows, one of them an entry by now, and the new one
        order = list(backlog)
        assert sorted(uuid.hex().upper().encode() for uuid in order) == sorted([uuids[0], *uuids[2:], new])
        times = [store.index.entries[uuid].accepted_ms for uuid in order]
        assert times == sorted(times)
        assert [entry.uuid.hex().upper().encode() for entry in seen] == [new, late]  # the new one when it was accepted
        assert await ask(store.close_request, [uuids[3]]) == [b"200"]
        body: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        store.bodies.request_of(store.index.entries[bytes.fromhex(uuids[5].decode())], lambda _, found, __: body.set_result(found))
        assert await body == [b"5"]
    (tmp_path / "checkpoint").unlink()
    async with store_on(RealDisk(tmp_path)) as store:
        assert {entry.uuid.hex().upper().encode() for entry in store.index.entries.values()} == {*uuids, late, new} - {uuids[3]}


async def test_a_damaged_checkpoint_with_rows_is_reported_and_everything_is_read(tmp_path: Path) -> None:
    async with store_on(RealDisk(tmp_path)) as store:
        uuids = set(await asyncio.gather(*(submitted(store, b"echo", b"%d" % n) for n in range(100))))
    whole = (tmp_path / "checkpoint").read_bytes()
    for at in (44, 49, 90, len(whole) // 2, len(whole) - 1):
        (tmp_path / "checkpoint").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        async with store_on(RealDisk(tmp_path)) as store:
            assert [(problem.code, problem.path) for problem in store.problems] == [("DAMAGED", "checkpoint")]
            assert {entry.uuid.hex().upper().encode() for entry in store.index.entries.values()} == uuids


async def test_a_damaged_request_is_named_and_the_others_are_served(tmp_path: Path) -> None:
    """S3: degraded, not down."""
    async with store_on(RealDisk(tmp_path)) as store:
        uuids = [await submitted(store, b"echo", b"x" * 100) for _ in range(5)]
        place = store.index.entries[bytes.fromhex(uuids[2].decode())].request
    assert place is not None
    (tmp_path / "checkpoint").unlink()
    path = tmp_path / segment_name(place[0])
    data = bytearray(path.read_bytes())
    data[place[1] + 90] ^= 4
    path.write_bytes(data)
    async with store_on(RealDisk(tmp_path)) as store:
        (problem,) = store.problems
        assert problem.uuid.hex().upper().encode() == uuids[2]
        assert store.status["state"] == "degraded"
        assert await ask(store.fetch, [uuids[2]]) == [b"500", b"DAMAGED"]
        assert await ask(store.fetch, [uuids[2], b"more"]) == [b"400"]
        for uuid in (*uuids[:2], *uuids[3:]):
            assert await ask(store.fetch, [uuid]) == [b"300"]
        await submitted(store, b"echo", b"y")


def damage(folder: Path, place: Location | None, at: int) -> None:
    """Damage a record, and have the next start read it."""
    assert place is not None
    (folder / "checkpoint").unlink(missing_ok=True)
    path = folder / segment_name(place[0])
    data = bytearray(path.read_bytes())
    data[place[1] + at] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["request", "reply"])
async def test_a_damaged_request_that_is_closed_is_unknown_from_then_on(tmp_path: Path, what: str) -> None:
    """Without its reply a request is executed again."""
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x" * 100)
        if what == "reply":
            await answered(store, uuid, b"r" * 100)
        entry = store.index.entries[bytes.fromhex(uuid.decode())]
    damage(tmp_path, entry.reply if what == "reply" else entry.request, 60)
    async with store_on(RealDisk(tmp_path)) as store:
        assert await ask(store.fetch, [uuid]) == ([b"300"] if what == "reply" else [b"500", b"DAMAGED"])
        assert await ask(store.close_request, [uuid]) == [b"200"]
        assert await ask(store.fetch, [uuid]) == [b"400"]
        assert await ask(store.close_request, [uuid]) == [b"200"]
    (tmp_path / "checkpoint").unlink()
    async with store_on(RealDisk(tmp_path)) as store:
        assert await ask(store.fetch, [uuid]) == [b"400"]


@pytest.mark.parametrize("what", ["request", "reply"])
async def test_a_request_of_which_a_record_is_damaged_after_its_close_is_unknown(tmp_path: Path, what: str) -> None:
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x" * 100)
        await answered(store, uuid, b"r" * 100)
        entry = store.index.entries[bytes.fromhex(uuid.decode())]
        place = entry.reply if what == "reply" else entry.request
        assert await ask(store.close_request, [uuid]) == [b"200"]
        await submitted(store, b"echo", b"y")  # the segment is not empty
    damage(tmp_path, place, 60)
    async with store_on(RealDisk(tmp_path)) as store:
        assert [problem.uuid.hex().upper().encode() for problem in store.problems] == [uuid]
        assert await ask(store.fetch, [uuid]) == [b"400"]


async def test_damage_behind_a_checkpoint_is_found_when_it_is_read(tmp_path: Path) -> None:
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x" * 100)
        await answered(store, uuid, b"r" * 100)
        place = store.index.entries[bytes.fromhex(uuid.decode())].reply
        assert place is not None
        drop_from_memory(store)
        with (tmp_path / segment_name(place[0])).open("r+b") as file:
            file.seek(place[1] + 60)
            file.write(b"\0")
        assert await ask(store.fetch, [uuid]) == [b"500", b"DAMAGED"]
        assert store.counters["damaged"] == 1


async def test_the_clock_is_noted_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with store_on(RealDisk(tmp_path)) as store:
        await submitted(store, b"echo", b"x")
        shown = store.now_ms()
    async with store_on(RealDisk(tmp_path)) as store:
        assert store.now_ms() >= shown
        assert isinstance(store.index.clock, Tick)
        assert store.index.clock.wall_ms > 0
        assert next(iter(store.index.entries.values())).state == State.WAITING
