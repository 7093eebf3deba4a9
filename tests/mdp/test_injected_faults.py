"""A fault injected into each clock and thread of a broker and its worker that needs its own scene."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
import mdp
from core.runtime import supervision
from core.runtime.leftovers import leave
from core.runtime.supervision import Supervisor
from mdp.broker.broker import HELD_BEHIND_MIN
from mdp.eventlog.files import EventLogWriter, read_events
from mdp.eventlog.format import WORKER_READY, Block
from mdp.eventlog.log_options import EventLogOptions
from mdp.wire.commands import MDPC01, client_request, worker_final, worker_ready
from mdp.wire.events import Work, parse_at_worker
from tests.scenes.fault_injection import Saboteur, sabotaged
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.faults

ANSWER = bytes(64 * 1024)
REQUESTS = 300  # with the answers to so many no system's buffers are content


async def big(request: mdp.Request) -> bytes:
    return ANSWER


async def test_workers_held_back_are_read_again_after_a_fault_of_the_clock_that_looks() -> None:
    """The client reads nothing until the clock has failed: by then its answers fill what may wait for it."""
    with sabotaged("mdp broker backlog clock") as supervisor:
        async with core.Context() as context, mdp.Broker(unread_max_bytes=8 * len(ANSWER)) as broker:
            at = broker.bind("tcp://127.0.0.1:*")
            client = context.socket(core.DEALER, linger=0, rcvhwm=1)
            client.connect(at)
            async with mdp.Worker(at, "big", handler=big):
                await eventually(lambda: broker.stats["workers"])
                for n in range(REQUESTS):
                    await client.send_multipart(client_request("0.1", b"big", [b"%d" % n]))
                await eventually(lambda: supervisor.faults)
                for _ in range(REQUESTS):
                    assert (await client.recv_multipart())[-1] == ANSWER
            assert broker.counters["cut_slow"] == 0
            assert not supervisor.troubles


async def test_a_broker_continues_when_memory_of_a_disconnected_peer_cannot_be_given_back() -> None:
    with sabotaged("mdp broker memory clock") as supervisor:
        async with core.Context() as context, mdp.Broker(unread_max_bytes=8 * len(ANSWER)) as broker:
            at = broker.bind("tcp://127.0.0.1:*")
            deaf = context.socket(core.DEALER, linger=0, rcvhwm=1)
            deaf.connect(at)
            async with mdp.Worker(at, "big", handler=big), mdp.Client(at) as client:
                await eventually(lambda: broker.stats["workers"])
                for n in range(REQUESTS):
                    await deaf.send_multipart(client_request("0.1", b"big", [b"%d" % n]))
                await eventually(lambda: supervisor.faults)
                assert broker.counters["cut_slow"]
                assert await client.request("big", b"") == [ANSWER]


async def test_replies_that_are_held_leave_after_a_fault_of_the_clock_that_lets_them() -> None:
    with sabotaged("mdp broker release clock"):
        async with core.Context() as context, mdp.Broker() as broker:
            endpoint = broker.bind("tcp://127.0.0.1:*")
            worker, client = context.socket(core.DEALER, linger=0), context.socket(core.DEALER, linger=0)
            for socket in (worker, client):
                socket.connect(endpoint)
            await worker.send_multipart(worker_ready("0.1", b"echo"))
            for n in range(HELD_BEHIND_MIN * 3):
                await client.send_multipart(client_request("0.1", b"echo", [b"%d" % n]))
            await eventually(lambda: broker.counters["accepted"] == HELD_BEHIND_MIN * 3)
            event = parse_at_worker(await worker.recv_multipart())
            assert isinstance(event, Work)
            await worker.send_multipart(worker_final("0.1", event.id, event.body))
            assert (await client.recv_multipart())[-1] == b"0"


async def test_a_request_is_answered_though_the_thread_for_it_failed() -> None:
    with sabotaged("mdp handler thread") as supervisor:
        async with mdp.Broker() as broker:
            at = broker.bind("tcp://127.0.0.1:*")
            async with mdp.Worker(at, "plain", handler=lambda request: request.body), mdp.Client(at, timeout=100) as client:
                assert await client.request("plain", b"x", wait=True) == [b"x"]
                assert supervisor.restarts == {"mdp handler thread": 1}


@pytest.mark.parametrize("dialect", ["0.2", "0.3"])
async def test_a_request_for_which_no_thread_can_be_started_waits_for_one(monkeypatch: pytest.MonkeyPatch, dialect: str) -> None:
    begin = threading.Thread.start

    def exhausted(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", begin)
        raise RuntimeError("can't start new thread")

    def plain(request: mdp.Request) -> bytes:
        return request.body[0]

    async with mdp.Broker() as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(at, "plain", handler=plain, dialect=dialect), mdp.Client(at, timeout=100) as client:
            await eventually(lambda: broker.stats["workers"])
            monkeypatch.setattr(threading.Thread, "start", exhausted)
            assert await client.request("plain", b"first") == [b"first"]
            assert broker.stats["redelivered"] == 0


async def test_requests_for_which_there_are_no_threads_at_all_are_refused_and_no_attempts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin, worked = threading.Thread.start, []

    def exhausted(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def plain(request: mdp.Request) -> bytes:
        worked.append(request.body[0])
        return request.body[0]

    async with mdp.Broker() as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        retry = mdp.Retry(attempts=3, base_s=0.001)
        async with mdp.Worker(at, "plain", handler=plain, retry=retry, concurrency=2) as worker, mdp.Client(at, timeout=100) as client:
            await eventually(lambda: broker.stats["workers"])
            monkeypatch.setattr(threading.Thread, "start", exhausted)
            for refused in await asyncio.gather(*(client.request("plain", b"%d" % n) for n in range(2)), return_exceptions=True):
                assert isinstance(refused, mdp.Busy)
                assert refused.text == "the worker can start no thread for its handler: can't start new thread"
            monkeypatch.setattr(threading.Thread, "start", begin)
            assert await client.request("plain", b"third") == [b"third"]
            assert (worker.runner_counters.threadless, worker.runner_counters.errors, broker.stats["retried"]) == (2, 0, 0)
    assert worked == [b"third"]
    assert "0 threads for plain handlers, and no more: can't start new thread" in caplog.text


async def test_requests_for_which_no_more_threads_can_be_started_wait_for_the_threads_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = threading.Event(), threading.Event()

    def exhausted(thread: threading.Thread) -> None:
        end.set()
        raise RuntimeError("can't start new thread")

    def plain(request: mdp.Request) -> bytes:
        begun.set()
        end.wait(PATIENCE_S)
        return request.body[0]

    async with mdp.Broker() as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(at, "plain", handler=plain, concurrency=4), mdp.Client(at, timeout=100) as client:
            first = asyncio.ensure_future(client.request("plain", b"first", wait=True))
            await eventually(begun.is_set)
            monkeypatch.setattr(threading.Thread, "start", exhausted)
            others = await asyncio.gather(*(client.request("plain", b"%d" % number) for number in range(8)))
            assert [*others, await first] == [*([b"%d" % number] for number in range(8)), [b"first"]]


async def test_a_handler_that_does_not_end_is_found_after_a_fault_of_the_clock_that_looks_for_it() -> None:
    called, end = asyncio.Event(), asyncio.Event()

    async def stubborn(request: mdp.Request) -> bytes:
        called.set()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                pass
        return b"late"

    with sabotaged("mdp worker overdue"):
        async with mdp.Broker() as broker:
            at = broker.bind("tcp://127.0.0.1:*")
            async with mdp.Worker(at, "stubborn", handler=stubborn, cancel_s=0.05) as worker, mdp.Client(at, timeout=100) as client:
                asked = asyncio.ensure_future(client.request("stubborn", b"x", wait=True))
                await called.wait()
                asked.cancel()
                await eventually(lambda: worker.runner_counters.overdue)
                end.set()
                await eventually(lambda: not worker.running)


def kept_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "leftovers"}


async def test_what_is_left_is_kept_after_a_fault_of_the_thread_that_keeps_it() -> None:
    end = asyncio.Event()
    before = kept_threads()
    with sabotaged("leftovers") as supervisor:
        task = asyncio.create_task(end.wait())
        leave([task])
        await eventually(lambda: supervisor.restarts == {"leftovers": 1})
        assert task not in asyncio.all_tasks()
        end.set()
        await task
        await eventually(lambda: kept_threads() <= before)


async def test_events_are_written_after_a_fault_of_the_thread_that_writes_them(tmp_path: Path) -> None:
    with sabotaged("mdp event log"):
        with EventLogWriter(tmp_path, EventLogOptions(events_flush_ms=5)) as writer:
            await eventually(lambda: writer.trouble)
            writer.append(Block(WORKER_READY, 1, 1.0, b"s", b"w"))
            await eventually(lambda: not writer.trouble)
        assert (writer.written, writer.dropped) == (1, 0)
        assert [event.worker for event in read_events(tmp_path)] == [b"w".hex()]


async def test_a_peer_is_asked_what_it_lends_after_a_fault_of_the_clock_that_asks() -> None:
    with sabotaged("mdp lending clock"):
        async with (
            mdp.Broker() as lender,
            mdp.LendingBroker([lender.bind("tcp://127.0.0.1:*")], state_ms=50) as borrower,
            mdp.Worker(lender.endpoints[0], "echo", handler=echo),
            mdp.Client(borrower.bind("tcp://127.0.0.1:*"), timeout=100) as client,
        ):
            assert await client.request("echo", b"x", wait=True) == [b"x"]


async def test_a_waiting_client_is_refused_after_a_fault_of_the_refusing_timer(tmp_path: Path) -> None:
    begin = asyncio.Event()
    with sabotaged("mdp pair clock") as supervisor:
        pair = bstar.Pair(bstar.PRIMARY, local=f"ipc://{tmp_path}/one", remote=f"ipc://{tmp_path}/other", heartbeat_ms=50)
        pair.on_active(begin.wait)
        async with pair, mdp.PairedBroker(pair) as broker, core.Context() as context:
            broker.bind("tcp://127.0.0.1:*")
            while not supervisor.faults:
                async with context.socket(core.REQ, linger=0) as client:
                    client.connect(broker.endpoints[0])
                    await client.send_multipart([MDPC01, b"mmi.pair", b""])
                    assert (await client.recv_multipart())[2] == b"300"
            begin.set()


async def test_a_silent_peer_is_connected_again_after_a_fault_while_its_socket_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with core.Context() as context, core.Context() as borrowing:
        silent = context.socket(core.ROUTER, linger=0)
        silent.bind("tcp://127.0.0.1:*")
        socket, fail = core.Context.socket, Saboteur(["socket"])
        with supervision.scope(Supervisor()) as supervisor:
            async with mdp.LendingBroker([silent.last_endpoint], state_ms=20, context=borrowing) as borrower:

                def breakable(made_in: core.Context, kind: int, **options: Any) -> core.Socket:
                    fail("socket")
                    return socket(made_in, kind, **options)

                monkeypatch.setattr(core.Context, "socket", breakable)
                first = (await silent.recv_multipart())[0]
                async with asyncio.timeout(PATIENCE_S):
                    while (await silent.recv_multipart())[0] == first:
                        continue
                assert supervisor.faults == {"mdp lending clock": 1}
                assert borrower.lending_counters["peers_lost"] == 0  # it never was one that lends
