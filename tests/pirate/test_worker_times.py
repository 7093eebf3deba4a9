"""pirate.worker in virtual time: its pauses, its queues by turns, its heartbeats and its silence, to the moment."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import core
import pirate
from pirate.worker_session import SessionState
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READY, HEARTBEAT = b"\x01", b"\x02"


class Queues:
    """Backends of queues; what comes to each is kept, with the time since the first."""

    def __init__(self, context: core.Context, count: int) -> None:
        self.came: list[tuple[float, int, list[bytes]]] = []
        self.names: list[bytes] = []
        self.sockets = [context.socket(core.ROUTER, linger=0) for _ in range(count)]
        self.endpoints = [f"inproc://queue-{number}" for number in range(count)]
        self._began: float | None = None
        for number, (socket, endpoint) in enumerate(zip(self.sockets, self.endpoints, strict=True)):
            socket.bind(endpoint)
            socket.set_receiver(partial(self._take, number))

    def _take(self, number: int, batch: list[list[bytes]]) -> None:
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        for name, *frames in batch:
            self.names.append(name)
            self.came.append((round(now - self._began, 3), number, frames))

    def taken(self) -> list[tuple[float, int, list[bytes]]]:
        """Return what came since the last call."""
        came, self.came = self.came, []
        return came

    def send(self, *frames: bytes) -> None:
        """Send to the last connection of the first queue."""
        self.sockets[0].send_multipart([self.names[-1], *frames], core.NOBLOCK)


@asynccontextmanager
async def working(handler: Any = lambda body: body, count: int = 1, **options: Any) -> AsyncIterator[tuple[pirate.Worker, Queues]]:
    """Yield a worker that has said READY at second 0."""
    async with core.Context() as context:
        queues = Queues(context, count)
        async with pirate.Worker(queues.endpoints, handler, context=context, **{"heartbeat_ms": 1000, "jitter": 0, **options}) as worker:
            await asyncio.sleep(0.001)
            assert queues.taken() == [(0.0, 0, [READY])]
            yield worker, queues


@in_virtual_time
async def test_silent_queues_are_tried_by_turns_after_pauses_that_double() -> None:
    """Pauses of PPP-05: 0.5 s, 1 s, 2 s and then 3 s, after two silent seconds each."""
    async with working(count=2, liveness=2, reconnect_ms=500, reconnect_max_ms=3000) as (worker, queues):
        await asyncio.sleep(20)
        assert [(at, number) for at, number, frames in queues.taken() if frames == [READY]] == [
            (2.5, 1), (5.5, 0), (9.5, 1), (14.5, 0), (19.5, 1),
        ]  # fmt: skip
        assert worker.state is SessionState.IDLE


@in_virtual_time
async def test_heartbeats_leave_at_their_interval_and_none_keeps_a_queue_longer() -> None:
    async with working(heartbeat_ms=300, liveness=3, reconnect_ms=10_000, reconnect_max_ms=10_000) as (worker, queues):
        await asyncio.sleep(0.5)
        queues.send(HEARTBEAT)
        await asyncio.sleep(0.8)
        assert queues.taken() == [(at, 0, [HEARTBEAT]) for at in (0.3, 0.6, 0.9, 1.2)]
        await asyncio.sleep(0.2)
        assert (worker.state, worker.counters["queue_silent"]) == (SessionState.WAITING, 1)


@in_virtual_time
@pytest.mark.parametrize("works", [True, False])
async def test_ppp_09_a_worker_that_drains_heartbeats_while_it_works_and_is_silent_from_then_on(works: bool) -> None:
    async def work(body: list[bytes]) -> list[bytes]:
        await asyncio.sleep(3.2)
        return body

    async with working(work, liveness=1000, heartbeat_busy=True) as (worker, queues):
        if works:
            queues.send(b"client", b"", b"x")
        await asyncio.sleep(0.5)
        assert await worker.drain(60)
        await asyncio.sleep(20)
        reply = (3.201, 0, [b"client", b"", b"x"])
        assert queues.taken() == ([*((at, 0, [HEARTBEAT]) for at in (1.0, 2.0, 3.0)), reply] if works else [])


@in_virtual_time
async def test_a_worker_that_ends_as_it_connects_has_not_been_ready() -> None:
    async with core.Context() as context:
        queues = Queues(context, 1)
        worker = pirate.Worker(queues.endpoints, lambda body: body, context=context)
        async with worker:
            pass
        await asyncio.sleep(5)
        assert (worker.counters["ready"], queues.taken()) == (0, [])


@in_virtual_time
async def test_a_simple_worker_says_ready_again_after_a_message_that_is_no_request() -> None:
    """Its REQ socket takes the next request only after that."""
    async with core.Context() as context:
        queues = Queues(context, 1)
        async with pirate.Worker(queues.endpoints, lambda body: body, context=context, simple=True) as worker:
            await asyncio.sleep(0.001)
            queues.send(b"", HEARTBEAT)
            await asyncio.sleep(0.001)
            queues.send(b"", b"client", b"", b"x")
            await asyncio.sleep(0.001)
            assert [frames for _, _, frames in queues.taken()] == [[b"", READY], [b"", READY], [b"", b"client", b"", b"x"]]
            assert worker.counters["queue_malformed"] == 1


@in_virtual_time
async def test_a_server_that_answers_ready_with_something_else_does_not_keep_a_simple_worker_busy() -> None:
    """A worker whose endpoint is that of another service: READY and an error would follow each other for ever."""
    async with core.Context() as context:
        queues = Queues(context, 1)

        def answer(batch: list[list[bytes]]) -> None:
            queues._take(0, batch)
            queues.send(b"", b"error: unknown command")

        queues.sockets[0].set_receiver(answer)
        async with pirate.Worker(queues.endpoints, lambda body: body, context=context, simple=True, jitter=0) as worker:
            await asyncio.sleep(9.5)
            times = [at for at, _, frames in queues.taken() if frames == [b"", READY]]
            assert times[:4] == [0, 0, 0, 0]
            assert times[4:] == [1, 3, 7]
            assert worker.counters["queue_malformed"] == len(times)


@in_virtual_time
async def test_a_worker_that_crashed_sends_and_counts_no_heartbeats() -> None:
    async def crash(body: list[bytes]) -> None:
        raise pirate.SimulatedCrash

    async with working(crash, heartbeat_busy=True, liveness=100) as (worker, queues):
        await asyncio.sleep(1.5)
        queues.send(b"client", b"", b"x")
        await asyncio.sleep(10)
        assert (worker.counters["request"], worker.counters["heartbeat_sent"]) == (1, 1)
        with pytest.raises(pirate.SimulatedCrash):
            await worker.serve_forever()


@in_virtual_time
@pytest.mark.parametrize("simple", [True, False])
async def test_what_a_socket_of_a_worker_still_holds_does_not_keep_its_context(simple: bool) -> None:
    async with core.Context() as context:
        queues = Queues(context, 1)
        async with pirate.Worker(queues.endpoints, print, context=context, simple=simple) as worker:
            assert worker._socket is not None
            assert (worker._socket.linger, worker._socket.tell_limits) == (0, 1)


@in_virtual_time
async def test_a_handler_that_fails_is_logged_and_a_new_session_begins_at_once(caplog: pytest.LogCaptureFixture) -> None:
    def fail(body: list[bytes]) -> bytes:
        raise KeyError(body[0])

    async with working(fail) as (worker, queues):
        queues.send(b"client", b"", b"x")
        await asyncio.sleep(0.001)
        assert [frames for _, _, frames in queues.taken()] == [[READY]]
        assert (worker.counters["failed"], worker.counters["ready"]) == (1, 2)
    assert "handler failed" in caplog.text
