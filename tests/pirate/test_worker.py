"""pirate.worker: its numbers, heartbeats, logs and end, by the socket of a queue."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
import pirate
from pirate.worker_session import CONNECT_S
from tests.scenes.raw_octets import listening, message
from tests.scenes.waiting import PATIENCE_S, Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ANY = "tcp://127.0.0.1:*"
READY, HEARTBEAT = b"\x01", b"\x02"


@asynccontextmanager
async def working(handler: Callable[[list[bytes]], Any], **options: Any) -> AsyncIterator[tuple[pirate.Worker, core.Socket, bytes]]:
    """Yield a worker that has said READY, the queue's socket, and the worker's id there."""
    async with asyncio.timeout(PATIENCE_S), core.Context() as context:
        queue = context.socket(core.ROUTER, linger=0)
        queue.bind(ANY)
        async with pirate.Worker(queue.last_endpoint, handler, **{"heartbeat_ms": 30_000, **options}) as worker:
            name, *ready = await queue.recv_multipart()
            assert ready == ([b"", READY] if options.get("simple") else [READY])
            yield worker, queue, name


class Waiting:
    """A handler that works until it is cancelled."""

    def __init__(self) -> None:
        self.begun: list[list[bytes]] = []
        self.ended: list[list[bytes]] = []

    async def __call__(self, body: list[bytes]) -> None:
        self.begun.append(body)
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            self.ended.append(body)


async def answer_of(queue: core.Socket) -> list[bytes]:
    """Return the next message that is no heartbeat."""
    while (frames := await queue.recv_multipart())[1:] == [HEARTBEAT]:
        pass
    return frames


@pytest.mark.parametrize(
    "wrong", [{"liveness": 0}, {"reconnect_ms": 0}, {"reconnect_ms": 2, "reconnect_max_ms": 1}, {"jitter": -0.1}, {"endpoints": []}]
)
async def test_numbers_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|no endpoint|more than"):
        pirate.Worker(**{"endpoints": "tcp://127.0.0.1:1", "handler": print, **wrong})


@pytest.mark.parametrize("simple", [False, True])
async def test_the_least_numbers_serve(simple: bool) -> None:
    least = {"liveness": 1, "reconnect_ms": 0.5, "reconnect_max_ms": 0.5, "jitter": 0}
    async with working(lambda body: body, simple=simple, **least) as (worker, queue, name):
        envelope = [name, b"", b"client", b""] if simple else [name, b"client", b""]
        for _ in range(2):
            await queue.send_multipart([*envelope, b"one", b"two"])
            assert await answer_of(queue) == [*envelope, b"one", b"two"]
        assert worker.counters["request_draining"] == 0


@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("result", [["text"], "text", 5, asyncio.CancelledError()])
async def test_after_a_result_that_is_no_frames_a_worker_is_ready_again(result: Any, simple: bool) -> None:
    def handler(body: list[bytes]) -> Any:
        if body == [b"well"]:
            return body
        if isinstance(result, BaseException):
            raise result
        return result

    async with working(handler, simple=simple) as (worker, queue, name):
        envelope = [b"", b"client", b""] if simple else [b"client", b""]
        await queue.send_multipart([name, *envelope, b"x"])
        again, *ready = await answer_of(queue)
        assert ready == ([b"", READY] if simple else [READY])
        await queue.send_multipart([again, *envelope, b"well"])
        assert await answer_of(queue) == [again, *envelope, b"well"]
        assert worker.counters["failed"] == 1


async def test_a_queue_that_is_away_is_logged_with_the_pause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pirate.worker")
    async with working(lambda body: body, reconnect_ms=4000, jitter=0) as (_, queue, _):
        await eventually(lambda: "worker ready" in caplog.text)
        queue.close()
        await eventually(lambda: "reconnecting" in caplog.text)
    logged = [record for record in caplog.records if record.name == "pirate.worker"]
    assert [record.getMessage() for record in logged] == ["worker ready", "no queue, reconnecting later"]
    assert vars(logged[1])["after_ms"] == 4000


async def test_a_queue_that_refuses_connections_is_given_up_in_the_time_of_a_silent_one() -> None:
    """Only what is far has longer."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with pirate.Worker("tcp://127.0.0.1:9", print, heartbeat_ms=20, reconnect_ms=1, reconnect_max_ms=1) as worker:
        await eventually(lambda: worker.counters["queue_silent"] == 3)
    assert loop.time() - begun < 3 * CONNECT_S


async def test_ppp_09_a_worker_that_drains_heartbeats_while_it_works_and_is_silent_then() -> None:
    """Silent, so that the queue notices."""
    release, asked = asyncio.Event(), []

    async def wait(body: list[bytes]) -> list[bytes]:
        asked.append(body)
        await release.wait()
        return body

    async with working(wait, heartbeat_ms=10, liveness=1000, heartbeat_busy=True) as (worker, queue, name):
        await queue.send_multipart([name, b"client", b"", b"x"])
        await eventually(lambda: asked)
        draining = asyncio.ensure_future(worker.drain(PATIENCE_S))
        await asyncio.sleep(0)
        while queue.readable():
            await queue.recv_multipart()
        for _ in range(5):
            assert await queue.recv_multipart() == [name, HEARTBEAT]
        release.set()
        assert await draining
        assert await answer_of(queue) == [name, b"client", b"", b"x"]
        await queue.send_multipart([name, b"client", b"", b"too late"])
        await eventually(lambda: worker.counters["request_draining"])
        assert worker.counters["request_draining"] == len(asked) == 1


async def test_the_end_of_a_worker_cancels_its_handler_and_opens_no_connection() -> None:
    handler = Waiting()
    async with working(handler, reconnect_ms=1, reconnect_max_ms=1) as (worker, queue, name):
        watch = Watch(queue)
        await queue.send_multipart([name, b"client", b"", b"x"])
        await eventually(lambda: handler.begun)
        await worker.__aexit__(None, None, None)
        assert handler.begun == handler.ended == [[b"x"]]
        await watch.lost()
        assert watch.seen[core.EVENT_ACCEPTED] == 0


async def test_a_handler_is_cancelled_when_its_queue_goes() -> None:
    """No queue would take its reply."""
    handler = Waiting()
    async with working(handler) as (_, queue, name):
        await queue.send_multipart([name, b"client", b"", b"x"])
        await eventually(lambda: handler.begun)
        queue.close()
        await eventually(lambda: handler.ended)


async def test_a_simulated_crash_ends_the_worker_and_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def crash(body: list[bytes]) -> None:
        raise pirate.SimulatedCrash

    async with working(crash, reconnect_ms=1, reconnect_max_ms=1) as (worker, queue, name):
        watch = Watch(queue)
        await queue.send_multipart([name, b"client", b"", b"x"])
        with pytest.raises(pirate.SimulatedCrash):
            await worker.serve_forever()
        await watch.lost()
        assert watch.seen[core.EVENT_ACCEPTED] == 0
    assert "reconnecting" not in caplog.text


async def test_a_handler_that_cancels_itself_gives_no_reply_and_the_worker_goes_on() -> None:
    async def cancel(body: list[bytes]) -> list[bytes]:
        if body == [b"cancel"]:
            raise asyncio.CancelledError
        return body

    async with working(cancel) as (_, queue, name):
        await queue.send_multipart([name, b"client", b"", b"cancel"])
        name, *ready = await answer_of(queue)  # with a new session
        assert ready == [READY]
        await queue.send_multipart([name, b"client", b"", b"x"])
        assert await answer_of(queue) == [name, b"client", b"", b"x"]


async def test_a_reply_that_is_too_large_for_the_queue_is_logged_and_the_worker_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(PATIENCE_S), core.Context() as context:
        queue = context.socket(core.ROUTER, linger=0, tell_limits=1, maxmsgsize=1000)
        queue.bind(ANY)
        options: dict[str, Any] = {"heartbeat_ms": 30_000, "reconnect_ms": 1, "reconnect_max_ms": 1}
        async with pirate.Worker(queue.last_endpoint, lambda body: bytes(5000), **options):
            name, *_ = await queue.recv_multipart()
            await queue.send_multipart([name, b"client", b"", b"x"])
            other, *ready = await queue.recv_multipart()
            assert other != name
            assert ready == [READY]
    assert "reply dropped, too large for the queue" in caplog.text


async def test_hb_06_what_is_queued_for_a_queue_that_is_given_up_is_dropped() -> None:
    large = 32 * 2**20  # more than the system takes for a peer that does not read
    async with asyncio.timeout(PATIENCE_S), listening() as backend:
        options: dict[str, Any] = {"heartbeat_ms": 10, "liveness": 2, "reconnect_ms": 60_000, "reconnect_max_ms": 60_000}
        async with pirate.Worker(backend.endpoint, lambda body: bytes(large), **options) as worker:
            queue = await backend.accept()
            await queue.shake(b"ROUTER")
            assert await queue.message() == [READY]
            queue.pause()
            await queue.send(message(b"client", b"", b"x"))
            await eventually(lambda: worker.counters["queue_silent"])
            queue.go_on()
            assert len(await queue.rest()) < large


async def test_the_end_of_a_worker_waits_for_its_socket() -> None:
    async with asyncio.timeout(PATIENCE_S), core.Context() as context:
        queue = context.socket(core.ROUTER, linger=0)
        queue.bind(ANY)
        async with pirate.Worker(queue.last_endpoint, print, context=context):
            await queue.recv_multipart()
        assert not context._closing
