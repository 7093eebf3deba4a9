from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import core
from mdp.broker.limits import BrokerOptions
from mdp.errors import DeadLetter, HandlerError
from mdp.wire.commands import WORKER_READY_03, worker_disconnect, worker_final, worker_heartbeat
from mdp.worker.handler import PartsTooLarge
from mdp.worker.worker import Worker
from tests.scenes.mdp_handlers import NO_LISTENER, echo
from tests.scenes.mdp_scripted_broker import StandIn, give, token
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mdp.client.client import Client
    from mdp.request import Request
    from mdp.wire.commands import Dialect

LOG = "mdp.worker"


# -------------------------------------------------------------------------------------------------------------------------------- failures


class OddError(Exception):
    pass


def exits(request: Request) -> bytes:
    sys.exit(3)


def stops(request: Request) -> bytes:
    raise StopIteration


def runs_out(request: Request) -> bytes:
    raise MemoryError


def is_odd(request: Request) -> bytes:
    raise OddError("the shelf is empty")


def is_cancelled(request: Request) -> bytes:
    raise asyncio.CancelledError


def returns_nothing(request: Request) -> None:
    return None


FAILURES = [
    (exits, "SystemExit"),
    (stops, "RuntimeError|StopIteration"),
    (runs_out, "MemoryError"),
    (is_odd, "OddError"),
    (is_cancelled, "CancelledError"),
    (returns_nothing, "BadReply"),
]


@pytest.mark.parametrize(("handler", "names"), FAILURES)
@pytest.mark.parametrize("kind", ["coroutine", "thread", "inline", "generator"])
async def test_a_failed_handler_is_an_error_with_type_and_id_and_the_worker_goes_on(
    endpoint: str, client: Client, caplog: pytest.LogCaptureFixture, handler: Callable[[Request], Any], names: str, kind: str
) -> None:
    """Faults P4 and P6: the client gets no traceback and no message.

    The log has both, and of the payload only what they hold.
    """

    async def coroutine(request: Request) -> Any:
        return handler(request) if request.body[0] != b"fine" else b"ok"

    async def generator(request: Request) -> AsyncIterator[Any]:
        yield handler(request) if request.body[0] != b"fine" else b"ok"

    def plain(request: Request) -> Any:
        return handler(request) if request.body[0] != b"fine" else b"ok"

    called: dict[str, Any] = {"coroutine": coroutine, "generator": generator, "thread": plain, "inline": plain}
    async with Worker(endpoint, "odd", handler=called[kind], inline=kind == "inline") as worker:
        with caplog.at_level(logging.WARNING, LOG), pytest.raises(HandlerError) as caught:
            await client.request("odd", b"secret", wait=True)
        name, _, id = caught.value.text.partition(", id ")
        assert name in names.split("|")
        assert f"id {id}" in caplog.text
        assert "secret" not in caught.value.text + caplog.text
        (record,) = [record for record in caplog.records if f"id {id}" in record.getMessage()]
        assert record.levelno == logging.ERROR
        assert called[kind].__qualname__ in record.getMessage()
        if handler is is_odd:
            assert "the shelf is empty" in record.getMessage()
            assert "the shelf is empty" not in caught.value.text
        if handler is not returns_nothing:
            trace = "".join("".join(traceback.format_exception(*entry.exc_info)) for entry in caplog.records if entry.exc_info)
            assert handler.__name__ in trace
        assert await client.request("odd", b"fine") == [b"ok"]
        assert (worker.runner_counters.errors, worker.runner_counters.handled) == (1, 1)


async def test_a_handler_can_choose_the_error_of_the_client(endpoint: str, client: Client) -> None:
    async def handler(request: Request) -> bytes:
        raise HandlerError(text="the order is unknown")

    async with Worker(endpoint, "orders", handler=handler):
        with pytest.raises(HandlerError) as caught:
            await client.request("orders", b"x", wait=True)
        assert caught.value.text == "the order is unknown"


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_without_errors_in_the_dialect_a_failed_request_is_left_as_by_a_crash(dialect: Dialect) -> None:
    """MDP-22 forbids a second reply, and a made-up one would pass for a result."""

    async def fail(request: Request) -> bytes:
        if request.body[0] == b"bad":
            raise ValueError
        return b"ok"

    async with StandIn() as stand_in, Worker(stand_in.endpoint, "fail", handler=fail, dialect=dialect) as worker:
        peer, ready = await stand_in.next()
        give(stand_in, peer, 1, b"bad", dialect=dialect)
        assert await stand_in.next() == (peer, worker_disconnect(dialect))
        again, second_ready = await stand_in.next()
        assert second_ready == ready
        assert again != peer
        give(stand_in, again, 2, b"good", dialect=dialect)
        assert (await stand_in.next())[1][-1] == b"ok"
        assert (worker.runner_counters.lost, worker.session_counters.abandoned) == (1, 1)


async def test_a_reply_can_be_made_of_an_error_where_the_dialect_has_none(stand_in: StandIn) -> None:
    async def fail(request: Request) -> bytes:
        raise ValueError

    def reply(error: BaseException) -> list[bytes]:
        return [b"failed", type(error).__name__.encode()]

    async with Worker(stand_in.endpoint, "fail", handler=fail, dialect="0.1", error_reply=reply):
        peer, _ = await stand_in.next()
        give(stand_in, peer, 1, dialect="0.1")
        assert (await stand_in.next())[1][-2:] == [b"failed", b"ValueError"]


@pytest.mark.parametrize("wrong", [lambda error: None, lambda error: 1 / 0])
async def test_a_wrong_error_reply_is_no_reply(stand_in: StandIn, wrong: Callable[[BaseException], Any]) -> None:
    async def fail(request: Request) -> bytes:
        raise ValueError

    async with Worker(stand_in.endpoint, "fail", handler=fail, dialect="0.1", error_reply=wrong):
        peer, _ = await stand_in.next()
        give(stand_in, peer, 1, dialect="0.1")
        assert (await stand_in.next())[1] == worker_disconnect("0.1")


async def endless(request: Request) -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 1000


async def test_an_endless_generator_is_ended_where_parts_cannot_be_sent_and_the_worker_goes_on(
    stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    """MDP-43: what it yielded is kept up to `parts_max_bytes`; the broker gets it back as from a worker that crashed."""

    async def one_or_all(request: Request) -> AsyncIterator[bytes]:
        async for part in endless(request):
            yield part
            if request.body[0] == b"one":
                return

    with caplog.at_level(logging.WARNING, LOG):
        async with Worker(stand_in.endpoint, "tail", handler=one_or_all, dialect="0.1", parts_max_bytes=20_000) as worker:
            peer, ready = await stand_in.next()
            give(stand_in, peer, 1, b"all", dialect="0.1")
            assert await stand_in.next() == (peer, worker_disconnect("0.1"))
            again, second_ready = await stand_in.next()
            assert second_ready == ready
            give(stand_in, again, 2, b"one", dialect="0.1")
            assert (await stand_in.next())[1][-1] == b"x" * 1000
            counters = worker.runner_counters
            assert (counters.parts_dropped, counters.errors, counters.lost, counters.handled) == (1, 1, 1, 1)
    assert "parts_max_bytes, 20000" in caplog.text


async def test_too_much_of_a_generator_can_be_answered_where_the_dialect_has_no_errors(stand_in: StandIn) -> None:
    def reply(error: BaseException) -> bytes:
        assert isinstance(error, PartsTooLarge)
        return b"%d octets at most" % error.limit_bytes

    async with Worker(stand_in.endpoint, "tail", handler=endless, dialect="0.1", parts_max_bytes=20_000, error_reply=reply):
        peer, _ = await stand_in.next()
        give(stand_in, peer, 1, dialect="0.1")
        assert (await stand_in.next())[1][-1] == b"20000 octets at most"


async def test_a_reply_too_large_for_a_worker_without_parts_is_an_error_at_the_client(endpoint: str, client: Client) -> None:
    """Between dialects: the worker has no word for it, the broker has one for a request that no worker answers."""
    quick: dict[str, Any] = {"reconnect_ms": 5, "reconnect_max_ms": 10}
    async with Worker(endpoint, "tail", handler=endless, dialect="0.1", parts_max_bytes=20_000, **quick) as worker:
        with pytest.raises(DeadLetter):
            await client.request("tail", b"x", wait=True)
        assert worker.runner_counters.parts_dropped == BrokerOptions().deliveries_max


# ------------------------------------------------------------------------------------------------------------------------ faults of others


async def test_a_request_of_a_worker_that_dies_goes_to_another(endpoint: str, client: Client) -> None:
    """Fault B6: redelivered, with the delivery count."""
    reached = asyncio.Event()

    async def hold(request: Request) -> bytes:
        reached.set()
        await asyncio.sleep(3600)
        return b""

    async def answer(request: Request) -> bytes:
        return b"%d" % request.delivery

    context = core.Context()
    async with Worker(endpoint, "echo", handler=hold, context=context, drain_s=0) as dying:
        reply = client.request("echo", b"x", wait=True)
        await reached.wait()
        context.destroy(0)  # its connection is closed, without DISCONNECT
        async with Worker(endpoint, "echo", handler=answer):
            assert await reply == [b"2"]
        assert dying.running == 0  # nothing it answers could be sent
    await context.wait_closed()


async def test_a_lost_connection_cancels_what_can_no_longer_be_answered() -> None:
    cancelled: list[bytes] = []
    endpoint = ""

    async def handler(request: Request) -> bytes:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(request.body[0])
            raise
        return b""

    async with StandIn() as first:
        endpoint = first.endpoint
        worker = Worker(endpoint, "echo", handler=handler, concurrency=2)
        await worker.__aenter__()
        peer, _ = await first.next()
        for n in range(4):
            give(first, peer, n, b"%d" % n)
        await eventually(lambda: worker.running == 2)
    async with StandIn(endpoint) as second:
        await second.next()
        assert (sorted(cancelled), worker.running, worker.waiting) == ([b"0", b"1"], 0, 0)
        assert worker.session_counters.abandoned == 4
        await worker.__aexit__(None, None, None)


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
async def test_a_disconnected_worker_registers_again_on_a_new_connection(stand_in: StandIn, dialect: Dialect) -> None:
    """MDP-17."""
    async with Worker(stand_in.endpoint, "echo", handler=echo, dialect=dialect, reconnect_ms=20):
        peer, ready = await stand_in.next()
        stand_in.send(peer, *worker_disconnect(dialect))
        assert await stand_in.gone() == peer
        again, second = await stand_in.next()
        assert (second, again != peer) == (ready, True)


@pytest.mark.parametrize("dialect", ["0.1", "0.3"])
async def test_heartbeats_are_sent_while_handlers_run(stand_in: StandIn, dialect: Dialect) -> None:
    """MDP-24, fault P6: from a timer, not from between two requests."""

    async def forever(request: Request) -> bytes:
        await asyncio.sleep(3600)
        return b""

    async with Worker(stand_in.endpoint, "echo", handler=forever, dialect=dialect, heartbeat_ms=20, liveness=1000, drain_s=0) as worker:
        peer, _ = await stand_in.next()
        give(stand_in, peer, 1, dialect=dialect)
        await eventually(lambda: worker.running)
        for _ in range(3):
            stand_in.send(peer, *worker_heartbeat(dialect))
            assert await stand_in.next() == (peer, worker_heartbeat(dialect))


@pytest.mark.parametrize("dialect", ["0.1", "0.3"])
async def test_a_silent_broker_is_left_for_a_new_connection(stand_in: StandIn, dialect: Dialect) -> None:
    """MDP-20, fault P2."""
    async with Worker(stand_in.endpoint, "echo", handler=echo, dialect=dialect, heartbeat_ms=20, liveness=2, reconnect_ms=20) as worker:
        peer, _ = await stand_in.next()
        assert await stand_in.gone() == peer
        assert worker.session_counters.silences >= 1
        while (message := await stand_in.next())[0] == peer:
            pass
        assert message[1][:3][-1] in (b"\x01", b"echo") or message[1][0] == WORKER_READY_03


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_a_worker_that_stood_still_does_not_leave_its_broker_at_once(stand_in: StandIn) -> None:
    """MDP-20, fault P2: the machine stood still, and the broker with it; requests in flight would be worked on twice."""
    async with Worker(stand_in.endpoint, "echo", handler=echo, heartbeat_ms=500, liveness=1) as worker:
        peer, _ = await stand_in.next()
        for n in range(3):
            time.sleep(0.8)
            for _ in range(10):  # iterations of the loop, in which the worker's clock is late
                await asyncio.sleep(0)
            stand_in.send(peer, *worker_heartbeat("0.3"))
            give(stand_in, peer, n)
            while (message := await stand_in.next())[1] == worker_heartbeat("0.3"):
                pass
            assert message == (peer, worker_final("0.3", token(n), [b"x"]))
        assert worker.session_counters.silences == 0


async def test_a_worker_finds_the_second_broker(stand_in: StandIn) -> None:
    """BEY-03."""
    async with Worker([NO_LISTENER, stand_in.endpoint], "echo", handler=echo):
        assert (await stand_in.next())[1][0] == WORKER_READY_03


async def test_there_are_as_many_registrations_at_an_older_broker_as_configured() -> None:
    async with StandIn(protocol=b"501") as old:
        async with Worker(old.endpoint, "echo", handler=echo, connections=3) as worker:
            peers = {(await old.next())[0] for _ in range(3)}
            assert len(peers) == 3
            for n, peer in enumerate(peers):
                give(old, peer, n, b"%d" % n, dialect="0.1")
            assert {(await old.next())[0] for _ in range(3)} == peers
            assert worker.connected
        assert [(await old.next())[1] for _ in range(3)] == [worker_disconnect("0.1")] * 3


async def test_registrations_open_and_close_with_the_dialect_of_the_broker() -> None:
    async with StandIn(protocol=b"501") as old:
        worker = await Worker(old.endpoint, "echo", handler=echo, connections=3).__aenter__()
        for _ in range(3):
            await old.next()
        endpoint = old.endpoint
    async with StandIn(endpoint, protocol=b"200") as new:
        await eventually(lambda: len(worker._registrations) == 1 and worker.connected)
        await worker.__aexit__(None, None, None)
        heads = [new.inbox.get_nowait()[1][0] for _ in range(new.inbox.qsize())]
        assert WORKER_READY_03 in heads


async def test_a_worker_logs_that_its_concurrency_has_no_effect(stand_in: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOG):
        async with Worker(stand_in.endpoint, "echo", handler=echo, dialect="0.1"):
            await stand_in.next()
    assert "one request at a time" in caplog.text


# ------------------------------------------------------------------------------------------------------------------------------- watchdogs


async def test_the_watchdog_names_the_handler_that_blocks_the_loop(endpoint: str, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Fault P6, asked for in zerorpc-python #149."""

    async def blocks_the_loop(request: Request) -> bytes:
        deadline = time.monotonic() + 20
        while "blocks_the_loop" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.2)
            await asyncio.sleep(0.02)  # a standstill that began elsewhere, on a busy machine, is named after where it began: end it
        return b""

    with caplog.at_level(logging.WARNING, LOG):
        async with Worker(endpoint, "echo", handler=blocks_the_loop, blocked_s=0.05):
            await client.request("echo", b"x", wait=True)
    assert "blocks_the_loop" in caplog.text


async def test_a_stuck_handler_silences_its_worker(stand_in: StandIn) -> None:
    """MDP-24: the broker is to give the request to another one."""

    async def forever(request: Request) -> bytes:
        await asyncio.sleep(3600)
        return b""

    async with Worker(stand_in.endpoint, "echo", handler=forever, heartbeat_ms=20, liveness=10_000, stuck_s=0.05, drain_s=0) as worker:
        peer, _ = await stand_in.next()
        assert (await stand_in.next())[1] == worker_heartbeat("0.3")
        give(stand_in, peer, 1)
        await eventually(lambda: worker._session.suppress_heartbeats)
        sent = worker.session_counters.heartbeats
        await asyncio.sleep(0.1)
        assert worker.session_counters.heartbeats == sent


FORKING = """
import asyncio, os, sys
import mdp.broker, mdp.client, mdp.worker

async def forks(request):
    pid = os.fork()
    if not pid:
        return b"from the child"
    return b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def main():
    async with mdp.broker.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with mdp.worker.Worker(endpoint, "fork", handler=forks), mdp.client.Client(endpoint) as client:
            print(await client.request("fork", b"x", wait=True), await client.request("fork", b"y"))

asyncio.run(main())
"""


def test_a_forked_child_that_returns_to_the_loop_is_ended_with_a_log_line() -> None:
    """Fault P7."""
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "[b'70'] [b'70']\n", done.stderr
    assert "forked" in done.stderr
