"""The window of a partition: how many are under way, in which order they come back, and what a failure does."""

from __future__ import annotations

import asyncio

import pytest

from mdp.errors import Busy, NoService, RequestError, Timeout
from mdp.spark.exchange import Chunk, Exchange


class Client:
    """Keeps what it is asked until the test answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[bytes, ...], str | None, asyncio.Future[list[bytes]]]] = []
        self.refuse: list[BaseException] = []

    def request(self, service: str, *frames: bytes, key: str | None = None) -> asyncio.Future[list[bytes]]:
        assert service == "echo"
        if self.refuse:
            raise self.refuse.pop(0)
        future = asyncio.get_running_loop().create_future()
        self.asked.append((frames, key, future))
        return future

    @property
    def under_way(self) -> list[asyncio.Future[list[bytes]]]:
        return [future for _, _, future in self.asked if not future.done()]


def rows(count: int, prefix: str = "r") -> Chunk:
    return Chunk([(f"{prefix}{n}".encode(),) for n in range(count)], [f"{prefix}{n}" for n in range(count)])


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
def client() -> Client:
    return Client()


async def test_no_more_than_the_window_is_under_way(client: Client) -> None:
    exchange = Exchange(client, "echo", 3)
    chunk = rows(10)
    exchange.feed(chunk)
    assert len(client.asked) == 3
    for answered in range(10):
        assert len(client.under_way) == min(3, 10 - answered)
        client.under_way[0].set_result([b"ok"])
        await settle()
    assert chunk.finished.done()
    assert len(client.asked) == 10


async def test_the_next_chunk_fills_the_window_while_the_first_has_rows_under_way(client: Client) -> None:
    exchange = Exchange(client, "echo", 4)
    first, second = rows(3, "a"), rows(3, "b")
    exchange.feed(first)
    exchange.feed(second)
    assert [frames for frames, _, _ in client.asked] == [(b"a0",), (b"a1",), (b"a2",), (b"b0",)]


async def test_answers_stand_in_the_order_of_the_rows_whatever_order_they_came_in(client: Client) -> None:
    exchange = Exchange(client, "echo", 8)
    chunk = rows(5)
    exchange.feed(chunk)
    for frames, _, future in reversed(client.asked):
        future.set_result([frames[0] + b"!"])
        await settle()
    assert [answer.reply for answer in chunk.answers] == [[f"r{n}!".encode()] for n in range(5)]
    assert {(answer.status, answer.error) for answer in chunk.answers} == {("OK", None)}


async def test_each_row_is_sent_with_its_key(client: Client) -> None:
    Exchange(client, "echo", 8).feed(rows(3, "k"))
    assert [key for _, key, _ in client.asked] == ["k0", "k1", "k2"]
    for future in client.under_way:
        future.cancel()


async def test_a_chunk_without_rows_is_back_at_once(client: Client) -> None:
    chunk = rows(0)
    Exchange(client, "echo", 8).feed(chunk)
    assert chunk.finished.done()


async def test_an_error_is_the_answer_of_its_row_and_of_no_other(client: Client) -> None:
    exchange = Exchange(client, "echo", 8)
    chunk = rows(3)
    exchange.feed(chunk)
    client.under_way[1].set_exception(Timeout("echo", attempts=4, after_s=1.0))
    client.under_way[0].set_result([b"ok"])
    client.under_way[-1].set_exception(RequestError("echo", code="NEW_CODE", text="of a later version"))
    await settle()
    assert chunk.finished.done()
    assert [answer.status for answer in chunk.answers] == ["OK", "TIMEOUT", "NEW_CODE"]
    assert chunk.answers[1].attempts == 4
    assert "no answer" in str(chunk.answers[1].error)
    assert chunk.answers[1].reply is None


async def test_a_request_that_is_refused_at_once_is_answered_too(client: Client) -> None:
    client.refuse = [NoService("echo") for _ in range(5000)]
    chunk = rows(5000)
    Exchange(client, "echo", 8).feed(chunk)
    assert chunk.finished.done()
    assert {answer.status for answer in chunk.answers} == {"NO_SERVICE"}


async def test_a_busy_broker_is_asked_again_and_the_row_keeps_its_place_in_the_window(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mdp.spark.exchange._BUSY_FIRST_WAIT_S", 0.001)
    client.refuse = [Busy("echo"), Busy("echo")]
    exchange = Exchange(client, "echo", 2)
    chunk = rows(3)
    exchange.feed(chunk)
    assert client.asked == []
    while not chunk.finished.done():
        assert len(client.under_way) <= 2
        for future in client.under_way:
            future.set_result([b"ok"])
        await asyncio.sleep(0.001)
    assert [answer.attempts for answer in chunk.answers] == [2, 2, 1]


async def test_a_broker_that_stays_busy_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.exchange._BUSY_FIRST_WAIT_S", 0.0)
    client.refuse = [Busy("echo") for _ in range(100)]
    chunk = rows(1)
    Exchange(client, "echo", 2).feed(chunk)
    await asyncio.wrap_future(chunk.finished)
    assert chunk.answers[0].status == "BUSY"
    assert 75 < len(client.refuse) < 85


async def test_closing_gives_up_what_waits_and_what_is_under_way(client: Client) -> None:
    exchange = Exchange(client, "echo", 2)
    client.refuse = [Busy("echo")]
    chunk = rows(5)
    exchange.feed(chunk)
    exchange.close()
    await settle()
    assert [future.cancelled() for _, _, future in client.asked] == [True]
    assert not chunk.finished.done()


async def test_an_error_that_is_no_answer_reaches_whoever_waits(client: Client) -> None:
    exchange = Exchange(client, "echo", 4)
    chunk = rows(2)
    exchange.feed(chunk)
    client.under_way[0].set_exception(RuntimeError("a bug"))
    await settle()
    with pytest.raises(RuntimeError, match="a bug"):
        chunk.finished.result(timeout=0)
    assert client.under_way == []


async def test_an_argument_the_client_does_not_take_reaches_whoever_waits(client: Client) -> None:
    client.refuse = [ValueError("service name")]
    chunk = rows(2)
    with pytest.raises(ValueError, match="service name"):
        Exchange(client, "echo", 4).feed(chunk)
    with pytest.raises(ValueError, match="service name"):
        chunk.finished.result(timeout=0)
