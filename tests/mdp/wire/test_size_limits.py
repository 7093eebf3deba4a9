"""Messages that are too large are refused before sending, with both numbers, at every hop.

No other request suffers.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

import pytest

import mdp
from mdp.errors import RequestError
from tests.scenes.mdp_handlers import echo
from tests.scenes.mdp_scripted_broker import StandIn
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.scenes.programs import Programs

FRAMES_MAX = 1024
REQUEST_MAX = FRAMES_MAX - 3  # body frames of a client's request: its envelope has three
REPLY_MAX = FRAMES_MAX - 1
BYTES = 20_000  # of a message, where octets are to be too many


def numbers(error: BaseException) -> tuple[str, int, int]:
    assert isinstance(error, mdp.TooLarge)
    assert str(error.size) in str(error)
    assert str(error.limit) in str(error)
    return error.what, error.size, error.limit


async def measure(request: mdp.Request) -> bytes:
    return b"%d" % sum(map(len, request.body))


def nobody_was_cut(broker: mdp.Broker) -> bool:
    return broker.counters["socket_protocol_errors"] == 0


# --------------------------------------------------------------------------------------------------------------------------- the error


def test_the_error_keeps_its_numbers_over_the_wire_and_between_processes() -> None:
    made = mdp.TooLarge("frames of the reply", 1500, 1023)
    assert (made.code, made.size, made.limit, made.text) == ("TOO_LARGE", 1500, 1023, "frames of the reply: 1500, at most 1023")
    came = RequestError.of("TOO_LARGE", "echo", attempts=2, after_s=0.5, text=made.text)
    assert numbers(came) == numbers(copy.copy(came)) == ("frames of the reply", 1500, 1023)
    assert (came.service, came.attempts, came.after_s) == ("echo", 2, 0.5)
    for text in ("", "much", "frames: many, at most 3", "frames: 9, at most ٣", "x: " + "9" * 19 + ", at most 1"):
        assert numbers(RequestError.of("TOO_LARGE", "echo", text=text)) == (text, 0, 0) or not text


# -------------------------------------------------------------------------------------------------------------------- client to broker


@pytest.mark.parametrize("dialect", ["0.3", "0.1", "0.2"])
async def test_a_client_refuses_what_is_beyond_the_broker_s_limits_and_sends_the_largest_allowed(broker: mdp.Broker, dialect: str) -> None:
    async with mdp.Worker(broker.endpoints[0], "echo", handler=echo), mdp.Client(broker.endpoints[0], dialect=dialect) as client:
        await client.request("echo", b"x", wait=True)
        innocent = client.request("echo", b"innocent")
        with pytest.raises(mdp.TooLarge) as caught:
            await client.request("echo", *[b"x"] * (REQUEST_MAX + 1))
        assert numbers(caught.value) == ("frames of the request", REQUEST_MAX + 1, REQUEST_MAX)
        assert await innocent == [b"innocent"]
        assert await client.request("echo", *[b"x"] * REQUEST_MAX) == [b"x"] * REQUEST_MAX
        assert (client.counters.too_large, client.counters.repeated) == (1, 0)
        assert nobody_was_cut(broker)


@pytest.mark.parametrize(("dialect", "envelope"), [("0.3", 15 + 4), ("0.1", 6 + 4), ("0.2", 6 + 1 + 4)])
async def test_octets_count_with_the_envelope(dialect: str, envelope: int) -> None:
    async with mdp.Broker(socket_options={"max_message_bytes": BYTES}) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "size", handler=measure), mdp.Client(where, dialect=dialect) as client:
            await client.request("size", b"x", wait=True)
            with pytest.raises(mdp.TooLarge) as caught:
                await client.request("size", b"x" * (BYTES - envelope), b"y")
            assert numbers(caught.value) == ("bytes of the request", BYTES - envelope + 1, BYTES - envelope)
            assert await client.request("size", b"x" * (BYTES - envelope - 1), b"y") == [b"%d" % (BYTES - envelope)]
            assert nobody_was_cut(broker)


async def test_every_way_to_ask_refuses(broker: mdp.Broker) -> None:
    where, large = broker.endpoints[0], [b"x"] * 9000
    async with mdp.Worker(where, "echo", handler=echo), mdp.Client(where) as client:
        await client.request("echo", b"x", wait=True)
        outcomes = [outcome async for outcome in client.map("echo", [b"a", large, [b"b"] * 3, b"c" * 5000])]
        assert [outcome.reply for outcome in outcomes] == [[b"a"], None, [b"b"] * 3, [b"c" * 5000]]
        assert outcomes[1].error is not None
        assert numbers(outcomes[1].error) == ("frames of the request", 9000, REQUEST_MAX)
        with pytest.raises(mdp.TooLarge):
            client.ask("echo", large, lambda *_: None, None)
        with pytest.raises(mdp.TooLarge):
            async for _ in client.stream("echo", *large):
                pass
        with pytest.raises(mdp.TooLarge):
            await client.request("echo", *large, deadline=5.0)
        assert nobody_was_cut(broker)


@pytest.mark.parametrize("dialect", ["0.3", "0.1"])
async def test_a_request_made_before_the_connection_fails_when_the_limits_are_announced(dialect: str) -> None:
    async with mdp.Broker(socket_options={"max_parts": 20}) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "echo", handler=echo), mdp.Client(where, dialect=dialect) as client:
            asked = [client.request("echo", *[b"%d" % n] * n, wait=True) for n in (1, 17, 18, 1000, 2)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert [answers[n] for n in (0, 1, 4)] == [[b"1"], [b"17"] * 17, [b"2"] * 2]
            assert [numbers(answers[n]) for n in (2, 3)] == [("frames of the request", size, 17) for size in (18, 1000)]  # type: ignore[arg-type]
            assert nobody_was_cut(broker)


async def test_a_broker_of_0_3_that_announces_no_limits_has_the_usual_ones() -> None:
    """Like our brokers before limits were announced; the limits of a broker of another dialect are unknown."""
    async with StandIn() as broker, mdp.Client(broker.endpoint) as client:
        asked = client.request("echo", b"first")
        await broker.next()
        with pytest.raises(mdp.TooLarge) as caught:
            await client.request("echo", *[b"x"] * (REQUEST_MAX + 1))
        assert numbers(caught.value) == ("frames of the request", REQUEST_MAX + 1, REQUEST_MAX)
        with pytest.raises(mdp.TooLarge) as caught:
            await client.request("echo", bytes(2**26 - 18))
        assert numbers(caught.value) == ("bytes of the request", 2**26 - 18, 2**26 - 19)
        asked.cancel()


async def test_a_broker_with_other_limits_is_asked_within_those() -> None:
    async with mdp.Broker(socket_options={"max_parts": 5000}) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        generous: dict[str, Any] = {"socket_options": {"max_parts": 5000}}
        async with mdp.Worker(where, "echo", handler=echo, **generous), mdp.Client(where, **generous) as client:
            await client.request("echo", b"x", wait=True)
            assert await client.request("echo", *[b""] * 4997) == [b""] * 4997
            with pytest.raises(mdp.TooLarge):
                await client.request("echo", *[b""] * 4998)


def test_the_command_says_so_at_once(programs: Programs) -> None:
    programs.start("mdp", "broker", "--bind", "ipc://broker.sock").said("broker serves")
    programs.start("mdp", "worker", "--broker", "ipc://broker.sock", "--service", "echo").said("registered")
    ended = programs.run("mdp", "call", "--broker", "ipc://broker.sock", "echo", *map(str, range(9000)))
    assert (ended.code, ended.out) == (1, b"")
    assert "frames of the request: 9000, at most 1021" in ended.err
    assert "attempts" not in ended.err
    assert ended.err.count("\n") == 1


# -------------------------------------------------------------------------------------------------------------------- worker to broker


class Large:
    """Answers with so many frames, or one of so many octets, as it is asked for; counts."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, request: mdp.Request) -> list[bytes]:
        self.runs += 1
        what, count = request.body
        return [b"x"] * int(count) if what == b"frames" else [b"x" * int(count)]


async def parts(request: mdp.Request) -> AsyncIterator[list[bytes]]:
    for size in request.body:
        yield [b"x"] * int(size)


async def test_a_reply_beyond_the_broker_s_limits_fails_its_request_once_and_no_other(
    broker: mdp.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    where, large = broker.endpoints[0], Large()
    async with mdp.Worker(where, "large", handler=large, concurrency=4), mdp.Client(where) as client:
        await client.request("large", b"frames", b"1", wait=True)
        innocents = [client.request("large", b"frames", b"2") for _ in range(3)]
        with pytest.raises(mdp.TooLarge) as caught:
            await client.request("large", b"frames", b"%d" % (REPLY_MAX + 1))
        assert numbers(caught.value) == ("frames of the reply", REPLY_MAX + 1, REPLY_MAX)
        assert await asyncio.gather(*innocents) == [[b"x"] * 2] * 3
        assert await client.request("large", b"frames", b"%d" % REPLY_MAX) == [b"x"] * REPLY_MAX
        with pytest.raises(mdp.TooLarge) as caught:
            await client.request("large", b"octets", b"%d" % (2**26 - 14))
        assert numbers(caught.value) == ("bytes of the reply", 2**26 - 14, 2**26 - 15)
        assert large.runs == 7
        assert (broker.counters["redelivered"], broker.stats["letters"], broker.counters["workers_lost"]) == (0, 0, 0)
        assert nobody_was_cut(broker)
        assert len([line for line in caplog.messages if "frames of the reply" in line]) == 1


async def test_a_part_that_is_too_large_ends_the_stream(broker: mdp.Broker) -> None:
    where = broker.endpoints[0]
    async with mdp.Worker(where, "parts", handler=parts), mdp.Client(where) as client:
        await client.request("parts", b"1", wait=True)
        got = []
        with pytest.raises(mdp.TooLarge) as caught:
            async for part in client.stream("parts", b"2", b"1023", b"1024", b"3"):
                got.append(len(part))  # noqa: PERF401 - those before the error count
        assert got == [2, 1023]
        assert numbers(caught.value) == ("frames of the reply", 1024, 1023)
        assert nobody_was_cut(broker)


async def test_a_broker_with_low_limits_is_answered_within_them() -> None:
    async with mdp.Broker(socket_options={"max_parts": 20, "max_message_bytes": BYTES}) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "large", handler=Large()), mdp.Client(where) as client:
            await client.request("large", b"frames", b"19", wait=True)
            with pytest.raises(mdp.TooLarge, match="frames of the reply: 20, at most 19"):
                await client.request("large", b"frames", b"20")
            with pytest.raises(mdp.TooLarge, match="bytes of the reply: 19986, at most 19985"):
                await client.request("large", b"octets", b"19986")
            assert await client.request("large", b"octets", b"19985") == [b"x" * 19985]
            assert nobody_was_cut(broker)


# -------------------------------------------------------------------------------------------------- broker to worker, broker to client


@pytest.mark.parametrize(("dialect", "most"), [("0.1", 1019), ("0.2", 1020), ("0.3", 1021)])
async def test_a_request_that_outgrows_the_limit_on_the_way_to_the_worker_is_refused_by_the_broker(
    broker: mdp.Broker, dialect: str, most: int
) -> None:
    """Requests have three envelope frames from client to broker, and two, four or five to the worker."""
    where = broker.endpoints[0]
    async with mdp.Worker(where, "size", handler=measure, dialect=dialect), mdp.Client(where) as client:
        await client.request("size", b"x", wait=True)
        for count in range(most + 1, REQUEST_MAX + 1):
            with pytest.raises(mdp.TooLarge) as caught:
                await client.request("size", *[b"x"] * count)
            assert numbers(caught.value) == ("frames of the request", count, most)
        assert await client.request("size", *[b"x"] * most) == [b"%d" % most]
        assert broker.counters["error_too_large"] == REQUEST_MAX - most
        assert broker.counters["workers_lost"] == 0


async def test_a_worker_with_low_limits_is_given_requests_within_them() -> None:
    async with mdp.Broker(start_hold_ms=0) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        low: dict[str, Any] = {"socket_options": {"max_parts": 10, "max_message_bytes": BYTES}}
        async with mdp.Worker(where, "size", handler=measure, **low), mdp.Client(where) as client:
            await client.request("size", b"x", wait=True)
            asked = [client.request("size", *[b"x"] * n, key=key) for n in (8, 9) for key in (None, f"key {n}")]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert answers[:2] == [[b"8"]] * 2
            assert [numbers(error) for error in answers[2:]] == [("frames of the request", 9, 8)] * 2  # type: ignore[arg-type]
            with pytest.raises(mdp.TooLarge, match="bytes of the request"):
                await client.request("size", b"x" * BYTES)
            with pytest.raises(mdp.TooLarge, match="bytes of the request"):
                await client.request("size", b"x" * (BYTES - 16), deadline=60.0)  # the deadline goes to the worker too
            assert await client.request("size", b"x" * (BYTES - 15)) == [b"%d" % (BYTES - 15)]
            assert (broker.counters["workers_lost"], broker.counters["redelivered"]) == (0, 0)
            assert broker.stats["running"] == broker.stats["queued"] == 0


async def test_waiting_requests_are_checked_when_they_are_given() -> None:
    async with mdp.Broker(start_hold_ms=0) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Client(where) as client:
            asked = [client.request("size", *[b"x"] * n, wait=True) for n in (1, 1020, 2, 1021, 3)]
            await eventually(lambda: broker.stats["queued"] == 5)
            async with mdp.Worker(where, "size", handler=measure, dialect="0.1"):
                answers = await asyncio.gather(*asked, return_exceptions=True)
            assert answers[::2] == [[b"1"], [b"2"], [b"3"]]
            assert [type(answer) for answer in answers[1::2]] == [mdp.TooLarge] * 2
            assert broker.counters["accepted"] == broker.counters["closed"]


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_client_with_low_limits_gets_an_error_for_a_reply_that_is_too_large(key: str | None) -> None:
    low: dict[str, Any] = {"socket_options": {"max_parts": 10}}
    async with mdp.Broker(start_hold_ms=0) as broker:
        where, large = broker.bind("tcp://127.0.0.1:*"), Large()
        async with mdp.Worker(where, "large", handler=large), mdp.Client(where, **low) as narrow, mdp.Client(where) as wide:
            assert await narrow.request("large", b"frames", b"9", wait=True) == [b"x"] * 9
            for _ in range(2):
                with pytest.raises(mdp.TooLarge) as caught:
                    await narrow.request("large", b"frames", b"10", key=key)
                assert numbers(caught.value) == ("frames of the reply", 10, 9)
            assert await wide.request("large", b"frames", b"10", key=key) == [b"x"] * 10
            assert large.runs == (2 if key else 4)
            assert narrow.counters.repeated == 0
            assert broker.counters["accepted"] == broker.counters["closed"]


async def test_a_client_of_an_older_dialect_with_low_limits_is_dropped_silently_and_counted() -> None:
    low: dict[str, Any] = {"socket_options": {"max_parts": 10}, "dialect": "0.1", "timeout": 2.0, "attempts": 1}
    async with mdp.Broker(start_hold_ms=0) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "large", handler=Large()), mdp.Client(where, **low) as narrow:
            assert await narrow.request("large", b"frames", b"7", timeout=100) == [b"x"] * 7
            with pytest.raises(mdp.Timeout):
                await narrow.request("large", b"frames", b"8")
            assert broker.counters["silent_too_large"] == 1
            assert broker.counters["client_gone"] == 0
