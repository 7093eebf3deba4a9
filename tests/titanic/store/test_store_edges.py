"""A store at its edges: what it counts, keeps and reports."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from core.runtime import runtime
from core.runtime.runtime import Runtime
from tests.scenes.builds import replaces_names
from tests.scenes.waiting import PATIENCE_S, eventually
from tests.titanic.store.test_refused_closes import FullDisk
from tests.titanic.store.test_store import answered, ask, store_on, submitted
from titanic.journal.disk import RealDisk
from titanic.journal.group_commit import Journal
from titanic.journal.memory_journal import MemoryJournal
from titanic.journal.segment_log import SegmentLog
from titanic.store.index.limits import Limits
from titanic.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from titanic.store.index.stored_request import Entry


def entry_of(store: Store, uuid: bytes) -> Entry:
    return store.index.entries[bytes.fromhex(uuid.decode())]


@pytest.mark.parametrize("collecting", [True, False])
async def test_a_start_leaves_the_garbage_collector_as_it_was(tmp_path: Path, collecting: bool) -> None:
    """It does not run among the million objects that are made."""
    async with store_on(RealDisk(tmp_path)) as store:
        await submitted(store, b"echo", b"x")
    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    during: list[bool] = []
    store = store_on(RealDisk(tmp_path))
    try:
        await store.open(lambda *_: during.append(gc.isenabled()))
        assert gc.isenabled() is collecting
        assert during
        assert not any(during)
        await store.close()
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("more", [0, 1])
async def test_a_store_that_refuses_everything_by_a_limit_is_full(more: int) -> None:
    """The smallest request of all, with a service and an empty frame, does not fit."""
    async with store_on(None) as store:
        await submitted(store, b"a", b"")
        smallest = store.index.bytes_used
    async with store_on(None, Limits(bytes_max=2 * smallest - 1 + more, service_requests_max=1)) as store:
        await submitted(store, b"a", b"")
        assert (await ask(store.submit, [b"a", b""]))[0] == b"500"  # other services are served
        shown = store.status["state"], store.status["trouble"]
        assert shown == (("serving", None) if more else ("full", f"bytes_max ({smallest} of {2 * smallest - 1} in use)"))
        assert (await ask(store.submit, [b"b", b""]))[0] == (b"200" if more else b"500")


async def test_a_store_with_a_disk_and_no_options_is_on_the_disk(tmp_path: Path) -> None:
    async with Store(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x")
    async with Store(RealDisk(tmp_path)) as store:
        assert await ask(store.fetch, [uuid]) == [b"300"]


class Downtime(Runtime):
    """A system that says that the wall clock is later by some seconds."""

    def __init__(self, later_s: int) -> None:
        self.later_s = later_s

    def wall_ns(self) -> int:
        return super().wall_ns() + self.later_s * 1_000_000_000


async def test_the_time_in_which_a_store_is_down_counts(tmp_path: Path) -> None:
    """The clock of the store goes on, and requests expire by it, each at its time."""
    async with store_on(RealDisk(tmp_path)) as store:
        over, later = [await submitted(store, b"echo", b"x", ttl_ms=ttl_ms) for ttl_ms in (3_000_000, 3_700_000)]
        before = store.now_ms()
    with runtime.scope(Downtime(3600)):
        async with store_on(RealDisk(tmp_path)) as store:
            assert before + 3_600_000 <= store.now_ms() < before + 3_660_000
            assert await ask(store.wait, [over], PATIENCE_S) == [b"500", b"EXPIRED"]
            assert await ask(store.fetch, [later]) == [b"300"]
            soon = await submitted(store, b"echo", b"x", ttl_ms=50)
            assert await ask(store.wait, [soon], PATIENCE_S) == [b"500", b"EXPIRED"]


async def test_clients_that_wait_when_a_store_is_closed_are_answered() -> None:
    async with store_on(None) as store:
        waiting = asyncio.ensure_future(ask(store.wait, [await submitted(store, b"echo", b"x")], 10 * PATIENCE_S))
        await asyncio.sleep(0)
    assert await waiting == [b"300"]


@replaces_names
async def test_nothing_is_tried_again_by_a_store_that_was_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an end that was refused, nor what is due: another store does both meanwhile, more than once."""
    monkeypatch.setattr("titanic.store.store.RETRY_S", 0.01)
    counted: list[int] = []
    stores: list[Store] = []
    for name in ("closed", "open"):
        disk = FullDisk(tmp_path / name)
        stores.append(await store_on(disk).__aenter__())
        uuid = await submitted(stores[-1], b"echo", b"x")
        await submitted(stores[-1], b"echo", b"x", ttl_ms=200)
        disk.full = True
        stores[-1].answer(bytes.fromhex(uuid.decode()), [b"r"])
        await eventually(lambda: stores[-1].counters["unavailable"])
        if name == "closed":
            await stores[-1].close()
            counted.append(stores[-1].counters["unavailable"])
    begun = stores[1].now_ms()
    await eventually(lambda: stores[1].counters["unavailable"] > 20 and stores[1].now_ms() > begun + 400)
    assert [stores[0].counters["unavailable"]] == counted
    await stores[1].close()


async def test_requests_of_a_checkpoint_are_waiting_without_a_backlog_too(tmp_path: Path) -> None:
    async with store_on(RealDisk(tmp_path)) as store:
        uuids = list(await asyncio.gather(*(submitted(store, b"echo", b"%d" % n) for n in range(600))))
    store = store_on(RealDisk(tmp_path))
    seen: list[Entry] = []
    store.on_waiting = seen.append
    async with store:
        store.start_dispatch()
        assert sorted(entry.uuid.hex().upper().encode() for entry in seen) == sorted(uuids)
        times = [entry.accepted_ms for entry in seen]
        assert times == sorted(times)


@pytest.mark.parametrize("checkpoint", [True, False])
async def test_the_user_of_a_request_outlives_a_restart(tmp_path: Path, checkpoint: bool) -> None:
    """From the records alone too, as after a crash."""
    async with store_on(RealDisk(tmp_path)) as store:
        _, uuid = await ask(lambda frames, done: store.submit(frames, done, None, b"ann"), [b"echo", b"x"])
    if not checkpoint:
        (tmp_path / "checkpoint").unlink()
    async with store_on(RealDisk(tmp_path)) as store:
        assert entry_of(store, uuid).owner == b"ann"


@pytest.mark.parametrize("checkpoint", [True, False])
async def test_a_withdrawn_request_may_be_stored_again_as_another(tmp_path: Path, checkpoint: bool) -> None:
    """Its key is not remembered, after a restart neither; that of a request that is closed is."""
    async with store_on(RealDisk(tmp_path)) as store:
        withdrawn, closed = [await submitted(store, b"echo", b"x", key=key) for key in (b"w", b"c")]
        assert await ask(store.withdraw, entry_of(store, withdrawn)) == [b"200"]
        assert await ask(store.close_request, [closed]) == [b"200"]
        assert await submitted(store, b"echo", b"x", key=b"c") == closed
        again = await submitted(store, b"echo", b"other", key=b"w")
        assert again != withdrawn
        assert await ask(store.withdraw, entry_of(store, again)) == [b"200"]
    if not checkpoint:
        (tmp_path / "checkpoint").unlink()
    async with store_on(RealDisk(tmp_path)) as store:
        assert await submitted(store, b"echo", b"x", key=b"c") == closed
        assert await submitted(store, b"echo", b"third", key=b"w") not in (withdrawn, again)


async def test_what_waits_is_reported_when_it_is_closed_and_what_was_answered_is_not(tmp_path: Path) -> None:
    gone: list[bytes] = []
    store = store_on(RealDisk(tmp_path))
    store.on_closed = gone.append
    async with store:
        waiting, done, dead = [await submitted(store, b"echo", b"x") for _ in range(3)]
        await answered(store, done, b"r")
        store.dead_letter(entry_of(store, dead), "nobody can")
        assert await ask(store.wait, [dead], 10.0) == [b"500", b"nobody can"]
        for uuid in (waiting, done, dead):
            assert await ask(store.close_request, [uuid]) == [b"200"]
        assert gone == [bytes.fromhex(uuid.decode()) for uuid in (dead, waiting)]
        assert [store.counters[name] for name in ("answered", "dead", "closed")] == [1, 1, 3]
        assert await ask(store.close_request, [waiting]) == [b"200"]
        assert store.counters["closed"] == 3


async def test_a_store_in_memory_keeps_nothing_of_what_has_ended() -> None:
    """Neither the request when it is answered, nor the answer when it is closed."""
    async with store_on(None) as store:
        assert isinstance(store.journal, MemoryJournal)
        answers, waiting, dead = [await submitted(store, b"echo", bytes(1000)) for _ in range(3)]
        await answered(store, answers, b"r")
        store.dead_letter(entry_of(store, dead), "nobody can")
        assert (await ask(store.wait, [dead], 10.0))[0] == b"500"
        kept = sum(len(body) for body in store.journal._bodies.values())
        assert 1000 < kept < 1200  # the request that waits
        for uuid in (answers, waiting, dead):
            assert await ask(store.close_request, [uuid]) == [b"200"]
        assert store.journal._bodies == {}


async def test_what_is_refused_is_counted() -> None:
    async with store_on(None, Limits(requests_max=1)) as store:
        assert (await ask(store.submit, [b"echo"]))[0] == b"400"
        assert (await ask(store.submit, [b"titanic.request", b"x"]))[0] == b"400"
        await submitted(store, b"echo", b"x", key=b"k")
        await submitted(store, b"echo", b"x", key=b"k")
        for _ in range(3):
            assert (await ask(store.submit, [b"echo", b"y"]))[0] == b"500"
        counted = {name: count for name, count in store.counters.items() if count}
        assert counted == {"accepted": 1, "refused": 2, "repeated": 1, "unavailable": 3}


async def test_the_status_of_a_store(tmp_path: Path) -> None:
    async with store_on(None) as store:
        assert (store.status["state"], store.status["segments"], store.status["mirror"]) == ("serving", 0, None)
    async with store_on(RealDisk(tmp_path)) as store:
        assert (store.status["state"], store.status["segments"], store.status["problems"]) == ("serving", 1, 0)


async def test_requests_wait_in_the_order_in_which_they_were_accepted(tmp_path: Path) -> None:
    """Whatever the order in which their records are read: one was moved."""
    async with store_on(RealDisk(tmp_path)) as store:
        uuids = [await submitted(store, b"echo", b"x", key=b"%d" % number) for number in range(5)]
        entries = store.index.entries
        for number, uuid in enumerate(uuids):
            entry_of(store, uuid).accepted_ms = 1000 - number
        seen: list[int] = []
        store.on_waiting = lambda entry: seen.append(entry.accepted_ms)
        store.start_dispatch()
        assert seen == [996, 997, 998, 999, 1000]
        assert len(entries) == 5


async def test_two_answers_at_once_are_one_record(tmp_path: Path) -> None:
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x")
        raw = bytes.fromhex(uuid.decode())
        before = store.journal.acknowledged
        store.answer(raw, [b"one"])
        store.answer(raw, [b"two"])
        store.dead_letter(entry_of(store, uuid), "too late")
        assert await ask(store.wait, [uuid], 10.0) == [b"200", b"one"]
        assert store.journal.acknowledged == before + 1
        store.answer(raw, [b"three"])
        assert await ask(store.fetch, [uuid]) == [b"200", b"one"]
        assert (store.journal.acknowledged, store.counters["late"]) == (before + 1, 2)


@pytest.mark.parametrize("retain_ms", [0, 1])
async def test_what_is_due_after_a_restart_ends_by_itself(tmp_path: Path, retain_ms: int) -> None:
    """TSP-17: a time to live, and the time for which an answer is kept."""
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x", ttl_ms=3_600_000 if retain_ms else 200)
        if retain_ms:
            await answered(store, uuid, b"r")
    async with store_on(RealDisk(tmp_path), Limits(retain_ms=retain_ms)) as store:
        if retain_ms:
            await eventually(lambda: not store.index.entries)
        else:
            await eventually(lambda: store.counters["dead"])


async def test_the_clock_of_a_store_begins_at_0_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with store_on(RealDisk(tmp_path)) as store:
        uuid = await submitted(store, b"echo", b"x")
        before = entry_of(store, uuid).accepted_ms
        assert 0 <= before <= store.now_ms() < 60_000
    async with store_on(RealDisk(tmp_path)) as store:
        assert before <= store.now_ms() < before + 60_000
        assert store.maintenance_counts["dropped"] == 0
    async with store_on(None) as store:
        assert 0 <= store.now_ms() < 60_000


async def test_a_body_that_was_just_stored_is_sent_from_memory(tmp_path: Path) -> None:
    """One with headers is read: they are in the record."""
    async with store_on(RealDisk(tmp_path)) as store:
        plain = entry_of(store, await submitted(store, b"echo", b"x", b"y"))
        headed = entry_of(store, await submitted(store, b"echo", b"x", headers={"trace": "1"}))
        assert plain.kept_bytes == plain.size
        assert store.bodies.take(plain) == [b"x", b"y"]
        assert store.bodies.take(headed) is None


async def test_the_index_knows_each_segment_with_a_record(tmp_path: Path) -> None:
    """Whatever the record is.

    A CLOSE is dropped when no other segment may have records of its request. If the index did not know a segment, closed requests would
    come back from it.
    """

    async def stored(store: Store, call: Callable[[], None]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call()
        store.after((lambda *_: done.set_result(None), None))
        await done

    async with store_on(RealDisk(tmp_path)) as store:
        assert isinstance(store.journal, Journal)
        names = [await submitted(store, b"echo", b"x", attempts=3) for _ in range(4)]
        first, second, third, fourth = [entry_of(store, uuid) for uuid in names]
        calls: list[Callable[[], None]] = [
            lambda: store.submit([b"echo", b"y"], lambda _: None),
            lambda: store.answer(first.uuid, [b"r"]),
            lambda: store.dead_letter(second, "nobody can"),
            lambda: store.close_request([names[2]], lambda _: None),
            lambda: store.attempted(fourth),
        ]
        for call in calls:
            await store.journal.run(SegmentLog.begin_segment)
            number = store.journal.log.number
            assert number not in store.index.segments
            await stored(store, call)
            assert number == store.journal.log.number
            assert number in store.index.segments
        assert third.uuid not in store.index.entries
        assert max(store.index.segments) == store.journal.log.number
