"""freelance.client and freelance.server over sockets, in all three models."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Literal

import pytest

import core
import freelance
from core.rpc.handlers import echo
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    Model = Literal[1, 2, 3]

MODELS: tuple[Model, ...] = (1, 2, 3)
ANY = "tcp://127.0.0.1:*"
NOBODY = "tcp://127.0.0.1:9"  # the discard port: nothing listens there


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.param
    return found


async def test_request_and_reply(model: Model) -> None:
    async with (
        freelance.Server(ANY, echo, model=model) as server,
        freelance.Client([server.endpoint], model=model, timeout=100) as client,
    ):
        assert await client.request(b"hello") == [b"hello"]
        assert await asyncio.gather(*(client.request(b"%d" % n) for n in range(50))) == [[b"%d" % n] for n in range(50)]


@pytest.mark.parametrize("model", [1, 3])
async def test_several_frames(model: Model) -> None:
    async with (
        freelance.Server(ANY, echo, model=model) as server,
        freelance.Client([server.endpoint], model=model, timeout=100) as client,
    ):
        assert await client.request(b"", b"PING", b"\0") == [b"", b"PING", b"\0"]


async def test_dead_servers_do_not_prevent_an_answer(model: Model) -> None:
    async with (
        freelance.Server(ANY, lambda body: b"OK", model=model) as server,
        freelance.Client([NOBODY, server.endpoint], model=model, timeout=100, try_timeout=0.5) as client,
    ):
        assert await client.request(b"x") == [b"OK"]


async def test_no_server_answers(model: Model) -> None:
    async with freelance.Client([NOBODY], model=model, timeout=0.15, try_timeout=0.05) as client:
        with pytest.raises(freelance.NoServer) as caught:
            await client.request(b"x")
    assert caught.value.after_s >= 0.149
    assert isinstance(caught.value, TimeoutError)


async def test_servers_on_every_transport(tmp_path: Path, model: Model) -> None:
    async with core.Context() as context:
        for bind in (f"ipc://{tmp_path / 's'}", "inproc://here", ANY):
            async with (
                freelance.Server(bind, echo, model=model, context=context) as server,
                freelance.Client([server.endpoint], model=model, timeout=100, context=context) as client,
            ):
                assert await client.request(b"x") == [b"x"]


@pytest.mark.parametrize("alias", [True, False])
async def test_identity_is_the_endpoint(alias: bool) -> None:
    """A client uses the announced identity, or its own name for the server."""
    async with (
        freelance.Server(ANY, echo) as server,
        freelance.Client([server.endpoint], alias=alias, timeout=100) as client,
    ):
        assert server.identity == server.endpoint
        assert await client.request(b"x") == [b"x"]


async def test_another_identity_needs_the_alias() -> None:
    """FLP-13."""
    async with freelance.Server(ANY, echo, identity="tcp://elsewhere:1") as server:
        async with freelance.Client([server.endpoint], timeout=100) as client:
            assert await client.request(b"x") == [b"x"]
        async with freelance.Client([server.endpoint], alias=False, timeout=0.3) as client:
            await eventually(lambda: bool(client.counters["peer_unknown"]))
            with pytest.raises(freelance.NoServer):
                await client.request(b"x")


async def test_identity_of_a_wildcard_is_this_machine() -> None:
    async with freelance.Server("tcp://*:*", echo) as server:
        assert server.identity.rpartition(":")[2] == server.endpoint.rpartition(":")[2]
        assert "*" not in server.identity
        assert "0.0.0.0" not in server.identity


async def test_failing_and_mute_handlers_send_the_client_elsewhere(model: Model) -> None:
    async def fail(body: list[bytes]) -> bytes:
        raise KeyError(1)

    async with AsyncExitStack() as stack:
        bad = await stack.enter_async_context(freelance.Server(ANY, fail, model=model))
        mute = await stack.enter_async_context(freelance.Server(ANY, lambda body: None, model=model))
        good = await stack.enter_async_context(freelance.Server(ANY, echo, model=model))
        endpoints = [bad.endpoint, mute.endpoint, good.endpoint]
        client = await stack.enter_async_context(freelance.Client(endpoints, model=model, timeout=100, try_timeout=0.5))
        if model == 3:
            await eventually(lambda: len(client.live) == 3)
        assert await client.request(b"x") == [b"x"]
        if model != 1:  # there a try that ends before its connection stands takes its request along
            await eventually(lambda: bool(bad.counters["handler_failed"] and mute.counters["unanswered"]))


@pytest.mark.parametrize("size", [100, 300])  # encoded once for all servers, and as frames
async def test_a_copy_that_a_full_queue_did_not_take_is_sent_later(tmp_path: Path, size: int) -> None:
    """FRL-07: the other servers may be gone by then."""
    async with core.Context() as context, context.socket(core.ROUTER, rcvhwm=1) as server:
        server.bind(f"ipc://{tmp_path / 's'}")

        async def answer() -> None:
            while True:
                await server.send_multipart(await server.recv_multipart())

        def body(number: int, octets: int) -> bytes:
            return b"%d:" % number + bytes(octets)

        async with freelance.Client([server.last_endpoint], model=2, timeout=100, socket_options={"sndhwm": 2}) as client:
            asked = [body(0, size)]
            replies = [asyncio.ensure_future(client.request(asked[0]))]
            while not client.counters["send_blocked"]:
                asked.append(body(len(asked), 65536 if len(asked) < 9 else size))
                replies.append(asyncio.ensure_future(client.request(asked[-1])))
                await asyncio.sleep(0)
            answers = asyncio.ensure_future(answer())
            assert await asyncio.gather(*replies) == [[one] for one in asked]
            answers.cancel()


@pytest.mark.parametrize("sndhwm", [15, 16, 17])
async def test_of_a_batch_that_a_queue_took_in_part_only_the_rest_is_sent_later(tmp_path: Path, sndhwm: int) -> None:
    """FRL-07: no server gets a copy twice."""
    came: list[bytes] = []
    async with core.Context() as context, context.socket(core.ROUTER, rcvhwm=1) as server:
        server.bind(f"ipc://{tmp_path / 's'}")

        async def answer() -> None:
            while True:
                message = await server.recv_multipart()
                came.append(message[-1][:8])
                await server.send_multipart(message)

        async with freelance.Client([server.last_endpoint], model=2, timeout=100, socket_options={"sndhwm": sndhwm}) as client:
            replies = [asyncio.ensure_future(client.request(b"%08d" % number + bytes(65_536))) for number in range(9)]
            while not client.counters["send_blocked"]:
                await asyncio.sleep(0)
                numbers = range(len(replies), len(replies) + 5)  # one batch of encoded messages
                replies += [asyncio.ensure_future(client.request(b"%08d" % number)) for number in numbers]
            answers = asyncio.ensure_future(answer())
            await asyncio.gather(*replies)
            answers.cancel()
    assert sorted(came) == [b"%08d" % number for number in range(len(replies))]


async def test_health_memory_of_model_1() -> None:
    """BEY-13: the first server's silence costs one time-out."""
    async with (
        freelance.Server(ANY, lambda body: None, model=1) as mute,
        freelance.Server(ANY, echo, model=1) as good,
        freelance.Client([mute.endpoint, good.endpoint], model=1, try_timeout=2.0) as client,
    ):
        for _ in range(5):
            assert await client.request(b"x") == [b"x"]
        assert mute.counters["accepted"] <= 1


@pytest.mark.parametrize("turn_s", [0.016, 0.024, 0.05])
async def test_no_false_failures_while_the_loop_is_busy(turn_s: float) -> None:
    """FLP-06: PINGs every 10 ms, and a loop that is repeatedly busy for longer."""
    health = freelance.Health(ping_s=0.01, dead_s=0.03)
    async with freelance.Server(ANY, echo) as server, freelance.Client([server.endpoint], health=health, timeout=100) as client:
        await client.request(b"first")
        for _ in range(20):
            time.sleep(turn_s)
            await asyncio.sleep(0)
        assert await client.request(b"last") == [b"last"]
        assert client.counters["server_dead"] == 0


async def test_cancelled_requests_are_forgotten() -> None:
    async with freelance.Client([NOBODY], outstanding_max=1) as client:
        first = asyncio.ensure_future(client.request(b"x"))
        await asyncio.sleep(0)
        with pytest.raises(freelance.Overrun):
            await client.request(b"y")
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(freelance.NoServer):
            await client.request(b"z", timeout=0.01)


async def test_leaving_the_block_ends_requests() -> None:
    async with freelance.Client([NOBODY]) as client:
        request = asyncio.ensure_future(client.request(b"x"))
        await asyncio.sleep(0)
    with pytest.raises(freelance.ClientClosed):
        await request
    with pytest.raises(freelance.ClientClosed):
        await client.request(b"x")


async def test_drain_finishes_what_runs_and_takes_nothing_more() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(body: list[bytes]) -> list[bytes]:
        entered.set()
        await leave.wait()
        return body

    async with freelance.Server(ANY, slow) as server, freelance.Client([server.endpoint], timeout=100, hedge=None) as client:
        first = asyncio.ensure_future(client.request(b"x"))
        await entered.wait()
        assert not await server.drain(0.01)
        with pytest.raises(freelance.NoServer):
            await client.request(b"y", timeout=0.1)
        leave.set()
        assert await server.drain(10)
        assert await first == [b"x"]
        await eventually(lambda: server.counters["request_draining"] == 1)


async def test_more_than_the_handlers_limit_is_dropped_and_counted() -> None:
    async def forever(body: list[bytes]) -> None:
        await asyncio.Event().wait()

    async with (
        freelance.Server(ANY, forever, running_max=1) as server,
        freelance.Client([server.endpoint], try_timeout=100, hedge=None) as client,
    ):
        requests = [asyncio.ensure_future(client.request(b"x", timeout=3.0)) for _ in range(3)]
        ended = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(one, freelance.NoServer) for one in ended)
        assert server.counters["running_overflow"] == 2
    assert server.counters["cancelled"] == 1


async def test_what_cannot_be() -> None:
    with pytest.raises(ValueError):
        freelance.Client([])
    with pytest.raises(ValueError):
        freelance.Client("tcp://a:1")
    with pytest.raises(ValueError):
        freelance.Client([NOBODY], model=4)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        freelance.Client([NOBODY], timeout=0)
    with pytest.raises(ValueError):
        async with freelance.Server("ipc://*", echo):
            pass
    with pytest.raises(ValueError):
        freelance.Server(ANY, echo, model=0)  # type: ignore[arg-type]
    async with freelance.Client([NOBODY]) as client:
        with pytest.raises(ValueError):
            await client.request()
    with pytest.raises(core.InvalidEndpoint):
        async with freelance.Client(["tcp://a"]):
            pass
    with pytest.raises(RuntimeError):
        _ = freelance.Server(ANY, echo).endpoint


async def test_address_in_use() -> None:
    async with freelance.Server(ANY, echo) as server:
        with pytest.raises(core.AddressInUse):
            async with freelance.Server(server.endpoint, echo):
                pass
