"""pirate.queue_server: its numbers, what it reads when, and its end, by sockets of clients and workers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
import pirate
from tests.scenes.waiting import PATIENCE_S, Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ANY = "tcp://127.0.0.1:*"
READY = [b"\x01"]


@asynccontextmanager
async def queued(**options: Any) -> AsyncIterator[tuple[pirate.Queue, Callable[..., core.Socket]]]:
    async with asyncio.timeout(PATIENCE_S), core.Context() as context, pirate.Queue(ANY, ANY, **options) as queue:

        def peer(endpoint: str, **settings: Any) -> core.Socket:
            made = context.socket(core.DEALER, linger=0, **settings)
            made.connect(endpoint)
            return made

        yield queue, peer


@pytest.mark.parametrize("wrong", [{"liveness": 0}, {"waiting_max": 0}, {"ttl": -0.5}])
async def test_numbers_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        pirate.Queue(ANY, ANY, **wrong)


@pytest.mark.parametrize(
    ("options", "waiting"),
    [({}, 1), ({"simple": True}, 0), ({"ttl": 0}, 0), ({"ttl": 0.5, "liveness": 1, "waiting_max": 1}, 1), ({"simple": True, "ttl": 60}, 1)],
)
async def test_requests_wait_in_the_queue_if_they_have_a_time_and_else_in_the_socket(options: dict[str, Any], waiting: int) -> None:
    """LRU-02."""
    async with queued(**options) as (queue, peer):
        client = peer(queue.frontend)
        watch = Watch(client)
        await client.send_multipart([b"", b"work"])
        await watch.peers()
        if waiting:
            await eventually(lambda: queue.waiting)
        worker = peer(queue.backend, identity=b"w")
        await worker.send_multipart([b"", b"READY"] if options.get("simple") else READY)
        while (got := await worker.recv_multipart())[-1] != b"work":
            pass
        assert queue.waiting == 0
        await worker.send_multipart(got)
        assert await client.recv_multipart() == [b"", b"work"]


async def test_the_requests_of_a_client_that_has_gone_are_dropped() -> None:
    """BEY-07."""
    async with queued() as (queue, peer):
        client = peer(queue.frontend)
        await client.send_multipart([b"", b"work"])
        await eventually(lambda: queue.waiting)
        client.close()
        await eventually(lambda: not queue.waiting)
        assert queue.counters["request_orphaned"] == 1


async def test_lru_02_a_full_queue_reads_on_when_a_client_that_has_gone_leaves_a_place() -> None:
    async with queued(heartbeat_ms=30_000, waiting_max=1) as (queue, peer):
        first = peer(queue.frontend)
        await first.send_multipart([b"", b"first"])
        await eventually(lambda: queue.waiting)
        second = peer(queue.frontend)
        await second.send_multipart([b"", b"second"])
        await second.send_multipart([b"", b"third"])
        first.close()
        await eventually(lambda: queue.counters["request_orphaned"])
        await eventually(lambda: queue.waiting)
        assert queue.waiting == 1  # the third stays in the socket
        worker = peer(queue.backend)
        await worker.send_multipart(READY)
        got = []
        for _ in range(2):
            while (frames := await worker.recv_multipart())[-1] not in (b"second", b"third"):
                pass
            got.append(frames[-1])
            await worker.send_multipart(frames)
        assert got == [b"second", b"third"]


async def test_bey_14_a_reply_to_a_client_that_has_gone_is_counted() -> None:
    async with queued(heartbeat_ms=30_000) as (queue, peer):
        client = peer(queue.frontend)
        await client.send_multipart([b"", b"work"])
        worker = peer(queue.backend)
        await worker.send_multipart(READY)
        while (got := await worker.recv_multipart())[-1] != b"work":
            pass
        client.close()
        await client.wait_closed()
        await worker.send_multipart(got)
        await eventually(lambda: queue.counters["reply_undelivered"])


async def test_a_queue_that_has_nothing_to_do_has_drained() -> None:
    async with queued(heartbeat_ms=30_000) as (queue, peer):
        assert await queue.drain(20.0)
        client = peer(queue.frontend)
        await client.send_multipart([b"", b"too late"])
        await Watch(client).until(core.EVENT_HANDSHAKE_SUCCEEDED)
        assert queue.waiting == 0


async def test_bey_14_clients_may_send_two_parts_less_than_the_queue_gives_a_worker() -> None:
    async with queued(socket_options={"max_parts": 9}) as (queue, peer):
        worker = peer(queue.backend)
        await Watch(worker).peers()
        assert worker.peer_max_parts == 9
    async with queued() as (queue, peer):
        client, worker = peer(queue.frontend), peer(queue.backend)
        for watch in [Watch(client), Watch(worker)]:
            await watch.peers()
        assert client.peer_max_parts == worker.peer_max_parts - 2


async def test_a_worker_that_starts_again_with_its_id_takes_it_over() -> None:
    async with queued(heartbeat_ms=30_000) as (queue, peer):
        first = peer(queue.backend, identity=b"w")
        await first.send_multipart(READY)
        await eventually(lambda: queue.idle == 1)
        second = peer(queue.backend, identity=b"w")
        await second.send_multipart(READY)
        client = peer(queue.frontend)
        await client.send_multipart([b"", b"work"])
        while (got := await second.recv_multipart())[-1] != b"work":
            pass
        await second.send_multipart(got)
        assert await client.recv_multipart() == [b"", b"work"]
        first.close()


async def test_a_worker_that_has_gone_gets_no_requests() -> None:
    async with queued(heartbeat_ms=30_000) as (queue, peer):
        worker = peer(queue.backend, identity=b"w")
        await worker.send_multipart(READY)
        await eventually(lambda: queue.idle == 1)
        worker.close()
        await eventually(lambda: queue.idle == 0)
        await peer(queue.frontend).send_multipart([b"", b"work"])
        await eventually(lambda: queue.waiting == 1)
        assert queue.counters["request"] == 0


async def test_a_malformed_message_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with queued() as (queue, peer):
        await peer(queue.backend, identity=b"w").send_multipart([b"\x07"])
        await eventually(lambda: caplog.records)
    assert [record.getMessage() for record in caplog.records] == ["malformed message dropped"]


async def test_a_queue_whose_context_ends_says_so() -> None:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        async with pirate.Queue(ANY, ANY, context=context) as queue:
            await asyncio.sleep(0)
            context.destroy()
            with pytest.raises(core.ZMQError):
                await queue.serve_forever()


async def test_a_request_that_is_too_large_for_its_worker_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with queued(heartbeat_ms=30_000) as (queue, peer):
        worker = peer(queue.backend, tell_limits=1, maxmsgsize=1000)
        await worker.send_multipart(READY)
        await eventually(lambda: queue.idle == 1)
        await peer(queue.frontend).send_multipart([b"", bytes(5000)])
        await eventually(lambda: "request dropped" in caplog.text)
        await eventually(lambda: queue.idle == 1)
        assert queue.counters["request_too_large"] == 1


async def test_lru_02_a_request_that_comes_when_the_last_worker_has_left_stays_in_its_socket() -> None:
    """A queue that ends would wait for a worker."""
    async with asyncio.timeout(PATIENCE_S), pirate.Queue(ANY, ANY, simple=True) as queue, core.Context() as context:
        worker, client = context.socket(core.REQ, linger=0), context.socket(core.DEALER, linger=0)
        worker.connect(queue.backend)
        await worker.send_multipart(READY)
        await eventually(lambda: queue.idle == 1)
        worker.close()
        await eventually(lambda: queue.idle == 0)
        client.connect(queue.frontend)
        await client.send_multipart([b"", b"x"])
        await eventually(lambda: queue._frontend.readable() or queue.waiting)
        assert queue.waiting == 0
        assert await queue.drain(PATIENCE_S)
