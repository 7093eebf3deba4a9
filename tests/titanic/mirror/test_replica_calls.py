"""A mirror and a store that is made of octets: what is answered, to whom, and what is counted."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import core
from tests.scenes.waiting import eventually
from tests.sim.disk import SimDisk
from titanic.errors import JournalError, Wounded
from titanic.journal.ownership import MARK_NAME, Mark, Step
from titanic.mirror.replica_server import Mirror
from titanic.mirror.succession import LeaseEstimate
from titanic.wire.mirror_frames import Hello, Swap, pack_pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STORE = b"s" * 16
ONE = b"000000000001.seg"
HELLO = Hello(STORE, 3, False).encode()


def in_step(*, paired: bool = False) -> SimDisk:
    return SimDisk({MARK_NAME: Mark("mirror", 3, Step.IN_STEP, store=STORE, paired=paired).encode(), ONE.decode(): b"one"})


class Peer:
    """A store: its calls are numbered."""

    def __init__(self, socket: core.Socket, session: int) -> None:
        self.socket = socket
        self.session = session
        self.number = 0

    async def say(self, *frames: bytes) -> None:
        self.number += 1
        await self.socket.send_multipart([*pack_pair(self.session, self.number), *frames])

    async def heard(self) -> list[bytes]:
        """Return the next answer, which is to the newest call."""
        session, number, *frames = await self.socket.recv_multipart()
        assert [session, number] == pack_pair(self.session, self.number)
        return frames

    async def ask(self, *frames: bytes) -> list[bytes]:
        await self.say(*frames)
        return await self.heard()


@asynccontextmanager
async def serving(disk: SimDisk, **options: Any) -> AsyncIterator[tuple[Mirror, core.Context, str]]:
    async with core.Context() as context:
        async with Mirror(disk, context=context, **options) as mirror:
            yield mirror, context, mirror.bind("inproc://mirror")
        assert "0 open sockets" in repr(context)
        assert (disk.locked, disk._handles) == (False, {})


@asynccontextmanager
async def peer(context: core.Context, endpoint: str, session: int = 1) -> AsyncIterator[Peer]:
    async with context.socket(core.DEALER, linger=0) as socket:
        socket.connect(endpoint)
        yield Peer(socket, session)


async def test_calls_are_answered_when_they_are_synced() -> None:
    disk = in_step()
    async with serving(disk) as (mirror, context, endpoint):
        assert (mirror.connected, mirror.lacks()) == (False, "no store")
        async with peer(context, endpoint, 7) as store:
            said, detail = await store.ask(b"hello", HELLO)
            assert (said, set(msgpack.unpackb(detail))) == (b"ok", {ONE.decode()})
            await store.say(b"write", ONE, b"0", b"O")
            assert await store.ask(b"sync", ONE) == [b"ok", b""]
            assert await store.ask(b"sync_directory") == [b"ok", b""]
            assert await store.ask(b"copy", ONE, b"0", b"two") == [b"ok", b""]
            assert await store.ask(b"swap", Swap({ONE.decode(): 3}, [ONE.decode()], 4, STORE).encode()) == [b"ok", b""]
            assert (mirror.connected, mirror.lacks()) == (True, "")
            octets = 6 * 16 + sum(map(len, (b"hello", HELLO, b"write", ONE, b"0", b"O", b"sync", ONE, b"sync_directory")))
            octets += sum(map(len, (b"copy", ONE, b"0", b"two", b"swap", Swap({ONE.decode(): 3}, [ONE.decode()], 4, STORE).encode())))
            assert mirror.figures == {
                **mirror.status, "calls": 6, "octets": octets, "sessions": 1, "refused": 0, "failed": 0,
            }  # fmt: skip
            assert mirror.status == {"step": "in step", "epoch": 4, "store": STORE.hex(), "connected": True}
        await eventually(lambda: not mirror.connected)
        assert mirror.lacks() == "no store"
    assert disk.survivors()[ONE.decode()] == b"two"


async def test_a_directory_is_free_when_the_last_call_is_done() -> None:
    """Not before: the next process may open it at once."""
    disk, gate = in_step(), threading.Event()
    async with core.Context() as context:
        mirror = await Mirror(disk, context=context).__aenter__()
        async with peer(context, mirror.bind("inproc://mirror")) as store:
            await store.ask(b"hello", HELLO)
            disk.before = lambda _: (gate.wait(), None)[1]
            await store.say(b"write", ONE, b"0", b"O")
            await eventually(lambda: disk._handles)
        ended = asyncio.ensure_future(mirror.__aexit__(None, None, None))
        await eventually(lambda: "0 open sockets" in repr(context))
        for _ in range(10):
            await asyncio.sleep(0)
        assert disk.locked
        gate.set()
        await ended
        assert (disk.locked, disk._handles) == (False, {})


async def test_after_a_call_that_failed_nothing_is_done_before_the_next_hello(caplog: pytest.LogCaptureFixture) -> None:
    disk = in_step()
    async with serving(disk) as (mirror, context, endpoint), peer(context, endpoint) as store:
        await store.ask(b"hello", HELLO)
        word, reason = await store.ask(b"unlink", b"../x")
        assert (word, b"not a file name" in reason) == (b"no", True)
        await store.say(b"write", ONE, b"0", b"O")
        await store.say(b"sync", ONE)
        assert (await store.ask(b"hello", HELLO))[0] == b"ok"
        assert await store.ask(b"sync", ONE) == [b"ok", b""]
        assert (mirror.failed, mirror.sessions) == (1, 2)
        assert "mirror: not a file name: '../x'" in caplog.text
    assert disk.survivors()[ONE.decode()] == b"one"


async def test_a_reason_is_not_longer_than_a_line() -> None:
    async with serving(in_step()) as (_, context, endpoint), peer(context, endpoint) as store:
        await store.ask(b"hello", HELLO)
        word, reason = await store.ask(b"unlink", b"x" * 5000)
        assert (word, len(reason)) == (b"no", 1000)


async def test_a_hello_that_is_refused_is_answered_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(in_step()) as (mirror, context, endpoint), peer(context, endpoint) as store, peer(context, endpoint, 9) as other:
        await store.ask(b"hello", HELLO)
        word, reason = await other.ask(b"hello", Hello(b"o" * 16, 3, False).encode())
        assert (word, reason) == (b"no", b"this mirror is of another store")
        await other.socket.send_multipart([b"short", b"", b"hello", HELLO])
        assert (await other.socket.recv_multipart())[:3] == [*pack_pair(0, 0), b"no"]
        assert await store.ask(b"sync", ONE) == [b"ok", b""]
        assert (mirror.sessions, mirror.refused, mirror.calls) == (1, 2, 2)
        assert "mirror: this mirror is of another store" in caplog.text


async def test_calls_of_a_store_that_another_has_replaced_are_dropped() -> None:
    disk = in_step()
    async with serving(disk) as (mirror, context, endpoint), peer(context, endpoint) as old, peer(context, endpoint, 2) as new:
        await old.ask(b"hello", HELLO)
        assert (await new.ask(b"hello", HELLO))[0] == b"ok"
        await old.say(b"write", ONE, b"0", b"O")
        await eventually(lambda: mirror.refused)
        await new.say(b"write", ONE, b"1", b"N")
        assert await new.ask(b"sync", ONE) == [b"ok", b""]
        assert (mirror.refused, mirror.sessions) == (1, 2)
        old.socket.close(linger=0)
        await old.socket.wait_closed()
        assert mirror.connected
    assert disk.survivors()[ONE.decode()] == b"oNe"


async def test_what_is_no_call_ends_the_session_of_the_store_alone() -> None:
    async with serving(in_step()) as (mirror, context, endpoint), peer(context, endpoint) as store:
        await store.socket.send_multipart([b"x"])
        await store.socket.send_multipart(pack_pair(1, 1))
        await eventually(lambda: mirror.refused == 2)
        for frames in ([b"x"], pack_pair(1, 1)):
            await store.ask(b"hello", HELLO)
            await store.socket.send_multipart(frames)
            assert (await store.socket.recv_multipart())[:3] == [*pack_pair(0, 0), b"no"]
        assert (await store.ask(b"hello", HELLO))[0] == b"ok"


async def test_a_promise_ends_with_the_next_hello_and_is_given_in_step_only() -> None:
    async with serving(in_step(paired=True), paired=True) as (mirror, context, endpoint):
        async with peer(context, endpoint) as store, peer(context, endpoint, 2) as other:
            await other.say(b"pulse", b"5000")  # of no store: no answer
            await store.ask(b"hello", HELLO)
            assert await store.ask(b"pulse", b"5000") == [b"pulse"]
            first = mirror.lease.said_at
            assert first is not None
            assert not mirror.lease.holds(first)
            assert await store.ask(b"pulse", b"7000") == [b"pulse"]
            assert mirror.lease.until == first + 7.0
            await store.say(b"pulse", b"12345678")  # not believed
            await eventually(lambda: mirror.refused == 1)
            await store.ask(b"hello", HELLO)
            assert mirror.lease == LeaseEstimate()
            word, _ = await store.ask(b"hello", Hello(STORE, 3, True).encode())
            assert (word, mirror.replica.mark.step) == (b"ok", Step.BEHIND)
            await store.say(b"pulse", b"5000")
            assert await store.ask(b"sync", ONE) == [b"ok", b""]  # nothing was answered to the pulse
            assert mirror.lease == LeaseEstimate()
            assert mirror.calls == 4


@pytest.mark.faults
async def test_a_thread_that_ends_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        pass

    disk = in_step()
    async with serving(disk) as (mirror, context, endpoint), peer(context, endpoint) as store:
        await store.ask(b"hello", HELLO)

        def sync(_: int) -> None:
            raise Broken("a fault")

        monkeypatch.setattr(disk, "sync", sync)
        await store.say(b"sync", ONE)
        with pytest.raises(Wounded, match="thread has ended: Broken: a fault"):
            await mirror.until_failed()
    assert not disk.locked


async def test_a_directory_that_cannot_be_a_mirror_is_not_kept_locked() -> None:
    disk = SimDisk({MARK_NAME: b"garbage"})
    with pytest.raises(JournalError):
        await Mirror(disk).__aenter__()
    assert not disk.locked
    disk = SimDisk({"manifest": b"of a store"})
    with pytest.raises(JournalError, match="--take-over"):
        await Mirror(disk).__aenter__()
    async with serving(disk, take_over=True) as (mirror, *_):
        assert mirror.replica.mark.step is Step.EMPTY
        assert disk.locked


async def test_each_change_of_its_state_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "titanic")
    async with serving(in_step()) as (mirror, context, endpoint):
        async with peer(context, endpoint) as store:
            await store.ask(b"hello", Hello(STORE, 3, True).encode())
            await store.ask(b"sync", ONE)
            await store.ask(b"swap", Swap({ONE.decode(): 3}, [], 3, STORE).encode())
        await eventually(lambda: not mirror.connected)
    said = [record.getMessage() for record in caplog.records if record.name == "titanic"]
    assert said == ["mirror: behind", "mirror: in step", "the store is gone; this mirror is in step"]
