"""Rows of a partition between Spark and a client: order, keys, a full broker, and an end without a hang."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mdp.client.client import Outcome
from mdp.errors import Busy, NoService, RequestError, Timeout
from mdp.spark.flow.breaker import Breaker, BreakerState
from mdp.spark.flow.rate import RateLimit
from mdp.spark.rows.exchange import ROW_BYTES, Chunk, Exchange, answer_bytes
from mdp.spark.rows.reply_columns import Answer
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence


class Client:
    """Client that reads a window ahead and yields in order, as the real one; the test decides about each row."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, str]] = []
        self.rounds = 0
        self.under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail: Callable[[bytes], RequestError | None] = lambda _: None
        self.next_to_end: Callable[[int], int] = lambda _: 0  # from how many are in flight to the place of the next to end
        self.reply_bytes = 1

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

    connected = True

    async def request(self, service: str, *frames: bytes, attempts: int) -> list[bytes]:
        raise NoService(service)

    def open_window(self, service: str, on_end: Callable[[], None], *, wait: bool) -> Window:
        assert service == "echo"
        return Window(self, on_end)


class Window:
    """Requests in flight, which end one after the other."""

    def __init__(self, client: Client, on_end: Callable[[], None]) -> None:
        self.client = client
        self.on_end = on_end
        self.count = 0
        self.slots: list[tuple[int, bytes]] = []
        self.ended: list[tuple[int, bytes]] = []
        self.ending: asyncio.Task[None] | None = None

    def send(self, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> int:
        first = self.count
        self.count += len(bodies)
        self.client.rounds += not self.slots
        self.client.asked += [(body[0], key) for body, key in zip(bodies, keys, strict=True)]
        self.slots += [(index, body[0]) for index, body in enumerate(bodies, first)]
        self.client.under_way = len(self.slots)
        if self.ending is None or self.ending.done():
            self.ending = asyncio.create_task(self.end())
        return first

    async def end(self) -> None:
        while self.slots:
            await self.client.gate.wait()
            self.ended.append(self.slots.pop(self.client.next_to_end(len(self.slots))))
            self.client.under_way = len(self.slots)
            self.on_end()
            for _ in range(8):  # what follows is done before the next
                await asyncio.sleep(0)

    def take(self) -> list[Outcome]:
        ended, self.ended = self.ended, []
        return [self.outcome(index, row) for index, row in ended]

    def outcome(self, index: int, row: bytes) -> Outcome:
        error = self.client.fail(row)
        return Outcome(index, None if error else [row + b"!" * self.client.reply_bytes], error, 2, 0.25)

    async def withdraw(self) -> None:
        self.slots = []
        self.client.under_way = 0
        if self.ending is not None:
            self.ending.cancel()
            await asyncio.wait([self.ending])


def rows(count: int, prefix: str = "r") -> Chunk:
    return Chunk([(f"{prefix}{n}".encode(),) for n in range(count)], [f"{prefix}{n}" for n in range(count)])


@asynccontextmanager
async def exchange(client: Client, window: int = 8, **bounds: Any) -> AsyncIterator[Exchange]:
    made = Exchange(client, "echo", window, **bounds)
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


async def test_a_rate_is_kept_and_every_row_answered(client: Client) -> None:
    """Of 200 rows a second twenty leave at once, and thirty in their turn."""
    chunk = rows(50)
    clock = asyncio.get_running_loop().time
    began = clock()
    async with exchange(client, window=100, rate=RateLimit(200.0, began)) as exchanging:
        exchanging.feed(chunk)
        await finished(chunk)
    assert clock() - began >= 0.9 * 30 / 200
    assert [answer.status for answer in chunk.answers] == ["OK"] * 50


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


async def test_a_slow_row_holds_up_no_other_and_the_answers_stand_in_order(client: Client) -> None:
    """The window counts what is in flight: all others pass beside the first row."""
    client.next_to_end = lambda count: min(1, count - 1)
    chunk, later = rows(50), rows(50, "later")
    async with exchange(client, window=4) as exchanging:
        exchanging.feed(chunk)
        exchanging.feed(later)
        while client.under_way != 1 or len(client.asked) < 100:
            await asyncio.sleep(0)
        await finished(chunk, later)
    assert client.rounds == 1
    assert [answer.reply for answer in chunk.answers] == [[f"r{n}!".encode()] for n in range(50)]


async def test_bytes_in_flight_and_held_are_bounded_and_one_row_always_goes(client: Client) -> None:
    client.reply_bytes = 1000
    most, released = 0, 0
    chunk = rows(60)
    size = ROW_BYTES + 1003
    async with exchange(client, window=60, window_bytes=10 * size) as exchanging:
        client.next_to_end = lambda count: count - 1  # the first row ends last
        exchanging.feed(chunk)
        while not chunk.finished.done():
            held = sum(answer_bytes(answer) for answer in chunk.answers if answer.status == "OK")
            most = max(most, held + client.under_way * ROW_BYTES - released)
            exchanging.release(sum(map(answer_bytes, chunk.take(ordered=True)[1])))
            await asyncio.sleep(0)
    # The first replies are larger than their requests, by which they were judged: 29 are sent, and not 60.
    assert most <= 30 * size
    assert len(client.asked) == 60


async def test_no_chunk_is_asked_for_while_unsent_rows_fill_the_memory(client: Client) -> None:
    client.gate.clear()
    fed = 0
    async with exchange(client, window=60, window_bytes=10_000) as exchanging:
        for _ in range(200):
            if exchanging.flow.hungry:
                exchanging.flow.hungry = False  # as a partition does
                exchanging.feed(Chunk([(b"y" * 1000,)], [f"key {fed}"]))
                fed += 1
            await asyncio.sleep(0)
    assert 4 <= fed <= 10


async def test_a_row_larger_than_all_that_is_allowed_is_sent_alone(client: Client) -> None:
    chunk = rows(5)
    async with exchange(client, window_bytes=1) as exchanging:
        exchanging.feed(chunk)
        while not chunk.finished.done():
            assert client.under_way <= 1
            exchanging.release(sum(map(answer_bytes, chunk.take(ordered=True)[1])))
            await asyncio.sleep(0)
    assert len(client.asked) == 5


async def test_a_row_that_was_refused_before_is_not_sent(client: Client) -> None:
    chunk = Chunk([(b"a",), None, (b"c",)], ["a", "", "c"], {1: Answer(None, "BAD_ROW", "no", 0, 0.0)})
    async with exchange(client) as exchanging:
        exchanging.feed(chunk)
        await finished(chunk)
    assert [answer.status for answer in chunk.answers] == ["OK", "BAD_ROW", "OK"]
    assert [row for row, _ in client.asked] == [b"a", b"c"]


async def test_an_open_breaker_answers_all_rows_and_those_in_flight(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.rows.exchange.CHECK_S", 0.001)
    client.gate.clear()
    client.connected = False
    breaker = Breaker("tcp://gone:1", timeout_s=0.002, attempts=5, failures_max=100)
    first, second = rows(10_000), rows(50)
    async with exchange(client, breaker=breaker) as exchanging:
        exchanging.feed(first)
        await finished(first)
        assert {answer.status for answer in first.answers} == {"UNREACHABLE"}
        assert "no connection to tcp://gone:1" in str(first.answers[0].error)
        assert client.under_way == 0
        # What comes later is not sent.
        asked = len(client.asked)
        exchanging.feed(second)
        await finished(second)
        assert len(client.asked) == asked
        # The broker is back: one row goes, and then all.
        client.connected = True
        client.gate.set()
        third = rows(20, "third")
        exchanging.feed(third)
        await finished(third)
    assert {answer.status for answer in third.answers} == {"OK"}


async def test_requests_without_answer_open_the_breaker_and_a_probe_closes_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.rows.exchange.CHECK_S", 0.001)
    client.fail = lambda _: Timeout("echo")
    breaker = Breaker("tcp://b:1", timeout_s=0.05, attempts=1, failures_max=8)
    chunk = rows(1000)
    async with exchange(client, breaker=breaker) as exchanging:
        exchanging.feed(chunk)
        await finished(chunk)
        statuses = Counter(answer.status for answer in chunk.answers)
        assert set(statuses) == {"TIMEOUT", "CIRCUIT_OPEN"}
        assert statuses["TIMEOUT"] <= 20
        client.fail = lambda _: None
        while breaker.state is not BreakerState.CLOSED:
            again = rows(3, "again")
            exchanging.feed(again)
            await finished(again)
        last = rows(10, "last")
        exchanging.feed(last)
        await finished(last)
    assert {answer.status for answer in last.answers} == {"OK"}


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "at its deadline"])
async def test_a_probe_that_a_task_has_given_up_is_followed_by_another(
    client: Client, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """The breaker waited for its answer, and the other partitions of the process for the breaker."""
    monkeypatch.setattr("mdp.spark.rows.exchange.CHECK_S", 0.001)
    breaker = Breaker("tcp://b:1", timeout_s=0.002, attempts=1, failures_max=1)
    breaker.ended(Timeout("echo"), 0.0)
    client.gate.clear()
    probe = rows(1)
    async with exchange(client, breaker=breaker) as exchanging, exchange(client, breaker=breaker) as other:
        while not client.asked:  # the first rows may be refused while it is open
            probe = rows(1)
            exchanging.feed(probe)
            await eventually(lambda probe=probe: client.asked or probe.finished.done())  # type: ignore[misc]
        if cancelled:
            await exchanging.close()
        else:
            exchanging._ends_at = 0.0
            await finished(probe)
        client.gate.set()
        chunk = rows(20, "other")
        other.feed(chunk)
        await finished(chunk)
    assert {answer.status for answer in chunk.answers} == {"OK"}


async def test_after_the_deadline_nothing_is_sent_or_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.rows.exchange.CHECK_S", 0.001)
    client.gate.clear()
    chunk, later = rows(20), rows(20)
    async with exchange(client, left_s=0.01) as exchanging:
        exchanging.feed(chunk)
        await finished(chunk)
        exchanging.feed(later)
        await finished(later)
    assert {answer.status for one in (chunk, later) for answer in one.answers} == {"DEADLINE_EXCEEDED"}
    assert len(client.asked) == 8


def test_answers_are_taken_in_order_or_as_they_are_there() -> None:
    chunk = rows(4)
    answer = Answer([b"x"], "OK", None, 1, 0.0)
    chunk.answers[0] = chunk.answers[2] = answer
    assert chunk.take(ordered=True)[0] == [0]
    assert chunk.take(ordered=True)[0] == []
    assert chunk.take(ordered=False)[0] == [2]
    chunk.answers[1] = chunk.answers[3] = answer
    assert chunk.take(ordered=False) == ([1, 3], [answer, answer])
    assert chunk.empty


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
