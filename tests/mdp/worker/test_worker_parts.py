"""mdp.Worker: its options, what it accepts while it stops, when answers leave, and what its end leaves."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
from mdp.worker.handler import service
from mdp.worker.worker import Worker, WorkerOptions
from tests.scenes.builds import replaces_names
from tests.scenes.mdp_handlers import NO_LISTENER, echo
from tests.scenes.mdp_scripted_broker import StandIn
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mdp.broker.broker import Broker
    from mdp.client.client import Client
    from mdp.request import Request


class Gate:
    """A handler that answers what begins with `fast` at once, the rest when the gate is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun: list[bytes] = []

    async def __call__(self, request: Request) -> list[bytes]:
        self.begun.append(request.body[0])
        if not request.body[0].startswith(b"fast"):
            await self.open.wait()
        return [*request.body]


# --- options ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 0),
        ("connections", 0),
        ("liveness", 0),
        ("parts_max_bytes", 0),
        ("credit", 0),
        ("heartbeat_ms", 0),
        ("reconnect_ms", 0),
        ("reconnect_max_ms", 0),
        ("stuck_s", 0),
        ("results_max", -1),
        ("results_max_bytes", -1),
        ("results_ms", -1),
        ("drain_s", -1),
        ("blocked_s", -1),
        ("cancel_s", -1),
        ("log_payloads", "always"),
    ],
)
def test_options_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        WorkerOptions(**{name: value})


def test_what_is_no_worker_is_said() -> None:
    with pytest.raises(TypeError, match="a handler is missing"):
        Worker(NO_LISTENER, "echo")
    with pytest.raises(TypeError, match="no such option of a worker: concurency"):
        Worker(NO_LISTENER, "echo", handler=echo, concurency=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("most_ms", "most_s"), [(500, 1.0), (5000, 5.0)])
def test_the_longest_wait_is_no_shorter_than_the_first(most_ms: float, most_s: float) -> None:
    worker = Worker(NO_LISTENER, "echo", handler=echo, reconnect_ms=1000, reconnect_max_ms=most_ms)
    assert worker._session.search._times.reconnect_max_s == most_s


async def test_a_worker_that_does_not_serve_yet_does_nothing() -> None:
    worker = Worker(NO_LISTENER, "echo", handler=echo)
    assert (worker.running, worker.waiting, worker.stuck, worker.connected) == (0, 0, "", False)
    worker.stop()
    assert await worker.drain()
    await worker.serve_forever()


# --- handlers -----------------------------------------------------------------------------------------------------------------------


def where(request: Request) -> bytes:
    """Answer with the thread that runs this."""
    return b"%d" % threading.get_ident()


@service("marked", inline=True)
def marked(request: Request) -> bytes:
    return where(request)


@pytest.mark.parametrize(("handler", "inline", "here"), [(where, False, False), (where, True, True), (marked, False, True)])
async def test_inline_handlers_run_in_the_event_loop(
    endpoint: str, client: Client, handler: Callable[..., Any], inline: bool, here: bool
) -> None:
    async with Worker(endpoint, "where", handler=handler, inline=inline):
        (answered,) = await client.request("where", b"x", wait=True)
    assert (int(answered) == threading.get_ident()) is here


@service("typed")
async def typed(first: int, second: int) -> int:
    return first - second


async def test_a_typed_handler_gets_its_arguments_and_is_described(endpoint: str, client: Client, broker: Broker) -> None:
    async with Worker(endpoint, typed):
        await eventually(lambda: broker.stats["workers"])
        assert await client.call("typed", 5, 2) == 3
        (worker,) = broker.machine.directory.workers.values()
        assert worker.metadata


async def of_generator(request: Request) -> AsyncIterator[bytes]:
    yield request.body[0]


@pytest.mark.parametrize("handler", [echo, of_generator])
async def test_handlers_with_something_around_them_and_middleware(endpoint: str, client: Client, handler: Callable[..., Any]) -> None:
    seen = list[str]()

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        seen.append("around")
        return call

    async def between(request: Request, call: Callable[..., Any]) -> Any:
        seen.append("before")
        return await call(request)

    async with Worker(endpoint, "echo", handler=handler, around=around, middleware=[between]):
        assert await client.request("echo", b"x", wait=True) == [b"x"]
    assert seen == ["around", "before"]


async def plain(request: Request) -> bytes:
    return b""


def threaded(request: Request) -> bytes:
    return b""


async def pass_on(request: Request, call: Callable[..., Any]) -> Any:
    return await call(request)


@pytest.mark.parametrize(
    ("handler", "blocked_s", "middleware", "watched"),
    [
        (plain, 1.0, [], True),
        (plain, 0, [], False),
        (threaded, 1.0, [], False),
        (threaded, 1.0, [pass_on], True),
        (threaded, 0, [pass_on], False),
    ],
)
async def test_the_loop_is_watched_where_a_handler_can_block_it(
    handler: Callable[..., Any], blocked_s: float, middleware: list[Any], watched: bool
) -> None:
    async with Worker(NO_LISTENER, "echo", handler=handler, blocked_s=blocked_s, middleware=middleware, drain_s=0) as worker:
        watchdog = worker._watchdog
        assert (watchdog is not None) is watched
    assert watchdog is None or watchdog._clock.when is None


@pytest.mark.parametrize("log_payloads", ["never", "errors"])
async def test_the_body_of_a_request_that_failed_is_logged_if_that_is_wanted(
    endpoint: str, client: Client, log_payloads: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(request: Request) -> bytes:
        raise KeyError("fault")

    async with Worker(endpoint, "fail", handler=fail, log_payloads=log_payloads):
        with pytest.raises(mdp.HandlerError):
            await client.request("fail", b"what was asked", wait=True)
    texts = " ".join(str(vars(record)) for record in caplog.records)
    assert ("what was asked" in texts) is (log_payloads == "errors")


# --- answers and stopping -------------------------------------------------------------------------------------------------------------


async def test_a_reply_of_an_error_that_cannot_be_made_is_logged(endpoint: str, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """The worker gives the request back, as without such a reply."""

    given: list[Request] = []

    async def fail(request: Request) -> bytes:
        given.append(request)
        raise KeyError("fault")

    def make(error: BaseException) -> bytes:
        raise ValueError("no reply")

    async with Worker(endpoint, "fail", handler=fail, dialect="0.1", error_reply=make):
        reply = client.request("fail", b"x", wait=True)
        await eventually(lambda: "error_reply failed too" in caplog.text)
        await eventually(lambda: len(given) > 1)
        assert not reply.done()
        reply.cancel()


@asynccontextmanager
async def served(handler: Callable[..., Any], **options: Any) -> AsyncIterator[tuple[Client, Worker, str]]:
    """Return a client, a worker and the endpoint of their broker, over inproc: for virtual time."""
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        at = broker.bind("inproc://broker")
        async with Worker(at, "echo", handler=handler, context=context, **options) as worker, mdp.Client(at, context=context) as client:
            yield client, worker, at


@in_virtual_time
async def test_an_answer_does_not_wait_for_other_handlers() -> None:
    """Nor for the next heartbeat: in virtual time it takes none."""
    loop, gate = asyncio.get_running_loop(), Gate()
    async with served(gate, concurrency=2) as (client, worker, _):
        slow = client.request("echo", b"slow", wait=True)
        await eventually(lambda: gate.begun)
        begun = loop.time()
        for number in range(3):
            assert await client.request("echo", b"fast %d" % number) == [b"fast %d" % number]
        assert loop.time() == pytest.approx(begun, abs=0.01)
        assert worker.running == 1
        gate.open.set()
        assert await slow == [b"slow"]


@in_virtual_time
async def test_what_waits_for_a_handler_goes_to_a_worker_that_is_free() -> None:
    """The broker calls it back, and gets it at once, while the handler of the first one runs."""
    loop, gate, other = asyncio.get_running_loop(), Gate(), Gate()
    other.open.set()
    async with served(gate, concurrency=1, credit=4) as (client, worker, at):
        slow = client.request("echo", b"slow", wait=True)
        await eventually(lambda: gate.begun)
        later = [client.request("echo", b"%d" % number) for number in range(3)]
        await eventually(lambda: worker.waiting == 3)
        async with Worker(at, "echo", handler=other, context=worker._context) as free:
            await eventually(lambda: free.connected)
            begun = loop.time()
            assert await asyncio.gather(*later) == [[b"%d" % number] for number in range(3)]
            assert loop.time() == pytest.approx(begun, abs=0.01)
            assert (gate.begun, worker.waiting) == ([b"slow"], 0)
        gate.open.set()
        assert await slow == [b"slow"]


@in_virtual_time
async def test_the_reply_made_of_an_error_leaves_at_once() -> None:
    """In a dialect without errors, while another handler runs."""
    loop, gate = asyncio.get_running_loop(), asyncio.Event()

    async def handle(request: Request) -> bytes:
        if request.body[0] == b"fail":
            raise KeyError("fault")
        await gate.wait()
        return b"late"

    made = {"error_reply": lambda error: [type(error).__name__.encode()]}
    async with served(handle, dialect="0.1", connections=2, concurrency=2, **made) as (client, worker, _):
        slow = client.request("echo", b"slow", wait=True)
        await eventually(lambda: worker.running)
        begun = loop.time()
        assert await client.request("echo", b"fail", wait=True) == [b"KeyError"]
        assert loop.time() == pytest.approx(begun, abs=0.01)
        gate.set()
        assert await slow == [b"late"]
        await asyncio.sleep(10.0)
        assert worker.session_counters.connections == 2  # it has not left to have the request executed again


async def test_a_worker_that_stops_begins_no_request_and_others_get_them(endpoint: str, client: Client, broker: Broker) -> None:
    gate = Gate()
    async with Worker(endpoint, "echo", handler=gate, concurrency=1, credit=4) as worker:
        requests = [client.request("echo", b"%d" % number, wait=True) for number in range(3)]
        await eventually(lambda: worker.waiting == 2)
        served = asyncio.ensure_future(worker.serve_forever())
        draining = asyncio.ensure_future(worker.drain(3600.0))
        await served
        assert worker.waiting == 0
        requests.append(client.request("echo", b"3", wait=True))
        await eventually(lambda: (broker.stats["running"], broker.stats["queued"]) == (1, 3))  # it has returned what it has not begun
        gate.open.set()
        assert await draining
        assert await requests[0] == [b"0"]
        assert gate.begun == [b"0"]
    async with Worker(endpoint, "echo", handler=gate):
        assert await asyncio.gather(*requests[1:]) == [[b"1"], [b"2"], [b"3"]]


async def test_a_cancelled_request_that_waits_is_never_begun(endpoint: str, client: Client) -> None:
    gate = Gate()
    async with Worker(endpoint, "echo", handler=gate, concurrency=1, credit=4) as worker:
        first = client.request("echo", b"first", wait=True)
        await eventually(lambda: gate.begun)
        second = client.request("echo", b"second")
        await eventually(lambda: worker.waiting)
        second.cancel()
        await eventually(lambda: not worker.waiting)
        gate.open.set()
        assert await first == [b"first"]
    assert gate.begun == [b"first"]


def test_a_handler_goes_on_when_its_broker_is_lost() -> None:
    """IDM-07: its reply is for the request of that key which comes again; requests that waited are begun once."""
    begun, gate = list[bytes](), asyncio.Event()

    async def handle(request: Request) -> list[bytes]:
        begun.append(request.body[0])
        await gate.wait()
        return [*request.body]

    @in_virtual_time
    async def serve() -> None:
        async with core.Context() as context:
            first = mdp.Broker(context=context)
            async with first:
                at = first.bind("inproc://broker")
                worker = Worker(at, "echo", handler=handle, context=context, concurrency=1, credit=4, reconnect_ms=50)
                client = mdp.Client(at, context=context, attempts=20)
                await worker.__aenter__()
                await client.__aenter__()
                replies = [client.request("echo", body, key=body, wait=True) for body in (b"first", b"second")]
                replies.append(client.request("echo", b"third", wait=True))
                await eventually(lambda: worker.waiting == 2)
                assert first._stopped is not None
                first._stopped.set_result(None)  # it is killed: no message of an end
                first._socket.close(linger=0)
            async with mdp.Broker(context=context) as again:
                again.bind("inproc://broker")
                await eventually(lambda: again.stats["workers"])
                assert begun == [b"first"]
                await eventually(lambda: again.stats["running"] == 3)
                gate.set()
                assert await asyncio.gather(*replies) == [[b"first"], [b"second"], [b"third"]]
                assert sorted(begun) == [b"first", b"second", b"third"]
                assert worker.session_counters.joined == 1
                await client.__aexit__(None, None, None)
                await worker.__aexit__(None, None, None)

    serve()


@in_virtual_time
async def test_leaving_waits_for_handlers_once_and_after_an_error_for_none() -> None:
    loop = asyncio.get_running_loop()

    class Wrong(Exception):
        pass

    for drained, error, waits_s in ((False, False, 5.0), (True, False, 2.0), (False, True, 0.0)):
        gate = Gate()
        async with core.Context() as context, mdp.Broker(context=context) as broker:
            at = broker.bind("inproc://broker")
            async with mdp.Client(at, context=context) as client:
                pending, begun = client.request("echo", b"slow", wait=True), 0.0
                try:
                    async with Worker(at, "echo", handler=gate, context=context, drain_s=5.0, cancel_s=0.0) as worker:
                        await eventually(lambda: gate.begun)  # noqa: B023
                        begun = loop.time()
                        if drained:
                            assert not await worker.drain(2.0)
                        if error:
                            raise Wrong
                except Wrong:
                    pass
                assert loop.time() - begun == pytest.approx(waits_s, abs=0.2)
                pending.cancel()


@pytest.mark.parametrize("owned", [True, False])
async def test_a_worker_closes_the_context_that_it_made(owned: bool) -> None:
    async with core.Context() as context:
        async with Worker(NO_LISTENER, "echo", handler=echo, context=None if owned else context, drain_s=0) as worker:
            used = worker._context
            assert used is not None
            assert not used.closed
        assert used.closed is owned


@pytest.mark.parametrize(("connections", "said"), [(1, True), (2, False)])
async def test_a_worker_with_fewer_connections_than_handlers_says_so(
    endpoint: str, connections: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with Worker(endpoint, "echo", handler=echo, dialect="0.1", concurrency=2, connections=connections) as worker:
            await eventually(lambda: worker.connected)
    assert any("one request at a time" in record.getMessage() for record in caplog.records) is said


@replaces_names
async def test_a_part_waits_until_its_connection_takes_more(endpoint: str, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    async with Worker(endpoint, "echo", handler=gate) as worker:
        slow = client.request("echo", b"slow", wait=True)
        await eventually(lambda: gate.begun)
        (request,) = worker._runners.running  # type: ignore[union-attr]
        leaves = asyncio.get_running_loop().create_future()
        with monkeypatch.context() as full:
            full.setattr(worker._registrations[0], "flush", lambda: leaves)
            waiting = asyncio.ensure_future(worker._wait_for_capacity(request))
            for _ in range(3):
                await asyncio.sleep(0)
            assert not waiting.done()
            leaves.set_result(None)
            await waiting
        await worker._wait_for_capacity(request)
        gate.open.set()
        assert await slow == [b"slow"]


async def test_a_handler_that_runs_for_too_long_is_why_a_worker_is_stuck(endpoint: str, client: Client) -> None:
    gate = Gate()
    async with Worker(endpoint, "echo", handler=gate, stuck_s=3600.0) as worker:
        slow = client.request("echo", b"slow", wait=True)
        await eventually(lambda: gate.begun)
        assert worker.stuck == ""
        begun = next(iter(worker._runners.running.values()))  # type: ignore[union-attr]
        worker._now = lambda: begun + 3599.0
        assert worker.stuck == ""
        worker._now = lambda: begun + 3700.0
        assert worker.stuck == "a handler has run for 3700 s, more than stuck_s, 3600"
        gate.open.set()
        assert await slow == [b"slow"]
        assert worker.stuck == ""


async def test_the_end_of_a_worker_is_that_of_its_connections(endpoint: str, broker: Broker) -> None:
    """Its last words have left."""
    async with core.Context() as context:
        async with Worker(endpoint, "echo", handler=echo, context=context) as worker:
            await eventually(lambda: worker.connected)
        assert not context._closing
        await eventually(lambda: not broker.stats["workers"])


async def test_a_worker_with_several_connections_keeps_one_at_a_broker_that_gives_several_requests() -> None:
    """An older broker was replaced; to the new one the others are workers of which nothing is known here."""
    async with StandIn(protocol=b"404") as old, Worker(old.endpoint, "echo", handler=echo, connections=3, reconnect_ms=20) as worker:
        endpoint = old.endpoint
        await eventually(lambda: len(worker._registrations) == 3 and all(one.registered for one in worker._registrations))
        await old.close()
        async with mdp.Broker() as broker:
            broker.bind(endpoint)
            await eventually(lambda: len(worker._registrations) == 1 and worker.connected)
            await eventually(lambda: broker.stats["workers"] == 1)
            async with mdp.Client(endpoint) as client:
                assert await client.request("echo", b"x") == [b"x"]
