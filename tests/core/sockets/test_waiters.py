"""core.sockets.waiters: what waits ends in time, and leaves nothing behind.

Programs wait with a time limit in a loop, for days: a socket that is quiet must not keep each of these waits.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from socket import socketpair
from typing import TYPE_CHECKING, Any

import pytest

import core
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, TOGETHER = 20, 30
WAITS: dict[str, Callable[[core.Socket, core.Socket], Any]] = {
    "a receive": lambda quiet, _: quiet.recv_multipart(),
    "a receive of a frame": lambda quiet, _: quiet.recv(),
    "a receive of all": lambda quiet, _: quiet.recv_many(),
    "a poll": lambda quiet, _: quiet.poll(1),
    "a poll of two": lambda quiet, full: poller(quiet, full).poll(1),
    "a send": lambda _, full: full.send(b"x"),
    "sends": lambda _, full: full.send_many([[b"x"], [b"y"]]),
}


def poller(*sockets: core.Socket) -> core.Poller:
    made = core.Poller()
    for socket in sockets:
        made.register(socket, core.POLLIN)
    return made


async def wait_in_rounds(wait: Callable[[], Any], *, cancelled: bool) -> None:
    for _ in range(ROUNDS):
        waits = [wait() for _ in range(TOGETHER)]
        if cancelled:
            await asyncio.sleep(0)
            for one in waits:
                one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "timed out"])
@pytest.mark.parametrize("name", WAITS)
async def test_waits_that_ended_are_forgotten(name: str, cancelled: bool) -> None:
    async with core.Context() as context:
        quiet, full = (context.socket(core.DEALER, linger=0) for _ in range(2))
        quiet.bind("inproc://quiet")
        first, poll = quiet.recv(), quiet.poll()  # these wait on, in front of all others
        if not cancelled:
            quiet.rcvtimeo = full.sndtimeo = 1
        await wait_in_rounds(lambda: WAITS[name](quiet, full), cancelled=cancelled)  # what is made once is made now
        gc.collect()
        before = sys.getallocatedblocks()
        await wait_in_rounds(lambda: WAITS[name](quiet, full), cancelled=cancelled)
        gc.collect()
        assert sys.getallocatedblocks() - before < ROUNDS * TOGETHER / 2
        peer = context.socket(core.DEALER, linger=0)
        peer.connect("inproc://quiet")
        await peer.send(b"hello")
        assert await first == b"hello"
        poll.cancel()


async def test_the_message_of_a_send_that_ended_is_freed_at_once() -> None:
    async with core.Context() as context:
        full, body = context.socket(core.PUSH, linger=0), b"x" * 1000
        refers = sys.getrefcount(body)
        for _ in range(3):
            full.send(body).cancel()
        full.sndtimeo = 1
        with pytest.raises(core.Again):
            await full.send(body)
        assert sys.getrefcount(body) == refers


async def test_a_batch_that_timed_out_says_how_many_were_sent() -> None:
    same = [b"again"]
    messages = [[b"1"], same, same, [b"4"], same]
    async with core.Context() as context:
        push = context.socket(core.PUSH, linger=0, sndtimeo=1, sndhwm=2)
        push.connect("tcp://127.0.0.1:9")  # nothing listens: as many as the mark allows wait there
        with pytest.raises(core.Again) as ended:
            await push.send_many(messages)
        assert ended.value.taken == 2


@in_virtual_time
async def test_a_poll_ends_when_its_time_is_over() -> None:
    loop = asyncio.get_running_loop()
    async with core.Context() as context:
        quiet, peer = context.socket(core.PULL, linger=0), context.socket(core.PUSH, linger=0)
        quiet.bind("inproc://quiet")
        began = loop.time()
        assert await quiet.poll(250) == 0
        assert loop.time() - began == pytest.approx(0.25)
        for many in (quiet.poll(0), quiet.poll(0, 0)):
            assert many.done()
            assert await many == 0
        assert loop.time() - began == pytest.approx(0.25)
        with pytest.raises(ValueError, match="nan"):
            await quiet.poll(float("nan"))
        waits = [quiet.poll(limit) for limit in (None, -1, -0.5, 10_000)]
        await asyncio.sleep(9)
        assert not any(one.done() for one in waits)
        peer.connect("inproc://quiet")
        await peer.send(b"x")
        assert await asyncio.gather(*waits) == [core.POLLIN] * 4
        assert loop.time() - began == pytest.approx(9.25)
        polled = quiet.poll(0, core.POLLOUT | core.POLLIN)
        assert polled.done()
        assert await polled == core.POLLIN


async def test_a_file_is_polled_and_left_alone_then() -> None:
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe()
    try:
        made = core.Poller()
        made.register(reading, core.POLLIN)
        waits = made.poll()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not loop.remove_writer(reading)  # nothing is waited for that was not asked for
        os.write(writing, b"x")
        assert await waits == [(reading, core.POLLIN)]
        assert not loop.remove_reader(reading)
        os.read(reading, 1)
        waits = made.poll()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.wait([waits])
        assert not loop.remove_reader(reading)
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_file_is_writable_when_its_reader_has_read() -> None:
    loop = asyncio.get_running_loop()
    one, other = socketpair()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        sent = 0
        try:
            while True:
                sent += one.send(bytes(1 << 16))
        except BlockingIOError:
            pass
        made = core.Poller()
        made.register(one, core.POLLOUT)
        waits = made.poll()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waits.done()
        assert not loop.remove_reader(one.fileno())
        while sent:
            sent -= len(other.recv(sent))
        assert await waits == [(one.fileno(), core.POLLOUT)]
        assert not loop.remove_writer(one.fileno())


async def test_every_poll_of_a_file_sees_its_events() -> None:
    """Such as threads with blocking sockets, and one file that tells all of them to end."""
    reading, writing = socketpair()
    with reading, writing, core.Context() as context, context.socket(core.PULL) as quiet:

        def poll(flags: int, timeout: float | None = None) -> asyncio.Future[list[tuple[Any, int]]]:
            made = poller(quiet)
            made.register(reading, flags)
            return made.poll(timeout)

        writable = poll(core.POLLOUT)
        polls = [poll(core.POLLIN) for _ in range(3)]
        brief, given_up = poll(core.POLLIN, 1), poll(core.POLLIN)
        found = [(reading.fileno(), core.POLLOUT)]
        assert await writable == found
        assert await brief == []
        given_up.cancel()
        await asyncio.wait([given_up])
        assert not any(one.done() for one in polls)
        writing.send(b"end")
        assert await asyncio.gather(*polls) == [[(reading.fileno(), core.POLLIN)]] * 3
        assert await poll(core.POLLIN) == [(reading.fileno(), core.POLLIN)]
