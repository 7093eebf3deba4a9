"""core.sockets.sending: bytes-like frames, messages in pieces, and sends that wait."""

from __future__ import annotations

import array
import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

import core
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def counted(frames: list[Any]) -> zip[tuple[int, Any]]:
    """Pair each frame with the number of those behind it."""
    return zip(range(len(frames) - 1, -1, -1), frames, strict=True)


TRANSPORTS = ("tcp://127.0.0.1:*", "inproc://one")
# Two that have no hash, every other octet, and one item of two octets.
BYTES_LIKE: list[Any] = [
    b"ab",
    bytearray(b"ab"),
    memoryview(bytearray(b"ab")),
    memoryview(b"a-b-")[::2],
    memoryview(array.array("H", b"ab")),
]
VERBS: dict[str, Callable[[core.Socket, Any], Any]] = {
    "send_multipart": core.Socket.send_multipart,
    "send_multipart, a tuple": lambda socket, frames: socket.send_multipart(tuple(frames)),
    "send_many": lambda socket, frames: socket.send_many([frames]),
    "send_many, a tuple": lambda socket, frames: socket.send_many(cast("Any", (tuple(frames),))),
    "send": lambda socket, frames: [socket.send(frame, core.SNDMORE if left else 0) for left, frame in counted(frames)][-1],
}


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made, asyncio.timeout(PATIENCE_S):
        yield made


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_frames_and_routing_ids_are_bytes_like(context: core.Context, transport: str, verb: str) -> None:
    router, dealer = context.socket(core.ROUTER, linger=0, router_mandatory=1), context.socket(core.DEALER, linger=0, routing_id=b"ab")
    router.bind(transport)
    dealer.connect(router.last_endpoint)
    send = VERBS[verb]
    for frame in BYTES_LIKE:
        await send(dealer, [frame, b"end"])
        assert await router.recv_multipart() == [b"ab", b"ab", b"end"]
        await send(router, [frame, b"", frame])
        assert await dealer.recv_multipart() == [b"", b"ab"]
        assert router.poll(0, core.POLLOUT).done()
        with pytest.raises(core.HostUnreachable):
            await send(router, [memoryview(b"unknown"), frame])


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_is_no_frame_is_refused_and_nothing_is_kept(context: core.Context, transport: str, verb: str) -> None:
    one, other = context.socket(core.PAIR, linger=0), context.socket(core.PAIR, linger=0)
    one.bind(transport)
    other.connect(one.last_endpoint)
    await other.send(b"ready")
    await one.recv()
    send = VERBS[verb]
    for bad in (5, "text", None):
        with pytest.raises(TypeError, match=f"a frame is bytes-like, not {type(bad).__name__}"):
            await send(one, [bad, b"x"])
        with pytest.raises(TypeError):
            one.send(cast("Any", bad), core.SNDMORE)
    if verb != "send":
        with pytest.raises(core.ZMQError) as refused:
            await send(one, [])
        assert refused.value.errno == core.EINVAL
    await one.send_multipart([], core.SNDMORE)
    for number in range(2):
        await one.send(b"%d" % number, core.SNDMORE)
        await one.send(b"x")
        assert await other.recv_multipart() == [b"%d" % number, b"x"]


async def test_a_frame_that_is_none_is_refused_when_it_alone_is_sent(context: core.Context) -> None:
    one = context.socket(core.PAIR, linger=0)
    other = context.socket(core.PAIR, linger=0)
    one.bind("inproc://one")
    other.connect("inproc://one")
    bad: Any = 5
    with pytest.raises(TypeError, match="a frame is bytes-like, not int"):
        await one.send(bad)
    with pytest.raises(TypeError, match="an encoded message must be bytes, not int"):
        one.send_octets(b"", [bad])
    one.send_octets(b"", iter([b"\0\1x"]))  # type: ignore[arg-type]  # any iterable, as it was always taken
    assert await other.recv_multipart() == [b"x"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_message_that_is_changed_while_it_waits_hinders_no_other(context: core.Context, transport: str) -> None:
    push = context.socket(core.PUSH, linger=0)
    changed, bad = [b"1"], [b"2"]
    waits = [push.send_multipart(frames) for frames in (changed, bad, [b"3"])]
    changed.clear()
    bad[0] = 5  # type: ignore[call-overload]
    pull = context.socket(core.PULL, linger=0)
    pull.bind(transport)
    push.connect(pull.last_endpoint)
    assert await pull.recv() == b"3"
    await waits[2]
    for each in waits[:2]:
        with pytest.raises((IndexError, TypeError)):
            await each


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("with_a_loop", [True, False])
async def test_a_send_that_would_wait_is_refused_on_another_thread(context: core.Context, verb: str, with_a_loop: bool) -> None:
    push = context.socket(core.PUSH, linger=0)
    waits = push.send(b"waits")
    refused: list[BaseException] = []

    def send() -> None:
        try:
            VERBS[verb](push, [b"x", b"y"])
        except (core.ZMQError, RuntimeError) as error:
            refused.append(error)

    async def elsewhere() -> None:
        send()

    thread = threading.Thread(target=(lambda: asyncio.run(elsewhere())) if with_a_loop else send)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert [type(error) for error in refused] == [core.WrongOwner]
    assert not waits.done()
    pull = context.socket(core.PULL, linger=0)
    pull.bind("inproc://one")
    push.connect("inproc://one")
    assert await pull.recv_multipart() == [b"waits"]
    with pytest.raises(core.Again):
        pull.recv(core.NOBLOCK)


@pytest.mark.parametrize("kind", [core.PAIR, core.DEALER])
async def test_encoded_messages_are_refused_on_another_thread(context: core.Context, kind: int) -> None:
    one, other = context.socket(kind, linger=0), context.socket(kind, linger=0)
    one.bind("tcp://127.0.0.1:*")
    other.connect(one.last_endpoint)
    await other.send(b"ready")
    await one.recv()
    refused: list[bool] = []

    def send() -> None:
        try:
            one.send_octets(b"", [b"\0\1x"])
        except core.WrongOwner:
            refused.append(True)

    one.send_octets(b"", [b"\0\1w"])  # it waits for the end of this iteration: what came from elsewhere would follow it
    one.send_octets(b"", [b"\0\1w"])
    thread = threading.Thread(target=send)
    thread.start()
    thread.join()
    assert refused
    one.send_octets(b"", [b"\0\1y"])
    assert [await other.recv() for _ in range(3)] == [b"w", b"w", b"y"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_send_waits_on_no_other_loop_of_its_thread(verb: str) -> None:
    """Not while its own loop is open, though that does not run."""
    context = core.Context()
    push = context.socket(core.PUSH, linger=0)
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        with pytest.raises(core.Again):
            push.send(b"x", core.NOBLOCK)

    async def elsewhere() -> None:
        with pytest.raises(core.WrongOwner):
            VERBS[verb](push, [b"x"])

    loop.run_until_complete(begin())
    asyncio.run(elsewhere())
    loop.run_until_complete(context.aclose())
    loop.close()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("verb", ["one", "pieces", "many", "many, at once"])
def test_an_endpoint_of_a_pause_of_the_loop_is_begun_by_the_next_send(verb: str, count: int) -> None:
    """The program connects between two runs of one loop, when nothing runs that could begin it."""
    loop = asyncio.new_event_loop()
    context = core.Context()
    push, pull = context.socket(core.PUSH, linger=0, sndhwm=2), context.socket(core.PULL, linger=0)

    async def begin() -> None:
        pull.bind("tcp://127.0.0.1:*")
        with pytest.raises(core.Again):
            push.send(b"nobody", core.NOBLOCK)

    async def send() -> None:
        sent = [[b"%d" % number] for number in range(count)]
        if verb == "pieces":
            await push.send(b"first", core.SNDMORE | core.NOBLOCK)
        if verb == "many, at once" and count > 2:
            push.sndtimeo = 0
            with pytest.raises(core.Again) as refused:
                push.send_many(sent)
            assert refused.value.taken == 2
            del sent[2:]
        elif verb.startswith("many"):
            waits = push.send_many(sent)
            assert waits.done() == (count < 3)
        else:
            del sent[1:]
            assert push.send(b"0", core.NOBLOCK).done()
        assert [(await pull.recv_multipart())[-1:] for _ in sent] == sent

    loop.run_until_complete(begin())
    push.connect(pull.last_endpoint)
    loop.run_until_complete(send())
    loop.run_until_complete(context.aclose())
    loop.close()


async def test_a_batch_says_how_much_of_it_was_taken(context: core.Context) -> None:
    """Messages beyond the limits of the peer are dropped, and count as taken."""
    pull = context.socket(core.PULL, linger=0, rcvhwm=1, maxmsgsize=100, tell_limits=1)
    pull.bind("tcp://127.0.0.1:*")
    push = context.socket(core.PUSH, linger=0, sndhwm=2)
    push.connect(pull.last_endpoint)
    await push.send(b"ready")
    await pull.recv()
    large, small = [b"x" * 101], [b"y" * 100]
    await push.send_many([large])
    assert push.counters.beyond_peer == 1
    pull.close()
    await pull.wait_closed()
    push.sndtimeo = 1
    with pytest.raises(core.Again) as refused:
        await push.send_many([large, small, large, small, large, small, large])
    assert refused.value.taken == 5
    for given in ([small], [large, small]):
        with pytest.raises(core.Again) as refused:
            await push.send_many(given)
        assert refused.value.taken == len(given) - 1
    push.sndtimeo = 0
    with pytest.raises(core.Again) as refused:
        push.send_many([large, small, small])
    assert refused.value.taken == 1


@pytest.mark.parametrize("limits", [(core.NOBLOCK, -1), (0, 0), (core.NOBLOCK, 0)])
async def test_the_last_part_waits_whatever_its_flags_and_the_time_limit(context: core.Context, limits: tuple[int, int]) -> None:
    push = context.socket(core.PUSH, linger=0)
    await push.send(b"a", core.SNDMORE)
    flags, push.sndtimeo = limits
    waits = push.send(b"b", flags)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waits.done()
    with pytest.raises(core.Again):
        push.send(b"c", flags)
    pull = context.socket(core.PULL, linger=0)
    pull.bind("inproc://one")
    push.connect("inproc://one")
    assert await pull.recv_multipart() == [b"a", b"b"]
    await waits


async def test_a_publisher_says_what_it_drops_and_nothing_else(context: core.Context, caplog: pytest.LogCaptureFixture) -> None:
    """A subscriber has announced how large a message may be."""
    publisher, subscriber = context.socket(core.XPUB, linger=0), context.socket(core.SUB, linger=0, maxmsgsize=100, tell_limits=1)
    publisher.bind("tcp://127.0.0.1:*")
    subscriber.connect(publisher.last_endpoint)
    subscriber.subscribe(b"")
    await publisher.recv()
    await publisher.send(b"x" * 100)
    assert [record.name for record in caplog.records] == []
    await publisher.send(b"x" * 101)
    assert [record.name for record in caplog.records] == ["core.socket"]
    await publisher.send(b"y")
    assert [await subscriber.recv(), await subscriber.recv()] == [b"x" * 100, b"y"]


async def test_what_waits_goes_to_a_new_endpoint_before_anything_listens_there(context: core.Context) -> None:
    push = context.socket(core.PUSH, linger=0, sndhwm=2)
    waits = [push.send(b"%d" % number) for number in range(3)]
    push.connect("tcp://127.0.0.1:1")
    assert [each.done() for each in waits] == [True, True, False]
