"""Queue, workers and clients over sockets: kills, pauses, partitions, handlers that fail, orderly ends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import TYPE_CHECKING, Any, Self

import pytest

import core
import pirate
from core.rpc.handlers import echo
from pirate.worker_session import SessionState
from tests.scenes.far_line import far_line
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from types import TracebackType

ANY = "tcp://127.0.0.1:*"
NOBODY = "tcp://127.0.0.1:9"


async def nothing(client: pirate.Conversation, body: list[bytes]) -> None:
    """Answer nothing."""


@pytest.fixture(params=[True, False], ids=["simple", "paranoid"])
def simple(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


class Cable:
    """Connection between two ends that can be held, with its data, or broken."""

    def __init__(self, to: str) -> None:
        self._to = int(to.rpartition(":")[2])
        self._through = asyncio.Event()
        self._through.set()
        self._lines: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        self.let_go()
        self.cut()
        await eventually(lambda: not self._lines)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        line = (writer, back)
        self._lines.add(line)
        pumps = [asyncio.ensure_future(self._pump(reader, back)), asyncio.ensure_future(self._pump(there, writer))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for end in line:
            end.transport.abort()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._lines.discard(line)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            octets = b"-"
            while octets:
                octets = await reader.read(65536)
                await self._through.wait()  # the end of what is said is held too
                writer.write(octets)
                await writer.drain()

    def hold(self) -> None:
        self._through.clear()

    def let_go(self) -> None:
        self._through.set()

    def cut(self) -> None:
        for line in self._lines:
            for end in line:
                end.transport.abort()


async def test_many_clients_and_workers(simple: bool) -> None:
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(pirate.Queue(ANY, ANY, simple=simple))
        for _ in range(4):
            await stack.enter_async_context(pirate.Worker(queue.backend, echo, simple=simple))

        async def count(name: int) -> None:
            async with pirate.Client(queue.frontend, timeout=100) as client:
                for number in range(50):
                    assert await client.request(b"%d" % name, b"%d" % number) == [b"%d" % name, b"%d" % number]

        await asyncio.gather(*(count(name) for name in range(8)))
        assert queue.counters["request"] == queue.counters["reply"] == 400


async def test_every_transport(simple: bool, tmp_path: Any) -> None:
    async with core.Context() as context:
        for front, back in ((f"ipc://{tmp_path / 'f'}", f"ipc://{tmp_path / 'b'}"), ("inproc://f", "inproc://b")):
            async with (
                pirate.Queue(front, back, simple=simple, context=context),
                pirate.Worker(back, echo, simple=simple, context=context),
                pirate.Client(front, timeout=100, context=context) as client,
            ):
                assert await client.request(b"x") == [b"x"]


@pytest.mark.parametrize("kind", ["held", "cut"])
async def test_a_partition_between_queue_and_worker(kind: str) -> None:
    """Queue and worker give each other up; the other worker continues to reply."""
    async with pirate.Queue(ANY, ANY, heartbeat_ms=20) as queue, Cable(queue.backend) as cable, AsyncExitStack() as stack:
        remote = await stack.enter_async_context(pirate.Worker(cable.endpoint, echo, heartbeat_ms=20, reconnect_ms=10))
        await eventually(lambda: queue.idle == 1)
        async with pirate.Client(queue.frontend, timeout=0.2, attempts=20) as client:
            assert await client.request(b"0") == [b"0"]
            if kind == "held":
                cable.hold()
            else:
                cable.cut()
            await stack.enter_async_context(pirate.Worker(queue.backend, echo, heartbeat_ms=20))
            for number in range(1, 30):
                assert await client.request(b"%d" % number) == [b"%d" % number]
            if kind == "held":
                await eventually(lambda: remote.counters["queue_silent"] > 0)
                await eventually(lambda: queue.counters["worker_expired"] + queue.counters["worker_silent"] > 0)
            cable.let_go()
            await eventually(lambda: queue.idle == 2)
            for number in range(30, 40):
                assert await client.request(b"%d" % number) == [b"%d" % number]


@pytest.mark.parametrize("relaxed", [False, True])
async def test_a_partition_between_client_and_queue(simple: bool, relaxed: bool) -> None:
    """Messages after the partition belong to attempts that are over."""
    async with (
        pirate.Queue(ANY, ANY, simple=simple) as queue,
        Cable(queue.frontend) as cable,
        pirate.Worker(queue.backend, echo, simple=simple),
        pirate.Client(cable.endpoint, timeout=0.1, attempts=100, relaxed=relaxed) as client,
    ):
        for number in range(4):
            assert await client.request(b"%d" % number) == [b"%d" % number]
            cable.hold()
            request = asyncio.ensure_future(client.request(b"held %d" % number))
            await eventually(lambda number=number: client.counters["timeout"] > 2 * number + 1)  # type: ignore[misc]
            cable.let_go()
            assert await request == [b"held %d" % number]
            cable.cut()
        assert client.counters["answered"] == 8


async def test_a_paused_workers_late_reply_goes_to_no_other_client(simple: bool) -> None:
    """Its client has given up; the next client gets its own reply."""
    go_on = asyncio.Event()

    async def slow(body: list[bytes]) -> list[bytes]:
        if body == [b"slow"]:
            await go_on.wait()
        return body

    async with (
        pirate.Queue(ANY, ANY, simple=simple, heartbeat_ms=10) as queue,
        pirate.Worker(queue.backend, slow, simple=simple, heartbeat_ms=10, liveness=1000),
    ):
        async with pirate.Client(queue.frontend, timeout=2.0, attempts=1) as client:
            with pytest.raises(pirate.NoReply):
                await client.request(b"slow")
        if not simple:
            await eventually(lambda: queue.counters["worker_silent"] == 1)
        async with pirate.Client(queue.frontend, timeout=100) as client:
            request = asyncio.ensure_future(client.request(b"quick"))
            go_on.set()
            assert await request == [b"quick"]
        assert queue.counters["reply_undelivered"] == 1


async def test_a_handler_that_fails_gives_no_reply_and_the_worker_goes_on(simple: bool, caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def fails_once(body: list[bytes]) -> list[bytes]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("no")
        return body

    async with (
        pirate.Queue(ANY, ANY, simple=simple) as queue,
        pirate.Worker(queue.backend, fails_once, simple=simple) as worker,
        pirate.Client(queue.frontend, timeout=0.5, attempts=100) as client,
    ):
        assert await client.request(b"x") == [b"x"]
        assert worker.counters["failed"] == 1
        assert client.counters["sent"] >= 2
    assert "handler failed" in caplog.messages


@pytest.mark.parametrize(("answer", "reply"), [(b"y", [b"y"]), (None, [b""]), ([], [b""]), ([b"a", b""], [b"a", b""])])
async def test_what_a_handler_may_return(simple: bool, answer: Any, reply: list[bytes]) -> None:
    async with (
        pirate.Queue(ANY, ANY, simple=simple) as queue,
        pirate.Worker(queue.backend, lambda body: answer, simple=simple),
        pirate.Client(queue.frontend, timeout=100) as client,
    ):
        assert await client.request(b"x") == reply


async def test_bey_03_workers_and_clients_go_to_the_other_queue(simple: bool) -> None:
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(pirate.Queue(ANY, ANY, simple=simple, heartbeat_ms=20))
        async with pirate.Queue(ANY, ANY, simple=simple, heartbeat_ms=20) as first:
            worker = pirate.Worker([first.backend, second.backend], echo, simple=simple, heartbeat_ms=20, reconnect_ms=10)
            await stack.enter_async_context(worker)
            client = pirate.Client([first.frontend, second.frontend], timeout=0.2, attempts=50)
            await stack.enter_async_context(client)
            assert await client.request(b"1") == [b"1"]
            assert first.counters["reply"] >= 1
        assert await client.request(b"2") == [b"2"]
        assert second.counters["reply"] >= 1  # an attempt may have been one too many


async def test_a_worker_that_drains_answers_first(simple: bool) -> None:
    go_on = asyncio.Event()

    async def slow(body: list[bytes]) -> list[bytes]:
        await go_on.wait()
        return body

    async with pirate.Queue(ANY, ANY, simple=simple) as queue, pirate.Client(queue.frontend, timeout=100) as client:
        async with pirate.Worker(queue.backend, slow, simple=simple) as worker:
            request = asyncio.ensure_future(client.request(b"x"))
            await eventually(lambda: worker.state is SessionState.BUSY)
            assert not await worker.drain(0.01)
            go_on.set()
            assert await worker.drain(10)
        assert await request == [b"x"]


async def test_a_queue_that_drains_waits_for_replies(simple: bool) -> None:
    go_on = asyncio.Event()

    async def slow(body: list[bytes]) -> list[bytes]:
        await go_on.wait()
        return body

    async with pirate.Queue(ANY, ANY, simple=simple) as queue:
        async with pirate.Worker(queue.backend, slow, simple=simple), pirate.Client(queue.frontend, timeout=100) as client:
            request = asyncio.ensure_future(client.request(b"x"))
            await eventually(lambda: queue.busy == 1)
            assert not await queue.drain(0.01)
            go_on.set()
            assert await queue.drain(10)
            assert await request == [b"x"]
        serving = asyncio.ensure_future(queue.serve_forever())
    await serving


async def test_a_worker_that_closes_while_working_cancels_its_handler(simple: bool) -> None:
    async with pirate.Queue(ANY, ANY, simple=simple) as queue, pirate.Client(queue.frontend, timeout=2.0, attempts=1) as client:
        async with pirate.Worker(queue.backend, lambda body: asyncio.Event().wait(), simple=simple):
            request = asyncio.ensure_future(client.request(b"x"))
            await eventually(lambda: queue.busy == 1)
        with pytest.raises(pirate.NoReply):
            await request
        await eventually(lambda: queue.counters["request_lost"] == 1)


async def test_mishaps(simple: bool) -> None:
    """Three normal requests; then some are slow, and a crash in the end. The client gets its own replies only."""
    async with pirate.Queue(ANY, ANY, simple=simple) as queue:
        worker = pirate.Worker(queue.backend, pirate.Mishaps(echo, Random("12"), overload_s=0.05), simple=simple)
        async with worker, pirate.Client(queue.frontend, timeout=2.0, attempts=1) as client:
            answered = 0
            with pytest.raises(pirate.NoReply):
                while answered < 1000:
                    assert await client.request(b"%d" % answered) == [b"%d" % answered]
                    answered += 1
            assert answered >= 3
            with pytest.raises(pirate.SimulatedCrash):
                await worker.serve_forever()
            await eventually(lambda: queue.counters["request_lost"] == 1)


async def test_addresses_in_use_and_nonsense_are_refused(simple: bool) -> None:
    async with pirate.Queue(ANY, ANY, simple=simple) as queue:
        for front, back in ((queue.frontend, ANY), (ANY, queue.backend)):
            with pytest.raises(core.ZMQError):
                async with pirate.Queue(front, back, simple=simple):
                    raise AssertionError("it listens where another one does")
        with pytest.raises(core.ZMQError):
            async with pirate.AsyncServer(queue.frontend, nothing):
                raise AssertionError("it listens where another one does")


@pytest.mark.parametrize(
    "make",
    [
        lambda: pirate.Queue(ANY, ANY, liveness=0),
        lambda: pirate.Queue(ANY, ANY, ttl=-1),
        lambda: pirate.Queue(ANY, ANY, waiting_max=0),
        lambda: pirate.Worker([], echo),
        lambda: pirate.Worker(NOBODY, echo, liveness=0),
        lambda: pirate.Worker(NOBODY, echo, reconnect_ms=0),
        lambda: pirate.Worker(NOBODY, echo, reconnect_ms=2, reconnect_max_ms=1),
        lambda: pirate.Worker(NOBODY, echo, jitter=-1),
        lambda: pirate.AsyncServer(ANY, nothing, ttl=0),
    ],
)
def test_numbers_out_of_range(make: Any) -> None:
    with pytest.raises(ValueError):
        make()


async def test_bey_11_behind_curve(simple: bool) -> None:
    public, secret = core.curve_keypair()
    _, own = core.curve_keypair()
    outside = core.Curve(secret_key=own, server_key=public)
    async with (
        pirate.Queue(ANY, ANY, simple=simple, security=core.Curve(secret_key=secret, any_key=True)) as queue,
        pirate.Worker(queue.backend, echo, simple=simple, security=outside),
    ):
        async with pirate.Client(queue.frontend, timeout=100, security=outside) as client:
            assert await client.request(b"x") == [b"x"]
        async with pirate.Client(queue.frontend, timeout=0.2, attempts=1) as stranger:
            with pytest.raises(pirate.NoReply):
                await stranger.request(b"x")


async def test_bey_03_a_worker_whose_first_queue_is_away_serves_the_next(simple: bool) -> None:
    async with (
        pirate.Queue(ANY, ANY, simple=simple) as queue,
        pirate.Worker([NOBODY, queue.backend], echo, simple=simple, heartbeat_ms=50, reconnect_ms=1, reconnect_max_ms=1),
        pirate.Client(queue.frontend, timeout=2.0, attempts=5) as client,
    ):
        assert await client.request(b"x") == [b"x"]


# --- far machines -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", ["queue", "server"])
async def test_a_connection_that_takes_longer_than_a_silence_is_waited_for(far: str) -> None:
    """Each session, and each attempt, ended before there was a connection: handshakes take several round trips."""
    ours, theirs = core.Plain(user="ann", password="secret"), core.Plain(users={"ann": "secret"})
    async with (
        pirate.Queue(ANY, ANY, heartbeat_ms=100, security=theirs) as queue,
        far_line(queue.backend if far == "queue" else queue.frontend, 0.1) as line,
    ):
        backend, frontend = (line, queue.frontend) if far == "queue" else (queue.backend, line)
        async with (
            pirate.Worker(backend, echo, heartbeat_ms=100, reconnect_ms=1, reconnect_max_ms=1, security=ours),
            pirate.Client(frontend, timeout=0.3, attempts=30, security=ours) as client,
        ):
            assert await client.request(b"x") == [b"x"]
