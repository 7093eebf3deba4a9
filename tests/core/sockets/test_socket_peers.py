"""Socket.cut and Socket.peer_property: one peer of a ROUTER."""

from __future__ import annotations

import asyncio

import pytest

import core
from tests.scenes.waiting import eventually

USERS = {"ann": "secret"}


async def test_a_router_cuts_one_peer_and_keeps_the_others() -> None:
    events: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
    async with core.Context() as context:
        router = context.socket(core.ROUTER)
        router.bind("tcp://127.0.0.1:*")
        router.set_receiver(lambda _: None, on_peer=lambda peer, joined: events.put_nowait((peer, joined)))
        for name in (b"one", b"two"):
            dealer = context.socket(core.DEALER, identity=name, reconnect_ivl=-1)
            dealer.connect(router.last_endpoint)
            assert await events.get() == (name, True)
        assert router.cut(b"one", "enough")
        assert await events.get() == (b"one", False)
        assert not router.cut(b"one")
        assert router.cut(b"two")


async def test_a_peer_is_who_the_authenticator_says_whatever_it_calls_itself() -> None:
    joined: asyncio.Queue[bytes] = asyncio.Queue()
    async with (
        core.Context(security=core.Plain(users=USERS)) as serving,
        core.Context(security=core.Plain(user="ann", password="secret")) as asking,
    ):
        router = serving.socket(core.ROUTER)
        router.bind("tcp://127.0.0.1:*")
        router.set_receiver(lambda _: None, on_peer=lambda peer, _: joined.put_nowait(peer))
        dealer = asking.socket(core.DEALER, identity=b"root")
        dealer.connect(router.last_endpoint)
        peer = await joined.get()
        assert peer == b"root"
        assert router.peer_property(peer, "User-Id") == b"ann"
        assert router.peer_property(peer, "Nothing") is None
        assert router.peer_property(b"nobody", "User-Id") is None


async def test_only_a_router_knows_its_peers_by_name() -> None:
    async with core.Context() as context:
        dealer = context.socket(core.DEALER)
        with pytest.raises(core.OperationNotSupported):
            dealer.cut(b"x")
        with pytest.raises(core.OperationNotSupported):
            dealer.peer_property(b"x", "User-Id")
        router = context.socket(core.ROUTER)
        router.close()
        with pytest.raises(core.SocketClosed):
            router.cut(b"x")


async def test_req_and_rep_keep_their_step_when_a_receiver_is_called() -> None:
    """REQ-02, REP-02: what is received is what `recv` makes of it, one at a time."""
    asked: list[list[list[bytes]]] = []
    async with core.Context() as context:
        rep = context.socket(core.REP)
        rep.bind("tcp://127.0.0.1:*")

        def answer(batch: list[list[bytes]]) -> None:
            asked.append(batch)
            rep.send_many(batch)

        rep.set_receiver(answer)
        req = context.socket(core.REQ)
        req.connect(rep.last_endpoint)
        answers: asyncio.Queue[list[bytes]] = asyncio.Queue()

        def note(batch: list[list[bytes]]) -> None:
            for message in batch:
                answers.put_nowait(message)

        req.set_receiver(note)
        for n in range(3):
            await req.send(b"%d" % n)
            assert await answers.get() == [b"%d" % n]
        others = [context.socket(core.REQ) for _ in range(5)]
        for other in others:
            other.connect(rep.last_endpoint)
            await other.send(b"x")
        assert [await other.recv() for other in others] == [b"x"] * 5
    assert all(len(batch) == 1 for batch in asked)


async def asked(context: core.Context, rep: core.Socket, *bodies: bytes) -> list[core.Socket]:
    """REQs that have sent one request each, all of which the REP has read."""
    requesters = [context.socket(core.REQ, linger=0, rcvtimeo=60_000) for _ in bodies]
    for requester, body in zip(requesters, bodies, strict=True):
        requester.connect(rep.last_endpoint)
        await requester.send(body)
    return requesters


async def test_rep_02_a_receiver_that_answers_later_gets_the_next_request_when_it_has_answered() -> None:
    """Nothing new has to arrive for it."""
    got: asyncio.Queue[list[bytes]] = asyncio.Queue()
    async with core.Context() as context, asyncio.timeout(100):
        rep = context.socket(core.REP, linger=0)
        rep.bind("tcp://127.0.0.1:*")
        rep.set_receiver(lambda batch: got.put_nowait(batch[0]))
        requesters = await asked(context, rep, b"a", b"b", b"c")
        heard: list[bytes] = []
        await eventually(lambda: len(rep.inbound.active) == 2)  # one is with the receiver, two wait
        for count in range(1, 4):
            heard += await got.get()
            assert got.empty()
            await rep.send(b"answer %d" % count)
        assert sorted(heard) == [b"a", b"b", b"c"]
        assert sorted([await requester.recv() for requester in requesters]) == [b"answer 1", b"answer 2", b"answer 3"]


async def test_rep_02_receives_that_wait_side_by_side_get_a_request_each_after_the_answer_before() -> None:
    async with core.Context() as context, asyncio.timeout(100):
        rep = context.socket(core.REP, linger=0)
        rep.bind("tcp://127.0.0.1:*")
        waiting = [asyncio.ensure_future(rep.recv()) for _ in range(2)]
        requesters = await asked(context, rep, b"a", b"b")
        first = await waiting[0]
        await eventually(lambda: rep.inbound.active)
        assert not waiting[1].done()
        await rep.send(b"1")
        assert {first, await waiting[1]} == {b"a", b"b"}
        await rep.send(b"2")
        assert sorted([await requester.recv() for requester in requesters]) == [b"1", b"2"]
        assert rep.counters.protocol_errors == 0


async def test_req_02_rep_02_a_batch_that_waits_is_one_message() -> None:
    async with core.Context() as context, asyncio.timeout(100):
        rep = context.socket(core.REP, linger=0)
        rep.bind("tcp://127.0.0.1:*")
        waiting = rep.recv_many()
        (requester,) = await asked(context, rep, b"a")
        assert await waiting == [[b"a"]]
        waiting = requester.recv_many()
        await rep.send(b"b")
        assert await waiting == [[b"b"]]
        await requester.send(b"again")
        assert await rep.recv() == b"again"


async def test_req_02_rep_02_a_poll_ends_when_the_other_thing_has_been_done() -> None:
    """A REP is readable again when it has answered, a REQ writable again when it has received."""
    async with core.Context() as context, asyncio.timeout(100):
        rep = context.socket(core.REP, linger=0)
        rep.bind("tcp://127.0.0.1:*")
        requesters = await asked(context, rep, b"a", b"b")
        await rep.recv()
        await eventually(lambda: rep.inbound.active)
        assert await rep.poll(0) == 0
        readable = asyncio.ensure_future(rep.poll())
        writable = asyncio.ensure_future(requesters[0].poll(flags=core.POLLOUT))
        await asyncio.sleep(0)
        await rep.send(b"1")
        assert await readable == core.POLLIN
        await rep.recv()
        await rep.send(b"2")
        assert not writable.done()
        await requesters[0].recv()
        assert await writable == core.POLLOUT


async def test_a_peer_whose_routing_id_was_taken_over_is_not_gone() -> None:
    """RTR-08: `on_peer` reports the new peer of a routing id, and no end before its own."""
    events: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
    async with core.Context() as context:
        router = context.socket(core.ROUTER, router_handover=1)
        router.bind("tcp://127.0.0.1:*")
        router.set_receiver(lambda _: None, on_peer=lambda peer, joined: events.put_nowait((peer, joined)))
        old, new = (context.socket(core.DEALER, identity=b"me", reconnect_ivl=-1) for _ in range(2))
        old.connect(router.last_endpoint)
        assert await events.get() == (b"me", True)
        new.connect(router.last_endpoint)
        assert await events.get() == (b"me", True)
        await router.send_multipart([b"me", b"to the newcomer"])
        assert await new.recv_multipart() == [b"to the newcomer"]
        new.close()
        assert await events.get() == (b"me", False)


@pytest.mark.parametrize("kind", [core.PUSH, core.PUB])
async def test_a_socket_that_only_sends_refuses_each_receive_at_once(kind: int) -> None:
    """It waited for ever once: a receive that finds nothing queued need not ask the pattern, but for this."""
    async with core.Context() as context:
        socket = context.socket(kind)
        for receive in (socket.recv, socket.recv_multipart, socket.recv_many, socket.recv_string, socket.recv_json):
            with pytest.raises(core.OperationNotSupported):
                receive()
        with pytest.raises(core.OperationNotSupported):
            socket.recv_multipart(copy=False)
