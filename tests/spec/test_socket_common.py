"""Rules SOCK-01 to SOCK-17: what every socket type does (RFC 28 to 31, zmq_socket)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.raw_octets import WirePeer
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from tests.spec.conftest import Make

TCP = "tcp://127.0.0.1:*"


async def test_sock_01_one_socket_binds_and_connects_many_endpoints_in_any_mix(make: Make, tmp_path: Path) -> None:
    pull = make(core.PULL)
    endpoints = []
    for endpoint in (TCP, TCP, f"ipc://{tmp_path / 'a'}", "inproc://a"):
        pull.bind(endpoint)
        endpoints.append(pull.last_endpoint)
    pushes = [make(core.PUSH, connect=endpoint) for endpoint in endpoints]
    binding_push = make(core.PUSH, bind=TCP)
    pull.connect(binding_push.last_endpoint)
    for number, push in enumerate([*pushes, binding_push]):
        await push.send(b"%d" % number)
    assert {await pull.recv() for _ in range(5)} == {b"0", b"1", b"2", b"3", b"4"}


async def test_sock_02_what_is_sent_before_and_between_connections_arrives(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP)
    endpoint = router.last_endpoint
    router.close()
    await router.wait_closed()
    dealer = make(core.DEALER, connect=endpoint)
    watch = Watch(dealer)
    await dealer.send(b"before")
    first = make(core.ROUTER, bind=endpoint)
    assert (await first.recv_multipart())[1] == b"before"
    first.close()
    await first.wait_closed()
    await watch.lost()
    await dealer.send(b"between")
    second = make(core.ROUTER, bind=endpoint)
    assert (await second.recv_multipart())[1] == b"between"


async def test_sock_03_an_accepted_peers_queue_goes_with_it(make: Make) -> None:
    push = make(core.PUSH, bind=TCP)
    watch = Watch(push)
    pull = make(core.PULL, connect=push.last_endpoint)
    await watch.peers()
    pull.close()
    await watch.lost()
    with pytest.raises(core.Again):
        push.send(b"nobody", core.NOBLOCK)


@pytest.mark.parametrize("hwm", [1, 10])
async def test_sock_05_a_dealer_connected_to_nothing_takes_exactly_its_mark(make: Make, hwm: int) -> None:
    dealer = make(core.DEALER, connect="tcp://127.0.0.1:9", sndhwm=hwm, reconnect_ivl=60_000)
    for _ in range(hwm):
        dealer.send(b"x", core.NOBLOCK)
    with pytest.raises(core.Again):
        dealer.send(b"x", core.NOBLOCK)


async def test_sock_05_no_mark_is_no_limit_and_octets_are_a_limit_of_their_own(make: Make) -> None:
    dealer = make(core.DEALER, connect="tcp://127.0.0.1:9", sndhwm=0, sndhwm_bytes=10_000, reconnect_ivl=60_000)
    for _ in range(2000):
        dealer.send(b"x", core.NOBLOCK)
    for _ in range(10):
        dealer.send(b"x" * 1000, core.NOBLOCK)
    with pytest.raises(core.Again):
        dealer.send(b"x", core.NOBLOCK)


async def test_sock_05_a_reader_that_stalls_holds_the_sender_and_nothing_is_lost(make: Make) -> None:
    pull = make(core.PULL, bind=TCP, rcvhwm=10)
    push = make(core.PUSH, connect=pull.last_endpoint, sndhwm=10)
    body = b"x" * 10_000
    sent = 0

    async def fill() -> None:
        nonlocal sent
        while True:
            await push.send(b"%d" % sent + body)
            sent += 1

    task = asyncio.create_task(fill())
    level = -1
    while level != sent:  # until an event-loop iteration moves nothing
        level = sent
        await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert sent < 2000  # the queues are far smaller than what the kernel's buffers hold
    got = [(await pull.recv())[: -len(body)] for _ in range(sent)]
    assert got == [b"%d" % number for number in range(sent)]


async def test_sock_07_a_new_mark_acts_on_existing_peers(make: Make) -> None:
    dealer = make(core.DEALER, connect="tcp://127.0.0.1:9", sndhwm=1, reconnect_ivl=60_000)
    dealer.send(b"x", core.NOBLOCK)
    with pytest.raises(core.Again):
        dealer.send(b"x", core.NOBLOCK)
    dealer.sndhwm = 2
    dealer.send(b"x", core.NOBLOCK)


async def test_sock_08_receives_alternate_between_peers_with_messages(make: Make, anywhere: str) -> None:
    pull = make(core.PULL, bind=anywhere)
    one, other = (make(core.PUSH, connect=pull.last_endpoint) for _ in range(2))
    for number in range(5):
        await one.send(b"a%d" % number)
        await other.send(b"b%d" % number)
    await eventually(lambda: sum(len(pipe.inbox) for pipe in pull.pattern.pipes) == 10)
    got = [await pull.recv() for _ in range(10)]
    assert {message[:1] for message in got[:2]} == {b"a", b"b"}
    assert all(got[at][:1] != got[at + 1][:1] for at in range(9))
    assert [message for message in got if message[:1] == b"a"] == [b"a%d" % number for number in range(5)]


async def test_sock_09_sends_go_round_robin_also_to_peers_that_are_not_there(make: Make, anywhere: str) -> None:
    pull = make(core.PULL, bind=anywhere)
    push = make(core.PUSH, connect=pull.last_endpoint)
    push.connect("tcp://127.0.0.1:9")
    for number in range(10):
        await push.send(b"%d" % number)
    got = [await pull.recv() for _ in range(5)]
    assert got in ([b"0", b"2", b"4", b"6", b"8"], [b"1", b"3", b"5", b"7", b"9"])
    assert not pull.readable()


async def test_sock_09_a_full_peer_is_skipped(make: Make) -> None:
    pull = make(core.PULL, bind=TCP)
    push = make(core.PUSH, connect="tcp://127.0.0.1:9", sndhwm=2)
    push.connect(pull.last_endpoint)
    for number in range(20):
        await push.send(b"%d" % number)
    assert len([await pull.recv() for _ in range(18)]) == 18


@pytest.mark.parametrize(
    ("kind", "connections"),
    [("DEALER", 1), ("REQ", 1), ("SUB", 1), ("PUB", 1), ("ROUTER", 2), ("REP", 2), ("PUSH", 2), ("PULL", 2), ("XPUB", 2), ("XSUB", 2)],
)
async def test_sock_11_connecting_twice_to_one_endpoint(make: Make, kind: str, connections: int) -> None:
    partner = {"DEALER": "ROUTER", "REQ": "ROUTER", "SUB": "PUB", "PUB": "SUB", "ROUTER": "ROUTER", "REP": "DEALER"}
    partner |= {"PUSH": "PULL", "PULL": "PUSH", "XPUB": "SUB", "XSUB": "PUB"}
    binder = make(getattr(core, partner[kind]), bind=TCP)
    watch = Watch(binder)
    socket = make(getattr(core, kind))
    marker = make(getattr(core, kind))
    socket.connect(binder.last_endpoint)
    socket.connect(binder.last_endpoint)
    await watch.peers(connections)
    marker.connect(binder.last_endpoint)  # comes after both, so a third handshake would have been seen
    await watch.peers(connections + 1)
    assert len(socket.pattern.pipes) == connections


@pytest.mark.parametrize("kind", [core.PUB, core.PUSH])
async def test_sock_12_no_receiving_direction(make: Make, kind: int) -> None:
    socket = make(kind, bind=TCP)
    with pytest.raises(core.ZMQError) as refused:
        socket.recv()
    assert refused.value.errno == core.ENOTSUP


@pytest.mark.parametrize("kind", [core.SUB, core.PULL])
async def test_sock_12_no_sending_direction(make: Make, kind: int) -> None:
    socket = make(kind, bind=TCP)
    with pytest.raises(core.ZMQError) as refused:
        socket.send(b"x")
    assert refused.value.errno == core.ENOTSUP


async def test_sock_13_timeouts_end_a_wait_with_eagain(make: Make) -> None:
    dealer = make(core.DEALER, bind=TCP, rcvtimeo=10, sndtimeo=10)
    with pytest.raises(core.Again):
        await dealer.recv()
    with pytest.raises(core.Again):
        await dealer.send(b"x")
    dealer.rcvtimeo = dealer.sndtimeo = 0
    with pytest.raises(core.Again):
        dealer.recv()
    with pytest.raises(core.Again):
        dealer.send(b"x")


async def test_sock_13_a_cancelled_receive_loses_nothing(make: Make, anywhere: str) -> None:
    pull = make(core.PULL, bind=anywhere)
    push = make(core.PUSH, connect=pull.last_endpoint)
    got: list[bytes] = []

    async def take() -> None:
        got.append(await pull.recv())

    for number in range(200):
        task = asyncio.create_task(take())
        await asyncio.sleep(0)
        await push.send(b"%d" % number)
        for _ in range(number % 7):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    while len(got) < 200:
        got.append(await pull.recv())
    assert got == [b"%d" % number for number in range(200)]


async def test_sock_13_a_receive_that_has_its_message_gives_it_back_when_cancelled(make: Make) -> None:
    pull = make(core.PULL, bind="inproc://back")
    push = make(core.PUSH, connect="inproc://back")
    task = asyncio.create_task(_await(pull.recv()))
    await asyncio.sleep(0)
    push.send(b"first")
    push.send(b"second")
    task.cancel()  # the message is already in the task's future, and the task has not run
    await asyncio.wait([task])
    assert task.cancelled()
    assert [await pull.recv(), await pull.recv()] == [b"first", b"second"]


async def _await(awaitable: Awaitable[bytes]) -> bytes:
    return await awaitable


async def test_sock_13_a_cancelled_send_queues_nothing(make: Make) -> None:
    push = make(core.PUSH, bind=TCP, sndtimeo=-1)
    waiting = asyncio.ensure_future(push.send(b"cancelled"))
    waiting.cancel()
    kept = asyncio.ensure_future(push.send(b"kept"))
    pull = make(core.PULL, connect=push.last_endpoint)
    assert await pull.recv() == b"kept"
    await kept


async def test_sock_14_a_message_given_in_parts_is_seen_whole(make: Make, anywhere: str) -> None:
    pull = make(core.PULL, bind=anywhere)
    push = make(core.PUSH, connect=pull.last_endpoint)
    await push.send(b"a", core.SNDMORE)
    await push.send(b"b", core.SNDMORE)
    assert not pull.readable()
    await push.send(b"c")
    assert await pull.recv() == b"a"
    assert pull.rcvmore
    assert await pull.recv_multipart() == [b"b", b"c"]
    assert not pull.rcvmore


@pytest.mark.parametrize("kind", [core.PUSH, core.DEALER, core.PAIR, core.REQ])
async def test_sock_14_the_first_part_finds_no_capacity_and_the_last_one_waits(make: Make, kind: core.SocketType) -> None:
    """As libzmq: a program that repeats what raised Again, be it the part or the message, sends no torn message."""
    sender = make(kind, bind=TCP, sndhwm=1)
    for flags, timeout_ms in ((core.NOBLOCK, -1), (0, 0)):
        sender.sndtimeo = timeout_ms
        with pytest.raises(core.Again):
            await sender.send(b"a", core.SNDMORE | flags)
    sender.sndtimeo = -1
    await sender.send(b"a", core.SNDMORE)
    last = asyncio.ensure_future(sender.send(b"b", core.NOBLOCK))
    receiver = make({core.PUSH: core.PULL, core.PAIR: core.PAIR, core.REQ: core.REP}.get(kind, core.DEALER), connect=sender.last_endpoint)
    assert await receiver.recv_multipart() == [b"a", b"b"]
    await last


@pytest.mark.parametrize(("kind", "peer"), [(core.ROUTER, core.DEALER), (core.XPUB, core.SUB)])
async def test_sock_14_the_first_part_names_the_peer_that_has_no_capacity(make: Make, kind: core.SocketType, peer: core.SocketType) -> None:
    """As libzmq: the last part is never taken for a first one, and an unknown peer is refused at once."""
    sender = make(kind, bind="inproc://one", sndhwm=1, router_mandatory=1, xpub_nodrop=1)
    receiver = make(peer, connect="inproc://one", rcvhwm=1, routing_id=b"name")
    if peer == core.SUB:
        receiver.subscribe(b"name")
    with pytest.raises(core.Again):
        while True:
            await sender.send(b"name", core.SNDMORE | core.NOBLOCK)
            await sender.send(b"x", core.NOBLOCK)
    await sender.send(b"name", core.SNDMORE)
    last = asyncio.ensure_future(sender.send(b"last", core.NOBLOCK))
    assert not last.done()
    for body in (b"x", b"x", b"last"):
        assert (await receiver.recv_multipart())[-1] == body
    await last
    if kind == core.ROUTER:
        with pytest.raises(core.HostUnreachable):
            await sender.send(b"unknown", core.SNDMORE)
        sender.router_mandatory = 0
        await sender.send(b"unknown", core.SNDMORE)
    else:
        await sender.send(b"unknown", core.SNDMORE | core.NOBLOCK)
    await sender.send(b"dropped")
    with pytest.raises(core.Again):
        receiver.recv(core.NOBLOCK)


@pytest.mark.parametrize("count", [1, 5000])
async def test_sock_15_close_sends_what_is_queued(make: Make, tmp_path: Path, count: int) -> None:
    for endpoint in (TCP, f"ipc://{tmp_path / 's'}"):
        pull = make(core.PULL, bind=endpoint)
        push = make(core.PUSH, connect=pull.last_endpoint, linger=10_000, sndhwm=0)
        for number in range(count):
            push.send(b"%d" % number)
        push.close()
        got = [await pull.recv() for _ in range(count)]
        assert got == [b"%d" % number for number in range(count)]
        await push.wait_closed()


async def test_sock_15_linger_waits_for_a_peer_that_comes_later(make: Make) -> None:
    pull = make(core.PULL, bind=TCP)
    endpoint = pull.last_endpoint
    pull.close()
    await pull.wait_closed()
    push = make(core.PUSH, connect=endpoint, linger=10_000)
    await push.send(b"late")
    push.close()
    later = make(core.PULL, bind=endpoint)
    assert await later.recv() == b"late"
    await push.wait_closed()


async def test_sock_15_linger_0_drops_at_once_and_a_short_one_ends_in_time(make: Make) -> None:
    for linger in (0, 20):
        push = make(core.PUSH, connect="tcp://127.0.0.1:9", linger=linger)
        await push.send(b"x")
        push.close()
        await push.wait_closed()
        assert push.counters.undelivered == 1


async def test_sock_15_a_peer_that_does_not_read_is_disconnected_when_linger_is_over(make: Make) -> None:
    push = make(core.PUSH, bind=TCP, linger=50, sndhwm=0)
    async with await WirePeer.connect(push.last_endpoint) as peer:
        await peer.shake(b"PULL")
        for _ in range(200):
            await push.send(b"x" * 100_000)
        push.close()
        await push.wait_closed()
    assert push.closed


async def test_sock_16_after_the_context_every_call_fails_with_eterm(make: Make, context: core.Context) -> None:
    dealer = make(core.DEALER, bind=TCP)
    poller = core.Poller()
    poller.register(dealer, core.POLLIN)
    waiting = [asyncio.ensure_future(call) for call in (dealer.recv(), dealer.send(b"x"), dealer.poll(), poller.poll())]
    await asyncio.sleep(0)  # the polls begin
    context.term()
    for pending in waiting:
        with pytest.raises(core.ContextTerminated):
            await asyncio.wait_for(pending, 100)
    calls = (dealer.recv, lambda: dealer.send(b"x"), dealer.recv_many, lambda: dealer.send_many([[b"x"]]), dealer.poll)
    for call in (*calls, lambda: dealer.bind(TCP), lambda: dealer.setsockopt(core.LINGER, 0), lambda: dealer.linger):
        with pytest.raises(core.ContextTerminated):
            call()
    with pytest.raises(core.ContextTerminated):
        context.socket(core.DEALER)


async def test_sock_16_a_closed_socket_says_so(make: Make) -> None:
    dealer = make(core.DEALER, bind=TCP)
    dealer.close()
    for call in (dealer.recv, lambda: dealer.send(b"x"), dealer.recv_many, lambda: dealer.send_many([[b"x"]]), lambda: dealer.bind(TCP)):
        with pytest.raises(core.ZMQError) as refused:
            call()
        assert refused.value.errno == core.ENOTSOCK


BOUND = {
    # type: (send, recv) of a bound socket without peers; None is success
    "PUSH": (core.EAGAIN, core.ENOTSUP),
    "DEALER": (core.EAGAIN, core.EAGAIN),
    "PAIR": (core.EAGAIN, core.EAGAIN),
    "REQ": (core.EAGAIN, core.EFSM),
    "REP": (core.EFSM, core.EAGAIN),
    "PUB": (None, core.ENOTSUP),
    "XPUB": (None, core.EAGAIN),
    "XSUB": (None, core.EAGAIN),
    "ROUTER": (None, core.EAGAIN),
    "PULL": (core.ENOTSUP, core.EAGAIN),
    "SUB": (core.ENOTSUP, core.EAGAIN),
}


@pytest.mark.parametrize("kind", BOUND)
async def test_sock_17_a_bound_socket_without_peers(make: Make, kind: str) -> None:
    socket = make(getattr(core, kind), bind=TCP)
    send, recv = BOUND[kind]
    found: list[int | None] = []
    for call in (lambda: socket.send_multipart([b"x", b"y"], core.NOBLOCK), lambda: socket.recv(core.NOBLOCK)):
        try:
            call()
        except core.ZMQError as error:
            found.append(error.errno)
        else:
            found.append(None)
    assert found == [send, recv]


@pytest.mark.parametrize("size", [100, 1000, 50_000, 500_000])
async def test_what_a_batch_receiver_answers_leaves_when_it_returns(make: Make, anywhere: str, size: int) -> None:
    router = make(core.ROUTER, bind=anywhere)
    router.set_receiver(router.send_many)
    dealer = make(core.DEALER, connect=router.last_endpoint)
    for number in range(3):
        await dealer.send_multipart([b"%d" % number, b"x" * size])
        assert await dealer.recv_multipart() == [b"%d" % number, b"x" * size]


async def test_a_context_forgets_sockets_that_are_gone(make: Make, context: core.Context) -> None:
    router = make(core.ROUTER, bind=TCP)
    for _ in range(20):
        dealer = make(core.DEALER, connect=router.last_endpoint)
        await dealer.send(b"x")
        await router.recv_multipart()
        dealer.close()
        await asyncio.gather(dealer.wait_closed(), dealer.wait_closed())
    assert len(context._closing) == 0
