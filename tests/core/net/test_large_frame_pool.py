"""core.net.large_frames: which frames are read into a buffer or into memory of their own, and whose buffer is used again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from core.net import large_frames
from core.net.large_frames import (
    AFTER_BYTES,
    BUFFER_BYTES,
    BUFFERS_MAX,
    LARGE_BYTES_MIN,
    MADV_HUGEPAGE,
    MAPPED_BYTES_MIN,
    OWN_BYTES_MAX,
    OWN_MEMORY,
    OWN_PART,
    PAGE_BYTES,
    SPARE_MAX,
    LargeFramePool,
    LargeFrameReader,
    SpareFrames,
    switch,
)
from core.runtime import supervision
from tests.scenes.builds import replaces_names, stands_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGEST = BUFFER_BYTES - AFTER_BYTES  # of a frame that a buffer takes
OWN = OWN_PART * (LARGEST // OWN_PART + 1)  # bytes of a larger one


class Transport:
    """A transport that keeps which protocol it has."""

    def __init__(self) -> None:
        self.protocols: list[Any] = []

    def set_protocol(self, protocol: Any) -> None:
        self.protocols.append(protocol)


class Reading(Transport):
    """A transport that may get another protocol only while it does not read."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def set_protocol(self, protocol: Any) -> None:
        assert not self.reads
        super().set_protocol(protocol)


def pool() -> LargeFramePool:
    return LargeFramePool(supervision.current())


@stands_in
@pytest.mark.parametrize(
    ("octets", "came", "taken"),
    [
        (LARGE_BYTES_MIN - 1, LARGE_BYTES_MIN - 1, False),
        (LARGE_BYTES_MIN, 0, True),
        (LARGEST, 0, True),
        (LARGEST + 1, 0, False),
        (OWN, OWN // OWN_PART - 1, False),
        (OWN, OWN // OWN_PART, OWN_MEMORY),
        (OWN_BYTES_MAX + 16, OWN_BYTES_MAX // OWN_PART + 1, OWN_MEMORY),
    ],
)
async def test_a_large_frame_is_taken_and_a_larger_one_when_a_part_of_it_has_come(octets: int, came: int, taken: bool) -> None:
    assert pool().takes(cast("Any", SimpleNamespace(begun_frame=octets, wanted=octets - came))) == taken


@stands_in
@pytest.mark.skipif(not OWN_MEMORY, reason="larger frames are put together here")
@pytest.mark.parametrize(("more", "taken"), [(0, True), (1, False)])
async def test_memory_of_their_own_has_a_limit_for_all_frames_but_one(more: int, taken: bool) -> None:
    some = pool()
    some.own_bytes = OWN_BYTES_MAX - OWN + more
    assert some.takes(cast("Any", SimpleNamespace(begun_frame=OWN, wanted=0))) == taken


@stands_in
async def test_a_buffer_between_two_frames_is_used_for_another_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_frames, "switch", lambda transport, protocol: transport.set_protocol(protocol))
    some = pool()
    sessions = [(SimpleNamespace(), Transport()) for _ in range(BUFFERS_MAX + 2)]
    frames = [SimpleNamespace(begun_frame=LARGEST, detach_frame=lambda: [b"ab", b"c"]) for _ in sessions]

    def read(number: int) -> None:
        session, transport = sessions[number]
        some.read(cast("Any", session), cast("Any", transport), cast("Any", frames[number]))

    for number in range(BUFFERS_MAX):
        read(number)
    readers = [*some.readers]
    assert [one.get_buffer(0).nbytes for one in readers] == [BUFFER_BYTES - 3] * BUFFERS_MAX
    read(BUFFERS_MAX)  # all of them are within a frame
    assert (sessions[BUFFERS_MAX][1].protocols, [*some.readers]) == ([], readers)
    readers[3]._end = 0
    assert readers[3].between
    read(BUFFERS_MAX + 1)
    assert sessions[3][1].protocols == [readers[3], sessions[3][0]]
    assert [one in some.readers for one in readers] == [number != 3 for number in range(BUFFERS_MAX)]
    assert (len(some.readers), some.free) == (BUFFERS_MAX, [])  # in the same memory
    (latest,) = sessions[BUFFERS_MAX + 1][1].protocols
    assert isinstance(latest, LargeFrameReader)
    some._clock.cancel()


@pytest.mark.parametrize("reads", [True, False])
def test_a_transport_gets_another_protocol_while_it_is_paused(reads: bool) -> None:
    transport, protocol = Reading(reads), asyncio.Protocol()
    switch(cast("Any", transport), protocol)
    assert (transport.protocols, transport.reads) == ([protocol], reads)


@replaces_names
@pytest.mark.skipif(not OWN_MEMORY, reason="larger frames are put together here")
@pytest.mark.parametrize(("octets", "advised"), [(MAPPED_BYTES_MIN - 1, False), (MAPPED_BYTES_MIN, True), (MAPPED_BYTES_MIN + 5000, True)])
def test_whole_pages_of_mapped_memory_are_advised(octets: int, advised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    large_frames._c_functions.cache_clear()
    make, address_of, view_of, advise = large_frames._c_functions()
    calls: list[tuple[int, int, int]] = []

    def seen(begin: int, size: int, advice: int) -> int:
        calls.append((begin, size, advice))
        result: int = advise(begin, size, advice)
        assert result == 0 or not Path("/sys/kernel/mm/transparent_hugepage").exists()
        return result

    monkeypatch.setattr(large_frames, "_c_functions", lambda: (make, address_of, view_of, seen))
    frame, view = large_frames.new_frame(octets)
    assert (len(frame), view.nbytes, len(calls)) == (octets, octets, advised)
    start = address_of(frame)
    for begin, size, advice in calls:
        assert (begin % PAGE_BYTES, size % PAGE_BYTES, advice) == (0, 0, MADV_HUGEPAGE)
        assert 0 <= begin - start < PAGE_BYTES
        assert 0 <= start + octets - (begin + size) < PAGE_BYTES


used_again = pytest.mark.skipif(not OWN_MEMORY or not large_frames._alone(), reason="no memory of frames is used again here")


def kept(*octets: int) -> tuple[SpareFrames, list[bytes]]:
    spare = SpareFrames()
    frames = [spare.frame(each)[0] for each in octets]
    for frame in frames:
        spare.keep(frame)
    return spare, frames


@used_again
def test_the_memory_of_a_frame_without_users_is_used_again_and_its_hash_is_not() -> None:
    spare, frames = kept(MAPPED_BYTES_MIN)
    hash(frames[0])
    where = id(frames.pop())
    frame, view = spare.frame(MAPPED_BYTES_MIN)
    assert id(frame) == where
    view[:3] = view[-3:] = b"new"
    assert frame.startswith(b"new")
    assert frame.endswith(b"new")
    assert hash(frame) == hash(bytes(view))
    assert spare.frames == []


@used_again
@pytest.mark.parametrize("had", [lambda frame: frame, lambda frame: memoryview(frame)[1:2], lambda frame: [b"", frame]])
def test_the_memory_of_a_frame_that_is_in_use_is_left_alone(had: Callable[[bytes], object]) -> None:
    spare, frames = kept(MAPPED_BYTES_MIN)
    where = id(frames[0])
    user = had(frames.pop())
    assert id(spare.frame(MAPPED_BYTES_MIN)[0]) != where
    assert [id(each) for each in spare.frames] == [where]
    assert user


@used_again
def test_the_memory_of_frames_of_another_size_and_of_small_ones_is_not_used() -> None:
    spare, frames = kept(MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN + 1)
    frames.clear()
    assert [len(frame) for frame in spare.frames] == [MAPPED_BYTES_MIN + 1]
    assert len(spare.frame(MAPPED_BYTES_MIN)[0]) == MAPPED_BYTES_MIN
    assert len(spare.frames) == 1


@used_again
def test_memory_is_kept_of_the_last_frames_while_such_frames_come() -> None:
    spare, frames = kept(*range(MAPPED_BYTES_MIN, MAPPED_BYTES_MIN + SPARE_MAX + 1))
    assert spare.frames == frames[-SPARE_MAX:]
    spare.clear_up()
    assert spare.frames == frames[-SPARE_MAX:]  # they have just come
    spare.clear_up()
    assert spare.frames == []
    spare.keep(frames[0])
    spare.clear_up()
    assert spare.frames == []
    fresh = SpareFrames()
    fresh.keep(frames[0])
    fresh.clear_up()
    assert fresh.frames == []


@used_again
@pytest.mark.parametrize(("more", "count"), [(0, 2), (1, 1)])
def test_what_is_kept_for_its_memory_has_a_limit(more: int, count: int) -> None:
    spare, frames = kept(OWN_BYTES_MAX // 2, OWN_BYTES_MAX // 2 + more)
    assert [id(each) for each in spare.frames] == [id(each) for each in frames[-count:]]
    assert kept(OWN_BYTES_MAX + 1)[0].frames == []


@pytest.fixture
def asked_again() -> Iterator[None]:
    """Find out in the test what this Python does with hashes and references, and again after it."""
    large_frames._alone.cache_clear()
    yield
    large_frames._alone.cache_clear()


@used_again
@pytest.mark.usefixtures("asked_again")
def test_no_memory_is_used_again_where_threads_count_their_references_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert large_frames._alone() > 0
    large_frames._alone.cache_clear()
    monkeypatch.setattr(sys, "abiflags", "t")
    assert large_frames._alone() == 0
    assert kept(MAPPED_BYTES_MIN)[0].frames == []


@used_again
@replaces_names
@pytest.mark.usefixtures("asked_again")
def test_no_memory_is_used_again_where_bytes_have_their_hash_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    make, address_of, view_of, advise = large_frames._c_functions()

    def without_hash(start: int, octets: int, flags: int) -> memoryview:
        return memoryview(bytearray(octets)) if octets == 8 else view_of(start, octets, flags)

    monkeypatch.setattr(large_frames, "_c_functions", lambda: (make, address_of, without_hash, advise))
    assert large_frames._alone() == 0
    assert kept(MAPPED_BYTES_MIN)[0].frames == []
