"""core.sockets.socket_base: peers that are refused, that leave, and that `on_peer` reports."""

from __future__ import annotations

import asyncio
from socket import socketpair
from typing import TYPE_CHECKING, Any

import pytest

import core
from tests.core.net.test_session import traffic
from tests.scenes.raw_octets import WirePeer, message
from tests.scenes.virtual_loop import in_virtual_time
from tests.scenes.waiting import PATIENCE_S, Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TRANSPORTS = ("tcp://127.0.0.1:*", "inproc://one")
NOWHERE = "tcp://127.0.0.1:9"
Events = list[tuple[bytes, bool]]


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made, asyncio.timeout(PATIENCE_S):
        yield made


# --- options with which no peer could connect -------------------------------------------------------------------------------------


async def test_an_endpoint_with_which_no_handshake_could_succeed_is_refused(context: core.Context) -> None:
    server = context.socket(core.ROUTER, curve_server=1)
    with pytest.raises(core.InvalidOption, match="curve_secretkey"):
        server.bind("tcp://127.0.0.1:*")
    public, secret = core.curve_keypair()
    client = context.socket(core.DEALER, curve_secretkey=secret, curve_publickey=public)
    client.curve_serverkey = core.curve_keypair()[0]
    client.curve_publickey = core.curve_keypair()[0]
    with pytest.raises(core.InvalidOption, match="curve_publickey"):
        client.connect(NOWHERE)


@pytest.mark.parametrize("side", ["bind", "connect"])
async def test_a_socket_that_cannot_have_the_security_of_its_context_is_refused(side: str) -> None:
    keys: dict[str, Any] = {"users": {"ann": "secret"}} if side == "bind" else {"user": "ann", "password": "secret"}
    async with core.Context(security=core.Plain(**keys)) as context:
        with pytest.raises(core.InvalidOption, match="STREAM"):
            getattr(context.socket(core.STREAM), side)("tcp://127.0.0.1:*" if side == "bind" else NOWHERE)


# --- peers that are refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_pair_02_a_second_peer_is_refused_and_reported_to_no_one(context: core.Context, transport: str) -> None:
    """It is counted once, and the first one stays."""
    events = Events()
    pair, first, second = (context.socket(core.PAIR, linger=0, reconnect_ivl=-1) for _ in range(3))
    pair.bind(transport)
    first.connect(pair.last_endpoint)
    await first.send(b"first")
    assert await pair.recv() == b"first"
    pair.set_receiver(lambda _: None, on_peer=lambda name, joined: events.append((name, joined)))
    second.connect(pair.last_endpoint)
    second.send(b"second")
    await eventually(lambda: pair.counters.extra_peer)
    pair.set_receiver(None)
    await first.send(b"again")
    assert await pair.recv() == b"again"
    await pair.send(b"answer")
    assert await first.recv() == b"answer"
    assert (pair.counters.extra_peer, events) == (1, [])


@pytest.mark.faults
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_accepted_peer_whose_watcher_fails_cannot_be_sent_to(context: core.Context, transport: str) -> None:
    """Its routing id is free: the next one that has it is no duplicate."""
    refused = list[bytes]()

    def fail(name: bytes, joined: bool) -> None:
        if joined and len(refused) < 2:
            refused.append(name)
            raise LookupError

    router = context.socket(core.ROUTER, linger=0, router_mandatory=1)
    router.bind(transport)
    router.set_receiver(router.send_many, on_peer=fail)
    for number in (1, 2):
        dealer = context.socket(core.DEALER, linger=0, routing_id=b"me", reconnect_ivl=-1)
        dealer.connect(router.last_endpoint)
        await eventually(lambda before=number: len(refused) == before)  # type: ignore[misc]
        if transport.startswith("tcp"):
            with pytest.raises(core.HostUnreachable):
                await router.send_multipart([b"me", b"x"])
    dealer = context.socket(core.DEALER, linger=0, routing_id=b"me")
    dealer.connect(router.last_endpoint)
    await dealer.send(b"y")
    assert await dealer.recv() == b"y"
    assert router.counters.duplicate_id == 0


@pytest.mark.faults
async def test_a_connection_whose_watcher_fails_is_made_again(context: core.Context) -> None:
    """A message waits for it; with IMMEDIATE it is not sent to."""
    failures = list[bytes]()

    def fail(name: bytes, joined: bool) -> None:
        if joined:
            failures.append(name)
            raise LookupError

    router = context.socket(core.ROUTER, linger=0)
    router.bind("tcp://127.0.0.1:*")
    dealer, immediate = (context.socket(core.DEALER, linger=0, reconnect_ivl=1, immediate=each) for each in (0, 1))
    for socket in (dealer, immediate):
        socket.set_receiver(lambda _: None, on_peer=fail)
        socket.connect(router.last_endpoint)
    await eventually(lambda: len(failures) > 4)
    assert not immediate.writable()
    await dealer.send(b"x")
    dealer.set_receiver(lambda _: None)
    assert (await router.recv_multipart())[1:] == [b"x"]


async def test_rtr_07_a_peer_with_a_routing_id_that_is_in_use_is_refused_over_inproc_too(context: core.Context) -> None:
    router = context.socket(core.ROUTER, linger=0)
    router.bind("inproc://one")
    first, second = (context.socket(core.DEALER, linger=0, routing_id=b"me") for _ in range(2))
    first.connect("inproc://one")
    second.connect("inproc://one")
    assert router.counters.duplicate_id == 1
    assert (first.writable(), second.writable()) == (True, False)
    await router.send_multipart([b"me", b"x"])
    assert await first.recv() == b"x"


# --- peers that leave -------------------------------------------------------------------------------------------------------------


async def test_sock_03_what_a_peer_that_leaves_has_not_got_is_counted(context: core.Context) -> None:
    router = context.socket(core.ROUTER, linger=0, sndhwm=0, sndhwm_bytes=0)
    router.bind("tcp://127.0.0.1:*")
    watch = Watch(router)
    async with await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", b"slow")
        await watch.peers()
        peer.pause()
        for _ in range(100):
            await router.send_multipart([b"slow", bytes(1_000_000)])
        await peer.abort()
        await watch.lost()
    assert 0 < router.counters.undelivered <= 100


async def test_a_send_that_waits_for_a_peer_ends_as_it_leaves(context: core.Context) -> None:
    router = context.socket(core.ROUTER, linger=0, sndhwm=1, router_mandatory=1)
    router.bind("tcp://127.0.0.1:*")
    watch = Watch(router)
    async with await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", b"slow")
        await watch.peers()
        peer.pause()
        waits = [router.send_multipart([b"slow", bytes(10_000_000)]) for _ in range(10)]
        assert not waits[-1].done()
        await peer.abort()
        with pytest.raises(core.HostUnreachable):
            await waits[-1]
        for sent in waits[:-1]:
            try:
                await sent
            except core.HostUnreachable:
                pass


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", [core.DEALER, core.ROUTER])
async def test_a_peer_is_reported_by_its_name_as_it_comes_and_as_it_leaves(context: core.Context, kind: int, transport: str) -> None:
    events = Events()
    socket, dealer = context.socket(kind, linger=0), context.socket(core.DEALER, linger=0, routing_id=b"me")
    socket.set_receiver(lambda _: None, on_peer=lambda name, joined: events.append((name, joined)))
    socket.bind(transport)
    dealer.connect(socket.last_endpoint)
    await eventually(lambda: events)
    dealer.close()
    await eventually(lambda: len(events) == 2)
    assert events == [(b"me", True), (b"me", False)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_of_two_peers_with_one_identity_each_is_reported(context: core.Context, transport: str) -> None:
    """They are none to a socket that has no routing ids."""
    events = Events()
    socket = context.socket(core.DEALER, linger=0)
    socket.set_receiver(lambda _: None, on_peer=lambda name, joined: events.append((name, joined)))
    socket.bind(transport)
    dealers = [context.socket(core.DEALER, linger=0, routing_id=b"me") for _ in range(2)]
    for dealer in dealers:
        dealer.connect(socket.last_endpoint)
    await eventually(lambda: events == [(b"me", True)] * 2)
    dealers[0].close()
    await eventually(lambda: events == [(b"me", True)] * 2 + [(b"me", False)])


# --- receivers --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_receivers_of_publishers_get_subscriptions_and_those_of_subscribers_what_they_want(
    context: core.Context, transport: str
) -> None:
    got: asyncio.Queue[list[list[bytes]]] = asyncio.Queue()
    wanted = list[list[bytes]]()
    publisher, subscriber = context.socket(core.XPUB, linger=0), context.socket(core.SUB, linger=0)
    publisher.set_receiver(got.put_nowait)
    subscriber.set_receiver(wanted.extend)
    publisher.bind(transport)
    subscriber.connect(publisher.last_endpoint)
    for topic in (b"a", b"b"):
        subscriber.subscribe(topic)
        assert await got.get() == [[b"\1" + topic]]
    subscriber.unsubscribe(b"b")
    assert await got.get() == [[b"\0b"]]
    for text in (b"b", b"a1", b"b", b"a2"):
        await publisher.send(text)
    await eventually(lambda: wanted == [[b"a1"], [b"a2"]])


async def test_a_receiver_of_a_rep_gets_the_request_behind_one_that_is_malformed(context: core.Context) -> None:
    got: asyncio.Queue[list[list[bytes]]] = asyncio.Queue()
    rep, dealer = context.socket(core.REP, linger=0), context.socket(core.DEALER, linger=0)
    rep.set_receiver(got.put_nowait)
    rep.bind("tcp://127.0.0.1:*")
    dealer.connect(rep.last_endpoint)
    await dealer.send_multipart([b"no", b"envelope"])
    await eventually(lambda: rep.counters.malformed)
    await dealer.send_multipart([b"", b"request"])
    assert await got.get() == [[b"request"]]


@pytest.mark.faults
async def test_memory_that_runs_out_in_a_receiver_is_a_reason_to_end(context: core.Context) -> None:
    ran_out = list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    context.supervisor.ran_out = ran_out.append

    def fail(_: object) -> None:
        raise MemoryError

    pull, push = context.socket(core.PULL, linger=0), context.socket(core.PUSH, linger=0, reconnect_ivl=-1)
    watch = Watch(pull)
    pull.set_receiver(fail)
    pull.bind("tcp://127.0.0.1:*")
    push.connect(pull.last_endpoint)
    await push.send(b"x")
    await watch.lost()
    assert ran_out[:1] == ["core receiver"]


# --- waits ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_poll_ends_as_its_peer_has_capacity_again(context: core.Context, transport: str) -> None:
    pull, push = context.socket(core.PULL, linger=0, rcvhwm=1), context.socket(core.PUSH, linger=0, sndhwm=1)
    pull.bind(transport)
    push.connect(pull.last_endpoint)
    await eventually(push.writable)
    while push.writable():
        await push.send(bytes(1_000_000))
    poll = asyncio.ensure_future(push.poll(flags=core.POLLOUT))
    await asyncio.sleep(0)
    pull.set_receiver(lambda _: None)
    assert await poll == core.POLLOUT


async def test_a_send_that_waits_goes_to_a_peer_over_inproc_at_once(context: core.Context) -> None:
    push, pull = context.socket(core.PUSH, linger=0), context.socket(core.PULL, linger=0)
    push.bind("inproc://one")
    waits = push.send(b"x")
    assert not waits.done()
    pull.connect("inproc://one")
    assert (await pull.recv(core.NOBLOCK), waits.done()) == (b"x", True)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_sock_14_the_frames_of_a_message_that_comes_alone_go_to_the_receives_that_wait(context: core.Context, transport: str) -> None:
    pull, push = context.socket(core.PULL, linger=0), context.socket(core.PUSH, linger=0)
    pull.bind(transport)
    push.connect(pull.last_endpoint)
    waits = [pull.recv() for _ in range(3)]
    await push.send_multipart([b"1", b"2"])
    assert [await waits[0], await waits[1]] == [b"1", b"2"]
    await push.send(b"3")
    assert await waits[2] == b"3"


# --- what is queued ---------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_conflate_keeps_the_newest_of_one_read() -> None:
    async with traffic(core.PULL, b"PUSH", of_socket={"conflate": 1}) as seen:
        seen.says(message(b"1") + message(b"2") + message(b"3"))
        assert await seen.owner.recv() == b"3"
        seen.says(message(b"4"))
        assert await seen.owner.recv() == b"4"


@in_virtual_time
@pytest.mark.parametrize(
    ("unit", "mark", "stops"), [("rcvhwm", 2, True), ("rcvhwm", 3, False), ("rcvhwm_bytes", 6, True), ("rcvhwm_bytes", 7, False)]
)
async def test_sock_05_a_peer_is_read_up_to_the_mark(unit: str, mark: int, stops: bool) -> None:
    """Each message has three octets."""
    async with traffic(core.PULL, b"PUSH", of_socket={"rcvhwm": 0, unit: mark}) as seen:
        seen.says(message(b"1"))
        assert not seen.session.pipe.throttled
        seen.says(message(b"2"))
        assert seen.session.pipe.throttled is stops


async def test_a_receiver_gets_what_came_before_it_first(context: core.Context) -> None:
    """Also where the next message is read in the iteration of the event loop in which the receiver is set."""
    pull = context.socket(core.PULL)
    pull.bind("tcp://127.0.0.1:*")
    loop, got = asyncio.get_running_loop(), list[bytes]()
    async with await WirePeer.connect(pull.last_endpoint) as peer:
        await peer.shake(b"PUSH")
        await peer.send(message(b"1") + message(b"2"))
        await eventually(pull.readable)
        ours, theirs = socketpair()
        with ours, theirs:
            ours.setblocking(False)

            def begin() -> None:
                loop.remove_reader(ours)
                pull.set_receiver(lambda batch: got.extend(frame for (frame,) in batch))

            loop.add_reader(ours, begin)
            theirs.send(b"x")
            await peer.send(message(b"3"))
            await eventually(lambda: len(got) == 3)
    assert got == [b"1", b"2", b"3"]


@pytest.mark.faults
@pytest.mark.parametrize("kind", [core.PULL, core.ROUTER])
async def test_a_peer_whose_queued_message_its_receiver_fails_for_is_disconnected_and_no_other(context: core.Context, kind: int) -> None:
    """As for messages that come later; only those of a ROUTER were."""
    socket = context.socket(kind)
    socket.bind("tcp://127.0.0.1:*")
    watch, got = Watch(socket), list[bytes]()

    def receive(batch: list[list[bytes]]) -> None:
        assert batch[0][-1] != b"bad"
        got.extend(frames[-1] for frames in batch)

    asks = b"PUSH" if kind == core.PULL else b"DEALER"
    async with await WirePeer.connect(socket.last_endpoint) as bad, await WirePeer.connect(socket.last_endpoint) as good:
        for peer, body in ((bad, b"bad"), (good, b"good")):
            await peer.shake(asks)
            await peer.send(message(body))
        await eventually(lambda: sum(len(pipe.inbox) for pipe in socket.pattern.pipes) == 2)
        socket.set_receiver(receive)
        await watch.until(core.EVENT_DISCONNECTED)
        await bad.rest()
        await good.send(message(b"more"))
        await eventually(lambda: got == [b"good", b"more"])
    assert context.supervisor.faults["core receiver"] == 1


async def test_req_09_a_reply_that_was_discarded_at_the_mark_does_not_keep_the_next_one_out(context: core.Context) -> None:
    """The connection was not read any longer."""
    router = context.socket(core.ROUTER)
    router.bind("tcp://127.0.0.1:*")
    req = context.socket(core.REQ, req_relaxed=1, rcvhwm=1)
    req.connect(router.last_endpoint)
    await req.send(b"first")
    await router.send_multipart(await router.recv_multipart())
    assert await req.poll() == core.POLLIN
    await req.send(b"second")
    await router.send_multipart(await router.recv_multipart())
    assert await req.recv() == b"second"
    assert req.counters.stale == 1
