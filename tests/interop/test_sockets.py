"""Every legal pair of socket types, ours against libzmq's, each side binding, over tcp and ipc (HAR-01, HAR-05)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import zmq

import core
from tests.interop.ends import End, Foreign, ForeignEnd, Ours, frames_between
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

EXCHANGES = [
    ("REQ", "REP"),
    ("REQ", "ROUTER"),
    ("DEALER", "REP"),
    ("DEALER", "DEALER"),
    ("DEALER", "ROUTER"),
    ("PAIR", "PAIR"),
]
"""(who begins, who answers)"""
STREAMS = [("PUSH", "PULL"), ("PUB", "SUB"), ("PUB", "XSUB"), ("XPUB", "SUB"), ("XPUB", "XSUB")]
"""(who sends, who receives)"""
BODIES = {
    "one frame": [b"hello"],
    "an empty frame": [b""],
    "many frames": [b"one", b"", b"x" * 255, b"y" * 256, b"\x00" * 70_000, b""],
}
NOT_YET = (core.ZMQError, zmq.ZMQError)
SYNC, TOPIC = b"sync", b"news"


@pytest.fixture(params=["ours", "libzmq"])
def first_is(request: pytest.FixtureRequest) -> str:
    """Whose end is the first of the pair."""
    found: str = request.param
    return found


@pytest.fixture(params=["first", "second"])
def binder(request: pytest.FixtureRequest) -> str:
    """The end of the pair that binds."""
    found: str = request.param
    return found


def pair_of(first: str, second: str, first_is: str, ours: Ours, foreign: Foreign) -> tuple[End, End]:
    """The two ends, one ours and one libzmq's."""
    if first_is == "ours":
        return ours(first), foreign(second)
    return foreign(first), ours(second)


def join(first: End, second: End, binder: str, anywhere: str) -> None:
    """Bind one end and connect the other."""
    if binder == "first":
        second.connect(first.bind(anywhere))
    else:
        first.connect(second.bind(anywhere))


async def say(sender: End, receiver: End, body: Sequence[bytes], to: bytes = b"") -> bytes:
    """One message from end to end; the routing id with which a ROUTER got it."""
    sent, expected = frames_between(sender.kind, receiver.kind, body, to)
    await sender.send(*sent)
    found = await receiver.recv()
    routing_id = found.pop(0) if receiver.kind == "ROUTER" else b""
    assert found == expected
    return routing_id


async def make_routable(sender: End, receiver: End) -> None:
    """Publish until the subscriber hears it: a subscription takes effect when it has arrived, nobody tells when."""
    heard = asyncio.Event()

    async def repeat() -> None:
        while not heard.is_set():
            await sender.send(TOPIC, SYNC)
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as group:
        group.create_task(repeat())
        assert (await receiver.recv())[1] == SYNC
        heard.set()


async def after_sync(receiver: End) -> list[bytes]:
    """The next message that is not one of `make_routable`'s."""
    while (frames := await receiver.recv())[1:] == [SYNC]:
        pass
    return frames


@pytest.mark.parametrize(("first", "second"), EXCHANGES, ids=["-".join(pair) for pair in EXCHANGES])
async def test_request_and_answer(first: str, second: str, first_is: str, binder: str, anywhere: str, ours: Ours, foreign: Foreign) -> None:
    one, other = pair_of(first, second, first_is, ours, foreign)
    join(one, other, binder, anywhere)
    for body in BODIES.values():
        came_from = await say(one, other, body)
        await say(other, one, body[::-1], came_from)


@pytest.mark.parametrize(("sender", "receiver"), STREAMS, ids=["-".join(pair) for pair in STREAMS])
async def test_one_way(sender: str, receiver: str, first_is: str, binder: str, anywhere: str, ours: Ours, foreign: Foreign) -> None:
    one, other = pair_of(sender, receiver, first_is, ours, foreign)
    join(one, other, binder, anywhere)
    if receiver == "SUB":
        other.subscribe(TOPIC)
    elif receiver == "XSUB":
        await other.send(b"\x01" + TOPIC)
    if sender != "PUSH":
        await make_routable(one, other)
    for body in BODIES.values():
        await one.send(TOPIC, *body)
        assert await after_sync(other) == [TOPIC, *body]


@pytest.mark.parametrize("router_is", ["ours", "libzmq"])
async def test_router_to_router(router_is: str, anywhere: str, ours: Ours, foreign: Foreign) -> None:
    """RTR-11: the id announced by the other side is sendable once its handshake is done."""
    named, asking = pair_of("ROUTER", "ROUTER", router_is, ours, foreign)
    for end, name in ((named, b"named"), (asking, b"asking")):
        end.set(routing_id=name, router_mandatory=1)
    asking.connect(named.bind(anywhere))
    async with asyncio.timeout(100):
        while True:
            try:
                await asking.send(b"named", b"hello")
                break
            except NOT_YET:  # EHOSTUNREACH until the handshake is done
                await asyncio.sleep(0.005)
    assert await named.recv() == [b"asking", b"hello"]
    await named.send(b"asking", b"", b"welcome")
    assert await asking.recv() == [b"named", b"", b"welcome"]


@pytest.mark.parametrize(("first", "second"), [("PUSH", "PULL"), ("DEALER", "ROUTER")], ids=["PUSH-PULL", "DEALER-ROUTER"])
async def test_16_mib(first: str, second: str, first_is: str, anywhere: str, ours: Ours, foreign: Foreign) -> None:
    body = bytes(range(256)) * (16 * 1024 * 4)
    one, other = pair_of(first, second, first_is, ours, foreign)
    join(one, other, "second", anywhere)
    came_from = await say(one, other, [b"large", body])
    if second == "ROUTER":
        await say(other, one, [body, b"back"], came_from)


@pytest.mark.parametrize("size", [0, 4096])
async def test_many_messages_in_order(size: int, first_is: str, binder: str, anywhere: str, ours: Ours, foreign: Foreign) -> None:
    """PPL-01, ZMTP-29: when marks and kernel buffers are full the sender waits and goes on; nothing is lost or swapped."""
    one, other = pair_of("PUSH", "PULL", first_is, ours, foreign)
    join(one, other, binder, anywhere)
    count, padding = 5_000, bytes(size)

    async def send_all() -> None:
        if isinstance(one, ForeignEnd):
            await one.run(lambda: [one.socket.send_multipart([b"%d" % number, padding]) for number in range(count)])
            return
        for number in range(count):
            await one.send(b"%d" % number, padding)

    async def recv_all() -> list[list[bytes]]:
        if isinstance(other, ForeignEnd):
            return await other.run(lambda: [other.socket.recv_multipart() for _ in range(count)])
        return [await other.recv() for _ in range(count)]

    _, found = await asyncio.gather(send_all(), recv_all())
    assert found == [[b"%d" % number, padding] for number in range(count)]


@pytest.mark.parametrize("binder_is", ["ours", "libzmq"])
async def test_xpub_hears_what_xsub_and_sub_subscribe(binder_is: str, anywhere: str, ours: Ours, foreign: Foreign) -> None:
    """PSB-04, PSB-05, PSB-08: subscriptions come out as messages, the first and the last of a topic only."""
    xpub, xsub = pair_of("XPUB", "XSUB", binder_is, ours, foreign)
    sub = foreign("SUB") if binder_is == "ours" else ours("SUB")
    where = xpub.bind(anywhere)
    xsub.connect(where)
    await xsub.send(b"\x01A")
    assert await xpub.recv() == [b"\x01A"]
    sub.subscribe(b"A")
    sub.subscribe(b"B")
    sub.connect(where)
    assert await xpub.recv() == [b"\x01B"]
    await xpub.send(b"A1")
    assert await xsub.recv() == [b"A1"]
    assert await sub.recv() == [b"A1"]
    await xsub.send(b"\x00A")
    await xsub.send(b"upstream")
    assert await xpub.recv() == [b"upstream"]
    sub.close()
    assert {(await xpub.recv())[0], (await xpub.recv())[0]} == {b"\x00A", b"\x00B"}


async def test_sub_filters_and_unsubscribes(first_is: str, anywhere: str, ours: Ours, foreign: Foreign) -> None:
    """ZMTP-66, ZMTP-68: prefix match, a count per topic at the subscriber."""
    xpub, sub = pair_of("XPUB", "SUB", first_is, ours, foreign)
    for topic in (b"A", b"A", b"long" * 70):
        sub.subscribe(topic)
    sub.connect(xpub.bind(anywhere))
    assert {(await xpub.recv())[0], (await xpub.recv())[0]} == {b"\x01A", b"\x01" + b"long" * 70}
    for topic in (b"B", b"A", b"AB", b"long", b"long" * 71):
        await xpub.send(topic, b"body")
    assert [(await sub.recv())[0] for _ in range(3)] == [b"A", b"AB", b"long" * 71]
    sub.unsubscribe(b"A")
    sub.unsubscribe(b"long" * 70)
    assert await xpub.recv() == [b"\x00" + b"long" * 70]
    sub.unsubscribe(b"A")
    assert await xpub.recv() == [b"\x00A"]


@pytest.mark.parametrize("size", [245, 246, 248, 249, 255, 256, 1000])
async def test_topics_of_every_length(size: int, first_is: str, ours: Ours, foreign: Foreign) -> None:
    """ZMTP-63, ZMTP-64."""
    topic = b"t" * size
    xpub, sub = pair_of("XPUB", "SUB", first_is, ours, foreign)
    sub.connect(xpub.bind("tcp://127.0.0.1:*"))
    sub.subscribe(topic)
    assert await xpub.recv() == [b"\x01" + topic]
    await xpub.send(topic)
    assert await sub.recv() == [topic]
    sub.unsubscribe(topic)
    assert await xpub.recv() == [b"\x00" + topic]


async def test_routing_ids(first_is: str, anywhere: str, ours: Ours, foreign: Foreign) -> None:
    """RTR-02, RTR-03: an announced identity is the routing id, without one it is 5 octets that begin with 00."""
    dealer, router = pair_of("DEALER", "ROUTER", first_is, ours, foreign)
    where = router.bind(anywhere)
    dealer.set(routing_id=b"worker-1")
    dealer.connect(where)
    assert await say(dealer, router, [b"hello"]) == b"worker-1"
    nameless = ours("REQ") if first_is == "ours" else foreign("REQ")
    nameless.connect(where)
    routing_id = await say(nameless, router, [b"hello"])
    assert len(routing_id) == 5
    assert routing_id[0] == 0


async def test_messages_wait_for_a_peer_that_is_not_there_yet(
    first_is: str, anywhere: str, free_port: int, ours: Ours, foreign: Foreign
) -> None:
    """SOCK-02: what is sent to an endpoint nobody listens on arrives when somebody does."""
    dealer, router = pair_of("DEALER", "ROUTER", first_is, ours, foreign)
    where = anywhere.replace("*", str(free_port))
    dealer.set(routing_id=b"early")
    dealer.connect(where)
    for number in range(3):
        await dealer.send(b"%d" % number)
    router.bind(where)
    for number in range(3):
        assert await router.recv() == [b"early", b"%d" % number]


async def test_a_binder_that_comes_back(first_is: str, ours: Ours, foreign: Foreign) -> None:
    """SOCK-04: what was on the wire when the peer closed is lost; afterwards messages arrive again, both ways."""
    dealer, router = pair_of("DEALER", "ROUTER", first_is, ours, foreign)
    where = router.bind("tcp://127.0.0.1:*")
    dealer.connect(where)
    came_from = await say(dealer, router, [b"before"])
    await say(router, dealer, [b"answer"], came_from)
    router.close()
    again = foreign("ROUTER") if first_is == "ours" else ours("ROUTER")
    await bind_again(again, where)
    heard = asyncio.Event()

    async def repeat() -> None:
        while not heard.is_set():
            await dealer.send(b"after")
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as group:
        group.create_task(repeat())
        came_from, body = await again.recv()
        heard.set()
    assert body == b"after"
    await say(again, dealer, [b"answer"], came_from)


async def bind_again(end: End, where: str) -> None:
    """Bind an endpoint whose former owner closes in the background."""
    async with asyncio.timeout(100):
        while True:
            try:
                end.bind(where)
                return
            except NOT_YET:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("correlate", [0, 1])
async def test_req_options(correlate: int, first_is: str, anywhere: str, ours: Ours, foreign: Foreign) -> None:
    """REQ-08, REQ-09, REP-06: correlated and relaxed requests against the other side's REP."""
    req, rep = pair_of("REQ", "REP", first_is, ours, foreign)
    req.set(req_correlate=correlate, req_relaxed=correlate)
    req.connect(rep.bind(anywhere))
    for number in range(3):
        await say(req, rep, [b"%d" % number])
        await say(rep, req, [b"answer", b"%d" % number])


@pytest.mark.parametrize("dealer_first", [True, False])
async def test_probe_router(dealer_first: bool, first_is: str, ours: Ours, foreign: Foreign) -> None:
    """DLR-03, RTR-14: a probe arrives as an empty message."""
    dealer, router = pair_of("DEALER", "ROUTER", first_is, ours, foreign)
    dealer.set(probe_router=1, routing_id=b"prober")
    dealer.connect(router.bind("tcp://127.0.0.1:*"))
    assert await router.recv() == [b"prober", b""]
    if dealer_first:
        await say(dealer, router, [b"hello"])
    await say(router, dealer, [b"there"], b"prober")


async def test_zmtp_59_heartbeats_of_libzmq_are_answered_while_we_do_not_read(ours: Ours, foreign: Foreign) -> None:
    """Its heartbeat timeout is shorter than the time our application takes.

    The inbox is full and its PINGs are behind messages all that time.
    """
    pull, push = ours("PULL", rcvhwm=10), foreign("PUSH", heartbeat_ivl=300, heartbeat_timeout=2_500)
    came: list[core.MonitorEvent] = []
    pull.socket.on_event(came.append, core.EVENT_ACCEPTED)
    push.connect(pull.bind("tcp://127.0.0.1:*"))
    for n in range(200):
        await push.send(b"%d" % n, b"x" * 10_000)
    await asyncio.sleep(3.5)
    assert [(await pull.recv())[0] for _ in range(200)] == [b"%d" % n for n in range(200)]
    assert len(came) == 1  # it has not had to come again


@asynccontextmanager
async def tapped(endpoint: str) -> AsyncIterator[tuple[str, tuple[bytearray, bytearray]]]:
    """Yield the endpoint of a line to another one, and the octets that have gone there and back."""
    ways, tasks = (bytearray(), bytearray()), set[asyncio.Task[None]]()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: bytearray) -> None:
        try:
            while octets := await reader.read(65_536):
                way += octets
                writer.write(octets)
        except OSError:
            pass  # an end has gone
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", int(endpoint.rpartition(":")[2]))
        tasks.update({asyncio.create_task(carry(reader, forth, ways[0])), asyncio.create_task(carry(back, writer, ways[1]))})

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", ways
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_heartbeats_keep_a_quiet_connection(first_is: str, ours: Ours, foreign: Foreign) -> None:
    """ZMTP-50, ZMTP-55, ZMTP-56: both sides ping every 20 ms, each answers, and none of them gives up."""
    dealer, router = pair_of("DEALER", "ROUTER", first_is, ours, foreign)
    for end in (dealer, router):
        end.set(heartbeat_ivl=20, heartbeat_timeout=30_000, heartbeat_ttl=30_000)
    dealer.set(routing_id=b"quiet", reconnect_ivl=-1)
    async with tapped(router.bind("tcp://127.0.0.1:*")) as (line, ways):
        dealer.connect(line)
        await say(dealer, router, [b"hello"])
        await eventually(lambda: all(way.count(word) > 3 for way in ways for word in (b"\x04PING", b"\x04PONG")))
        await say(router, dealer, [b"still there"], b"quiet")
