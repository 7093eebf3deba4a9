"""The connection of a store to its mirror, with a mirror that is made of octets."""

from __future__ import annotations

import asyncio
import logging
import threading
from itertools import count, repeat
from typing import TYPE_CHECKING

import msgpack
import pytest

import core
import titanic
from tests.scenes.titanic_octets import OPTIONS, GatedDisk, is_in_state, line_of, mirrored, octets, store
from tests.scenes.waiting import eventually
from tests.titanic.mirror.test_replica_server import submitted
from titanic.mirror.replica_link import MirrorLine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.faults
async def test_the_answer_to_a_later_hello_is_not_taken_for_that_of_a_sync(endpoint: str, disk: GatedDisk) -> None:
    """While the store's own disk syncs, the connection is lost and made again: the mirror does not have the record."""
    async with octets(endpoint) as first:
        stack = store(disk, endpoint)
        stored = await stack.__aenter__()
        await first.followed()
        await stored.wait_for_mirror()
        disk.slow.set()
        accepted = asyncio.ensure_future(submitted(stored, b"request"))
        await first.next(b"sync")
    async with octets(endpoint) as second:
        await second.greeted()
        copy = await second.next(b"copy")  # the answer to hello has arrived
        disk.gate.set()
        await second.answer(copy)
        swap = await second.copied()
        assert not accepted.done()
        await second.answer(swap)
        assert (await accepted)[0] == b"200"
        line_of(stored).end()
        second.socket.close(linger=0)
        await stack.__aexit__(None, None, None)


@pytest.mark.faults
async def test_a_writer_that_is_slow_to_come_in_step_does_not_meddle_with_the_next_connection(endpoint: str, disk: GatedDisk) -> None:
    """It brought files to a mirror that is gone: the other one has none of them."""
    async with store(disk, endpoint) as stored:
        async with octets(endpoint) as first:
            await first.greeted()
            disk.slow_read.set()
            following = asyncio.ensure_future(first.copied())
            await eventually(lambda: not disk.slow_read.is_set())
            following.cancel()
        async with octets(endpoint) as second:
            await second.greeted()
            copy = await second.next(b"copy")
            disk.gate.set()
            await second.answer(copy)
            names = [copy.arguments[0]]
            while (said := await second.next(b"copy", b"swap")).call == b"copy":
                names.append(said.arguments[0])
                await second.answer(said)
            sizes, copied, *_ = msgpack.unpackb(said.arguments[0])
            assert set(sizes) == set(copied) == {name.decode() for name in names}
            await second.answer(said)
            await is_in_state(stored, "in step")
            assert line_of(stored).sessions == 2
            line_of(stored).end()


async def test_a_mirror_may_read_its_files_for_longer_than_a_sync_may_last(endpoint: str, disk: GatedDisk) -> None:
    """It answers a hello after that: it reads gigabytes when roles have changed."""
    async with mirrored(disk, endpoint, timeout_s=0.01) as (mirror, stored):
        hello = await mirror.next()
        while "not answered" not in str(stored.stalled):
            await asyncio.sleep(0.001)
        await mirror.answer(hello, detail=msgpack.packb({}))
        copy = await mirror.next()
        assert (copy.session, copy.call) == (hello.session, b"copy")


async def test_hb_02_what_moved_before_an_answer_does_not_keep_a_mirror_later(
    endpoint: str, disk: GatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: Iterator[int] = count(1)
    looks: list[int] = []

    def in_transit(*_: object) -> int:
        looks.append(next(moves))
        return looks[-1]

    monkeypatch.setattr(core.Socket, "in_transit", in_transit)
    async with mirrored(disk, endpoint, timeout_s=1.0) as (mirror, stored):
        await mirror.followed()
        await is_in_state(stored, "in step")
        looks.clear()
        accepted = asyncio.ensure_future(submitted(stored, b"1"))
        sync = await mirror.next(b"sync")
        await eventually(lambda: looks)
        await mirror.answer(sync)
        assert (await accepted)[0] == b"200"
        moves = repeat(0)
        looks.clear()
        states: list[tuple[str, int]] = []
        line_of(stored).on_state = lambda state, _: states.append((state, len(looks)))
        refused = asyncio.ensure_future(submitted(stored, b"2"))
        await eventually(lambda: states)
        assert states[0] == ("away", 1)
        line_of(stored).end()
        assert (await refused)[0] == b"500"


# ---- a mirror that does not answer as it should


@pytest.mark.parametrize(
    ("word", "detail", "reason"),
    [
        (b"no", b"another store", "another store"),
        (b"no", b"\xff", "\ufffd"),
        (b"no", b"", "refused"),
        (b"no", None, "refused"),
        (b"ok", b"\xc1", "BadMsgpack"),
        (b"ok", b"", "BadMsgpack"),
        (b"ok", msgpack.packb([1]), "AttributeError"),
        (b"ok", msgpack.packb({"manifest": 1}), "TypeError"),
    ],
)
async def test_a_refused_hello_ends_the_connection_and_says_why(
    endpoint: str, disk: GatedDisk, word: bytes, detail: bytes | None, reason: str
) -> None:
    async with mirrored(disk, endpoint) as (mirror, stored):
        reasons: list[str] = []
        line = line_of(stored)
        told = line.on_state
        assert told is not None

        def on_state(state: str, reason: str) -> None:
            told(state, reason)
            if state == "away":
                reasons.append(reason)

        line.on_state = on_state
        hello = await mirror.next()
        await is_in_state(stored, "catching up")
        assert stored.stalled == "the mirror is catching up"
        await mirror.socket.send_multipart(
            [hello.peer, hello.session, hello.number, word, *([detail, b"more"] if detail is not None else [])]
        )
        await eventually(lambda: reasons)
        assert reason in reasons[0]
        assert "more" not in reasons[0]
        assert (await submitted(stored, b"x"))[0] == b"500"
        again = await mirror.followed()
        assert int.from_bytes(again.session, "big") == int.from_bytes(hello.session, "big") + 1
        await is_in_state(stored, "in step")
        assert stored.stalled is None


async def test_what_is_no_answer_ends_the_connection(endpoint: str, disk: GatedDisk) -> None:
    async with mirrored(disk, endpoint) as (mirror, stored):
        hello = await mirror.next()
        await mirror.socket.send_multipart([hello.peer, b"garbage", b"", b""])
        await eventually(lambda: "not a mirror" in line_of(stored).reason)
        await mirror.followed()
        await is_in_state(stored, "in step")


async def test_an_answer_of_another_connection_counts_for_nothing(endpoint: str, disk: GatedDisk) -> None:
    async with mirrored(disk, endpoint) as (mirror, stored):
        hello = await mirror.next()
        for session in (0, 2):
            await mirror.answer(hello._replace(session=session.to_bytes(8, "big")), b"no", b"not yours")
            await mirror.answer(hello._replace(session=session.to_bytes(8, "big")), detail=b"\xc1")
        await mirror.answer(hello, detail=msgpack.packb({}))
        await mirror.answer(await mirror.copied())
        await is_in_state(stored, "in step")
        assert line_of(stored).sessions == 1


async def test_a_sync_that_is_not_answered_ends_the_connection(endpoint: str, disk: GatedDisk) -> None:
    """The record is acknowledged when another one has it."""
    async with mirrored(disk, endpoint) as (mirror, stored):
        await mirror.followed()
        await is_in_state(stored, "in step")
        line_of(stored).timeout_s = 0.01
        accepted = asyncio.ensure_future(submitted(stored, b"x"))
        sync = await mirror.next(b"sync")
        await eventually(lambda: line_of(stored).reason == "no answer within 0.01 s")
        line_of(stored).timeout_s = 30.0
        await mirror.answer(sync)  # too late
        following = asyncio.ensure_future(mirror.obey())
        assert (await accepted)[0] == b"200"
        assert line_of(stored).sessions == 2
        following.cancel()


async def test_a_mirror_of_a_later_store_is_asked_rarely_and_stops_this_one(
    endpoint: str, disk: GatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store was promoted: nothing is acknowledged, whatever may be done without a mirror."""
    monkeypatch.setattr("titanic.mirror.replica_link.RETRY_S", 1000.0)
    monkeypatch.setattr("titanic.mirror.replica_link.REFUSED_S", 0.01)
    async with mirrored(disk, endpoint, go_on=True) as (mirror, stored):
        await mirror.answer(await mirror.next(b"hello"), b"no", b"STALE this mirror is of epoch 9")
        hello = await mirror.next(b"hello")
        monkeypatch.setattr("titanic.mirror.replica_link.REFUSED_S", 1000.0)
        await mirror.answer(hello, b"no", b"STALE this mirror is of epoch 9")
        await is_in_state(stored, "away", "STALE this mirror is of epoch 9")
        assert stored.stalled == "the mirror is away: STALE this mirror is of epoch 9"
        assert (await submitted(stored, b"x")) == [b"500", stored.stalled.encode()]


async def test_sealed_segments_that_were_copied_are_not_read_again_between_two_syncs(endpoint: str, disk: GatedDisk) -> None:
    """There may be gigabytes of them, and nothing is acknowledged while the writer thread reads."""
    async with store(disk, endpoint, go_on=True) as stored:
        while len(segments := sorted(name for name in disk.names() if name.endswith(".seg"))) < 4:
            assert (await submitted(stored, bytes(20_000)))[0] == b"200"
        async with octets(endpoint) as mirror:
            await mirror.greeted()
            disk.read_by_writer.clear()
            swap = await mirror.copied()
            sizes, copied, *_ = msgpack.unpackb(swap.arguments[0])
            assert set(segments) <= set(copied)
            assert sizes == {name: (disk.directory / name).stat().st_size for name in sizes}
            assert disk.read_by_writer & set(segments) == {segments[-1]}
            await mirror.answer(swap)
            await is_in_state(stored, "in step")
            line_of(stored).end()


@pytest.mark.faults
async def test_an_error_as_a_mirror_comes_in_step_is_logged_and_tried_again(
    endpoint: str, disk: GatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with store(disk, endpoint, go_on=True) as stored:
        assert (await submitted(stored, b"alone"))[0] == b"200"
        async with octets(endpoint) as mirror:
            await mirror.greeted()
            disk.unreadable.set()
            following = asyncio.ensure_future(mirror.copied())
            await eventually(lambda: "mirror: unreadable" in caplog.text)
            disk.unreadable.clear()
            accepted = asyncio.ensure_future(submitted(stored, b"x"))
            await mirror.answer(await following)
            assert (await accepted)[0] == b"200"
            await is_in_state(stored, "in step")
            line_of(stored).end()


async def test_a_mirror_comes_in_step_though_nothing_is_written(endpoint: str, disk: GatedDisk) -> None:
    async with store(disk, endpoint, go_on=True) as stored:
        assert (await submitted(stored, b"alone"))[0] == b"200"
        async with octets(endpoint) as mirror:
            await mirror.followed()
            await is_in_state(stored, "in step")
            line_of(stored).end()


async def test_a_lost_mirror_is_waited_for_again(endpoint: str, disk: GatedDisk) -> None:
    async with store(disk, endpoint) as stored:
        async with octets(endpoint) as mirror:
            await mirror.followed()
            await stored.wait_for_mirror()
        await is_in_state(stored, "away", "the connection ended")
        served = asyncio.ensure_future(stored.wait_for_mirror())
        async with octets(endpoint) as mirror:
            await mirror.greeted()
            swap = await mirror.copied()
            assert not served.done()
            await mirror.answer(swap)
            await served
            line_of(stored).end()


async def test_a_store_that_may_go_on_serves_at_once(endpoint: str, disk: GatedDisk) -> None:
    async with store(disk, endpoint, go_on=True) as stored:
        await stored.wait_for_mirror()
        assert (await submitted(stored, b"x"))[0] == b"200"
        assert line_of(stored).state == "away"


# ---- its end


@pytest.mark.parametrize("answered", [False, True])
async def test_a_line_ends_whatever_it_waits_for(endpoint: str, disk: GatedDisk, answered: bool) -> None:
    """Its socket is closed, also in a context of others, and no thread waits for an answer."""
    async with core.Context() as context, octets(endpoint) as mirror:
        line = MirrorLine(endpoint, context=context, timeout_s=0.01)
        async with titanic.Store(disk, OPTIONS, mirror=line):
            hello = await mirror.next(b"hello")
            if answered:
                await mirror.answer(hello, b"no", b"not now")
                await eventually(lambda: line.state == "away")
        assert "0 open sockets" in repr(context)
        assert not context.closed
        await asyncio.get_running_loop().shutdown_default_executor()


class CopiedSlowly(titanic.RealDisk):
    """A disk that is released, if it may be, while a file is read to be copied ahead."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reading, self.released = threading.Event(), threading.Event()
        self.read_after = False

    def unlock(self) -> None:
        super().unlock()
        self.released.set()

    def read(self, handle: int, size: int, offset: int) -> bytes:
        if threading.current_thread().name.startswith("asyncio"):
            self.reading.set()
            self.read_after = self.released.wait(0.5)
        return super().read(handle, size, offset)


async def test_a_store_is_closed_after_the_file_that_is_being_copied_ahead(
    endpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else its directory would be read after its end, by a number that may be that of another one."""
    disk = CopiedSlowly(tmp_path / "a")
    async with octets(endpoint) as mirror, store(disk, endpoint, go_on=True):
        await mirror.greeted()
        await eventually(disk.reading.is_set)
        caplog.clear()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert not disk.read_after
    assert not caplog.records


async def test_each_change_of_its_state_is_logged_once(endpoint: str, disk: GatedDisk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "titanic")
    async with mirrored(disk, endpoint) as (mirror, stored):
        for _ in range(5):  # twice a second, as long as its disk is full
            await mirror.answer(await mirror.next(b"hello"), b"no", b"not now")
        await mirror.followed()
        await is_in_state(stored, "in step")
        line_of(stored).end()
        said = [(record.levelname, record.getMessage()) for record in caplog.records if record.getMessage().startswith("mirror ")]
        assert said == [
            ("WARNING", f"mirror {endpoint} is catching up"),
            ("WARNING", f"mirror {endpoint} is away: not now"),
            ("INFO", f"mirror {endpoint} is in step"),
        ]
