"""The connection of a store to its mirror, with a mirror that is made of octets."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import pytest

import core
import titanic
from tests.scenes.waiting import eventually
from tests.titanic.mirror.test_replica_server import OPTIONS, submitted
from titanic.mirror.replica_link import MirrorLine, MirrorTerms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Said(NamedTuple):
    """One message of a store."""

    peer: bytes
    session: bytes
    number: bytes
    call: bytes
    arguments: tuple[bytes, ...]


class Octets:
    """A mirror that holds nothing, and answers when a test does."""

    def __init__(self, socket: core.Socket) -> None:
        self.socket = socket

    async def next(self, *calls: bytes) -> Said:
        """Return the next message, or the next one with one of these calls."""
        while True:
            peer, session, number, call, *arguments = await self.socket.recv_multipart()
            if not calls or call in calls:
                return Said(peer, session, number, call, tuple(arguments))

    async def answer(self, said: Said, word: bytes = b"ok", detail: bytes = b"") -> None:
        await self.socket.send_multipart([said.peer, said.session, said.number, word, detail])

    async def greeted(self) -> Said:
        """Answer the next hello: there is nothing here."""
        said = await self.next(b"hello")
        await self.answer(said, detail=msgpack.packb({}))
        return said

    async def copied(self) -> Said:
        """Answer copies up to the swap, and return that."""
        while (said := await self.next(b"copy", b"swap")).call == b"copy":
            await self.answer(said)
        return said

    async def followed(self) -> Said:
        """Come in step; return the hello."""
        said = await self.greeted()
        await self.answer(await self.copied())
        return said

    async def obey(self) -> None:
        """Answer every call that is answered, from now on."""
        while True:
            said = await self.next(b"hello", b"copy", b"swap", b"sync", b"sync_directory")
            await self.answer(said, detail=msgpack.packb({}) if said.call == b"hello" else b"")


@asynccontextmanager
async def octets(endpoint: str) -> AsyncIterator[Octets]:
    async with core.Context() as context:
        socket = context.socket(core.ROUTER, linger=0)
        socket.bind(endpoint)
        yield Octets(socket)
        socket.close(linger=0)


class GatedDisk(titanic.RealDisk):
    """A disk one of whose syncs, or reads in the writer thread, waits for a gate."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.slow = threading.Event()
        self.slow_read = threading.Event()
        self.gate = threading.Event()
        self.named: dict[int, str] = {}
        self.read_by_writer: set[str] = set()

    def open(self, name: str) -> int:
        handle = super().open(name)
        self.named[handle] = name
        return handle

    def sync(self, handle: int) -> None:
        if self.slow.is_set():
            self.slow.clear()
            self.gate.wait()
        super().sync(handle)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        if self.slow_read.is_set() and not threading.current_thread().name.startswith("asyncio"):  # not while files are copied ahead
            self.slow_read.clear()
            self.gate.wait()
        if threading.current_thread().name.startswith("titanic"):
            self.read_by_writer.add(self.named[handle])
        return super().read(handle, size, offset)


@asynccontextmanager
async def store(
    disk: titanic.RealDisk, endpoint: str, timeout_s: float = 30.0, terms: MirrorTerms | None = None, go_on: bool = False
) -> AsyncIterator[titanic.Store]:
    line = MirrorLine(endpoint, timeout_s=timeout_s, terms=terms)
    async with titanic.Store(disk, OPTIONS, mirror=line, go_on=go_on) as opened:
        yield opened


@asynccontextmanager
async def mirrored(disk: titanic.RealDisk, endpoint: str, **options: Any) -> AsyncIterator[tuple[Octets, titanic.Store]]:
    """Begin with a mirror, and end without it: the store does not wait for it then."""
    async with store(disk, endpoint, **options) as opened, octets(endpoint) as mirror:
        yield mirror, opened


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/mirror"


@pytest.fixture
def disk(tmp_path: Path) -> GatedDisk:
    return GatedDisk(tmp_path / "a")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("titanic.mirror.replica_link.RETRY_S", 0.01)
    monkeypatch.setattr("titanic.mirror.mirrored_disk.WAIT_S", 1000.0)  # the line says when something has changed


def terms(window_s: float = 1000.0, *, pulse_s: float = 0.001, alone: bool = False, serves: bool = True) -> MirrorTerms:
    return MirrorTerms(window_s, pulse_s, alone, lambda: serves)


def line_of(stored: titanic.Store) -> MirrorLine:
    assert stored.mirror is not None
    return stored.mirror


async def is_in_state(stored: titanic.Store, state: str, reason: str = "") -> None:
    await eventually(lambda: (line_of(stored).state, line_of(stored).reason) == (state, reason))


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


# ---- in a pair


async def test_each_pulse_is_sent_when_the_one_before_was_answered(endpoint: str, disk: GatedDisk) -> None:
    async with mirrored(disk, endpoint, terms=terms(7.5), go_on=True) as (mirror, stored):
        await mirror.followed()
        await is_in_state(stored, "in step")
        for number in (1, 2, 3):
            pulse = await mirror.next()
            assert (int.from_bytes(pulse.number, "big"), pulse.call, pulse.arguments) == (number, b"pulse", (b"7500",))
            if number == 2:
                await mirror.answer(pulse._replace(number=(1).to_bytes(8, "big")), b"pulse")  # not this one
                for _ in range(20):  # many times the pause between two pulses
                    accepted = asyncio.ensure_future(submitted(stored, b"x"))
                    while (said := await mirror.next()).call not in (b"sync", b"pulse"):
                        pass
                    assert said.call == b"sync"
                    await mirror.socket.send_multipart([said.peer, said.session, said.number, b"ok"])  # the detail may be left out
                    assert (await accepted)[0] == b"200"
            await mirror.answer(pulse, b"pulse")
        line_of(stored).end()


async def test_each_answer_to_a_pulse_puts_off_the_moment_to_go_on_alone(
    endpoint: str, disk: GatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("titanic.mirror.replica_link.boot_clock", lambda: now)
    async with mirrored(disk, endpoint, terms=terms(10.0), go_on=True) as (mirror, stored):
        line = line_of(stored)
        await mirror.followed()
        first = await mirror.next(b"pulse")
        now = 110.0
        assert not line.may_go_alone()
        now = 110.3
        assert line.may_go_alone()
        now = 108.0
        await mirror.answer(first, b"pulse")
        await mirror.next(b"pulse")  # the answer has arrived
        now = 118.0
        assert not line.may_go_alone()
        now = 118.3
        assert line.may_go_alone()
        line.end()


async def test_pulses_begin_anew_on_a_new_connection(endpoint: str, disk: GatedDisk) -> None:
    """The one before was never answered."""
    async with mirrored(disk, endpoint, terms=terms(), go_on=True) as (mirror, stored):
        for session in (1, 2):
            await mirror.followed()
            pulse = await mirror.next(b"pulse")
            assert int.from_bytes(pulse.session, "big") == session
            await mirror.answer(pulse._replace(session=(9).to_bytes(8, "big")), b"pulse")
            await mirror.answer(pulse, b"no", b"ended")
            await is_in_state(stored, "away", "ended")
        await mirror.followed()


@pytest.mark.parametrize(
    ("made", "alone"),
    [
        (terms(alone=True), True),  # from the beginning: the mirror was not in step when this half was last the store
        (terms(0.001), True),  # the mirror may not take over any more
        (terms(), False),
        (terms(0.001, serves=False), False),
    ],
)
async def test_a_store_acknowledges_alone_when_its_mirror_may_not_take_over(
    endpoint: str, disk: GatedDisk, made: MirrorTerms, alone: bool
) -> None:
    async with store(disk, endpoint, terms=made, go_on=True) as stored:
        if not made.alone:
            async with octets(endpoint) as mirror:
                await mirror.followed()
                await is_in_state(stored, "in step")
            await is_in_state(stored, "away", "the connection ended")
        accepted = asyncio.ensure_future(submitted(stored, b"x"))
        if alone:
            assert (await accepted)[0] == b"200"
            assert line_of(stored).state == "away"
        else:
            async with octets(endpoint) as mirror:
                await mirror.greeted()
                swap = await mirror.copied()
                assert not accepted.done()
                await mirror.answer(swap)
                assert (await accepted)[0] == b"200"
                line_of(stored).end()


async def test_before_its_mirror_was_there_a_store_of_a_pair_does_not_serve(endpoint: str, disk: GatedDisk) -> None:
    async with store(disk, endpoint, terms=terms(0.0), go_on=True) as stored:
        served = asyncio.ensure_future(stored.wait_for_mirror())
        async with octets(endpoint) as mirror:
            await mirror.greeted()
            swap = await mirror.copied()
            assert not served.done()
            await mirror.answer(swap)
            await served


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


async def test_each_change_of_its_state_is_logged_once(endpoint: str, disk: GatedDisk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "titanic")
    async with mirrored(disk, endpoint) as (mirror, stored):
        await mirror.answer(await mirror.next(b"hello"), b"no", b"not now")
        await mirror.followed()
        await is_in_state(stored, "in step")
        line_of(stored).end()
        said = [(record.levelname, record.getMessage()) for record in caplog.records if record.getMessage().startswith("mirror ")]
        assert said == [
            ("WARNING", f"mirror {endpoint} is catching up"),
            ("WARNING", f"mirror {endpoint} is away: not now"),
            ("WARNING", f"mirror {endpoint} is catching up"),
            ("INFO", f"mirror {endpoint} is in step"),
        ]
