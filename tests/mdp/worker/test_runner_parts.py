"""Handlers that are generators: their parts are sent or kept, bounded, and never block the event loop."""

from __future__ import annotations

import asyncio
from itertools import repeat
from typing import TYPE_CHECKING

import pytest

from mdp.worker.handler import HandlerKind, PartsTooLarge
from mdp.worker.runners import FRAME_OVERHEAD_BYTES
from tests.scenes.mdp_runners import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mdp.request import Request


@pytest.mark.parametrize("in_parts", [True, False])
async def test_a_generator_that_never_waits_lets_the_loop_go_on(in_parts: bool) -> None:
    """Neither its body nor the wait for capacity yields to the loop, and without that it could not be cancelled."""
    others_had_a_turn: list[bool] = []

    async def hurry(request: Request) -> AsyncIterator[bytes]:
        if request.body[0] != b"warm":
            asyncio.get_running_loop().call_soon(others_had_a_turn.append, True)
            for _ in repeat(None, 2_000_000):  # an end, so that without a turn the test fails and does not hang
                if others_had_a_turn:
                    break
                yield b"x"

    async with Stage(hurry, kind=HandlerKind.GENERATOR) as stage:
        stage.session.can_send_parts = in_parts
        stage.give(stage.request())
        await stage.done()
        assert others_had_a_turn
        assert 0 < (stage.session.parts if in_parts else len(stage.session.answers[0])) < 2_000_000


async def test_an_endless_generator_that_never_waits_is_cancelled() -> None:
    async def endless(request: Request) -> AsyncIterator[bytes]:
        if request.body[0] != b"warm":
            asyncio.get_running_loop().call_soon(stage.runners.drop, request)
            while True:
                yield b"x"

    async with Stage(endless, kind=HandlerKind.GENERATOR) as stage:
        stage.give(stage.request())
        await stage.done()
        assert (stage.session.answers, stage.session.refusals) == ([], ["CANCELLED"])


@pytest.mark.parametrize("part", [b"", b"x" * 100, [b"", b"xy", b""]])
async def test_what_a_generator_yields_is_kept_up_to_a_limit_where_parts_cannot_be_sent(part: bytes | list[bytes]) -> None:
    """MDP-43. Frames without octets are limited too: each costs what an object costs."""
    limit = 10_000
    frames = [part] if isinstance(part, bytes) else part
    fit = limit // sum(len(frame) + FRAME_OVERHEAD_BYTES for frame in frames)
    closed: list[int] = []

    async def yields(request: Request) -> AsyncIterator[bytes | list[bytes]]:
        count = 0
        try:
            while count < int(request.body[0]):
                count += 1
                yield part
        finally:
            closed.append(count)

    stage = Stage(yields, kind=HandlerKind.GENERATOR, parts_max_bytes=limit)
    stage.session.can_send_parts = stage.session.can_refuse = False
    for asked_for in (fit, 10**9, fit):
        stage.give(stage.request(b"%d" % asked_for))
        await stage.done()
    await stage.runners.close()
    assert closed == [fit, fit + 1, fit]
    assert stage.session.answers == [frames * fit, frames * fit]
    assert [type(error) for error in stage.given_back] == [PartsTooLarge]
    assert isinstance(error := stage.given_back[0], PartsTooLarge)
    assert error.limit_bytes == limit
    counters = stage.runners.counters
    assert (counters.handled, counters.errors, counters.lost, counters.parts_dropped) == (2, 1, 1, 1)


async def test_parts_that_can_be_sent_have_no_limit() -> None:
    limit, count = 10_000, 300

    async def yields(request: Request) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"x" * 100

    stage = Stage(yields, kind=HandlerKind.GENERATOR, parts_max_bytes=limit)
    stage.give(stage.request())
    await stage.done()
    await stage.runners.close()
    assert (stage.session.parts, stage.session.answers, stage.given_back) == (count, [(b"",)], [])
    assert stage.runners.counters.parts_dropped == 0


async def test_a_part_waits_for_capacity() -> None:
    async def parts(request: Request) -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"%d" % number

    stage = Stage(parts, 1, kind=HandlerKind.GENERATOR)
    stage.room.clear()
    stage.give(stage.request())
    for _ in range(20):
        await asyncio.sleep(0)
    assert stage.session.parts <= 1
    assert stage.session.answers == []
    stage.room.set()
    await stage.done()
    assert len(stage.session.answers) == 1
    await stage.runners.close()
