"""freelance.client in virtual time: when it asks which of its servers, and when it gives up, to the moment."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import core
import freelance
from core.runtime import supervision
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable


def mute(context: core.Context, count: int, asked: Callable[[int, list[bytes]], None]) -> list[str]:
    """Bind servers that say nothing; return their endpoints."""
    endpoints = [f"inproc://server-{number}" for number in range(count)]
    for number, endpoint in enumerate(endpoints):
        server = context.socket(core.ROUTER, linger=0)
        server.bind(endpoint)
        server.set_receiver(partial(_note, asked, number))
    return endpoints


def _note(asked: Callable[[int, list[bytes]], None], number: int, batch: list[list[bytes]]) -> None:
    for frames in batch:
        asked(number, frames[1:])


# Options of the client, timeout of the request, when it asks which of two servers, and when it ends.
CASES: list[tuple[dict[str, Any], float | None, list[tuple[float, int]], float]] = [
    ({"model": 1}, None, [(0, 0), (1, 1)], 2.0),
    ({"model": 1, "timeout": 6.0}, None, [(0, 0), (1, 1)], 2.0),
    ({"model": 1, "timeout": 0.7}, None, [(0, 0)], 0.7),
    ({"model": 1, "try_timeout": 0.4}, None, [(0, 0), (0.4, 1)], 0.8),
    ({"model": 1}, 0.7, [(0, 0)], 0.7),
    ({"model": 2}, None, [(0, 0), (0, 1)], 2.5),
    ({"model": 2, "timeout": 6.0}, None, [(0, 0), (0, 1)], 6.0),
    ({"model": 2}, 0.7, [(0, 0), (0, 1)], 0.7),
    ({}, None, [(0, 0), (0.5, 1), (1.5, 0), (2.0, 1)], 3.0),
    ({"timeout": 6.0}, None, [(0, 0), (1, 1), (3, 0), (4, 1)], 6.0),
    ({"try_timeout": 0.8}, None, [(0, 0), (0.4, 1), (1.2, 0), (1.6, 1), (2.4, 0), (2.8, 1)], 3.0),
    ({"hedge": None}, None, [(0, 0), (1, 1), (2, 0)], 3.0),
    ({"hedge": 0.25}, None, [(0, 0), (0.25, 1), (1.25, 0), (1.5, 1), (2.5, 0), (2.75, 1)], 3.0),
    ({}, 0.7, [(0, 0), (0.5, 1)], 0.7),
]


@in_virtual_time
@pytest.mark.parametrize(("options", "timeout", "asks", "ends"), CASES)
async def test_mute_servers_are_asked_in_turn_until_the_time_is_over(
    options: dict[str, Any], timeout: float | None, asks: list[tuple[float, int]], ends: float
) -> None:
    """FLP-06, FRL-01, FRL-05: a try is a third of the time, or a second in model 1."""
    loop = asyncio.get_running_loop()
    began, asked = loop.time(), list[tuple[float, int]]()

    def note(number: int, frames: list[bytes]) -> None:
        if frames[-1] == b"body":
            asked.append((round(loop.time() - began, 2), number))

    async with core.Context() as context, freelance.Client(mute(context, 2, note), context=context, **options) as client:
        with pytest.raises(freelance.NoServer) as caught:
            await client.request(b"body", timeout=timeout)
        assert (round(loop.time() - began, 2), round(caught.value.after_s, 2)) == (ends, ends)
        assert asked == asks
        assert client.counters["gave_up"] == 1


@in_virtual_time
@pytest.mark.parametrize("model", [1, 2, 3])
async def test_a_request_that_was_cancelled_goes_to_no_further_server_and_is_not_given_up(model: Any) -> None:
    asked: list[int] = []
    async with core.Context() as context:
        endpoints = mute(context, 2, lambda number, frames: asked.append(number) if frames[-1] == b"body" else None)
        async with freelance.Client(endpoints, context=context, model=model, outstanding_max=1) as client:
            reply = asyncio.ensure_future(client.request(b"body"))
            await asyncio.sleep(0.2)
            reply.cancel()
            await asyncio.sleep(10)
            assert asked == ([0, 1] if model == 2 else [0])
            assert client.counters["gave_up"] == 0


@in_virtual_time
async def test_a_body_may_be_any_bytes_and_is_copied_as_it_is_asked() -> None:
    """Also one that is not encoded in advance."""
    asked: list[bytes] = []
    async with core.Context() as context:
        endpoints = mute(context, 2, lambda _, frames: asked.append(frames[-1]))
        async with freelance.Client(endpoints, context=context, hedge=None) as client:
            await asyncio.sleep(0.001)
            body = bytearray(b"body" * 1000)
            reply = asyncio.ensure_future(client.request(body))  # type: ignore[arg-type]
            await asyncio.sleep(0.5)
            body[:] = b"else" * 1000
            await asyncio.sleep(1.0)
            reply.cancel()
            assert [body for body in asked if len(body) > 10] == [b"body" * 1000] * 2


@in_virtual_time
async def test_requests_of_a_server_that_is_removed_go_to_the_next_at_once() -> None:
    loop = asyncio.get_running_loop()
    began, asked = loop.time(), list[tuple[float, int]]()

    def note(number: int, frames: list[bytes]) -> None:
        if frames[-1] == b"body":
            asked.append((round(loop.time() - began, 2), number))

    async with core.Context() as context, freelance.Client(mute(context, 2, note), context=context, hedge=None) as client:
        reply = asyncio.ensure_future(client.request(b"body"))
        await asyncio.sleep(0.3)
        client.remove_server("inproc://server-0")
        await asyncio.sleep(0.1)
        assert asked == [(0, 0), (0.3, 1)]
        reply.cancel()


@in_virtual_time
async def test_a_request_that_waits_for_a_server_is_sent_as_soon_as_that_says_a_word() -> None:
    asked: list[bytes] = []
    async with core.Context() as context:
        server = context.socket(core.ROUTER, linger=0)
        server.bind("inproc://server")
        server.set_receiver(lambda batch: asked.extend(frames[-1] for frames in batch))
        names: list[bytes] = []
        async with freelance.Client(["inproc://server"], context=context, timeout=100, alias=True) as client:
            server.set_receiver(lambda batch: names.extend(frames[0] for frames in batch))
            while client.live or not client.counters["server_dead"]:
                await asyncio.sleep(0.1)
            server.set_receiver(lambda batch: asked.extend(frames[-1] for frames in batch))
            reply = asyncio.ensure_future(client.request(b"body"))
            await asyncio.sleep(0)
            assert b"body" not in asked
            await server.send_multipart([names[0], b"PONG"])
            await asyncio.sleep(0.001)
            assert b"body" in asked
            reply.cancel()


@in_virtual_time
async def test_a_full_queue_of_model_3_ends_an_attempt_and_is_counted() -> None:
    """With `router_mandatory` a ROUTER says so."""
    async with core.Context() as context:
        server = context.socket(core.ROUTER, linger=0, rcvhwm=1)
        server.bind("inproc://server")
        options = {"router_mandatory": 1, "sndhwm": 1, "sndtimeo": 0}
        async with freelance.Client(["inproc://server"], context=context, timeout=2, socket_options=options) as client:
            replies = [asyncio.ensure_future(client.request(b"%d" % number)) for number in range(10)]
            ended = await asyncio.gather(*replies, return_exceptions=True)
            assert {type(one) for one in ended} == {freelance.NoServer}
            assert client.counters["sent"] - client.counters["send_blocked"] == 1
            assert not supervision.current().faults


@in_virtual_time
async def test_each_try_of_model_1_has_a_socket_that_is_closed_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async with core.Context() as context:
        endpoints = mute(context, 2, lambda number, frames: None)
        async with freelance.Client(endpoints, model=1, context=context) as client:
            reply = asyncio.ensure_future(client.request(b"body"))
            for _ in range(2):
                await asyncio.sleep(0.9)
                assert len(context._sockets) == 3
            with pytest.raises(freelance.NoServer):
                await reply
            await asyncio.sleep(0)
            assert len(context._sockets) == 2
    lines = [record.getMessage() for record in caplog.records if record.name == "freelance.engine"]
    assert lines == [f"no response from {endpoint}" for endpoint in endpoints]


@in_virtual_time
async def test_without_a_socket_a_try_of_model_1_fails_with_the_reason() -> None:
    async with core.Context() as context:
        endpoints = mute(context, 2, lambda number, frames: None)
        context.max_sockets = 2
        async with freelance.Client(endpoints, model=1, context=context) as client:
            with pytest.raises(core.ZMQError, match="2 open sockets"):
                await client.request(b"body")


@in_virtual_time
async def test_a_server_of_model_1_that_goes_is_sent_nothing_more() -> None:
    async with core.Context() as context:
        server = context.socket(core.REP, linger=0)
        server.bind("inproc://server")
        async with freelance.Client(["inproc://server"], model=1, context=context) as client:
            reply = asyncio.ensure_future(client.request(b"body"))
            assert await server.recv() == b"body"
            server.close()
            with pytest.raises(freelance.NoServer):
                await reply
            assert client.counters["send_blocked"] == 0
