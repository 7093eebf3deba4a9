"""Rows of a partition between Spark and a client: order, keys, a full broker, and an end without a hang."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from mdp.client.client import Outcome
from mdp.errors import Busy, NoService, RequestError, Timeout
from mdp.spark.rows.exchange import Chunk, Exchange

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence


class Client:
    """Client that reads a window ahead and yields in order, as the real one; the test decides about each row."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, str]] = []
        self.rounds = 0
        self.under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail: Callable[[bytes], RequestError | None] = lambda _: None

    async def stream(self, service: str, *frames: bytes, key: str, wait: bool) -> AsyncGenerator[list[bytes], None]:
        assert service == "echo"
        self.asked.append((frames[0], key))
        self.under_way += 1
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            if (error := self.fail(frames[0])) is not None:
                raise error
            for frame in frames[0].split():
                yield [frame]
        finally:
            self.under_way -= 1

    async def map(
        self, service: str, requests: Iterable[Sequence[bytes]], *, window: int, key: Callable[[int], str], wait: bool
    ) -> AsyncIterator[Outcome]:
        assert service == "echo"
        self.rounds += 1
        slots: list[bytes] = []
        source = iter(requests)
        index = 0
        more = True
        try:
            while True:
                while more and len(slots) < window:
                    body = next(source, None)
                    if body is None:
                        more = False
                        break
                    self.asked.append((body[0], key(len(self.asked))))
                    slots.append(body[0])
                self.under_way = len(slots)
                if not slots:
                    return
                await self.gate.wait()
                await asyncio.sleep(0)
                row = slots.pop(0)
                error = self.fail(row)
                yield Outcome(index, None if error else [row + b"!"], error, 2, 0.25)
                index += 1
        finally:
            self.under_way = 0


def rows(count: int, prefix: str = "r") -> Chunk:
    return Chunk([(f"{prefix}{n}".encode(),) for n in range(count)], [f"{prefix}{n}" for n in range(count)])


@asynccontextmanager
async def exchange(client: Client, window: int = 8) -> AsyncIterator[Exchange]:
    made = Exchange(client, "echo", window)
    yield made
    await made.close()


async def finished(*chunks: Chunk) -> None:
    await asyncio.gather(*(asyncio.wrap_future(chunk.finished) for chunk in chunks))


@pytest.fixture
async def client() -> Client:
    return Client()


async def test_answers_stand_in_the_order_of_the_rows_with_what_the_client_says(client: Client) -> None:
    chunk = rows(20)
    async with exchange(client) as exchanging:
        exchanging.feed(chunk)
        await finished(chunk)
    assert [answer.reply for answer in chunk.answers] == [[f"r{n}!".encode()] for n in range(20)]
    assert {(a.status, a.error, a.attempts, a.latency_ms) for a in chunk.answers} == {("OK", None, 2, 250.0)}


async def test_each_row_is_sent_with_its_key(client: Client) -> None:
    first, second = rows(20, "a"), rows(5, "b")
    async with exchange(client) as exchanging:
        exchanging.feed(first)
        exchanging.feed(second)
        await finished(first, second)
    assert [row.decode() for row, _ in client.asked] == [key for _, key in client.asked]
    assert len(client.asked) == 25


async def test_chunks_fed_in_time_share_one_window_without_a_pause(client: Client) -> None:
    first, second, third = rows(20, "a"), rows(20, "b"), rows(20, "c")
    async with exchange(client, window=8) as exchanging:
        exchanging.feed(first)
        exchanging.feed(second)
        await finished(first)
        assert client.under_way == 8
        exchanging.feed(third)
        await finished(second, third)
    assert client.rounds == 1


async def test_a_chunk_fed_after_a_pause_is_asked_for_too(client: Client) -> None:
    async with exchange(client) as exchanging:
        for number in range(3):
            chunk = rows(3, f"{number}-")
            exchanging.feed(chunk)
            await finished(chunk)
    assert client.rounds == 3


async def test_a_chunk_without_rows_is_back_at_once(client: Client) -> None:
    chunk = rows(0)
    async with exchange(client) as exchanging:
        exchanging.feed(chunk)
        assert chunk.finished.done()
    assert client.rounds == 0


async def test_an_error_is_the_answer_of_its_row_and_of_no_other(client: Client) -> None:
    errors = {b"r1": Timeout("echo", attempts=4, after_s=1.0), b"r2": RequestError("echo", code="NEW_CODE"), b"r4": NoService("echo")}
    client.fail = errors.get
    chunk = rows(5)
    async with exchange(client) as exchanging:
        exchanging.feed(chunk)
        await finished(chunk)
    assert [answer.status for answer in chunk.answers] == ["OK", "TIMEOUT", "NEW_CODE", "OK", "NO_SERVICE"]
    assert "no answer" in str(chunk.answers[1].error)
    assert chunk.answers[1].reply is None


async def test_a_full_broker_gets_a_pause_and_then_first_what_it_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.rows.exchange.BUSY_FIRST_WAIT_S", 0.0)
    refusals = {b"a2": 2, b"a3": 1}

    def fail(row: bytes) -> RequestError | None:
        refusals[row] = left = refusals.get(row, 0) - 1
        return Busy("echo") if left >= 0 else None

    client.fail = fail
    first, second = rows(10, "a"), rows(10, "b")
    async with exchange(client, window=4) as exchanging:
        exchanging.feed(first)
        exchanging.feed(second)
        await finished(first, second)
    assert {answer.status for chunk in (first, second) for answer in chunk.answers} == {"OK"}
    asked = [row for row, _ in client.asked]
    # What was in the window when a2 was refused is seen through, nothing new is asked before a2 and a3.
    assert asked[:6] == [b"a0", b"a1", b"a2", b"a3", b"a4", b"a5"]
    assert asked[6:9] == [b"a2", b"a3", b"a6"] or asked[6:8] == [b"a2", b"a3"]
    assert asked.count(b"a2") == 3
    assert len(asked) == 20 + 3


async def test_a_broker_that_stays_full_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.rows.exchange.BUSY_FIRST_WAIT_S", 0.0)
    client.fail = lambda _: Busy("echo")
    chunk = rows(10)
    async with exchange(client, window=4) as exchanging:
        exchanging.feed(chunk)
        await finished(chunk)
    assert {answer.status for answer in chunk.answers} == {"BUSY"}
    assert client.rounds <= 25


async def test_closing_gives_up_waiting_rows_and_those_in_flight(client: Client) -> None:
    client.gate.clear()
    chunk = rows(50)
    async with exchange(client) as exchanging:
        exchanging.feed(chunk)
        while not client.under_way:
            await asyncio.sleep(0)
    assert client.under_way == 0
    assert len(client.asked) == 8
    assert not chunk.finished.done()


@pytest.mark.faults
async def test_an_error_that_is_no_answer_reaches_everyone_who_waits(client: Client) -> None:
    def fail(row: bytes) -> RequestError | None:
        if row == b"a1":
            raise ValueError("a bug, or an argument the client does not take")
        return None

    client.fail = fail
    first, second, late = rows(3, "a"), rows(3, "b"), rows(3, "c")
    async with exchange(client) as exchanging:
        exchanging.feed(first)
        exchanging.feed(second)
        for chunk in (first, second):
            with pytest.raises(ValueError, match="a bug"):
                await finished(chunk)
        exchanging.feed(late)
        with pytest.raises(ValueError, match="a bug"):
            late.finished.result(timeout=0)
