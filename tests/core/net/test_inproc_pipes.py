"""core.net.inproc: marks, late subscriptions, properties and the end of two pipes that are joined (TRN-12)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.pattern.pipe import DETACHED
from core.zmtp.frames import encode_message

if TYPE_CHECKING:
    from core.pattern.pipe import Pipe

NAME = "inproc://name"
MANY = 3000  # more than the default marks


def pipe_of(socket: core.Socket) -> Pipe:
    (pipe,) = socket.pattern.pipes
    return pipe


def sent_until_full(push: core.Socket) -> int:
    """Send until there is no capacity; return how many messages."""
    for number in range(MANY):
        try:
            push.send(b"%d" % number, core.NOBLOCK)
        except core.Again:
            return number
    return MANY


@pytest.mark.parametrize(("sndhwm", "taken"), [(2, 2), (0, MANY)])
async def test_sock_05_before_the_name_is_bound_the_mark_is_that_of_the_sender(context: core.Context, sndhwm: int, taken: int) -> None:
    push = context.socket(core.PUSH, linger=0, sndhwm=sndhwm)
    push.connect(NAME)
    assert sent_until_full(push) == taken


@pytest.mark.parametrize("binds", ["PUSH", "PULL"])
@pytest.mark.parametrize(("sndhwm", "rcvhwm", "taken"), [(2, 3, 5), (0, 3, MANY), (2, 0, MANY)])
async def test_trn_12_then_it_is_the_sum_of_both(context: core.Context, binds: str, sndhwm: int, rcvhwm: int, taken: int) -> None:
    push, pull = context.socket(core.PUSH, linger=0, sndhwm=sndhwm), context.socket(core.PULL, linger=0, rcvhwm=rcvhwm)
    binder, other = (push, pull) if binds == "PUSH" else (pull, push)
    binder.bind(NAME)
    other.connect(NAME)
    assert sent_until_full(push) == taken
    if taken == MANY:
        return
    waits = asyncio.ensure_future(push.send(b"last"))
    await asyncio.sleep(0)
    assert pipe_of(pull).throttled
    got = [await pull.recv() for _ in range(taken)]
    await waits
    assert [*got, await pull.recv()] == [*(b"%d" % number for number in range(taken)), b"last"]
    assert (pipe_of(pull).throttled, pipe_of(push).engine.flush()) == (False, True)


@pytest.mark.parametrize("binds", ["PUSH", "PULL"])
async def test_sock_07_marks_that_are_changed_later_count_at_once(context: core.Context, binds: str) -> None:
    push, pull = context.socket(core.PUSH, linger=0, sndhwm=2), context.socket(core.PULL, linger=0, rcvhwm=3)
    binder, other = (push, pull) if binds == "PUSH" else (pull, push)
    binder.bind(NAME)
    other.connect(NAME)
    assert sent_until_full(push) == 5
    push.sndhwm = 4
    assert sent_until_full(push) == 2
    waits = asyncio.ensure_future(push.send(b"waits"))
    await asyncio.sleep(0)
    pull.rcvhwm = 2
    await asyncio.sleep(0)
    assert not waits.done()
    pull.rcvhwm = 10
    await waits
    assert sent_until_full(push) == 6


async def test_a_single_frame_of_any_type_is_copied_and_a_list_of_messages_sent(context: core.Context) -> None:
    push, pull = context.socket(core.PUSH, linger=0), context.socket(core.PULL, linger=0)
    pull.bind(NAME)
    push.connect(NAME)
    body = bytearray(b"one")
    await push.send(body)
    body[:] = b"ONE"
    got = await pull.recv()
    assert (got, type(got)) == (b"one", bytes)
    await push.send_many([[b"%d" % number] for number in range(5)])
    assert [await pull.recv() for _ in range(5)] == [b"%d" % number for number in range(5)]


async def test_encoded_messages_arrive_as_frames(context: core.Context) -> None:
    push, pull = context.socket(core.DEALER, linger=0), context.socket(core.DEALER, linger=0)
    pull.bind(NAME)
    push.connect(NAME)
    await push.send_multipart([b"head", core.Encoded(encode_message([b"a", b"b"]))])
    assert await pull.recv_multipart() == [b"head", b"a", b"b"]


async def test_a_later_subscription_and_its_end_reach_the_publisher(context: core.Context) -> None:
    pub, sub = context.socket(core.XPUB, linger=0), context.socket(core.SUB, linger=0)
    pub.bind(NAME)
    sub.connect(NAME)
    sub.subscribe(b"a")
    assert await pub.recv() == b"\x01a"
    await pub.send(b"abc")
    assert await sub.recv() == b"abc"
    sub.unsubscribe(b"a")
    assert await pub.recv() == b"\x00a"


async def test_each_end_knows_the_properties_of_the_other(context: core.Context) -> None:
    router, dealer = context.socket(core.ROUTER, linger=0, identity=b"r"), context.socket(core.DEALER, linger=0, identity=b"d")
    for one, metadata in ((router, b"X-Side:bound"), (dealer, b"X-Side:connected")):
        one.setsockopt(core.METADATA, metadata)
    router.bind(NAME)
    dealer.connect(NAME)
    await dealer.send(b"question")
    frames = await router.recv_multipart(copy=False)
    assert [frames[-1].get(name) for name in ("Socket-Type", "X-Side")] == ["DEALER", "connected"]
    await router.send_multipart([b"d", b"answer"])
    frame = await dealer.recv(copy=False)
    assert [frame.get(name) for name in ("Socket-Type", "X-Side")] == ["ROUTER", "bound"]


async def test_a_peer_that_is_refused_is_not_joined(context: core.Context) -> None:
    pair, first, second = (context.socket(core.PAIR, linger=0) for _ in range(3))
    pair.bind(NAME)
    first.connect(NAME)
    second.connect(NAME)
    with pytest.raises(core.Again):
        second.send(b"from the second", core.NOBLOCK)
    await first.send(b"from the first")
    assert await pair.recv() == b"from the first"
    assert not pair.readable()


async def test_a_pipe_that_is_closed_has_no_engine_at_either_end(context: core.Context) -> None:
    push, pull = context.socket(core.PUSH, linger=0), context.socket(core.PULL, linger=0)
    pull.bind(NAME)
    push.connect(NAME)
    ends = [pipe_of(push), pipe_of(pull)]
    assert [pipe.connected for pipe in ends] == [True, True]
    push.close()
    await push.wait_closed()
    assert [(pipe.connected, pipe.engine is DETACHED) for pipe in ends] == [(False, True)] * 2


async def test_a_socket_that_waits_for_a_name_and_is_closed_is_forgotten(context: core.Context) -> None:
    waiting: dict[str, list[Any]] = context.inproc._waiting
    first, second = (context.socket(core.PUSH, linger=0) for _ in range(2))
    for one in (first, second):
        one.connect(NAME)
    first.close()
    assert [len(pipes) for pipes in waiting.values()] == [1]
    second.close()
    assert waiting == {}


async def test_a_name_is_bound_once_until_it_is_unbound(context: core.Context) -> None:
    first, second, push = context.socket(core.PULL, linger=0), context.socket(core.PULL, linger=0), context.socket(core.PUSH, linger=0)
    first.bind(NAME)
    with pytest.raises(core.AddressInUse):
        second.bind(NAME)
    first.unbind(NAME)
    second.bind(NAME)
    push.connect(NAME)
    await push.send(b"x")
    assert await second.recv() == b"x"


@pytest.mark.parametrize("end", ["disconnect", "close"])
async def test_what_waits_for_a_name_that_is_left_counts_as_undelivered(context: core.Context, end: str) -> None:
    push = context.socket(core.PUSH, linger=0)
    push.connect(NAME)
    await push.send_many([[b"1"], [b"2"]])
    if end == "close":
        push.close()
    else:
        push.disconnect(NAME)
    assert push.counters.undelivered == 2
