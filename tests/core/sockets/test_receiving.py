"""core.sockets.receiving: messages received frame by frame, receives that are cancelled when their message has come, and time limits."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import core

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

Two = tuple[core.Socket, core.Socket]
RECEIVES: dict[str, Callable[..., Any]] = {
    "recv": core.Socket.recv,
    "recv, frames": lambda socket, flags=0: socket.recv(flags, copy=False),
    "recv_multipart": core.Socket.recv_multipart,
    "recv_multipart, frames": lambda socket, flags=0: socket.recv_multipart(flags, copy=False),
    "recv_string": core.Socket.recv_string,
}


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made:
        yield made


def pair(context: core.Context, here: int, there: int, **options: int) -> Two:
    """Return two sockets that are connected."""
    one, other = context.socket(here, linger=0, **options), context.socket(there, linger=0)
    one.bind("inproc://one")
    other.connect("inproc://one")
    return one, other


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("kind", [core.PULL, core.DEALER, core.PAIR])
async def test_a_cancelled_receive_puts_all_frames_back(context: core.Context, kind: int, copy: bool) -> None:
    one, other = pair(context, kind, core.PUSH if kind == core.PULL else kind)
    first = one.recv(copy=copy)
    await other.send_multipart([b"a", b"b", b"c"])
    await other.send(b"next")
    assert first.done()
    assert first.cancel()
    assert one.rcvmore is False
    assert await one.recv_multipart() == [b"a", b"b", b"c"]
    assert await one.recv_multipart() == [b"next"]


async def test_the_next_receive_gets_the_message_of_a_cancelled_one(context: core.Context) -> None:
    one, other = pair(context, core.PULL, core.PUSH)
    first, second, third, last = one.recv_multipart(), one.recv(), one.recv_multipart(), one.recv_string()
    third.cancel()
    await other.send(b"x")
    assert first.cancel()
    assert await second == b"x"
    await other.send(b"y")
    assert await last == "y"


async def test_a_cancelled_receive_of_the_rest_puts_it_back(context: core.Context) -> None:
    one, other = pair(context, core.PULL, core.PUSH)
    first, second = one.recv(), one.recv()
    await other.send_multipart([b"a", b"b", b"c"])
    await other.send(b"next")
    assert second.cancel()
    assert await first == b"a"
    assert await one.recv() == b"b"
    assert await one.recv_many() == [[b"c"]]
    assert await one.recv_many() == [[b"next"]]


async def test_a_req_sends_when_it_has_all_frames_of_the_reply(context: core.Context) -> None:
    router, req = pair(context, core.ROUTER, core.REQ)
    await req.send(b"1")
    name, *_ = await router.recv_multipart()
    await router.send_multipart([name, b"", b"a", b"b"])
    assert await req.recv() == b"a"
    assert await req.poll(0, core.POLLIN | core.POLLOUT) == core.POLLIN
    with pytest.raises(core.BadState):
        req.send(b"2")
    assert await req.recv() == b"b"
    assert await req.poll(0, core.POLLIN | core.POLLOUT) == core.POLLOUT
    await req.send(b"2")
    assert (await router.recv_multipart())[2:] == [b"2"]


async def test_a_relaxed_req_forgets_the_rest_of_the_last_reply(context: core.Context) -> None:
    router, req = pair(context, core.ROUTER, core.REQ)
    req.req_relaxed = 1
    await req.send(b"1")
    name, *_ = await router.recv_multipart()
    await router.send_multipart([name, b"", b"a", b"b"])
    assert await req.recv() == b"a"
    assert await req.poll(0, core.POLLOUT) == core.POLLOUT
    await req.send(b"2")
    await router.recv_multipart()
    await router.send_multipart([name, b"", b"c"])
    assert await req.recv_multipart() == [b"c"]


async def test_a_rep_answers_when_it_has_all_frames_of_the_request(context: core.Context) -> None:
    rep, dealer = pair(context, core.REP, core.DEALER)
    await dealer.send_multipart([b"", b"a", b"b"])
    assert await rep.recv() == b"a"
    assert await rep.poll(0, core.POLLIN | core.POLLOUT) == core.POLLIN
    with pytest.raises(core.BadState):
        rep.send(b"answer")
    assert await rep.recv() == b"b"
    await rep.send(b"answer")
    assert await dealer.recv_multipart() == [b"", b"answer"]


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("verb", ["recv", "recv_multipart"])
async def test_the_reply_of_a_cancelled_receive_is_none_to_the_next_request(context: core.Context, verb: str, awaited: bool) -> None:
    """The receive has its reply, and is cancelled after the next request was sent: two tasks use the socket."""
    router, req = pair(context, core.ROUTER, core.REQ)
    await req.send(b"1")
    name, *_ = await router.recv_multipart()
    first = getattr(req, verb)()
    if awaited:
        first.add_done_callback(lambda _: None)
    await router.send_multipart([name, b"", b"reply to 1"])
    assert first.done()
    await req.send(b"2")
    assert first.cancel()
    await router.recv_multipart()
    await router.send_multipart([name, b"", b"reply to 2"])
    assert await req.recv_multipart() == [b"reply to 2"]
    assert req.counters.stale == 1


async def test_the_reply_of_a_cancelled_receive_is_received_next(context: core.Context) -> None:
    router, req = pair(context, core.ROUTER, core.REQ)
    await req.send(b"1")
    name, *_ = await router.recv_multipart()
    first = req.recv()
    await router.send_multipart([name, b"", b"a", b"b"])
    assert first.cancel()
    with pytest.raises(core.BadState):
        req.send(b"2")
    assert await req.recv_multipart() == [b"a", b"b"]
    await req.send(b"2")


def test_a_receive_waits_on_the_loop_that_runs() -> None:
    context = core.Context()
    one = context.socket(core.PULL, linger=0)
    with pytest.raises(RuntimeError):
        one.recv_multipart()

    async def receive(number: int) -> None:
        one.bind(f"inproc://{number}")
        other = context.socket(core.PUSH, linger=0)
        other.connect(f"inproc://{number}")
        waits = one.recv_multipart()
        await other.send(b"x")
        assert await waits == [b"x"]
        other.close()

    for number in range(2):
        asyncio.run(receive(number))
    with pytest.raises(RuntimeError):
        one.recv_multipart()
    asyncio.run(context.aclose())


@pytest.mark.parametrize("name", RECEIVES)
async def test_receives_have_time_limits_and_flags(context: core.Context, name: str) -> None:
    receive = RECEIVES[name]
    one, other = pair(context, core.PULL, core.PUSH, rcvtimeo=1)
    with pytest.raises(core.Again):
        await receive(one)
    for flags, limit in ((core.NOBLOCK, -1), (core.NOBLOCK, 1), (0, 0)):
        one.rcvtimeo = limit
        with pytest.raises(core.Again):
            receive(one, flags)
    one.rcvtimeo = -1
    waits = [receive(one), receive(one, core.SNDMORE)]  # a flag of sends says nothing about receives
    for _ in waits:
        await other.send(b"x")
    found = await asyncio.gather(*waits)
    assert [str(one) for one in found] == [str(found[0])] * 2


async def test_who_polls_hears_of_a_message_that_is_put_back(context: core.Context) -> None:
    one, other = pair(context, core.PULL, core.PUSH)
    first = one.recv_multipart()
    await other.send(b"x")
    polls = asyncio.ensure_future(one.poll())
    await asyncio.sleep(0)
    assert not polls.done()
    assert first.cancel()
    assert await polls == core.POLLIN
    assert await one.recv() == b"x"


async def test_a_receiver_gets_a_message_that_is_put_back(context: core.Context) -> None:
    one, other = pair(context, core.PULL, core.PUSH)
    first = one.recv_multipart()
    await other.send(b"x")
    got: asyncio.Queue[object] = asyncio.Queue()
    one.set_receiver(got.put_nowait)
    assert first.cancel()
    assert await got.get() == [[b"x"]]


async def test_the_rest_of_a_message_goes_to_those_that_wait_before_the_next_one_comes(context: core.Context) -> None:
    one, other = pair(context, core.PULL, core.PUSH)
    first, second, third = one.recv(), one.recv_multipart(), one.recv_multipart()
    await other.send_multipart([b"a", b"b"])
    assert second.cancel()
    await other.send(b"next")
    assert [await first, await third, await one.recv()] == [b"a", [b"b"], b"next"]


@pytest.mark.parametrize("kind", [core.REQ, core.REP])
async def test_what_is_put_back_after_a_turn_does_not_belong_to_the_next(context: core.Context, kind: int) -> None:
    """The program answers a request, or sends the next one, before it has looked at what it received."""
    one, other = pair(context, kind, core.ROUTER if kind == core.REQ else core.DEALER)
    name: list[bytes] = []

    async def come(text: bytes) -> None:
        if kind == core.REQ:
            await one.send(b"request")
            name[:] = (await other.recv_multipart())[:1]
        waits.append(one.recv())
        await other.send_multipart([*name, b"", text, b"end"])

    waits: list[Any] = []
    one.req_relaxed = int(kind == core.REQ)
    await come(b"1")
    if kind == core.REP:
        waits.append(one.recv())
        await one.send(b"answer 1")
        assert (await other.recv_multipart())[-1] == b"answer 1"
    await come(b"2")
    assert waits[0].cancel()
    assert one.counters.stale == 1
    assert await waits[-1] == b"2"
    assert await one.recv_multipart() == [b"end"]
    if kind == core.REP:
        await one.send(b"answer 2")
    with pytest.raises(core.Again if kind == core.REP else core.BadState):
        one.recv(core.NOBLOCK)


async def test_frames_know_who_sent_them_after_others_were_skipped(context: core.Context) -> None:
    """The message that is skipped is of a topic that was unsubscribed, and of another peer."""
    one = context.socket(core.SUB, linger=0)
    peers = [context.socket(core.PUB, linger=0, metadata=f"X-Name:{number}") for number in range(3)]
    for number, each in enumerate(peers):
        each.bind(f"inproc://{number}")
        one.connect(f"inproc://{number}")
    for topic in (b"0", b"1", b"2"):
        one.subscribe(topic)
    for number, each in enumerate(peers):
        await each.send(b"%d" % number)
    one.unsubscribe(b"0")
    frame = await one.recv(copy=False)
    assert (frame, frame["X-Name"]) == (b"1", "1")


async def test_a_subscription_knows_whose_it_is(context: core.Context) -> None:
    """Also after several receives were cancelled: the program grants topics to the peer of the last one."""
    one = context.socket(core.XPUB, linger=0, xpub_manual=1)
    one.bind("inproc://one")
    waits = [one.recv() for _ in range(2)]
    subs = [context.socket(core.SUB, linger=0, metadata=f"X-Name:{number}") for number in range(2)]
    for each in subs:
        each.connect("inproc://one")
        each.subscribe(b"")
    assert [receive.cancel() for receive in waits] == [True, True]
    for number in range(2):
        frame = await one.recv(copy=False)
        assert frame["X-Name"] == str(number)
        one.subscribe(b"for %d" % number)
    for number, each in enumerate(subs):
        await one.send(b"for %d" % number)
        assert await each.recv() == b"for %d" % number
        with pytest.raises(core.Again):
            each.recv(core.NOBLOCK)


@pytest.mark.parametrize("name", [*RECEIVES, "recv_many"])
def test_a_socket_waits_on_no_other_loop_of_its_thread(name: str) -> None:
    """Not while its own loop is open, though that does not run."""
    receive = RECEIVES.get(name, core.Socket.recv_many)
    context = core.Context()
    one = context.socket(core.PULL, linger=0)
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        one.bind("inproc://one")

    async def elsewhere() -> None:
        with pytest.raises(core.WrongOwner):
            receive(one)

    loop.run_until_complete(begin())
    asyncio.run(elsewhere())
    loop.run_until_complete(context.aclose())
    loop.close()


@pytest.mark.parametrize("name", [*RECEIVES, "recv_many"])
def test_an_endpoint_of_a_pause_of_the_loop_is_begun_by_the_next_receive(name: str) -> None:
    """The program binds between two runs of one loop, when nothing runs that could begin it."""
    receive = RECEIVES.get(name, core.Socket.recv_many)
    context = core.Context()
    one, other = context.socket(core.PULL, linger=0), context.socket(core.PUSH, linger=0)
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        with pytest.raises(core.Again):
            one.recv(core.NOBLOCK)
        other.bind("tcp://127.0.0.1:*")
        other.send(b"x")

    async def go_on() -> str:
        return str(await receive(one))

    loop.run_until_complete(begin())
    one.connect(other.last_endpoint)
    assert "x" in loop.run_until_complete(go_on())
    loop.run_until_complete(context.aclose())
    loop.close()


async def test_a_receive_on_another_thread_drops_nothing(context: core.Context) -> None:
    """Messages of a topic that was unsubscribed are skipped by the owner alone."""
    one, other = pair(context, core.SUB, core.PUB)
    one.subscribe(b"")
    await other.send(b"x")
    one.unsubscribe(b"")
    one.subscribe(b"y")
    refused: list[str] = []

    def receive() -> None:
        for verb in (lambda: one.recv(copy=False), one.recv_many):
            try:
                verb()
            except core.WrongOwner as error:
                refused.append(type(error).__name__)

    thread = threading.Thread(target=receive)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert (refused, one.counters.unsubscribed) == (["WrongOwner"] * 2, 0)


@pytest.mark.parametrize("waited_for", [True, False])
async def test_the_rests_of_two_messages_are_of_their_senders(context: core.Context, waited_for: bool) -> None:
    one = context.socket(core.PULL, linger=0)
    peers = [context.socket(core.PUSH, linger=0, metadata=f"X-Name:{number}") for number in range(2)]
    for number, each in enumerate(peers):
        one.bind(f"inproc://{number}")
        each.connect(f"inproc://{number}")
    first, rest, second = one.recv(), one.recv_multipart(), one.recv()
    waits: list[Any] = [one.recv_many(), *(one.recv(copy=False) for _ in range(2 * waited_for))]
    await peers[0].send_multipart([b"0", b"rest"])
    assert (await first, rest.done()) == (b"0", True)
    await peers[1].send_multipart([b"1", b"rest"])
    assert (await second, waits[0].done()) == (b"1", True)
    assert waits.pop(0).cancel()
    assert rest.cancel()
    waits += [one.recv(copy=False) for _ in range(2 - len(waits))]
    assert [(await each)["X-Name"] for each in waits] == (["1", "0"] if waited_for else ["0", "1"])  # those that wait get it at once


async def test_a_request_that_is_dropped_fails_one_receive(context: core.Context) -> None:
    """Its peer has announced that it is too large."""
    req, router = context.socket(core.REQ, linger=0), context.socket(core.ROUTER, linger=0)
    router.bind("tcp://127.0.0.1:*")
    endpoint = router.last_endpoint
    router.close()
    await router.wait_closed()
    req.connect(endpoint)
    await req.send(b"x" * 101)
    first, second = req.recv(), req.recv()
    router = context.socket(core.ROUTER, linger=0, maxmsgsize=100, tell_limits=1)
    router.bind(endpoint)
    with pytest.raises(core.MessageTooLarge):
        await first
    assert not second.done()


async def test_frames_of_a_rest_know_their_sender_when_they_were_waited_for(context: core.Context) -> None:
    one = context.socket(core.PULL, linger=0)
    peers = [context.socket(core.PUSH, linger=0, metadata=f"X-Name:{number}") for number in range(2)]
    for number, each in enumerate(peers):
        one.bind(f"inproc://{number}")
        each.connect(f"inproc://{number}")
    waits = [one.recv(copy=False) for _ in range(3)]
    await peers[0].send_multipart([b"a", b"b"])
    await peers[1].send(b"c")
    assert [((await each)["X-Name"], (await each).more) for each in waits] == [("0", True), ("0", False), ("1", False)]


async def test_a_message_that_could_not_be_converted_is_not_received_again(context: core.Context) -> None:
    one, other = pair(context, core.PULL, core.PUSH)
    first, second, third = one.recv_multipart(), one.recv_json(), one.recv_json()
    for text in (b"1", b"no JSON", b"3"):
        await other.send(text)
    assert not second.cancel()
    assert first.cancel()
    assert await third == 1
    with pytest.raises(ValueError, match="Expecting value"):
        await second
    assert await one.recv() == b"3"
    # What a receive has instead of its message cannot be converted either: it fails when its result is taken.
    first, second = one.recv_multipart(), one.recv_json()
    await other.send(b"no JSON")
    await other.send(b"5")
    assert first.cancel()
    assert not second.cancel()
    with pytest.raises(ValueError, match="Expecting value"):
        await second
    assert await one.recv() == b"5"
    with pytest.raises(core.Again):
        one.recv(core.NOBLOCK)


@pytest.mark.parametrize("waits", [1, 2, 3])
async def test_opt_02_a_cancelled_receive_leaves_the_newest_message_only(context: core.Context, waits: int) -> None:
    one, other = pair(context, core.PULL, core.PUSH, conflate=1)
    receives = [one.recv_multipart() for _ in range(waits)]
    for number in range(3):
        await other.send(b"%d" % number)
    assert [receive.cancel() for receive in receives] == [True] * waits
    assert await one.recv() == b"2"
    with pytest.raises(core.Again):
        one.recv(core.NOBLOCK)


@pytest.mark.parametrize("name", [*RECEIVES, "recv_many"])
async def test_a_receive_that_a_receiver_leaves_nothing_for_ends(context: core.Context, name: str) -> None:
    """Whether it waits when the receiver is set, or is called later; it waited for ever."""
    receive = RECEIVES.get(name, core.Socket.recv_many)
    one, other = pair(context, core.PULL, core.PUSH)
    waits, cancelled = receive(one), receive(one)
    assert cancelled.cancel()
    got: asyncio.Queue[object] = asyncio.Queue()
    one.set_receiver(got.put_nowait)
    with pytest.raises(core.BadState):
        await waits
    with pytest.raises(core.BadState):
        receive(one)
    await other.send(b"x")
    assert await got.get() == [[b"x"]]
    one.set_receiver(None)
    waits = receive(one)
    await other.send(b"y")
    assert "y" in str(await waits)


async def test_what_was_begun_is_skipped_when_messages_move_up(context: core.Context) -> None:
    """The rest of a message whose first frame was taken stays where it is; whole messages go past it."""
    one, other = pair(context, core.PULL, core.PUSH)
    first, frame, rest, last = one.recv_multipart(), one.recv(), one.recv(), one.recv_multipart()
    for message in ([b"1"], [b"2", b"rest"], [b"3"]):
        await other.send_multipart(message)
    assert await frame == b"2"
    assert first.cancel()
    assert [await rest, await last, await one.recv()] == [b"rest", [b"1"], b"3"]


async def test_frames_that_move_up_know_their_sender(context: core.Context) -> None:
    one = context.socket(core.PULL, linger=0)
    peers = [context.socket(core.PUSH, linger=0, metadata=f"X-Name:{number}") for number in range(2)]
    for number, each in enumerate(peers):
        one.bind(f"inproc://{number}")
        each.connect(f"inproc://{number}")
    first, *waits = one.recv_multipart(), one.recv(copy=False), one.recv(copy=False)
    await peers[0].send_multipart([b"a", b"b"])
    await peers[1].send(b"c")
    await peers[1].send(b"d")
    assert first.cancel()
    waits += [one.recv(copy=False) for _ in range(2)]
    assert [((await each)["X-Name"], await each) for each in waits] == [("0", b"a"), ("0", b"b"), ("1", b"c"), ("1", b"d")]


async def test_a_frame_that_is_put_back_after_the_next_one_was_taken_is_no_message(context: core.Context) -> None:
    one, other = pair(context, core.PULL, core.PUSH)
    first = one.recv()
    await other.send_multipart([b"a", b"b"])
    assert await one.recv() == b"b"
    assert (first.cancel(), one.rcvmore) == (True, True)
    assert (await one.recv(), one.rcvmore) == (b"a", False)
