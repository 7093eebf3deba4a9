from __future__ import annotations

import asyncio
import errno
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import core
from mdp import connection as connection_module
from mdp.broker import Broker
from mdp.client import Client, Outcome
from mdp.errors import Busy, DeadlineExceeded, HandlerError, NoService, RequestError, Timeout, WorkerLost
from mdp.options import decode_request_options
from mdp.protocol import (
    CLIENT_CANCEL_03,
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_HEARTBEAT_03,
    CLIENT_PARTIAL_03,
    CLIENT_REQUEST_03,
    HEAD_BYTES,
)
from mdp.waiting import ClientClosed, Overrun, Unreachable
from mdp.worker import Worker
from tests.mdp.stand_in import StandIn, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from mdp.request import Request

NOBODY = "tcp://127.0.0.1:9"  # the discard port: nothing listens there


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as made:
        made.bind("tcp://127.0.0.1:*")
        yield made


@pytest.fixture
async def endpoint(broker: Broker) -> str:
    return broker.endpoints[0]


@pytest.fixture
async def stand_in() -> AsyncIterator[StandIn]:
    async with StandIn() as made:
        yield made


async def echo(request: Request) -> list[bytes]:
    return request.body


def number(frames: list[bytes]) -> bytes:
    assert frames[0][:HEAD_BYTES] == CLIENT_REQUEST_03
    return frames[0][HEAD_BYTES:]


# ----------------------------------------------------------------------------------------------------------------------------- requests


async def test_a_request_and_its_reply(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo), Client(endpoint) as client:
        assert await client.request("echo", b"a", b"", b"c", wait=True) == [b"a", b"", b"c"]
        assert (client.dialect, client.connected, client.endpoint) == ("0.3", True, endpoint)


async def test_a_thousand_in_flight_get_their_own_replies(endpoint: str) -> None:
    async def slowly(request: Request) -> bytes:
        await asyncio.sleep(0.001 * (request.body[0][-1] % 3))
        return request.body[0]

    bodies = [b"%d" % n for n in range(1000)]
    async with Worker(endpoint, "echo", handler=slowly, concurrency=50) as worker, Client(endpoint) as client:
        await eventually(lambda: worker.connected)
        replies = await asyncio.gather(*(client.request("echo", body, wait=True) for body in bodies))
        assert replies == [[body] for body in bodies]
        assert client.counters.sent == client.counters.replied == 1000


async def test_a_request_without_frames_has_one_empty_frame(stand_in: StandIn) -> None:
    """MDP-07: a body has one frame at least."""
    async with Client(stand_in.endpoint) as client:
        reply = client.request("echo")
        peer, frames = await stand_in.next()
        assert frames[1:] == [b"echo", b"", b""]
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"ok")
        assert await reply == [b"ok"]


async def test_other_buffers_than_bytes_are_copied_and_other_types_refused(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        buffer = bytearray(b"abc")
        client.request("echo", buffer, memoryview(b"def"))  # type: ignore[arg-type]
        buffer[:] = b"xyz"
        assert (await stand_in.next())[1][3:] == [b"abc", b"def"]
        for wrong in ("text", 1, None, [b"x"]):
            with pytest.raises(TypeError):
                client.request("echo", wrong)  # type: ignore[arg-type]
        assert client.in_flight == 1


async def test_options_of_a_request_are_sent_along(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        client.request("echo", b"x", key="order-17", once=True, wait=True, deadline=5.0, trace={"traceparent": "00-1"})
        options = decode_request_options((await stand_in.next())[1][2])
        assert (options.key, options.once, options.wait, options.trace) == (b"order-17", True, True, {"traceparent": "00-1"})
        assert options.deadline_ms is not None
        assert 0 < options.deadline_ms <= 5000


async def test_typed_errors_come_with_their_numbers(endpoint: str) -> None:
    async def fail(request: Request) -> bytes:
        raise ValueError("secret payload")

    async with Worker(endpoint, "fail", handler=fail), Client(endpoint) as client:
        with pytest.raises(NoService) as caught:
            await client.request("nobody", b"x")
        assert (caught.value.service, caught.value.code, caught.value.attempts) == ("nobody", "NO_SERVICE", 1)
        with pytest.raises(HandlerError) as failed:
            await client.request("fail", b"x", wait=True)
        assert "ValueError" in failed.value.text
        assert "secret" not in str(failed.value)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb"])
async def test_a_name_no_service_can_have_is_refused_at_the_call(stand_in: StandIn, name: str) -> None:
    async with Client(stand_in.endpoint) as client:
        with pytest.raises(core.LocalProtocolError):
            client.request(name, b"x")


async def test_services_are_prepared_for_a_bounded_number_of_names(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        for n in range(3000):
            client.request(f"service-{n}", b"x")
        assert len(client._calls) <= 1024


def test_wrong_arguments_are_refused_when_the_client_is_made() -> None:
    wrong: list[dict[str, Any]] = [{"timeout": 0}, {"attempts": 0}, {"window": 0}, {"heartbeat_ms": 0}, {"dialect": "0.4"}]
    for options in wrong:
        with pytest.raises(ValueError):
            Client(NOBODY, **options)
    for endpoint in ("nonsense", "tcp://", "tcp://host:notaport"):
        with pytest.raises(core.ZMQError):
            Client(endpoint)
    with pytest.raises(ValueError):
        Client([])


async def test_more_waiting_requests_than_the_limit_are_refused_at_the_call() -> None:
    async with Client(NOBODY, waiting_max=3) as client:
        for _ in range(3):
            client.request("echo", b"x")
        with pytest.raises(Busy):
            client.request("echo", b"x")


async def test_the_first_request_of_a_turn_leaves_at_once_and_the_others_in_one_batch(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    send = connection_module.Connection.send

    def count(self: connection_module.Connection, messages: list[list[bytes]]) -> Any:
        batches.append(len(messages))
        return send(self, messages)

    async with Client(stand_in.endpoint) as client:
        await eventually(lambda: client.connected)
        monkeypatch.setattr(connection_module.Connection, "send", count)
        for _ in range(50):
            client.request("echo", b"x")
        assert batches == [1]
        for _ in range(50):
            await stand_in.next()
        assert batches == [1, 49]


async def test_an_answered_request_leaves_no_circle_to_the_garbage_collector(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo), Client(endpoint) as client:
        await client.request("echo", b"x", wait=True)
        gc.disable()
        try:
            reply = client.request("echo", b"x")
            trace = weakref.ref(reply)
            assert await reply == [b"x"]
            del reply
            await asyncio.sleep(0)  # the loop lets go of what woke this task
            assert trace() is None
        finally:
            gc.enable()


# ------------------------------------------------------------------------------------------------------------ timeouts, cancellation


async def test_no_broker_is_unreachable_after_all_attempts() -> None:
    async with Client(NOBODY, timeout=0.02, attempts=3) as client:
        with pytest.raises(Unreachable) as caught:
            await client.request("echo", b"x")
        assert NOBODY in str(caught.value)
        assert str(errno.ECONNREFUSED) in caught.value.text  # the reason the system gave
        assert caught.value.attempts == 3
        assert caught.value.after_s >= 0.06
        assert isinstance(caught.value, TimeoutError)


async def test_a_silent_broker_is_a_timeout_after_sending_as_often_as_there_are_attempts(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint, timeout=0.03, attempts=3) as client:
        await eventually(lambda: client.connected)
        with pytest.raises(Timeout) as caught:
            await client.request("echo", b"x")
        assert type(caught.value) is Timeout
        assert (caught.value.attempts, caught.value.service) == (3, "echo")
        kinds = [(await stand_in.next())[1][0] for _ in range(4)]
        assert [kind[:HEAD_BYTES] for kind in kinds] == [CLIENT_REQUEST_03] * 3 + [CLIENT_CANCEL_03]
        assert len({kind[HEAD_BYTES:] for kind in kinds}) == 1


async def test_a_deadline_ends_a_request_before_its_attempts_do(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint, timeout=5.0) as client:
        with pytest.raises(DeadlineExceeded):
            await client.request("echo", b"x", deadline=0.05)


async def test_timeouts_of_one_request_in_place_of_the_clients(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        with pytest.raises(Timeout):
            await client.request("echo", b"x", timeout=0.02, attempts=1)


async def test_cancelling_takes_the_request_back_and_tells_the_broker(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        reply = client.request("echo", b"x")
        peer, frames = await stand_in.next()
        assert reply.cancel()
        assert not reply.cancel()
        assert await stand_in.next() == (peer, [CLIENT_CANCEL_03 + number(frames)])
        assert (client.in_flight, client.counters.cancelled) == (0, 1)
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"late")
        await eventually(lambda: client.counters.late)


async def test_cancelling_whoever_waits_cancels_the_request(stand_in: StandIn) -> None:
    """Nothing is lost and nothing left behind: by a timeout, by a cancelled task, by a cancelled gather."""
    async with Client(stand_in.endpoint) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await client.request("echo", b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.request("echo", b"2"), 0.02)
        gathering = asyncio.gather(*(client.request("echo", b"3") for _ in range(10)))
        gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathering
        assert (client.in_flight, client.counters.cancelled) == (0, 12)


async def test_a_cancelled_request_cancels_its_handler(endpoint: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> bytes:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise
        return b""

    async with Worker(endpoint, "wait", handler=wait) as worker, Client(endpoint) as client:
        reply = client.request("wait", b"x", wait=True)
        await begun.wait()
        reply.cancel()
        await ended.wait()
        await eventually(lambda: worker.running == 0)


# --------------------------------------------------------------------------------------------------------------- the end of a client


async def test_closing_fails_what_is_open_and_leaves_nothing_behind(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        await eventually(lambda: client.connected)
        replies = [client.request("echo", b"x") for _ in range(10)]
    for reply in replies[:5]:
        with pytest.raises(ClientClosed):
            await reply
    del replies, reply  # those nobody awaits make no noise: conftest looks at the loop's exception handler
    with pytest.raises(ClientClosed):
        client.request("echo", b"x")
    await client.close()


@pytest.mark.parametrize("target", [NOBODY, "stand-in"])
async def test_closing_while_connecting_leaves_nothing_behind(stand_in: StandIn, target: str) -> None:
    for turns in range(6):
        client = Client(stand_in.endpoint if target == "stand-in" else target)
        reply = client.request("echo", b"x")
        for _ in range(turns):
            await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClientClosed):
            await reply


async def test_a_client_that_never_did_anything_can_be_closed() -> None:
    client = Client(NOBODY)
    await client.close()
    with pytest.raises(ClientClosed):
        client.request("echo", b"x")


async def test_a_client_in_a_context_of_others_leaves_the_context_alone(stand_in: StandIn) -> None:
    async with core.Context() as context:
        async with Client(stand_in.endpoint, context=context) as client:
            client.request("echo", b"x")
            await stand_in.next()
        assert not context.closed
        await stand_in.gone()


async def test_a_client_belongs_to_one_loop(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:

        def elsewhere() -> None:
            async def ask() -> None:
                client.request("echo", b"x")

            asyncio.run(ask())

        with pytest.raises(RuntimeError, match="SyncClient"):
            await asyncio.to_thread(elsewhere)


# ------------------------------------------------------------------------------------------------------- brokers that come and go


async def test_a_restarted_broker_gets_what_was_in_flight_under_the_same_numbers() -> None:
    """BEY-04, fault B10."""
    async with StandIn() as first:
        client = Client(first.endpoint, timeout=5, attempts=1)
        replies = [client.request("echo", b"%d" % n) for n in range(3)]
        once = client.request("echo", b"once", once=True)
        numbers = [number((await first.next())[1]) for _ in range(4)]
        endpoint = first.endpoint
    with pytest.raises(WorkerLost):
        await once
    async with StandIn(endpoint) as second:
        for n in range(3):
            peer, frames = await second.next()
            assert (number(frames), frames[3]) == (numbers[n], b"%d" % n)
            second.send(peer, CLIENT_FINAL_03 + numbers[n], b"reply")
        assert await asyncio.gather(*replies) == [[b"reply"]] * 3
        assert client.counters.repeated == 3
        await client.close()


async def test_broker_worker_and_client_find_together_again_after_a_restart() -> None:
    """Fault B10, MDP-46: with requests outstanding, by themselves."""
    async with Broker() as first:
        endpoint = first.bind("tcp://127.0.0.1:*")
        worker = await Worker(endpoint, "echo", handler=echo, reconnect_ms=50).__aenter__()
        client = Client(endpoint, timeout=10, attempts=1)
        await client.request("echo", b"x", wait=True)
    replies = [client.request("echo", b"%d" % n, wait=True) for n in range(20)]
    async with Broker() as second:
        second.bind(endpoint)
        assert await asyncio.gather(*replies) == [[b"%d" % n] for n in range(20)]
        await client.close()
        await worker.__aexit__(None, None, None)


async def test_the_next_broker_answers_when_the_first_is_not_there() -> None:
    """BEY-03."""
    async with StandIn() as second, Client([NOBODY, second.endpoint], timeout=10) as client:
        reply = client.request("echo", b"x")
        peer, frames = await second.next()
        second.send(peer, CLIENT_FINAL_03 + number(frames), b"second")
        assert await reply == [b"second"]
        assert client.endpoint == second.endpoint


async def test_a_broker_that_stops_answering_heartbeats_is_left_with_everything_in_flight(stand_in: StandIn) -> None:
    """Fault P2: a paused broker; its TCP connection stays."""
    async with StandIn() as other, Client([stand_in.endpoint, other.endpoint], timeout=10, heartbeat_ms=20) as client:
        reply = client.request("echo", b"x")
        peer, frames = await stand_in.next()
        assert (await stand_in.next())[1] == [CLIENT_HEARTBEAT_03]
        stand_in.send(peer, CLIENT_HEARTBEAT_03)
        peer, again = await other.next()
        assert again == frames
        other.send(peer, CLIENT_FINAL_03 + number(frames), b"other")
        assert await reply == [b"other"]


# ----------------------------------------------------------------------------------------------------------------------------- dialects


@pytest.mark.parametrize("answer", [b"501", b"404", b"", b"2000"])
async def test_a_broker_without_our_dialect_is_spoken_to_in_0_1(answer: bytes) -> None:
    async with StandIn(protocol=answer) as broker, Client(broker.endpoint) as client:
        reply = client.request("echo", b"x")
        peer, frames = await broker.next()
        assert frames == [b"", b"MDPC01", b"echo", b"x"]
        broker.send(peer, b"", b"MDPC01", b"echo", b"reply")
        assert await reply == [b"reply"]
        assert (client.dialect, broker.probes) == ("0.1", 1)


async def test_a_broker_that_takes_the_question_for_a_service_is_spoken_to_in_0_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "PROBE_S", 0.05)
    async with StandIn(protocol=None) as broker, Client(broker.endpoint) as client:
        client.request("echo", b"x")
        assert (await broker.next())[1][1] == b"MDPC01"


@pytest.mark.parametrize(("dialect", "first"), [("0.1", [b"", b"MDPC01"]), ("0.2", [b"MDPC02", b"\x01"]), ("0.3", [CLIENT_REQUEST_03])])
async def test_a_given_dialect_is_spoken_without_asking(dialect: str, first: list[bytes]) -> None:
    async with StandIn() as broker, Client(broker.endpoint, dialect=dialect) as client:
        client.request("echo", b"x")
        frames = (await broker.next())[1]
        assert frames[0].startswith(first[0])
        assert frames[1 : len(first)] == first[1:]
        assert broker.probes == 0


async def test_the_dialect_is_asked_for_again_after_a_reconnect_and_requests_move() -> None:
    async with StandIn(protocol=b"200") as first:
        client = Client(first.endpoint, timeout=10)
        replies = [client.request("echo", b"%d" % n) for n in range(3)]
        for _ in range(3):
            await first.next()
        endpoint = first.endpoint
    async with StandIn(endpoint, protocol=b"501") as old:
        for _ in range(3):
            peer, frames = await old.next()
            assert frames[:3] == [b"", b"MDPC01", b"echo"]
            old.send(peer, *frames)
        assert await asyncio.gather(*replies) == [[b"0"], [b"1"], [b"2"]]
        late = client.request("echo", b"late")
        await old.next()
    async with StandIn(endpoint, protocol=b"200") as new:
        peer, frames = await new.next()
        new.send(peer, CLIENT_FINAL_03 + number(frames), frames[3])
        assert await late == [b"late"]
        await client.close()


async def test_a_pool_of_connections_serves_a_broker_that_numbers_nothing(endpoint: str) -> None:
    """BEY-04: one request in flight per connection."""

    async def reverse(request: Request) -> bytes:
        await asyncio.sleep(0.001 * (9 - int(request.body[0]) % 10))
        return request.body[0]

    async with Worker(endpoint, "echo", handler=reverse), Client(endpoint, dialect="0.1", connections_max=8) as client:
        replies = await asyncio.gather(*(client.request("echo", b"%d" % n) for n in range(50)))
        assert replies == [[b"%d" % n] for n in range(50)]


async def test_an_attempt_in_0_1_ends_with_its_connection(stand_in: StandIn) -> None:
    """MDP-10, MDP-14."""
    async with Client(stand_in.endpoint, dialect="0.1", timeout=0.05, attempts=2) as client:
        await eventually(lambda: client.connected)
        reply = client.request("echo", b"x")
        first, _ = await stand_in.next()
        second, frames = await stand_in.next()
        assert second != first
        assert await stand_in.gone() == first
        stand_in.send(second, *frames)
        assert await reply == [b"x"]


# ------------------------------------------------------------------------------------------------------------------------------- map


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
async def test_map_has_no_more_than_its_window_under_way_and_reads_no_further(endpoint: str, window: int) -> None:
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


async def test_leaving_map_early_takes_back_what_is_under_way(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        outcomes = client.map("echo", (b"%d" % n for n in range(100)), window=10)
        first = asyncio.ensure_future(anext(outcomes))
        peer, frames = await stand_in.next()
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"ok")
        assert (await first).reply == [b"ok"]
        await outcomes.aclose()  # type: ignore[attr-defined]
        assert client.in_flight == 0
        kinds = [(await stand_in.next())[1][0][:HEAD_BYTES] for _ in range(18)]
        assert kinds.count(CLIENT_CANCEL_03) == 9


async def test_an_error_of_the_iterable_ends_map_and_takes_back_what_is_under_way(stand_in: StandIn) -> None:
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
    async with Client(NOBODY, waiting_max=2, timeout=0.02, attempts=1) as client:
        outcomes = [outcome async for outcome in client.map("echo", [b"x"] * 4, window=4)]
    assert [type(outcome.error) for outcome in outcomes] == [Unreachable, Unreachable, Busy, Busy]


async def test_map_refuses_a_window_without_room(endpoint: str) -> None:
    async with Client(endpoint) as client:
        with pytest.raises(ValueError, match="window"):
            await anext(client.map("echo", [b"x"], window=0))


def test_an_outcome_can_be_compared_and_shown() -> None:
    outcome = Outcome(0, [b"x"], None, 1, 0.5)
    assert outcome == Outcome(0, [b"x"], None, 1, 0.5)
    assert "latency_s=0.5" in repr(outcome)


# ---------------------------------------------------------------------------------------------------------------------------- streams


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
        await parts.aclose()  # type: ignore[attr-defined]
        await ended.wait()
        assert client.in_flight == 0


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
        client = Client(first.endpoint, timeout=5)
        parts = client.stream("tail", b"x")
        reading = asyncio.ensure_future(anext(parts))
        peer, frames = await first.next()
        first.send(peer, CLIENT_PARTIAL_03 + number(frames), b"1")
        assert await reading == [b"1"]
    with pytest.raises(WorkerLost):
        await anext(parts)
    await client.close()


async def test_a_reader_that_does_not_keep_up_is_told(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint, timeout=5) as client:
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


# ------------------------------------------------------------------------------------------------------------------------------ others


async def test_mmi_answers_codes(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo) as worker, Client(endpoint) as client:
        await eventually(lambda: worker.connected)
        await client.request("echo", b"x", wait=True)
        assert await client.mmi("service", "echo") == "200"
        assert await client.mmi("mmi.service", b"nobody") == "404"
        assert await client.mmi("no-such-thing") == "501"


async def test_mmi_shows_what_is_no_text(stand_in: StandIn) -> None:
    async with Client(stand_in.endpoint) as client:
        asking = asyncio.ensure_future(client.mmi("odd"))
        peer, frames = await stand_in.next()
        assert frames[1:] == [b"mmi.odd", b"", b""]
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"\xff")
        assert await asking == "\ufffd"


@pytest.mark.parametrize(
    "garbage",
    [
        lambda number: [b""],
        lambda number: [b"\xff" * 20, b"x"],
        lambda number: [CLIENT_FINAL_03 + number],
        lambda number: [CLIENT_ERROR_03 + number, b"lower case", b""],
        lambda number: [b"", b"MDPC01", b"echo", b"x"],
    ],
)
async def test_garbage_of_the_broker_changes_nothing(stand_in: StandIn, garbage: Callable[[bytes], list[bytes]]) -> None:
    """MDP-03, MDP-11."""
    async with Client(stand_in.endpoint) as client:
        reply = client.request("echo", b"x")
        peer, frames = await stand_in.next()
        stand_in.send(peer, *garbage(number(frames)))
        stand_in.send(peer, CLIENT_FINAL_03 + number(frames), b"ok")
        assert await reply == [b"ok"]
        assert client.counters.malformed == 1


async def test_errors_of_one_client_do_not_touch_another(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo), Client(endpoint) as one, Client(endpoint) as two:
        await one.request("echo", b"x", wait=True)
        asked = [one.request("nobody", b"x"), two.request("echo", b"y"), one.request("echo", b"z")]
        failed, *answered = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(failed, RequestError)
        assert answered == [[b"y"], [b"z"]]
