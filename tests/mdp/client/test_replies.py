"""Ends of requests as callers get them: once each, with their numbers, and nothing is kept of them."""

from __future__ import annotations

import asyncio
import gc
from time import monotonic
from typing import TYPE_CHECKING, Self

import pytest

from core.runtime import supervision
from core.runtime.supervision import Supervisor
from mdp.client.client import Client
from mdp.client.replies import Outcome, PendingSlot
from mdp.wire.commands import CLIENT_FINAL_03, CLIENT_PARTIAL_03
from mdp.wire.options import decode_request_options
from tests.scenes.mdp_scripted_broker import StandIn, number, sent_together
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mdp.errors import RequestError

REPLY = [b"a", b"b", b"c"]


async def answer(stand_in: StandIn, peer: bytes, request: list[bytes], client: Client) -> None:
    """Send a reply in parts: one alone, then one with the end."""
    heads = [CLIENT_PARTIAL_03 + number(request)] * 2 + [CLIENT_FINAL_03 + number(request)]
    first, *others = ([head, frame] for head, frame in zip(heads, REPLY, strict=True))
    stand_in.send_together(peer, first)
    marker = client.request("echo", b"marker")
    _, other = await stand_in.next()
    stand_in.send(peer, CLIENT_FINAL_03 + number(other), b"marker")
    assert await marker == [b"marker"]
    stand_in.send_together(peer, *others)


async def test_the_callback_of_a_reply_in_parts_is_called_at_its_end(stand_in: StandIn) -> None:
    told: list[tuple[str, list[bytes] | None, RequestError | None]] = []
    async with Client(stand_in.endpoint) as client:
        client.ask("echo", [b"x"], lambda *ends: told.append(ends), "x")
        await answer(stand_in, *await stand_in.next(), client)
        last = client.request("echo", b"last")
        peer, request = await stand_in.next()
        stand_in.send(peer, CLIENT_FINAL_03 + number(request), b"y")
        assert await last == [b"y"]
        assert told == [("x", REPLY, None)]


async def test_the_outcome_of_a_reply_in_parts_is_there_at_its_end(stand_in: StandIn) -> None:
    ended = asyncio.Event()
    async with Client(stand_in.endpoint) as client:
        window = client.open_window("echo", ended.set)
        begun = monotonic()
        window.send([b"x"])
        await answer(stand_in, *await stand_in.next(), client)
        await ended.wait()
        (outcome,) = window.take()
        assert (outcome.index, outcome.reply, outcome.error, outcome.attempts) == (0, REPLY, None, 1)
        assert 0 <= outcome.latency_s <= monotonic() - begun
        gc.collect()
        assert [one for one in gc.get_objects() if isinstance(one, PendingSlot)] == []


async def test_an_outcome_of_map_says_how_long_it_took(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        begun = monotonic()
        outcomes = client.map("echo", [b"x"])
        first = asyncio.ensure_future(anext(outcomes))
        await answer(stand_in, *await stand_in.next(), client)
        outcome = await first
        assert (outcome.index, outcome.reply, outcome.error, outcome.attempts) == (0, REPLY, None, 1)
        assert 0 <= outcome.latency_s <= monotonic() - begun
        await outcomes.aclose()


async def test_a_window_sends_nothing_where_keys_are_missing(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        window = client.open_window("echo", lambda: None)
        with pytest.raises(ValueError, match="shorter"):
            window.send([b"x", b"y"], ["key"])
        assert window.send([b"z"]) == 0
        assert (await stand_in.next())[1][-1] == b"z"


@pytest.mark.faults
async def test_a_window_that_is_withdrawn_gets_nothing_of_a_request_that_was_too_large() -> None:
    supervisor, ended = Supervisor(), list[asyncio.Future[None]]()
    with supervision.scope(supervisor):
        async with StandIn(tells=True, largest=1000) as broker, Client(broker.endpoint, window=1, heartbeat_ms=1e5) as client:
            window = client.open_window("echo", lambda: ended.append(asyncio.ensure_future(window.withdraw())))
            window.send([b"x", b"x" * 1001])
            peer, asked = await broker.next()
            broker.send(peer, CLIENT_FINAL_03 + number(asked), b"y")
            await eventually(lambda: client.counters.too_large and not client._engine.machine.refused)
            assert [outcome.reply for outcome in window.take()] == [[b"y"]]
            assert len(ended) == 1
    assert supervisor.faults == {}


class Bodies:
    """An iterator that counts how often it has said that it is at its end."""

    def __init__(self, count: int) -> None:
        self.left = [b"%d" % index for index in range(count)]
        self.ends = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if not self.left:
            self.ends += 1
            raise StopIteration
        return self.left.pop(0)


@pytest.mark.parametrize("sizes", [[12, 3, 3, 3, 3], [2, 1, 1]])
async def test_map_refills_its_window_by_a_quarter(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    bodies = Bodies(sum(sizes))
    async with Client(stand_in.endpoint) as client:
        await eventually(lambda: client.connected)
        sent = sent_together(monkeypatch)
        outcomes = client.map("echo", bodies, window=sizes[0], key=lambda index: f"key-{index}")
        reading = asyncio.ensure_future(collected(outcomes))
        asked: list[list[bytes]] = []
        for count in (sizes[0], sum(sizes[1:])):
            some = [await stand_in.next() for _ in range(count)]
            asked += [request for _, request in some]
            stand_in.send_together(some[0][0], *([CLIENT_FINAL_03 + number(request), request[-1]] for _, request in some))
        assert [(outcome.index, outcome.reply) for outcome in await reading] == [(n, [b"%d" % n]) for n in range(sum(sizes))]
    assert [decode_request_options(request[2]).key for request in asked] == [b"key-%d" % n for n in range(sum(sizes))]
    assert (sent, bodies.ends) == (sizes, 1)


async def test_map_refills_its_window_before_it_waits_for_the_oldest(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        outcomes = client.map("echo", [b"%d" % index for index in range(20)], window=12)
        reading = asyncio.ensure_future(anext(outcomes))
        asked = [await stand_in.next() for _ in range(12)]
        stand_in.send_together(asked[0][0], *([CLIENT_FINAL_03 + number(asked[at][1]), b"y"] for at in (0, 2, 11)))
        assert (await reading).index == 0
        reading = asyncio.ensure_future(anext(outcomes))
        assert (await stand_in.next())[1][-1] == b"12"
        reading.cancel()
        await asyncio.wait([reading])


async def collected(outcomes: AsyncGenerator[Outcome, None]) -> list[Outcome]:
    return [outcome async for outcome in outcomes]
