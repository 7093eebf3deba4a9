"""core.net.writing: what leaves at once, what later, and how long the end of a stream waits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

import core
from core.errors import WrongOwner
from core.net import writing
from core.net.writing import write_parts
from tests.core.net.test_session import Seen, session_of, traffic
from tests.core.net.test_session_ends import OLD_1_0
from tests.scenes.builds import replaces_names
from tests.scenes.driven_session import HeldTransport
from tests.scenes.raw_octets import message
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

AT_ONCE = 4096  # messages that are translated in one iteration


class Filling(HeldTransport):
    """A transport that may be full after a write."""

    full: Callable[[], None] | None = None

    def write(self, data: Any) -> None:
        super().write(data)
        if self.full is not None:
            self.full()


def old(*numbers: range) -> bytes:
    """Return messages of ZMTP 1.0 that contain these numbers."""
    return b"".join(b"\x05\x00%04x" % (number & 0xFFFF) for each in numbers for number in each)


@asynccontextmanager
async def translating(**of_socket: Any) -> AsyncIterator[Seen]:
    """Yield the session of a peer of ZMTP 1.0, whose messages are translated; the transport is full."""
    async with session_of(core.PUSH, of_socket={"sndhwm": 0} | of_socket, oldest_zmtp=1) as seen:
        seen.transport = Filling(seen.held)
        seen.transport.set_protocol(cast("Any", seen.session))
        seen.__enter__()
        seen.says(OLD_1_0)
        await asyncio.sleep(0)
        seen.said()
        seen.session.pause_writing()
        yield seen


async def send(seen: Seen, numbers: range) -> None:
    for number in numbers:
        await seen.owner.send(b"%04x" % (number & 0xFFFF))


@in_virtual_time
async def test_what_takes_long_to_translate_leaves_over_some_iterations_each_part_once() -> None:
    count = 3 * AT_ONCE  # so that the second part ends where two thirds of it are
    async with translating() as seen:
        await send(seen, range(count))
        seen.session.resume_writing()
        assert seen.said() == old(range(AT_ONCE))
        await send(seen, range(count, count + 10))
        assert seen.said() == b""
        await asyncio.sleep(0)
        assert seen.said() == old(range(AT_ONCE, 2 * AT_ONCE))
        await asyncio.sleep(0)
        assert seen.said() == old(range(2 * AT_ONCE, count + 10))  # and what was queued behind it
        await asyncio.sleep(0)
        assert (seen.said(), seen.session.pipe.outbox) == (b"", [])


@in_virtual_time
async def test_what_waits_behind_a_part_is_not_taken_by_a_transport_that_is_full() -> None:
    async with translating() as seen:
        await send(seen, range(AT_ONCE + 100))
        seen.session.resume_writing()
        seen.said()
        await send(seen, range(10))
        assert isinstance(seen.transport, Filling)
        seen.transport.full = seen.session.pause_writing
        await asyncio.sleep(0)
        assert (seen.said(), len(seen.session.pipe.outbox)) == (old(range(AT_ONCE, AT_ONCE + 100)), 10)
        seen.session.resume_writing()
        await asyncio.sleep(0)
        assert (seen.said(), seen.session.pipe.outbox) == (old(range(10)), [])


@in_virtual_time
async def test_sock_05_there_is_capacity_when_the_outbox_was_taken() -> None:
    async with translating(sndhwm=2 * AT_ONCE + 1000) as seen:
        await send(seen, range(2 * AT_ONCE + 1000))
        waits = asyncio.ensure_future(seen.owner.send(b"last"))
        await asyncio.sleep(0)
        assert (seen.session.flush(), seen.session.pipe.waiting_for_capacity) == (False, True)
        seen.session.resume_writing()
        assert not seen.session.pipe.waiting_for_capacity
        await asyncio.sleep(0)
        assert waits.done()


@in_virtual_time
async def test_sock_05_there_is_none_while_earlier_messages_are_translated() -> None:
    mark = 2 * AT_ONCE + 1000
    async with translating(sndhwm=mark) as seen:
        await send(seen, range(mark))
        seen.session.resume_writing()
        await send(seen, range(mark))
        assert len(seen.session.pipe.outbox) == mark
        assert not seen.session.flush()
        assert len(seen.session.pipe.outbox) == mark
        assert seen.session.flush()
        assert seen.session.pipe.outbox == []


@in_virtual_time
async def test_sock_15_what_is_not_translated_yet_leaves_within_linger() -> None:
    async with translating() as seen:
        await send(seen, range(2 * AT_ONCE + 50))
        seen.session.close(None)
        assert (seen.said(), seen.end) == (old(range(AT_ONCE)), "")
        seen.session.pause_writing()
        seen.transport.waiting = 7
        assert seen.session.unwritten() == 7 + len(message(b"0000")) * (AT_ONCE + 50)
        seen.transport.waiting = 0
        await asyncio.sleep(5.0)
        assert (seen.said(), seen.end) == (b"", "")
        seen.session.resume_writing()
        assert (seen.said(), seen.end) == (old(range(AT_ONCE, 2 * AT_ONCE)), "")
        seen.session.pause_writing()
        await asyncio.sleep(0)
        seen.session.resume_writing()
        assert (seen.said(), seen.end) == (old(range(2 * AT_ONCE, 2 * AT_ONCE + 50)), "eof")
        assert seen.session.unwritten() == 0


@in_virtual_time
async def test_sock_15_linger_ends_when_it_says() -> None:
    for linger_s in (0.3, 2.5):
        async with traffic(core.PUSH, b"PULL") as seen:
            seen.transport.waiting = 1
            seen.session.close(linger_s)
            await asyncio.sleep(linger_s - 0.0001)
            assert seen.end == "eof"
            await asyncio.sleep(0.0002)
            assert seen.end == "aborted"


@in_virtual_time
async def test_answers_of_a_batch_leave_in_one_write_and_wait_where_something_was_written() -> None:
    async with traffic(core.DEALER, b"ROUTER") as seen:
        during: list[bytes] = []

        def answer(batch: Any) -> None:
            for _ in batch:
                seen.owner.send(b"answer")
                during.append(seen.transport.said)

        seen.owner.set_batch_receiver(answer)
        assert seen.says(message(b"1") + message(b"2")) == 2 * message(b"answer")
        assert during == [b"", b""]
        await seen.owner.send(b"more")
        assert seen.said() == b""  # one write in an iteration
        await asyncio.sleep(0)
        assert seen.said() == message(b"more")
        await asyncio.sleep(0)
        await seen.owner.send(b"first")
        assert seen.said() == message(b"first")
        seen.owner.scheduler.batching += 1
        await seen.owner.send(b"second")
        seen.owner.scheduler.end_batch()
        assert seen.said() == b""
        await asyncio.sleep(0)
        assert seen.said() == message(b"second")


@in_virtual_time
async def test_a_peer_whose_messages_are_not_taken_is_written_to_unless_it_has_ended() -> None:
    async with traffic(core.DEALER, b"ROUTER", of_socket={"rcvhwm": 1}) as seen:
        for body in (b"1", b"2", b"3"):
            seen.says(message(body))
        assert seen.session.pipe.throttled
        for body in (b"1", b"2"):
            await seen.owner.send(body)
        await asyncio.sleep(0)
        assert seen.said() == message(b"1") + message(b"2")
        await asyncio.sleep(0)
        seen.peer.close()
        for body in (b"3", b"4"):
            await seen.owner.send(body)
        await asyncio.sleep(0)
        assert seen.session.pipe.outbox[-1] == message(b"4")


@in_virtual_time
async def test_a_message_of_another_thread_is_refused() -> None:
    async with traffic(core.DEALER, b"ROUTER") as seen:
        with pytest.raises(WrongOwner):
            await asyncio.to_thread(seen.session.try_write, message(b"x"))
        assert seen.said() == b""


@replaces_names
@pytest.mark.parametrize("pauses", [True, False])
def test_parts_are_written_together_and_the_transport_pauses_its_protocol(pauses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Transport:
        calls: tuple[str, ...] = ()

        def writelines(self, parts: list[bytes]) -> None:
            self.calls += (f"writelines {parts!r}",)

        def set_write_buffer_limits(self) -> None:
            self.calls += ("limits",)

    monkeypatch.setattr(writing, "WRITELINES_PAUSES", pauses)
    transport = Transport()
    write_parts(cast("Any", transport), [b"a", b"b"])
    assert transport.calls == ("writelines [b'a', b'b']", *(() if pauses else ("limits",)))
