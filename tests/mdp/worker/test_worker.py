from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
from mdp.errors import DeadlineExceeded, Timeout
from mdp.wire.commands import WORKER_CANCEL_03, WORKER_ERROR_03, WORKER_FINAL_03, WORKER_PARTIAL_03, WORKER_READY_03
from mdp.wire.options import decode_ready_options
from mdp.worker.handler import service
from mdp.worker.worker import Worker, WorkerOptions
from tests.scenes.mdp_handlers import NO_LISTENER, echo
from tests.scenes.mdp_scripted_broker import StandIn, give, sent_together, token
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mdp.client.client import Client
    from mdp.request import Request

LOG = "mdp.worker"


# ----------------------------------------------------------------------------------------------------------------------- kinds of handlers


async def of_coroutine(request: Request) -> bytes:
    await asyncio.sleep(0)
    return request.body[0]


def of_thread(request: Request) -> list[bytes]:
    return [request.body[0]]


@service("inline", inline=True)
def of_inline(request: Request) -> tuple[bytes, ...]:
    return (request.body[0],)


async def of_generator(request: Request) -> AsyncIterator[bytes]:
    yield request.body[0]


@pytest.mark.parametrize("handler", [of_coroutine, of_thread, of_inline, of_generator])
@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
async def test_handlers_of_every_kind_answer_in_every_dialect(
    endpoint: str, client: Client, handler: Callable[[Request], Any], dialect: str
) -> None:
    async with Worker(endpoint, "echo", handler=handler, dialect=dialect):
        replies = await asyncio.gather(*(client.request("echo", b"%d" % n, wait=True) for n in range(50)))
    assert replies == [[b"%d" % n] for n in range(50)]


async def test_values_of_a_generator_are_sent_as_parts_or_joined(stand_in: StandIn) -> None:
    async def two(request: Request) -> AsyncIterator[bytes | list[bytes]]:
        yield b"1"
        yield [b"2", b"3"]

    async with Worker(stand_in.endpoint, "two", handler=two):
        peer, _ = await stand_in.next()
        give(stand_in, peer, 7)
        assert [(await stand_in.next())[1] for _ in range(3)] == [
            [WORKER_PARTIAL_03 + token(7), b"1"],
            [WORKER_PARTIAL_03 + token(7), b"2", b"3"],
            [WORKER_FINAL_03 + token(7), b""],
        ]
    async with Worker(stand_in.endpoint, "two", handler=two, dialect="0.1"):
        while (ready := await stand_in.next())[1][0] != b"":
            pass
        give(stand_in, ready[0], 8, dialect="0.1")
        assert (await stand_in.next())[1] == [b"", b"MDPW01", b"\x03", token(8), b"", b"1", b"2", b"3"]


async def test_a_thread_has_the_context_variables_of_the_worker(endpoint: str, client: Client) -> None:
    variable: contextvars.ContextVar[bytes] = contextvars.ContextVar("variable")
    variable.set(b"mine")
    threads = set()

    def handler(request: Request) -> bytes:
        threads.add(threading.current_thread())
        return variable.get()

    async with Worker(endpoint, "echo", handler=handler):
        assert await client.request("echo", b"x", wait=True) == [b"mine"]
    assert threading.main_thread() not in threads


async def test_attributes_of_a_request(endpoint: str, client: Client) -> None:
    async def tell(request: Request) -> list[bytes]:
        left = request.left_s(asyncio.get_running_loop().time())
        assert left is not None
        assert 0 < left <= 5
        assert request.trace == {"traceparent": "00-1"}
        return [request.key or b"", b"%d" % request.delivery, b"%d" % request.once]

    async with Worker(endpoint, "tell", handler=tell):
        reply = await client.request("tell", b"x", wait=True, key="k", once=True, deadline=5, trace={"traceparent": "00-1"})
        assert reply == [b"k", b"1", b"1"]


# ----------------------------------------------------------------------------------------------------------------------------- concurrency


async def test_no_more_handlers_run_than_the_concurrency(endpoint: str, client: Client) -> None:
    now = peak = 0

    async def handler(request: Request) -> bytes:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0.002)
        now -= 1
        return b""

    async with Worker(endpoint, "echo", handler=handler, concurrency=7) as worker:
        await asyncio.gather(*(client.request("echo", b"x", wait=True) for _ in range(100)))
        assert (worker.running, worker.waiting) == (0, 0)
    assert peak == 7


async def test_handlers_that_never_wait_share_a_task_in_order(stand_in: StandIn) -> None:
    tasks: list[set[asyncio.Task[Any] | None]] = []
    order = []

    async def handler(request: Request) -> bytes:
        tasks[-1].add(asyncio.current_task())
        order.append(request.body[0])
        return b""

    async with Worker(stand_in.endpoint, "echo", handler=handler, concurrency=16) as worker:
        peer, _ = await stand_in.next()
        for batch in range(3):
            tasks.append(set())
            for n in range(40 * batch, 40 * batch + 40):
                give(stand_in, peer, n, b"%d" % n)
            await eventually(lambda batch=batch: worker.session_counters.answered == 40 * batch + 40)  # type: ignore[misc]
    assert order == [b"%d" % n for n in range(120)]
    # A task that has run for a whole slice of time lets others run, so a machine that stands still may split one batch, not all three.
    assert min(map(len, tasks)) == 1


async def test_the_broker_is_given_credit_for_what_runs_and_some_that_waits(stand_in: StandIn) -> None:
    from mdp.wire.options import decode_ready_options

    given: list[tuple[dict[str, Any], int]] = [
        ({"concurrency": 5}, 20),
        ({"concurrency": 5, "credit": 9}, 9),
        ({"concurrency": 60_000}, 65_535),
    ]
    for options, credit in given:
        async with Worker(stand_in.endpoint, "echo", handler=echo, **options):
            while (ready := (await stand_in.next())[1])[0] != WORKER_READY_03:
                pass
            assert decode_ready_options(ready[2]).credit == credit


@pytest.mark.parametrize(("inline", "told"), [(False, 3), (True, 1)])
async def test_an_inline_handler_takes_one_request_at_a_time_and_ready_says_so(stand_in: StandIn, inline: bool, told: int) -> None:
    async with Worker(stand_in.endpoint, "job", handler=of_thread, inline=inline, concurrency=3):
        _, ready = await stand_in.next()
        options = decode_ready_options(ready[2])
        assert (options.concurrency, options.credit) == (told, 12)


async def test_answers_of_one_iteration_are_sent_in_one_write(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Worker(stand_in.endpoint, "echo", handler=echo) as worker:
        peer, _ = await stand_in.next()
        sizes = sent_together(monkeypatch)
        for n in range(30):
            give(stand_in, peer, n)
        await eventually(lambda: worker.session_counters.answered == 30)
        assert sum(sizes) == 30
        assert len(sizes) < 15


# ----------------------------------------------------------------------------------------------------------------- cancellation, deadlines


async def test_cancelling_one_request_cancels_its_handler_and_no_other(stand_in: StandIn) -> None:
    ended: list[bytes] = []
    go_on = asyncio.Event()

    async def handler(request: Request) -> bytes:
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            ended.append(request.body[0])
            raise
        return request.body[0]

    async with Worker(stand_in.endpoint, "wait", handler=handler, concurrency=2) as worker:
        peer, _ = await stand_in.next()
        for n in range(4):
            give(stand_in, peer, n, b"%d" % n)
        await eventually(lambda: worker.running == 2)
        stand_in.send(peer, WORKER_CANCEL_03 + token(0))  # runs
        stand_in.send(peer, WORKER_CANCEL_03 + token(3))  # waits
        answers = {(await stand_in.next())[1][0] for _ in range(2)}
        assert answers == {WORKER_ERROR_03 + token(0), WORKER_ERROR_03 + token(3)}
        assert ended == [b"0"]
        go_on.set()
        assert {(await stand_in.next())[1][0] for _ in range(2)} == {WORKER_FINAL_03 + token(1), WORKER_FINAL_03 + token(2)}
        give(stand_in, peer, 9)
        assert (await stand_in.next())[1][0] == WORKER_FINAL_03 + token(9)
        assert worker.runner_counters.cancelled == 2


async def test_a_handler_that_ignores_its_cancellation_still_answers_once(stand_in: StandIn) -> None:
    async def stubborn(request: Request) -> bytes:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return b"anyway"

    async with Worker(stand_in.endpoint, "wait", handler=stubborn, concurrency=1) as worker:
        peer, _ = await stand_in.next()
        give(stand_in, peer, 1)
        await eventually(lambda: worker.running)
        stand_in.send(peer, WORKER_CANCEL_03 + token(1))
        assert (await stand_in.next())[1] == [WORKER_FINAL_03 + token(1), b"anyway"]
        give(stand_in, peer, 2)
        await eventually(lambda: worker.running)
        stand_in.send(peer, WORKER_CANCEL_03 + token(2))
        assert (await stand_in.next())[1][0] == WORKER_FINAL_03 + token(2)


async def test_a_thread_cannot_be_stopped_but_sees_the_cancellation(stand_in: StandIn) -> None:
    seen = threading.Event()

    def handler(request: Request) -> bytes:
        while not request.cancelled:
            time.sleep(0.001)
        seen.set()
        return b"late"

    async with Worker(stand_in.endpoint, "wait", handler=handler) as worker:
        peer, _ = await stand_in.next()
        give(stand_in, peer, 1)
        await eventually(lambda: worker.running)
        stand_in.send(peer, WORKER_CANCEL_03 + token(1))
        assert (await stand_in.next())[1][:2] == [WORKER_ERROR_03 + token(1), b"CANCELLED"]
        await asyncio.to_thread(seen.wait, 10)
        assert seen.is_set()


async def test_a_request_whose_deadline_passed_while_it_waited_is_not_begun(endpoint: str, client: Client) -> None:
    begun = []
    go_on = asyncio.Event()

    async def handler(request: Request) -> bytes:
        begun.append(request.body[0])
        await go_on.wait()
        return b""

    async with Worker(endpoint, "echo", handler=handler, concurrency=1) as worker:
        first = client.request("echo", b"first", wait=True)
        await eventually(lambda: worker.running)
        second = client.request("echo", b"second", wait=True, deadline=1.0)
        await eventually(lambda: worker.waiting)
        over_at = asyncio.get_running_loop().time() + 1.0  # the worker counts from when it got the request
        with pytest.raises(DeadlineExceeded):
            await second
        await eventually(lambda: asyncio.get_running_loop().time() > over_at)
        go_on.set()
        await first
        await client.request("echo", b"third")
    assert begun == [b"first", b"third"]


# --------------------------------------------------------------------------------------------------------------------------- draining, end


async def test_leaving_finishes_what_runs_and_gives_back_what_waits(endpoint: str, client: Client) -> None:
    """MDP-23: nothing is lost and nothing executed twice when a worker leaves in an orderly way."""
    done: list[bytes] = []

    async def slow(request: Request) -> bytes:
        await asyncio.sleep(0.02)
        done.append(request.body[0])
        return request.body[0]

    async def fast(request: Request) -> bytes:
        done.append(request.body[0])
        return request.body[0]

    async with Worker(endpoint, "echo", handler=slow, concurrency=2, credit=50) as leaving:
        replies = [client.request("echo", b"%d" % n, wait=True) for n in range(20)]
        await eventually(lambda: leaving.running == 2)
    async with Worker(endpoint, "echo", handler=fast):
        assert await asyncio.gather(*replies) == [[b"%d" % n] for n in range(20)]
    assert sorted(done) == sorted(b"%d" % n for n in range(20))
    assert leaving.session_counters.answered == 2


async def test_stop_ends_serve_forever(endpoint: str) -> None:
    async with Worker(endpoint, "echo", handler=echo) as worker:
        serving = asyncio.ensure_future(worker.serve_forever())
        await asyncio.sleep(0)
        assert not serving.done()
        worker.stop()
        worker.stop()
        await serving


async def test_each_of_two_that_drain_a_worker_waits_for_its_own_time(endpoint: str, client: Client) -> None:
    """A program drains, and leaves the block meanwhile."""
    go = asyncio.Event()

    async def held(request: Request) -> bytes:
        await go.wait()
        return b"done"

    async with Worker(endpoint, "echo", handler=held) as worker:
        reply = client.request("echo", b"x", wait=True)
        await eventually(lambda: worker.running)
        longer = asyncio.ensure_future(worker.drain(3600))
        await asyncio.sleep(0)
        assert not await worker.drain(0.01)
        go.set()
        assert await longer
        assert await reply == [b"done"]


async def test_requests_do_not_wait_for_a_worker_that_drains() -> None:
    """MDP-23: they were given to it, and waited for its last handler although another worker was free."""
    go = asyncio.Event()

    async def held(request: Request) -> bytes:
        await go.wait()
        return b"done"

    beats: dict[str, Any] = {"heartbeat_ms": 20, "liveness": 1000}
    async with mdp.Broker(**beats) as broker, mdp.Client(broker.bind("tcp://127.0.0.1:*"), timeout=PATIENCE_S) as client:
        async with Worker(broker.endpoints[0], "echo", handler=held, concurrency=4, drain_s=3600, **beats) as draining:
            reply = client.request("echo", b"x", wait=True)
            await eventually(lambda: draining.running and draining.session_counters.heartbeats)
            async with Worker(broker.endpoints[0], "echo", handler=echo, concurrency=4) as other:
                await eventually(lambda: other.connected)
                drained = asyncio.ensure_future(draining.drain())
                replies = [client.request("echo", b"%d" % n) for n in range(20)]
                assert [await one for one in replies] == [[b"%d" % n] for n in range(20)]
                assert not drained.done()
                go.set()
                assert await drained
                assert await reply == [b"done"]
        assert broker.counters["redelivered"] == 0


async def test_draining_ends_after_its_timeout_and_returns_whether_all_was_answered(endpoint: str, client: Client) -> None:
    async def forever(request: Request) -> bytes:
        await asyncio.sleep(3600)
        return b""

    async with Worker(endpoint, "echo", handler=forever) as worker:
        assert await worker.drain(100)
    async with Worker(endpoint, "echo", handler=forever, drain_s=0.01) as worker:
        reply = client.request("echo", b"x", wait=True)
        await eventually(lambda: worker.running)
        assert not await worker.drain(0.01)
    reply.cancel()


async def test_an_error_in_the_block_does_not_wait_for_handlers(endpoint: str, client: Client) -> None:
    cancelled = asyncio.Event()

    async def forever(request: Request) -> bytes:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()
        return b""

    with pytest.raises(KeyError):
        async with Worker(endpoint, "echo", handler=forever, drain_s=3600) as worker:
            reply = client.request("echo", b"x", wait=True)
            await eventually(lambda: worker.running)
            raise KeyError
    assert cancelled.is_set()
    reply.cancel()


@pytest.mark.parametrize("turns", range(6))
async def test_a_worker_can_leave_while_it_connects(stand_in: StandIn, turns: int) -> None:
    for endpoint in (stand_in.endpoint, NO_LISTENER):
        async with Worker(endpoint, "echo", handler=echo) as worker:
            for _ in range(turns):
                await asyncio.sleep(0)
        assert not worker.connected


async def test_a_worker_serves_once(endpoint: str) -> None:
    worker = Worker(endpoint, "echo", handler=echo)
    await worker.serve_forever()  # there is nothing to wait for before the block
    async with worker:
        pass
    with pytest.raises(RuntimeError, match="once"):
        async with worker:
            pass


# --------------------------------------------------------------------------------------------------------------------------------- options


async def test_a_decorated_handler_brings_service_and_options(endpoint: str, client: Client) -> None:
    @service("shout", concurrency=3, version="1.0")
    async def shout(request: Request) -> bytes:
        return request.body[0].upper()

    async with Worker(endpoint, shout, version="2.0") as worker:
        assert (worker.service, worker.options.concurrency, worker.options.version) == ("shout", 3, "2.0")
        assert await client.request("shout", b"x", wait=True) == [b"X"]
    renamed = Worker(endpoint, "whisper", handler=shout)
    assert (renamed.service, renamed.options.concurrency) == ("whisper", 3)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("echo",), {}, TypeError),
        ((echo,), {}, TypeError),
        (("echo",), {"handler": echo, "concurency": 3}, TypeError),
        (("echo",), {"handler": "echo"}, TypeError),
        (("",), {"handler": echo}, TypeError),
        (("a\tb",), {"handler": echo}, core.LocalProtocolError),
        (("mmi.echo",), {"handler": echo}, core.LocalProtocolError),
        (("echo",), {"handler": echo, "concurrency": 0}, ValueError),
        (("echo",), {"handler": echo, "credit": 70_000}, ValueError),
        (("echo",), {"handler": echo, "dialect": "1.0"}, ValueError),
        (("echo",), {"handler": echo, "heartbeat_ms": -1}, ValueError),
        (("echo",), {"handler": echo, "drain_s": -1}, ValueError),
        (("echo",), {"handler": echo, "stuck_s": 0}, ValueError),
        (("echo",), {"handler": echo, "version": "v" * 65}, ValueError),
        (("echo",), {"handler": echo, "metadata": {"x": object()}}, ValueError),
        (("echo",), {"handler": echo, "metadata": {"x": "y" * 9000}}, ValueError),
    ],
)
def test_wrong_arguments_are_refused_when_the_worker_is_made(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Worker(NO_LISTENER, *arguments, **options)


def test_endpoints_are_checked_when_the_worker_is_made() -> None:
    with pytest.raises(core.ZMQError):
        Worker("nonsense", "echo", handler=echo)


def test_defaults_are_those_of_the_guide() -> None:
    options = WorkerOptions()
    assert (options.heartbeat_ms, options.liveness, options.reconnect_ms) == (2500, 3, 2500)


async def test_a_worker_in_a_context_of_others_leaves_the_context_alone(endpoint: str, client: Client) -> None:
    async with core.Context() as context:
        async with Worker(endpoint, "echo", handler=echo, context=context):
            await client.request("echo", b"x", wait=True)
        assert not context.closed


async def test_a_worker_without_a_broker_does_not_end(client: Client) -> None:
    async with Worker(NO_LISTENER, "echo", handler=echo) as worker:
        with pytest.raises(Timeout):
            await client.request("echo", b"x", wait=True, timeout=0.05)
        assert not worker.connected
        assert worker.runner_counters.handled == 0


async def test_requests_of_every_kind_of_handler_at_once(endpoint: str, client: Client) -> None:
    workers = [Worker(endpoint, f"s{n}", handler=handler) for n, handler in enumerate((of_coroutine, of_thread, of_inline, of_generator))]
    for worker in workers:
        await worker.__aenter__()
    asked = [client.request(f"s{n % 4}", b"%d" % n, wait=True) for n in range(200)]
    assert await asyncio.gather(*asked) == [[b"%d" % n] for n in range(200)]
    for worker in workers:
        await worker.__aexit__(None, None, None)
