"""Messages that were taken, dropped or put back are kept nowhere."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from typing import Any

import pytest

import core
from tests.core.sockets.test_receiving import RECEIVES, context, pair

__all__ = ["context"]


async def result_of(receive: Any) -> object:
    return await receive


@pytest.mark.parametrize("name", [*RECEIVES, "recv_many"])
@pytest.mark.parametrize("waits", ["", "receives", "tasks"])
async def test_a_message_that_was_received_is_kept_nowhere(context: core.Context, name: str, waits: str) -> None:
    one, other = pair(context, core.PULL, core.PUSH)
    receive = RECEIVES.get(name, core.Socket.recv_many)
    body = bytes(1000)
    before = sys.getrefcount(body)
    for count in (2, 1, 1):
        if waits:
            receives = [asyncio.create_task(result_of(receive(one))) if waits == "tasks" else receive(one) for _ in range(count)]
            await asyncio.sleep(0)
            await other.send_many([[body]] * count)
            for each in receives:
                await each
            del receives, each
        else:
            await other.send_many([[body]] * count)
            for _ in range(1 if name == "recv_many" else count):
                await receive(one)
        await asyncio.sleep(0)
        assert sys.getrefcount(body) == before


@pytest.mark.parametrize("name", [*RECEIVES, "recv_many"])
async def test_a_receive_that_its_program_dropped_keeps_no_message(context: core.Context, name: str) -> None:
    """Neither its own, nor that of a receive that is cancelled later."""
    one, other = pair(context, core.PULL, core.PUSH)
    receive = RECEIVES.get(name, core.Socket.recv_many)
    body = bytes(1000)
    before = sys.getrefcount(body)
    first, dropped = one.recv(), receive(one)
    await other.send(b"first")
    await other.send(body)
    del dropped
    gc.collect()
    assert sys.getrefcount(body) == before
    assert first.cancel()
    assert await one.recv() == b"first"


async def test_what_a_cancelled_receive_had_is_kept_nowhere(context: core.Context) -> None:
    one, other = pair(context, core.PULL, core.PUSH)
    body = bytes(1000)
    before = sys.getrefcount(body)
    waits: Any = one.recv_multipart()
    task = asyncio.ensure_future(asyncio.wait([waits]))
    await asyncio.sleep(0)
    await other.send(body)
    await task
    assert waits.cancel()
    assert one.recv_multipart(core.NOBLOCK).result() == [body]
    del waits, task
    await asyncio.sleep(0)
    gc.collect()
    assert sys.getrefcount(body) == before


async def test_receives_whose_results_nothing_takes_cost_no_more_each(context: core.Context) -> None:
    """Those that are dropped leave nothing behind, and those that are kept are not looked through each time."""
    one, other = pair(context, core.PULL, core.PUSH, rcvhwm=0)

    def references() -> int:
        gc.collect()
        return sum(type(each) is weakref.ref for each in gc.get_objects())

    before = references()
    for _ in range(10):
        for _ in range(100):
            one.recv_multipart()
            await other.send(b"x")
        gc.collect()
    assert references() < before + 300
    kept = []
    for _ in range(20_000):
        kept.append(one.recv_multipart())
        await other.send(b"x")
    assert kept[0].cancel()
    assert not kept[-1].cancelled()
    assert [receive.result() for receive in kept[1:]] == [[b"x"]] * (len(kept) - 1)
