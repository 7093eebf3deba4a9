"""inproc: whichever end binds, and whichever comes first, both are ready before either speaks (TRN-09, TRN-12)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import core
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXCHANGES = [
    *(("REQ", "REP"), ("REQ", "ROUTER"), ("DEALER", "REP"), ("DEALER", "ROUTER")),
    *(("DEALER", "DEALER"), ("PAIR", "PAIR"), ("ROUTER", "ROUTER")),
]
STREAMS = [("PUSH", "PULL"), ("PUB", "SUB"), ("PUB", "XSUB"), ("XPUB", "SUB"), ("XPUB", "XSUB")]
PROBES = [("DEALER", "ROUTER"), ("ROUTER", "DEALER"), ("REQ", "ROUTER"), ("ROUTER", "ROUTER")]
ORDERS = ["first binds", "second binds", "first connects early", "second connects early"]
NAME = "inproc://name"


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context(seed=1) as made:
        yield made


def join(order: str, first: core.Socket, second: core.Socket) -> None:
    """Bind one of them and connect the other, before or after."""
    binder, other = (second, first) if order in ("second binds", "first connects early") else (first, second)
    if "early" in order:
        other.connect(NAME)
        binder.bind(NAME)
    else:
        binder.bind(NAME)
        other.connect(NAME)


def maker(context: core.Context, **options: Any) -> Any:
    return lambda kind, **more: context.socket(core.SocketType[kind], rcvtimeo=60_000, sndtimeo=60_000, linger=0, **options, **more)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("first", "second"), EXCHANGES, ids=["-".join(pair) for pair in EXCHANGES])
async def test_question_and_answer(context: core.Context, first: str, second: str, order: str) -> None:
    make = maker(context)
    named = {"identity": b"asks"} if first in ("REQ", "DEALER", "ROUTER") else {}
    asks = make(first, **named)
    answers = make(second, **({"identity": b"answers"} if second == "ROUTER" else {}))
    join(order, asks, answers)
    delimiter = [b""] if (first, second) == ("DEALER", "REP") else []
    await asks.send_multipart([*([b"answers"] if first == "ROUTER" else []), *delimiter, b"question"])
    got = await answers.recv_multipart()
    assert got[-1] == b"question"
    assert got[:1] == ([b"asks"] if second == "ROUTER" else [b"question"])
    await answers.send_multipart([*got[:-1], b"answer"])
    assert (await asks.recv_multipart())[-1] == b"answer"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("first", "second"), STREAMS, ids=["-".join(pair) for pair in STREAMS])
async def test_one_way(context: core.Context, first: str, second: str, order: str) -> None:
    """PUB or SUB connects: the topic of a waiting subscriber is known as soon as they are joined."""
    make = maker(context)
    sends, takes = make(first), make(second)
    if second == "SUB":
        takes.subscribe(b"a")
    elif second == "XSUB":
        await takes.send(b"\x01a")
    join(order, sends, takes)
    if first == "XPUB":
        assert await sends.recv() == b"\x01a"
    await sends.send_multipart([b"a", b"one"])
    assert await takes.recv_multipart() == [b"a", b"one"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["SUB", "XSUB"])
async def test_a_welcome_message_comes_first(context: core.Context, order: str, kind: str) -> None:
    make = maker(context)
    xpub, takes = make("XPUB", xpub_welcome_msg=b"welcome"), make(kind)
    if kind == "SUB":
        takes.subscribe(b"")
    join(order, xpub, takes)
    await xpub.send(b"first")
    assert await takes.recv() == b"welcome"


@pytest.mark.parametrize("both", [False, True], ids=["one probes", "both probe"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("prober", "other"), PROBES, ids=["-".join(pair) for pair in PROBES])
async def test_a_probe_comes_with_its_routing_id(context: core.Context, prober: str, other: str, order: str, both: bool) -> None:
    make = maker(context)
    probes = make(prober, probe_router=1, identity=b"prober")
    probed = make(other, identity=b"probed", **({"probe_router": 1} if both else {}))
    join(order, probes, probed)
    assert await probed.recv_multipart() == ([b"prober", b""] if other == "ROUTER" else [b""])
    if both and prober != "REQ":
        assert await probes.recv_multipart() == ([b"probed", b""] if prober == "ROUTER" else [b""])
    if other == "ROUTER" and prober != "REQ":
        await probed.send_multipart([b"prober", b"hello"])
        assert (await probes.recv_multipart())[-1] == b"hello"


@pytest.mark.parametrize("order", ORDERS)
async def test_what_was_sent_before_the_peer_was_there_comes_before_what_follows(context: core.Context, order: str) -> None:
    make = maker(context)
    push, pull = make("PUSH"), make("PULL")
    if order == "first connects early":
        push.connect(NAME)
        for n in range(5):
            await push.send(b"%d" % n)
        pull.bind(NAME)
    else:
        join(order, push, pull)
        for n in range(5):
            await push.send(b"%d" % n)
    await push.send(b"5")
    assert [await pull.recv() for _ in range(6)] == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize("kinds", [(bytearray, bytes), (bytes, memoryview), (bytearray, memoryview)])
async def test_frames_of_any_bytes_like_type_arrive(context: core.Context, kinds: tuple[type, type]) -> None:
    """TRN-12: with several frames too; a buffer that changes after it was sent does not change the message."""
    make = maker(context)
    push, pull = make("PUSH"), make("PULL")
    pull.bind(NAME)
    push.connect(NAME)
    parts = [kind(text) for kind, text in zip(kinds, (b"one", b"two"), strict=True)]
    await push.send_multipart(parts)
    if isinstance(parts[0], bytearray):
        parts[0][:] = b"ONE"
    assert await pull.recv_multipart() == [b"one", b"two"]


async def test_a_receiver_gets_what_an_end_says_at_once(context: core.Context) -> None:
    """`set_receiver` on the bound end: the probe comes with its routing id, in the next iteration of the loop."""
    make = maker(context)
    got: list[list[bytes]] = []
    router = make("ROUTER")
    router.set_receiver(got.extend)
    router.bind(NAME)
    make("DEALER", probe_router=1, identity=b"prober").connect(NAME)
    reader = make("PULL")
    assert not await reader.poll(20)
    assert got == [[b"prober", b""]]


async def test_immediate_has_no_meaning_for_inproc(context: core.Context) -> None:
    make = maker(context)
    push, pull = make("PUSH", immediate=1), make("PULL")
    push.connect(NAME)
    assert await push.poll(0, core.POLLOUT)
    await push.send(b"early")
    pull.bind(NAME)
    assert await pull.recv() == b"early"


@pytest.mark.parametrize("kind", ["PUSH", "DEALER", "REQ"])
async def test_polling_for_writability_does_not_change_the_order(context: core.Context, kind: str) -> None:
    """SOCK-09: consecutive messages go to consecutive peers, however often the socket is polled in between."""
    make = maker(context)
    takers = [make({"PUSH": "PULL", "DEALER": "ROUTER", "REQ": "ROUTER"}[kind]) for _ in range(3)]
    sender = make(kind, **({"req_relaxed": 1} if kind == "REQ" else {}))
    for n, taker in enumerate(takers):
        taker.bind(f"inproc://{n}")
        sender.connect(f"inproc://{n}")
    for n in range(6):
        for _ in range(n):
            assert await sender.poll(0, core.POLLOUT)
        await sender.send(b"%d" % n)
    assert [[(await taker.recv_multipart())[-1] for _ in range(2)] for taker in takers] == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]


@pytest.mark.parametrize("at_once", [True, False])
async def test_rtr_08_the_holder_of_a_routing_id_is_reported_as_gone_before_the_one_that_takes_it_over(at_once: bool) -> None:
    """And not later, when it closes, when the id is that of the newcomer; nor as connected after that."""
    told: list[tuple[bytes, bool]] = []
    async with core.Context() as context:
        router = context.socket(core.ROUTER, linger=0, router_handover=1)
        router.bind(NAME)
        router.set_receiver(lambda _: None, on_peer=lambda name, joined: told.append((name, joined)))
        first, second = (context.socket(core.DEALER, linger=0, identity=b"same") for _ in range(2))
        first.connect(NAME)
        await eventually(lambda: at_once or told)
        second.connect(NAME)
        await eventually(lambda: len(told) == 3 - at_once)
        first.close()
        await first.wait_closed()
        await router.send_multipart([b"same", b"to the second"])
        assert await second.recv() == b"to the second"
        assert told == [(b"same", True), (b"same", False), (b"same", True)][at_once:]


@pytest.mark.parametrize("end", ["close", "disconnect"])
@pytest.mark.parametrize(("first", "second"), [("PUSH", "PULL"), ("DEALER", "ROUTER"), ("REQ", "REP"), ("PAIR", "PAIR")])
async def test_sock_15_what_was_sent_before_the_name_was_bound_arrives_within_linger(
    context: core.Context, first: str, second: str, end: str
) -> None:
    """The other end may answer, and nothing comes back to a socket that has disconnected."""
    sender = context.socket(core.SocketType[first])
    receiver, other = (context.socket(core.SocketType[second], hello_msg=b"hello", rcvtimeo=60_000) for _ in range(2))
    sender.connect(NAME)
    await sender.send(b"1")
    sender.close() if end == "close" else sender.disconnect(NAME)
    receiver.bind(NAME)
    assert (await receiver.recv_multipart())[-1] == b"1"
    if end == "close":
        await sender.wait_closed()
    else:
        await eventually(lambda: not receiver.pattern.pipes)
        assert not sender.readable()
        receiver.close()
        other.bind(NAME)
        assert not other.pattern.pipes


async def test_sock_15_what_waits_for_a_name_is_dropped_with_linger_or_the_context() -> None:
    sockets: list[core.Socket] = []
    async with core.Context() as context:
        for _ in range(6):
            sockets.append(context.socket(core.PUSH, linger=-1))
            sockets[-1].connect(NAME)
            await sockets[-1].send(b"x")
        sockets[0].close(0)
        sockets[1].close(1)
        sockets[2].disconnect(NAME)
        sockets[2].close(0)
        sockets[3].disconnect(NAME)
        sockets[4].close()
        for number in range(3):
            await sockets[number].wait_closed()
        assert [socket.counters.undelivered for socket in sockets] == [1, 1, 1, 0, 0, 0]
        pull = context.socket(core.PULL)
    assert [socket.counters.undelivered for socket in sockets] == [1] * 6
    assert pull.closed


async def test_what_waits_for_a_name_is_dropped_by_its_own_loop_when_another_thread_ends_the_context() -> None:
    asyncio.get_running_loop().set_debug(True)  # it refuses what may be called in its own thread only
    context = core.Context()
    push = context.socket(core.PUSH, linger=-1)
    push.connect(NAME)
    await push.send(b"x")
    push.close()
    gone = asyncio.ensure_future(push.wait_closed())
    await asyncio.sleep(0)
    await asyncio.to_thread(context.term)
    await asyncio.wait_for(gone, PATIENCE_S)
    assert push.counters.undelivered == 1
    assert not context.on_end


async def test_watchers_hear_of_no_end_of_a_peer_that_never_was() -> None:
    """Neither when an endpoint is left before it is bound, nor when the context ends."""
    async with core.Context() as context:
        told: list[bool] = []
        dealer, other = context.socket(core.DEALER), context.socket(core.DEALER)
        dealer.set_receiver(lambda _: None, on_peer=lambda _, joined: told.append(joined))
        for name, sends in (("inproc://silent", False), ("inproc://left", True)):
            dealer.connect(name)
            if sends:
                await dealer.send(b"first")
            dealer.disconnect(name)
        other.bind("inproc://left")
        assert await other.recv() == b"first"
        await asyncio.sleep(0)
        dealer.connect(NAME)
        await dealer.send(b"x")
        context.term()
        await asyncio.sleep(0)
    assert told == []
    assert dealer.counters.undelivered == 1
