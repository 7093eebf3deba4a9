"""Rules MDP-09 to MDP-14 of the client, against a scripted broker on our sockets and on libzmq."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import mdp
from mdp.wire.commands import CLIENT_FINAL_03, CLIENT_PARTIAL_03, CLIENT_REQUEST_03, HEAD_BYTES
from tests.scenes.mdp_scripted_broker import StandIn
from tests.scenes.mdp_scripted_broker_libzmq import LibzmqStandIn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(params=["ours", "libzmq"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[StandIn | LibzmqStandIn]:
    async with StandIn() if request.param == "ours" else LibzmqStandIn() as made:
        yield made


async def test_mdp_09_a_client_of_0_1_writes_the_empty_frame_and_expects_it_back(broker: StandIn | LibzmqStandIn) -> None:
    async with mdp.Client(broker.endpoint, dialect="0.1") as client:
        reply = client.request("echo", b"hi", b"")
        peer, frames = await broker.next()
        assert frames == [b"", b"MDPC01", b"echo", b"hi", b""]
        broker.send(peer, b"MDPC01", b"echo", b"without the empty frame")
        broker.send(peer, b"", b"MDPC01", b"echo", b"ok")
        assert await reply == [b"ok"]


async def test_mdp_09_a_client_of_0_2_sends_no_empty_frame(broker: StandIn | LibzmqStandIn) -> None:
    async with mdp.Client(broker.endpoint, dialect="0.2") as client:
        reply = client.request("echo", b"hi")
        peer, frames = await broker.next()
        assert frames == [b"MDPC02", b"\x01", b"echo", b"hi"]
        broker.send(peer, b"MDPC02", b"\x03", b"echo", b"ok")
        assert await reply == [b"ok"]


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_mdp_10_a_new_socket_for_each_attempt_and_then_the_end(broker: StandIn | LibzmqStandIn, dialect: str) -> None:
    async with mdp.Client(broker.endpoint, dialect=dialect, timeout=1.0, attempts=3) as client:
        reply = client.request("echo", b"hi")
        heard = [await broker.next() for _ in range(3)]
        assert len({peer for peer, _ in heard}) == 3
        assert heard[0][1] == heard[1][1] == heard[2][1]
        with pytest.raises(mdp.Timeout) as caught:
            await reply
        assert caught.value.attempts == 3


@pytest.mark.parametrize(
    "wrong",
    [
        [b"", b"MDPC01", b"echo"],
        [b"", b"MDPC01", b"other", b"x"],
        [b"", b"MDPC02", b"echo", b"x"],
        [b"", b"MDPW01", b"\x02", b"echo", b"x"],
        [b"", b"MDPC011", b"echo", b"x"],
        [b""],
    ],
)
async def test_mdp_11_a_reply_that_is_not_valid_is_dropped_and_the_wait_goes_on(
    broker: StandIn | LibzmqStandIn, wrong: list[bytes]
) -> None:
    async with mdp.Client(broker.endpoint, dialect="0.1") as client:
        reply = client.request("echo", b"hi")
        peer, frames = await broker.next()
        broker.send(peer, *wrong)
        broker.send(peer, *frames)
        assert await reply == [b"hi"]
        assert client.counters.malformed == 1


async def test_mdp_12_sends_return_at_once_and_many_requests_are_in_flight(broker: StandIn | LibzmqStandIn) -> None:
    async with mdp.Client(broker.endpoint) as client:
        replies = [client.request("echo", b"%d" % n) for n in range(100)]
        heard = [await broker.next() for _ in range(100)]
        assert client.in_flight == 100
        for peer, frames in reversed(heard):
            broker.send(peer, CLIENT_FINAL_03 + frames[0][HEAD_BYTES:], frames[3])
        assert await asyncio.gather(*replies) == [[b"%d" % n] for n in range(100)]


async def test_mdp_13_partials_then_one_final_and_nothing_after_it(broker: StandIn | LibzmqStandIn) -> None:
    async with mdp.Client(broker.endpoint, dialect="0.2") as client:
        parts = client.stream("tail", b"file")
        reading = asyncio.ensure_future(anext(parts))
        peer, _ = await broker.next()
        for command, body in ((b"\x02", b"1"), (b"\x02", b"2"), (b"\x03", b"3"), (b"\x02", b"4"), (b"\x03", b"5")):
            broker.send(peer, b"MDPC02", command, b"tail", body)
        assert [await reading, *[part async for part in parts]] == [[b"1"], [b"2"], [b"3"]]


async def test_mdp_13_the_same_in_our_dialect(broker: StandIn | LibzmqStandIn) -> None:
    async with mdp.Client(broker.endpoint) as client:
        parts = client.stream("tail", b"file")
        reading = asyncio.ensure_future(anext(parts))
        peer, frames = await broker.next()
        id = frames[0].removeprefix(CLIENT_REQUEST_03)
        for command, body in ((CLIENT_PARTIAL_03, b"1"), (CLIENT_FINAL_03, b"2"), (CLIENT_PARTIAL_03, b"3"), (CLIENT_FINAL_03, b"4")):
            broker.send(peer, command + id, body)
        assert [await reading, *[part async for part in parts]] == [[b"1"], [b"2"]]


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_mdp_14_a_late_reply_is_not_the_answer_to_another_request(broker: StandIn | LibzmqStandIn, dialect: str) -> None:
    async with mdp.Client(broker.endpoint, dialect=dialect, timeout=0.3, attempts=1, connections_max=1) as client:
        late = [b"", b"MDPC01", b"echo"] if dialect == "0.1" else [b"MDPC02", b"\x03", b"echo"]
        connected = client.request(
            "echo", b"connect", timeout=100
        )  # what is asked on a connection that stands is sent before any time limit
        peer, _ = await broker.next()
        broker.send(peer, *late, b"yes")
        assert await connected == [b"yes"]
        abandoned = client.request("echo", b"first")
        first, frames = await broker.next()
        with pytest.raises(mdp.Timeout):
            await abandoned
        second_reply = client.request("echo", b"second", timeout=100)
        second, _ = await broker.next()
        broker.send(first, *late, b"late")
        broker.send(second, *late, b"its own")
        assert await second_reply == [b"its own"]
        assert frames[-1] == b"first"


async def test_mdp_14_late_replies_in_our_dialect_are_recognized_by_their_number(broker: StandIn | LibzmqStandIn) -> None:
    async with mdp.Client(broker.endpoint, timeout=0.3, attempts=1) as client:
        connected = client.request("echo", b"connect", timeout=100)
        peer, frames = await broker.next()
        broker.send(peer, CLIENT_FINAL_03 + frames[0][HEAD_BYTES:], b"yes")
        assert await connected == [b"yes"]
        abandoned = client.request("echo", b"first")
        peer, first = await broker.next()
        with pytest.raises(mdp.Timeout):
            await abandoned
        await broker.next()  # its CANCEL
        reply = client.request("echo", b"second", timeout=100)
        _, second = await broker.next()
        broker.send(peer, CLIENT_FINAL_03 + first[0][HEAD_BYTES:], b"late")
        broker.send(peer, CLIENT_FINAL_03 + second[0][HEAD_BYTES:], b"its own")
        assert await reply == [b"its own"]
        assert client.counters.late == 1
