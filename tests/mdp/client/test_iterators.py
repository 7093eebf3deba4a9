from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest

import core
from mdp.broker.broker import Broker
from mdp.client.client import Client, Outcome
from mdp.errors import Busy, HandlerError, Overrun, Unreachable, WorkerLost
from mdp.wire.commands import CLIENT_CANCEL_03, CLIENT_FINAL_03, CLIENT_PARTIAL_03, HEAD_BYTES
from mdp.wire.options import decode_request_options
from mdp.worker.worker import Worker
from tests.scenes.mdp_handlers import NO_LISTENER, echo
from tests.scenes.mdp_scripted_broker import StandIn, number
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mdp.request import Request


# ------------------------------------------------------------------------------------------------------------------------------------- map


async def test_map_yields_outcomes_in_the_order_of_the_iterable(endpoint: str) -> None:
    async def odd(request: Request) -> list[bytes]:
        await asyncio.sleep(0.001 * (int(request.body[0]) % 4))
        if request.body[0].endswith(b"7"):
            raise ValueError
        return request.body

    bodies: list[Any] = [b"%d" % n if n % 2 else [b"%d" % n, b"more"] for n in range(500)]
    async with Worker(endpoint, "odd", handler=odd, concurrency=20), Client(endpoint) as client:
        outcomes = [outcome async for outcome in client.map("odd", bodies, window=37, wait=True)]
    assert [outcome.index for outcome in outcomes] == [*range(500)]
    for n, outcome in enumerate(outcomes):
        assert outcome.attempts == 1
        assert outcome.latency_s > 0
        if n % 10 == 7:
            assert outcome.reply is None
            assert isinstance(outcome.error, HandlerError)
        else:
            assert outcome.error is None
            assert outcome.reply == ([b"%d" % n] if n % 2 else [b"%d" % n, b"more"])


@pytest.mark.parametrize("window", [1, 2, 7, 256])
async def test_map_has_no_more_than_its_window_in_flight_and_reads_no_further(endpoint: str, window: int) -> None:
    read = yielded = peak = 0

    def bodies() -> Iterator[bytes]:
        nonlocal read
        for n in range(300):
            read += 1
            yield b"%d" % n

    async with Worker(endpoint, "echo", handler=echo), Client(endpoint) as client:
        async for outcome in client.map("echo", bodies(), window=window, wait=True):
            assert outcome.reply == [b"%d" % yielded]
            peak = max(peak, read - yielded)
            yielded += 1
    assert (read, yielded) == (300, 300)
    assert peak <= window


@pytest.mark.parametrize("count", [0, 1, 256, 257])
async def test_map_ends_with_its_iterable(endpoint: str, count: int) -> None:
    async with Worker(endpoint, "echo", handler=echo), Client(endpoint) as client:
        outcomes = [outcome async for outcome in client.map("echo", [b"x"] * count, wait=True)]
    assert len(outcomes) == count


async def test_leaving_map_early_cancels_what_is_in_flight(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        outcomes = client.map("echo", (b"%d" % n for n in range(100)), window=10)
        first = asyncio.ensure_future(anext(outcomes))
        peer, frames = await stand_in.next()
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"ok")
        assert (await first).reply == [b"ok"]
        await outcomes.aclose()
        assert client.in_flight == 0
        kinds = [(await stand_in.next())[1][0][:HEAD_BYTES] for _ in range(18)]
        assert kinds.count(CLIENT_CANCEL_03) == 9


async def test_an_error_of_the_iterable_ends_map_and_cancels_what_is_in_flight(stand_in: StandIn) -> None:
    def bodies() -> Iterator[bytes]:
        yield b"0"
        yield b"1"
        raise KeyError("mine")

    async with Client(stand_in.endpoint) as client:
        with pytest.raises(KeyError, match="mine"):
            async for _ in client.map("echo", bodies(), window=10):
                pass
        assert client.in_flight == 0


async def test_map_gives_each_request_its_key(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        reading = asyncio.ensure_future(anext(client.map("echo", [b"a", b"b"], key=lambda index: f"row-{index}")))
        keys = [decode_request_options((await stand_in.next())[1][2]).key for _ in range(2)]
        assert keys == [b"row-0", b"row-1"]
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_what_map_cannot_even_submit_is_an_outcome_too() -> None:
    async with Client(NO_LISTENER, waiting_max=2, timeout=0.02, attempts=1) as client:
        outcomes = [outcome async for outcome in client.map("echo", [b"x"] * 4, window=4)]
    assert [type(outcome.error) for outcome in outcomes] == [Unreachable, Unreachable, Busy, Busy]


# ---------------------------------------------------------------------------------------------------------------------------------- window


async def test_a_window_gives_outcomes_as_requests_end(endpoint: str) -> None:
    gate, wake = asyncio.Event(), asyncio.Event()

    async def hold_first(request: Request) -> bytes:
        if request.body[0] == b"0":
            await gate.wait()
        if request.body[0] == b"7":
            raise ValueError
        return request.body[0]

    async with Worker(endpoint, "hold", handler=hold_first), Client(endpoint) as client:
        window = client.open_window("hold", wake.set, wait=True)
        assert window.send([b"%d" % n for n in range(10)]) == 0
        assert window.send([[b"10", b"more"]]) == 10
        taken: list[Outcome] = []
        while len(taken) < 10:
            await wake.wait()
            wake.clear()
            taken += window.take()
        assert sorted(outcome.index for outcome in taken) == [*range(1, 11)]
        errors = {outcome.index: type(outcome.error) for outcome in taken if outcome.error is not None}
        assert errors == {7: HandlerError}
        assert all(outcome.reply == [b"%d" % outcome.index] for outcome in taken if outcome.index != 7)
        gate.set()
        await wake.wait()
        assert [outcome.index for outcome in window.take()] == [0]
        assert window.take() == []


async def test_a_window_cancels_what_it_withdraws_and_tells_nothing_of_it(stand_in: StandIn) -> None:
    called = 0

    def on_end() -> None:
        nonlocal called
        called += 1

    async with Client(stand_in.endpoint) as client:
        window = client.open_window("echo", on_end)
        window.send([b"a", b"b"], ["key-a", "key-b"])
        sent = [(await stand_in.next())[1] for _ in range(2)]
        assert [decode_request_options(message[2]).key for message in sent] == [b"key-a", b"key-b"]
        await window.withdraw()
        for _ in range(2):
            assert (await stand_in.next())[1][0].startswith(CLIENT_CANCEL_03)
        assert client.in_flight == 0
    assert (called, window.take()) == (0, [])


async def test_what_a_window_cannot_even_submit_is_an_outcome_too() -> None:
    wake = asyncio.Event()
    async with Client(NO_LISTENER, waiting_max=2, timeout=0.02, attempts=1) as client:
        window = client.open_window("echo", wake.set)
        window.send([b"x"] * 4)
        taken = window.take()
        while len(taken) < 4:
            wake.clear()
            await wake.wait()
            taken += window.take()
    assert [type(outcome.error) for outcome in taken] == [Busy, Busy, Unreachable, Unreachable]


async def test_map_refuses_a_window_of_zero(endpoint: str) -> None:
    async with Client(endpoint) as client:
        with pytest.raises(ValueError, match="window"):
            await anext(client.map("echo", [b"x"], window=0))


def test_an_outcome_can_be_compared_and_shown() -> None:
    outcome = Outcome(0, [b"x"], None, 1, 0.5)
    assert outcome == Outcome(0, [b"x"], None, 1, 0.5)
    assert "latency_s=0.5" in repr(outcome)


def test_an_outcome_can_be_copied_and_changed() -> None:
    outcome = Outcome(0, [b"x"], None, 1, 0.5, replayed=True)
    assert copy(outcome) == outcome
    assert replace(outcome, index=1) == Outcome(1, [b"x"], None, 1, 0.5, True)
    assert [field.name for field in fields(outcome)] == ["index", "reply", "error", "attempts", "latency_s", "replayed"]


# --------------------------------------------------------------------------------------------------------------------------------- streams


async def count_up(request: Request) -> AsyncIterator[bytes]:
    for n in range(int(request.body[0])):
        yield b"%d" % n
        await asyncio.sleep(0)


@pytest.mark.parametrize("parts", [0, 1, 5, 100])
async def test_a_stream_yields_the_parts_a_handler_yields(endpoint: str, parts: int) -> None:
    """MDP-13."""
    async with Worker(endpoint, "count", handler=count_up), Client(endpoint) as client:
        got = [part async for part in client.stream("count", b"%d" % parts, wait=True)]
        assert got == ([[b"%d" % n] for n in range(parts)] or [[b""]])
        whole = await client.request("count", b"%d" % parts)
        assert whole == ([b"%d" % n for n in range(parts)] or [b""])


async def test_a_reply_in_one_piece_is_a_stream_of_one_part(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo), Client(endpoint) as client:
        assert [part async for part in client.stream("echo", b"a", b"b", wait=True)] == [[b"a", b"b"]]


async def test_a_part_is_there_before_the_next_one_is_made(endpoint: str) -> None:
    go_on = asyncio.Event()

    async def tail(request: Request) -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b"second"

    async with Worker(endpoint, "tail", handler=tail), Client(endpoint) as client:
        parts = client.stream("tail", b"x", wait=True)
        assert await anext(parts) == [b"first"]
        go_on.set()
        assert [part async for part in parts] == [[b"second"]]


async def test_leaving_a_stream_early_cancels_its_handler(endpoint: str) -> None:
    ended = asyncio.Event()

    async def forever(request: Request) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.001)
        finally:
            ended.set()

    async with Worker(endpoint, "forever", handler=forever), Client(endpoint) as client:
        parts = client.stream("forever", b"x", wait=True)
        await anext(parts)
        await parts.aclose()
        await ended.wait()
        assert client.in_flight == 0


async def test_a_stream_that_never_waits_does_not_block_the_loop() -> None:
    """Over inproc neither the handler nor its connection has to wait for anything."""
    ended = asyncio.Event()

    async def hurry(request: Request) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
        finally:
            ended.set()

    async with core.Context() as context, Broker(context=context) as broker:
        endpoint = broker.bind("inproc://broker")
        async with Worker(endpoint, "hurry", handler=hurry, context=context), Client(endpoint, context=context) as client:
            parts = client.stream("hurry", b"x", wait=True)
            assert await anext(parts) == [b"x"]
            await parts.aclose()
            await ended.wait()


async def test_a_stream_fails_in_the_middle_with_a_typed_error(endpoint: str) -> None:
    async def break_down(request: Request) -> AsyncIterator[bytes]:
        yield b"1"
        raise ValueError

    got = []
    async with Worker(endpoint, "break", handler=break_down), Client(endpoint) as client:
        with pytest.raises(HandlerError):
            async for part in client.stream("break", b"x", wait=True):
                got.append(part)  # noqa: PERF401
    assert got == [[b"1"]]


async def test_half_a_stream_fails_with_its_connection() -> None:
    async with StandIn() as first:
        client = Client(first.endpoint, timeout=100)
        parts = client.stream("tail", b"x")
        reading = asyncio.ensure_future(anext(parts))
        peer, frames = await first.next()
        first.send(peer, CLIENT_PARTIAL_03 + number(frames), b"1")
        assert await reading == [b"1"]
    with pytest.raises(WorkerLost):
        await anext(parts)
    await client.close()


async def test_a_reader_that_does_not_keep_up_gets_an_error(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint, timeout=100) as client:
        parts = client.stream("tail", b"x")
        reading = asyncio.ensure_future(anext(parts))
        peer, frames = await stand_in.next()
        for _ in range(10_100):
            stand_in.send(peer, CLIENT_PARTIAL_03 + number(frames), b"1")
        await reading
        await eventually(lambda: client.counters.failed)
        with pytest.raises(Overrun):
            async for _ in parts:
                pass
