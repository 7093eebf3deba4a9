"""LPP: the Lazy Pirate client against servers that answer late, wrongly or not at all; BEY-01, BEY-02."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
import pirate
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

ANY = "tcp://127.0.0.1:*"


def same(request: list[bytes], reply: list[bytes]) -> bool:
    return request == reply


@pytest.fixture(params=[False, True], ids=["reopened", "relaxed"])
def relaxed(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


async def serve(rep: core.Socket) -> None:
    while True:
        await rep.send_multipart(await rep.recv_multipart())


async def test_lpp_01_three_times_the_same_request(make: Make, relaxed: bool) -> None:
    mute = make(core.ROUTER, bind=ANY)
    async with pirate.Client(mute.last_endpoint, timeout=1.0, relaxed=relaxed) as client:
        with pytest.raises(pirate.NoReply) as caught:
            await client.request(b"a", b"", b"b")
    messages = [await mute.recv_multipart() for _ in range(3)]
    assert [message[2 if relaxed else 1 :] for message in messages] == [[b"", b"a", b"", b"b"]] * 3
    assert not await mute.poll(50)
    assert caught.value.attempts == 3
    # BEY-02: the one way a new peer for each attempt, the other a new request id on the same connection.
    assert len({message[0] for message in messages}) == (1 if relaxed else 3)
    assert len({message[1] for message in messages}) == (3 if relaxed else 1)


async def test_lpp_02_an_abandoned_request_is_never_sent_later(make: Make, free_port: int, relaxed: bool) -> None:
    """No server listens while two requests are tried; a later server sees the third only."""
    endpoint = f"tcp://127.0.0.1:{free_port}"
    async with pirate.Client(endpoint, timeout=0.05, attempts=200, relaxed=relaxed) as client:
        for body in (b"1", b"2"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.request(body), 0.12)
        server = make(core.ROUTER, bind=endpoint)
        request = asyncio.ensure_future(client.request(b"3"))
        first = await server.recv_multipart()
        assert first[-1] == b"3"
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


async def test_lpp_03_a_mismatch_is_reported_and_is_no_success(make: Make, relaxed: bool) -> None:
    liar = make(core.ROUTER, bind=ANY)
    async with pirate.Client(liar.last_endpoint, timeout=1.5, relaxed=relaxed, check=same) as client:
        request = asyncio.ensure_future(client.request(b"7"))
        first = await liar.recv_multipart()
        await liar.send_multipart([*first[:-1], b"6"])
        second = await liar.recv_multipart()
        assert client.counters["reply_mismatch"] == 1
        await liar.send_multipart(second)
        assert await request == [b"7"]


async def test_lpp_04_failure_within_attempts_times_timeout_and_the_next_request_has_all_attempts(make: Make, relaxed: bool) -> None:
    mute = make(core.ROUTER, bind=ANY)
    async with pirate.Client(mute.last_endpoint, timeout=0.1, relaxed=relaxed) as client:
        for body in (b"1", b"2"):
            with pytest.raises(pirate.NoReply) as caught:
                await client.request(body)
            assert (caught.value.attempts, caught.value.after_s >= 0.299) == (3, True)


async def test_lpp_05_late_and_double_replies_never_come_out(make: Make, relaxed: bool) -> None:
    """The answer to the first attempt comes during the second, everything twice."""
    slow = make(core.ROUTER, bind=ANY)
    async with pirate.Client(slow.last_endpoint, timeout=1.5, attempts=2, relaxed=relaxed) as client:
        for number in (b"1", b"2"):
            request = asyncio.ensure_future(client.request(number))
            first = await slow.recv_multipart()
            second = await slow.recv_multipart()
            for _ in range(2):
                await slow.send_multipart([*first[:-1], b"late " + number])
                await slow.send_multipart([*second[:-1], b"good " + number])
            assert await request == [b"good " + number]


@pytest.mark.parametrize("simple", [True, False])
async def test_lpp_06_the_same_client_for_rep_and_both_queues(make: Make, simple: bool, relaxed: bool) -> None:
    rep = make(core.REP, bind=ANY)
    answering = asyncio.ensure_future(serve(rep))
    async with (
        pirate.Queue(ANY, ANY, simple=simple) as queue,
        pirate.Worker(queue.backend, lambda body: body, simple=simple),
    ):
        for endpoint in (rep.last_endpoint, queue.frontend):
            async with pirate.Client(endpoint, timeout=100, relaxed=relaxed) as client:
                assert await client.request(b"x", b"", b"y") == [b"x", b"", b"y"]
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)


async def test_lpp_07_one_request_after_the_other(make: Make, relaxed: bool) -> None:
    answering = asyncio.ensure_future(serve(rep := make(core.REP, bind=ANY)))
    async with pirate.Client(rep.last_endpoint, timeout=100, relaxed=relaxed, check=same) as client:
        for number in range(100):
            assert await client.request(b"%d" % number) == [b"%d" % number]
        assert client.counters["sent"] == 100
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)


async def test_bey_01_another_server_and_the_memory_of_who_was_silent(make: Make, relaxed: bool) -> None:
    mute, rep = make(core.ROUTER, bind=ANY), make(core.REP, bind=ANY)
    answering = asyncio.ensure_future(serve(rep))
    async with pirate.Client([mute.last_endpoint, rep.last_endpoint], timeout=2.0, relaxed=relaxed) as client:
        for number in range(10):
            assert await client.request(b"%d" % number) == [b"%d" % number]
        assert client.counters["timeout"] == 1
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)


async def test_bey_01_a_server_whose_reply_does_not_match_costs_no_timeout(make: Make, relaxed: bool) -> None:
    liar, good = make(core.ROUTER, bind=ANY), make(core.ROUTER, bind=ANY)
    async with pirate.Client([liar.last_endpoint, good.last_endpoint], timeout=100, relaxed=relaxed, check=same) as client:
        request = asyncio.ensure_future(client.request(b"7"))
        await liar.send_multipart([*(await liar.recv_multipart())[:-1], b"6"])
        await good.send_multipart(await good.recv_multipart())
        assert await request == [b"7"]
        assert client.counters == {"sent": 2, "reply_mismatch": 1, "answered": 1}


async def test_bey_01_round_robin(make: Make) -> None:
    routers = [make(core.ROUTER, bind=ANY) for _ in range(2)]
    async with pirate.Client([router.last_endpoint for router in routers], timeout=100, policy="round-robin") as client:
        for router in (*routers, *routers):
            request = asyncio.ensure_future(client.request(b"x"))
            await router.send_multipart(await router.recv_multipart())
            assert await request == [b"x"]


async def test_one_request_at_a_time(make: Make) -> None:
    mute = make(core.ROUTER, bind=ANY)
    async with pirate.Client(mute.last_endpoint, timeout=100) as client:
        request = asyncio.ensure_future(client.request(b"1"))
        await mute.recv_multipart()
        with pytest.raises(pirate.Busy):
            await client.request(b"2")
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        request = asyncio.ensure_future(client.request(b"3"))
        message = await mute.recv_multipart()
        assert message[-1] == b"3"
        await mute.send_multipart(message)
        assert await request == [b"3"]


async def test_a_client_that_closes_tells_its_caller(make: Make, relaxed: bool) -> None:
    mute = make(core.ROUTER, bind=ANY)
    async with pirate.Client(mute.last_endpoint, timeout=100, relaxed=relaxed) as client:
        request = asyncio.ensure_future(client.request(b"1"))
        await mute.recv_multipart()
    with pytest.raises(pirate.ClientClosed):
        await request
    with pytest.raises(pirate.ClientClosed):
        await client.request(b"2")


@pytest.mark.parametrize("options", [{"timeout": 0}, {"attempts": 0}, {"policy": "random"}])
def test_options_out_of_range(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        pirate.Client("tcp://127.0.0.1:9", **options)  # type: ignore[arg-type]


async def test_no_endpoint_and_no_frame_are_refused() -> None:
    with pytest.raises(ValueError):
        pirate.Client([])
    async with pirate.Client("tcp://127.0.0.1:9") as client:
        with pytest.raises(ValueError):
            await client.request()
        await eventually(lambda: not client.counters)
