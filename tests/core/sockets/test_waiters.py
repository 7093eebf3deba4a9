"""core.sockets.waiters: receives, sends and polls that ended while they waited leave nothing behind.

Programs wait with a time limit in a loop, for days: a socket that is quiet must not keep each of these waits.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest

import core

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
