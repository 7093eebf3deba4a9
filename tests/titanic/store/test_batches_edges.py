"""titanic.store.batches: restarts, expiry, refusals and shares, at their edges."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count, groupby
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from core.runtime import supervision
from core.runtime.supervision import Supervisor
from tests.scenes.builds import replaces_names
from tests.scenes.waiting import eventually
from tests.titanic.store.test_batches import Shop, live, mark, shop
from titanic.store.batches import COMMIT, STAGED
from titanic.store.index.limits import Limits
from titanic.store.index.stored_request import State
from titanic.wire.batch_frames import NO_REQUEST
from titanic.wire.tsp import parse_request

if TYPE_CHECKING:
    from pathlib import Path

    from titanic.store.index.stored_request import Entry

DONE = {"rows": 1, "refused": 0, "again": False, "closed": False}


def of(opened: Shop, service: bytes = STAGED) -> list[Entry]:
    return [entry for entry in opened.store.index.entries.values() if entry.service == service]


def text(entry: Entry) -> bytes:
    return entry.uuid.hex().upper().encode()


async def withdrawn(opened: Shop, entry: Entry) -> None:
    answered: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    opened.store.withdraw(entry, answered.set_result)
    assert await answered == [b"200"]


async def closed(opened: Shop, entry: Entry) -> None:
    answered: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    opened.store.close_request([text(entry)], answered.set_result)
    assert await answered == [b"200"]


def never_work(opened: Shop) -> None:
    """Have commits that are accepted wait for the next start."""
    opened.batches._work = lambda *_: asyncio.sleep(0)  # type: ignore[method-assign]


# ---- after a start


async def test_what_is_staged_and_what_was_committed_is_known_before_delivery_starts(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("one/0", (b"a", b"1"))
        await opened.commit("one", "one/0")
        before = await opened.uuids("one")
        await opened.stage("two/0", (b"b", b"2"))
    async with shop(tmp_path, dispatch=False) as opened:
        assert await opened.uuids("one") == before
        assert (await opened.commit("one", "one/0"))[1] == DONE | {"again": True}
        assert (await opened.commit("two", "two/0"))[1] == DONE
        assert opened.bodies() == {b"b"}


@replaces_names
async def test_a_commit_that_was_cut_short_goes_on_before_delivery_starts(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        never_work(opened)
        assert await opened.commit("job", "job/0") == [b"300"]
    async with shop(tmp_path, dispatch=False) as opened:
        await eventually(lambda: opened.bodies() == {b"a"} and not of(opened))


@replaces_names
async def test_what_a_commit_of_an_earlier_run_is_about_to_read_is_not_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPB-05."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        never_work(opened)
        assert await opened.commit("job", "job/0") == [b"300"]
    async with shop(tmp_path) as opened:
        read, held = opened.store.bodies.request_of, list[Any]()

        def hold(entry: Entry, done: Any) -> None:
            if entry.service == STAGED:
                held.append((entry, done))
            else:
                read(entry, done)

        monkeypatch.setattr(opened.store.bodies, "request_of", hold)
        await eventually(lambda: held)
        assert await opened.ask("abort", "job") == [b"200", b"0"]
        read(*held[0])
        await eventually(lambda: not opened.batches._reserved)
        assert (await opened.commit("job", "job/0"))[1] == DONE | {"again": True}


# ---- expiry


async def test_rows_expire_in_the_order_of_their_times_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 0.0)
    async with shop(tmp_path) as opened:
        opened.store._clock_offset_ms += 3_600_000  # its clock begins at zero
        await opened.stage("late/0", (b"b", b"1"), ttl_ms=60_000)
        await opened.stage("soon/0", (b"a", b"1"), ttl_ms=20)
        await opened.stage("now/0", (b"a", b"1"), ttl_ms=0)
        await opened.stage("gone/0", (b"a", b"1"))
        gone = of(opened)[-1]
        assert await opened.ask("abort", "gone") == [b"200", b"1"]
        opened.batches._expire((b"", b"gone/0"), 0, gone)  # as its clock does
        await eventually(lambda: live(opened) == 1)
        assert (await opened.commit("late", "late/0"))[1] == DONE


async def test_a_stage_whose_time_is_up_may_be_committed_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have expired while the store was down."""
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 60.0)
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"), ttl_ms=1)
        await eventually(lambda: of(opened)[0].state == State.DEAD)
        assert (await opened.commit("job", "job/0"))[1] == DONE


async def test_rows_in_memory_whose_time_is_up_are_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in memory forgets them at once, also during a commit."""
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 60.0)
    async with shop(None) as opened:
        await opened.stage("job/0", (b"a", b"1"), ttl_ms=60_000)
        await opened.stage("job/1", (b"b", b"1"), ttl_ms=1)
        await eventually(lambda: of(opened)[-1].state == State.DEAD)
        status, reason = await opened.commit("job", "job/0", "job/1")
        assert (status, reason) == (b"500", b"EXPIRED: chunk 0 of stage job/1 has expired; 0 of its rows were stored before that was found")
        assert not opened.bodies()


@replaces_names
async def test_a_chunk_whose_time_was_up_during_a_commit_that_was_refused_goes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("titanic.store.batches.GRACE_S", 0.001)
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        read = opened.store.bodies.request_of

        def fail_later(entry: Entry, done: Any) -> None:
            if entry.service == STAGED:
                opened.batches._expire((b"", b"job/0"), 0, entry)  # as its clock does
                asyncio.get_running_loop().call_soon(done, entry, None, b"")
            else:
                read(entry, done)

        monkeypatch.setattr(opened.store.bodies, "request_of", fail_later)
        assert (await opened.commit("job", "job/0"))[0] == b"500"
        await eventually(lambda: live(opened) == 0)
        assert opened.batches._staged == {}


# ---- what is refused, and why


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ((b"nonsense", b"x"), b"titanic.batch knows stage, commit, abort, rows, close, mark and ends"),
        ((b"stage", b"n"), b"stage takes 5 frames"),
        ((b"commit", b"n"), b"commit takes 2 frames"),
        ((b"abort",), b"abort takes 1 frames"),
        ((b"rows", b"n", b"0"), b"rows takes 3 frames"),
        ((b"close", b"n", b"0"), b"close takes 1 frames"),
        ((b"mark", b"n", b"0"), b"mark takes 4 frames"),
        ((b"ends", b"n", b"0"), b"ends takes 5 frames"),
    ],
)
async def test_a_verb_with_other_frames_is_refused_with_their_number(tmp_path: Path, frames: tuple[bytes, ...], reason: bytes) -> None:
    async with shop(tmp_path) as opened:
        assert await opened.ask(*frames) == [b"400", reason]


async def test_a_chunk_for_which_there_is_no_space_is_refused_with_the_numbers(tmp_path: Path) -> None:
    async with shop(tmp_path, Limits(requests_max=1)) as opened:
        assert await opened.stage("job/0", (b"a", b"1")) == [b"200"]
        assert await opened.stage("job/0", (b"a", b"1")) == [b"200"]  # again, and the same
        assert await opened.stage("job/0", (b"a", b"2")) == [b"400", b"this chunk was staged before with other rows"]
        status, reason = await opened.stage("job/1", (b"b", b"1"))
        assert (status, b"requests_max" in reason, b"1 of 1" in reason) == (b"500", True, True)


async def test_a_commit_for_which_there_is_no_space_is_refused_with_the_numbers_and_its_rows_may_be_dropped(tmp_path: Path) -> None:
    async with shop(tmp_path, Limits(requests_max=2)) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        await opened.stage("other/0", (b"a", b"1"))
        status, reason = await opened.commit("job", "job/0")
        assert (status, b"requests_max" in reason) == (b"500", True)
        assert await opened.ask("abort", "job") == [b"200", b"1"]
        assert await opened.ask("abort", "other") == [b"200", b"1"]
        assert opened.batches._staged == {}


async def test_a_chunk_that_was_closed_is_not_staged_any_more(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        await opened.stage("job/1", (b"b", b"1"))
        await withdrawn(opened, of(opened)[1])
        assert await opened.commit("job", "job/0", "job/1") == [b"400", b"not staged any more: job/1"]
        assert await opened.ask("abort", "job") == [b"200", b"2"]
        await eventually(lambda: not live(opened))


async def test_what_a_commit_has_named_is_not_aborted_from_then_on(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        asked = opened.commit("job", "job/0"), opened.ask("abort", "job")
        assert await asyncio.gather(*asked) == [[b"200", DONE], [b"200", b"0"]]


async def test_a_name_that_begins_like_the_prefix_is_not_aborted(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        for name in ("job/0", "job2/0", "a/job/0"):
            await opened.stage(name, (b"a", b"1"))
        await opened.stage("job/0", (b"b", b"1"), number=1)
        assert await opened.ask("abort", "job") == [b"200", b"2"]
        opened.owner = b"ann"
        assert await opened.ask("abort", "a") == [b"200", b"0"]
        opened.owner = b""
        assert await opened.ask("abort", "a") == [b"200", b"1"]


async def test_a_batch_whose_summary_was_closed_is_closed(tmp_path: Path) -> None:
    """By an operator, or when the store has kept it long enough. What is staged for it again is dropped."""
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        await opened.commit("job", "job/0")
        await eventually(lambda: not of(opened))
        await closed(opened, of(opened, COMMIT)[0])
        assert await opened.ask("rows", "job", 0, 10) == [b"400", b"no such batch"]
        assert await opened.ask("close", "job") == [b"200"]
        assert live(opened) == 1  # the request
        await opened.stage("job/1", (b"a", b"1"))
        assert (await opened.commit("job", "job/1"))[1] == {"rows": 0, "refused": 0, "again": True, "closed": True}
        await eventually(lambda: not of(opened))
        assert opened.batches._reserved == set()


async def test_what_is_staged_for_a_batch_that_was_committed_is_dropped_by_its_commit(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        await opened.commit("job", "job/0")
        await opened.stage("job/1", (b"b", b"1"))
        assert (await opened.commit("job", "job/1"))[1] == DONE | {"again": True}
        await eventually(lambda: not of(opened))


async def test_only_so_many_reasons_are_kept_and_the_others_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.store.batches.REFUSED_MAX", 2)
    async with shop(tmp_path) as opened:
        never_work(opened)
        for name in ("a", "b", "c"):
            await opened.stage(f"{name}/0", (name.encode(), b"1"))
            await opened.commit(name, f"{name}/0")
        for chunk in of(opened):
            await withdrawn(opened, chunk)
    async with shop(tmp_path) as opened:
        await eventually(lambda: opened.store.status["batches_refused"] == 3)
        assert [*opened.batches._refused] == [(b"", b"b"), (b"", b"c")]
        assert (await opened.commit("b", "b/0"))[1].startswith(b"DAMAGED: chunk 0 of stage b/0 is not there any more; 0 of its rows")
        assert await opened.commit("b", "b/0") == [b"400", b"not staged any more: b/0"]  # once
        assert await opened.commit("a", "a/0") == [b"400", b"not staged any more: a/0"]


@replaces_names
async def test_the_end_of_a_refused_commit_is_stored_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("titanic.store.batches.RETRY_S", 0.001)
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        withdraw, calls, space = opened.store.withdraw, list[Any](), asyncio.Event()

        def fail_first(entry: Entry, done: Any) -> None:
            calls.append(entry)
            if space.is_set():
                withdraw(entry, done)
            elif len(calls) == 1:
                asyncio.get_running_loop().call_soon(space.set)  # while the commit waits
                done([b"500", b"full"])

        monkeypatch.setattr(opened.store, "withdraw", fail_first)
        monkeypatch.setattr(opened.store.bodies, "request_of", lambda entry, done: done(entry, None, b""))
        assert (await opened.commit("job", "job/0"))[0] == b"500"
        assert (len(calls), of(opened, COMMIT)) == (2, [])
        assert "batch job is refused: DAMAGED: the commit cannot be read any more; 0 of its rows" in caplog.text


async def test_a_batch_that_is_closed_while_its_commit_is_waited_for_is_asked_about_again(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:

        async def close(batch: tuple[bytes, bytes], entry: Entry) -> None:
            await asyncio.sleep(0)  # until the commit waits for this
            opened.store.close_request([text(entry)], lambda _: None)

        await opened.stage("job/0", (b"a", b"1"))
        opened.batches._work = close  # type: ignore[method-assign]
        assert await opened.commit("job", "job/0") == [b"300"]
        await eventually(lambda: not of(opened, COMMIT))
        assert (await opened.commit("job", "job/0"))[1] == {"rows": 0, "refused": 0, "again": True, "closed": True}


async def test_a_verb_that_waits_when_the_store_is_closed_says_so(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        asked = asyncio.create_task(opened.ask("mark", "", 0, 0, 60_000))
        await mark(opened, 0, wait_ms=0)  # the one before it waits by now
    assert await asked == [b"500", b"the store is being closed"]


# ---- the share of a user


@pytest.mark.parametrize(("most", "status"), [(6, b"200"), (5, b"500")])
async def test_a_batch_must_fit_into_the_share_with_its_chunks_and_its_commit(tmp_path: Path, most: int, status: bytes) -> None:
    """Three rows in two chunks, and one for the commit."""
    async with shop(tmp_path) as opened:
        opened.owner = b"ann"
        await opened.stage("job/0", (b"a", b"1"), (b"b", b"1"))
        await opened.stage("job/1", (b"c", b"1"))
        opened.store.index.limits = Limits(requests_max=most, user_share=100)
        reply = await opened.commit("job", "job/0", "job/1")
        assert reply[0] == status
        if status == b"500":
            reason = b"TOO_LARGE: 3 rows in 2 chunks, and one user may have 5 requests; 0 of its rows were stored before that was found"
            assert reply[1] == reason


@pytest.mark.parametrize(("spare", "status"), [(0, b"200"), (-1, b"500")])
async def test_a_batch_must_fit_into_the_bytes_of_the_share_twice(tmp_path: Path, spare: int, status: bytes) -> None:
    async with shop(tmp_path) as opened:
        opened.owner = b"ann"
        rows = [(b"a", bytes(1000)), (b"b", bytes(1000)), (b"c", bytes(1000))]
        await opened.stage("job/0", *rows[:2])
        await opened.stage("job/1", *rows[2:])
        octets = sum(chunk.size for chunk in of(opened))
        opened.store.index.limits = Limits(bytes_max=2 * octets + 3 * 150 + spare, user_share=100)
        reply = await opened.commit("job", "job/0", "job/1")
        assert reply[0] == status
        if status == b"500":
            text = f"TOO_LARGE: {octets} bytes, which are stored twice for a while, and one user may have {2 * octets + 449}; 0 of its rows"
            assert reply[1].startswith(text.encode())


# ---- reading chunks and rows


@replaces_names
async def test_chunks_beyond_what_is_held_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop(tmp_path) as opened:
        for number in range(3):
            await opened.stage(f"job/{number}", (b"k%d" % number, b"x"))
        sizes = [chunk.size for chunk in of(opened)]
        monkeypatch.setattr("titanic.store.batches.HELD_BYTES_MAX", sum(sizes[:2]))
        read, count = opened.store.bodies.request_of, dict.fromkeys((chunk.uuid for chunk in of(opened)), 0)

        def counted(entry: Entry, done: Any) -> None:
            if entry.service == STAGED:
                count[entry.uuid] += 1
            read(entry, done)

        monkeypatch.setattr(opened.store.bodies, "request_of", counted)
        assert (await opened.commit("job", "job/0", "job/1", "job/2"))[1]["rows"] == 3
        assert [*count.values()] == [1, 1, 2]


@replaces_names
async def test_rows_are_stored_in_portions_and_those_without_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.store.batches.ROWS_AT_ONCE", 2)
    monkeypatch.setattr("titanic.store.batches.RETRY_S", 0.01)
    async with shop(tmp_path) as opened:
        await opened.stage("other/0", (b"d", b"another"))
        await opened.commit("other", "other/0")
        rows = [(key, b"x") for key in (b"a", b"b", b"c", b"d", b"e")]
        await opened.stage("job/0", *rows)
        submit, refused, asked = opened.store.submit, {b"b", b"e"}, Counter[bytes]()

        def full_once(frames: Any, done: Any, *more: Any) -> None:
            key = parse_request(frames).options.key if len(frames) > 1 else b""
            asked[key] += 1
            if key in refused:
                asyncio.get_running_loop().call_later(0.005, refused.discard, key)  # while the commit waits
                done([b"500", b"full"])
            else:
                submit(frames, done, *more)

        monkeypatch.setattr(opened.store, "submit", full_once)
        assert (await opened.commit("job", "job/0"))[1] == {"rows": 5, "refused": 1, "again": False, "closed": False}
        uuids = await opened.uuids("job")
        assert [uuids[3], NO_REQUEST in uuids[:3], uuids[4] == NO_REQUEST] == [NO_REQUEST, False, False]
        assert {key: asked[key] for key, _ in rows} == {b"a": 1, b"b": 2, b"c": 1, b"d": 1, b"e": 2}
        found = opened.store.index.entries
        assert [found[uuid].key for uuid in uuids if uuid != NO_REQUEST] == [b"a", b"b", b"c", b"e"]


async def test_pages_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", *((b"k%d" % n, b"x") for n in range(5)))
        await opened.commit("job", "job/0")
        uuids = await opened.uuids("job")
        await closed(opened, opened.store.index.entries[uuids[2]])
        page = await opened.ask("rows", "job", 1, 3)
        assert page[:3] == [b"200", b"5", b"".join(uuids[1:4])]
        assert msgpack.unpackb(page[3]) == [b"k1", b"", b"k3"]
        monkeypatch.setattr("titanic.store.batches.PAGE_MAX", 2)
        assert (await opened.ask("rows", "job", 0, 100))[2] == b"".join(uuids[:2])
        assert await opened.ask("rows", "job", 5, 1) == [b"200", b"5", b"", msgpack.packb([])]


@replaces_names
async def test_a_batch_that_is_worked_on_is_neither_read_nor_closed(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", (b"a", b"1"))
        never_work(opened)
        assert await opened.commit("job", "job/0") == [b"300"]
        assert await opened.ask("rows", "job", 0, 1) == [b"300"]
        assert await opened.ask("close", "job") == [b"300"]
        assert len(of(opened, COMMIT)) == 1


async def test_a_batch_is_closed_with_those_of_its_requests_that_are_there(tmp_path: Path) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", *((b"k%d" % n, b"x") for n in range(4)))
        await opened.commit("job", "job/0")
        await eventually(lambda: not of(opened))
        await closed(opened, opened.waiting[1])
        before = opened.store.counters["closed"]
        opened.store.close_request([text(opened.waiting[2])], lambda _: None)  # still being written
        assert await opened.ask("close", "job") == [b"200"]
        assert (live(opened), opened.store.counters["closed"] - before) == (0, 4)
        assert await opened.ask("rows", "job", 0, 1) == [b"400", b"no such batch"]


@replaces_names
async def test_a_batch_is_closed_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop(tmp_path) as opened:
        await opened.stage("job/0", *((b"k%d" % n, b"x") for n in range(7)))
        await opened.commit("job", "job/0")
        await eventually(lambda: not of(opened))
        monkeypatch.setattr("titanic.store.batches.ROWS_AT_ONCE", 3)
        turn, turns, close = count(), list[int](), opened.store.close_request
        loop = asyncio.get_running_loop()

        def tick() -> None:
            turns.append(-next(turn))
            if len(turns) < 10_000 and live(opened) == 8:
                loop.call_soon(tick)

        def counted(frames: Any, done: Any) -> None:
            turns.append(1)
            close(frames, done)

        monkeypatch.setattr(opened.store, "close_request", counted)
        loop.call_soon(tick)
        await opened.ask("close", "job")
        closed_in = [len([*group]) for ticks, group in groupby(turns, key=lambda one: one < 1) if not ticks]
        assert closed_in[:3] == [1, 3, 3]


# ---- faults


@pytest.mark.faults
@replaces_names
async def test_a_fault_of_a_verb_is_answered_with_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with supervision.scope(Supervisor()) as supervisor:
        async with shop(tmp_path) as opened:
            with monkeypatch.context() as broken:
                broken.setattr(opened.store, "submit", None)
                assert await opened.stage("job/0", (b"a", b"1")) == [b"500", b"internal fault: TypeError"]
        assert supervisor.faults == {"titanic batch": 1}
