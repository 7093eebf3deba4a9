"""A store that is started on a full disk, in virtual time, with a disk in memory."""

from __future__ import annotations

import pytest

from tests.scenes.virtual_loop import in_virtual_time
from tests.sim.disk import SimDisk
from tests.titanic.store.test_store import ask
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.segment_log import LogOptions
from titanic.store.index.limits import Limits
from titanic.store.store import Store
from titanic.store.waiters import answer_of
from titanic.wire.tsp import Options, encode_options

SEGMENT_BYTES = 65_536
RESERVE_BYTES = 16_384


def store_on(disk: SimDisk) -> Store:
    return Store(disk, JournalOptions(log=LogOptions(segment_bytes=SEGMENT_BYTES, reserve_bytes=RESERVE_BYTES)), Limits())


async def submitted(store: Store, count: int, owner: bytes = b"", options: Options | None = None) -> list[bytes]:
    """Submit requests; return the UUIDs of those that are stored. A key has a place for a number."""
    stored = []
    for number in range(count):
        head = encode_options(options._replace(key=options.key % number)) if options is not None else ()
        frames = [*head, b"nobody", b"%d" % number, b"x" * 500]
        reply = await answer_of(lambda done, frames=frames: store.submit(frames, done, None, owner))  # type: ignore[misc]
        if reply[0] == b"200":
            stored.append(reply[1])
    return stored


def facts(store: Store) -> list[object]:
    """Return what the index of a store has counted."""
    index = store.index
    live = {segment: index.live_bytes(segment) for segment in index.segments if index.live_bytes(segment)}
    users = index.owned_by(b"ann"), index.owned_by(b"")
    return [store.status["bytes"], dict(index.services), len(index.entries), live, users, index.keys_of_closed, index.deadline_ms()]


@pytest.mark.faults
@pytest.mark.parametrize("count", [3, 40], ids=["apart", "in rows of its checkpoint"])
@pytest.mark.parametrize("checkpoint", [True, False])
@in_virtual_time
async def test_a_start_that_needs_the_reserve_counts_each_request_once(count: int, checkpoint: bool) -> None:
    """The store was read twice into one index: requests counted twice, or its checkpoint was called damaged."""
    disk = SimDisk()
    async with store_on(disk) as store:
        uuids = await submitted(store, count)
        await submitted(store, count, owner=b"ann")
        keyed = await submitted(store, count, options=Options(b"key%d", ttl_ms=3_600_000))
        for uuid in (uuids.pop(), *keyed[1:]):
            assert await ask(store.close_request, [uuid]) == [b"200"]
        store.answer(bytes.fromhex(uuids[0].decode()), [b"reply"])
        assert isinstance(store.journal, Journal)
        await store.journal.run(lambda log: log.begin_segment())
        image = disk.survivors()
    image = disk.survivors() if checkpoint else image
    found = []
    for quota in (None, sum(map(len, image.values()))):
        disk = SimDisk(image, quota_bytes=quota)
        async with store_on(disk) as store:
            assert isinstance(store.journal, Journal)
            assert (store.journal.log.size_of(store.journal.log.number) < SEGMENT_BYTES) == (quota is not None)
            assert not store.problems
            found.append(facts(store))
            assert [(await ask(store.fetch, [uuid]))[0] for uuid in uuids] == [b"200"] + [b"300"] * (len(uuids) - 1)
            assert await submitted(store, 1, options=Options(b"key%d", ttl_ms=3_600_000)) == keyed[:1]
    assert found[0] == found[1]


@pytest.mark.faults
@pytest.mark.parametrize("starts", [1, 3])
@in_virtual_time
async def test_a_store_that_is_full_is_stopped_and_started(starts: int) -> None:
    """Its reserve was given back before: it stayed down, though replies and closes had space when it was stopped."""
    disk = SimDisk()
    disk.quota_bytes = 5 * SEGMENT_BYTES + 3000
    async with store_on(disk) as store:
        uuids = await submitted(store, 600)
        assert len(uuids) < 600
        assert await ask(store.close_request, [uuids.pop()]) == [b"200"]
    for _ in range(starts):
        disk = SimDisk(disk.survivors(), quota_bytes=disk.quota_bytes)
        async with store_on(disk) as store:
            assert await ask(store.close_request, [uuids.pop()]) == [b"200"]
            store.answer(bytes.fromhex(uuids[0].decode()), [b"reply"])
            assert await ask(store.fetch, [uuids[1]]) == [b"300"]
    disk = SimDisk(disk.survivors())
    async with store_on(disk) as store:
        assert await ask(store.fetch, [uuids[0]]) == [b"200", b"reply"]
        assert store.status["requests"] == len(uuids)
