"""Rules REQ, REP, DLR and RTR: the request-reply sockets (RFC 28)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.raw_octets import WirePeer, command, message
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

TCP = "tcp://127.0.0.1:*"


# -- REQ


async def test_req_01_the_delimiter_is_added_and_stripped(make: Make, anywhere: str) -> None:
    router = make(core.ROUTER, bind=anywhere)
    req = make(core.REQ, connect=router.last_endpoint)
    await req.send_multipart([b"a", b"b"])
    routing_id, *frames = await router.recv_multipart()
    assert frames == [b"", b"a", b"b"]
    await router.send_multipart([routing_id, b"", b"c", b""])
    assert await req.recv_multipart() == [b"c", b""]


async def test_req_02_strict_alternation(make: Make, anywhere: str) -> None:
    rep = make(core.REP, bind=anywhere)
    req = make(core.REQ, connect=rep.last_endpoint)
    with pytest.raises(core.BadState) as refused:
        req.recv()
    assert refused.value.errno == core.EFSM
    await req.send(b"q")
    with pytest.raises(core.BadState):
        req.send(b"again")
    await rep.send(await rep.recv())
    assert await req.recv() == b"q"
    with pytest.raises(core.BadState):
        req.recv()


async def test_req_03_requests_go_round_robin_and_wait_without_a_peer(make: Make) -> None:
    req = make(core.REQ, bind=TCP)
    with pytest.raises(core.Again):
        req.send(b"x", core.NOBLOCK)
    pending = asyncio.ensure_future(req.send(b"0"))
    watch = Watch(req)
    reps = [make(core.REP, connect=req.last_endpoint) for _ in range(2)]
    await watch.peers(2)
    await pending
    seen = []
    for number in range(4):
        if number:
            await req.send(b"%d" % number)
        done, waiting = await asyncio.wait([asyncio.ensure_future(rep.recv()) for rep in reps], return_when=asyncio.FIRST_COMPLETED)
        for receive in waiting:
            receive.cancel()
        assert [receive.result() for receive in done] == [b"%d" % number]
        for index, rep in enumerate(reps):
            if rep.pattern.writable():
                seen.append(index)
                await rep.send(b"ok")
        assert await req.recv() == b"ok"
    assert seen in ([0, 1, 0, 1], [1, 0, 1, 0])


async def test_req_04_only_the_peer_that_was_asked_may_answer(make: Make) -> None:
    req = make(core.REQ, bind=TCP)
    async with await WirePeer.connect(req.last_endpoint) as one, await WirePeer.connect(req.last_endpoint) as other:
        watch = Watch(req)
        await one.shake(b"REP")
        await other.shake(b"REP")
        await watch.peers(2)
        await req.send(b"q")
        asked, stranger = (one, other)
        first = asyncio.ensure_future(one.message())
        second = asyncio.ensure_future(other.message())
        done, waiting = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        for reading in waiting:
            reading.cancel()
            await asyncio.wait([reading])
        if second in done:
            asked, stranger = other, one
        await stranger.send(message(b"", b"forged"))
        await asked.send(message(b"", b"true"))
        assert await req.recv() == b"true"


async def test_req_05_a_lost_connection_leaves_it_waiting_and_a_late_reply_is_taken(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP)
    req = make(core.REQ, connect=router.last_endpoint)
    watch = Watch(req)
    await req.send(b"q")
    await router.recv_multipart()
    router.close()
    await router.wait_closed()
    await watch.lost()
    with pytest.raises(core.BadState):
        req.send(b"again")
    again = make(core.ROUTER, router_mandatory=1)
    arrived = Watch(again)
    again.bind(req.last_endpoint)
    await arrived.peers()
    (routing_id,) = (pipe.routing_id for pipe in again.pattern.pipes)
    await again.send_multipart([routing_id, b"", b"late"])
    assert await req.recv() == b"late"


async def test_req_06_what_came_before_is_discarded_by_a_new_request(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP)
    req = make(core.REQ, connect=router.last_endpoint, req_relaxed=1)
    await req.send(b"one")
    routing_id = (await router.recv_multipart())[0]
    await router.send_multipart([routing_id, b"", b"old"])
    assert await req.poll(10_000) == core.POLLIN
    await req.send(b"two")
    await router.recv_multipart()
    await router.send_multipart([routing_id, b"", b"new"])
    assert await req.recv() == b"new"
    assert req.counters.stale == 1


@pytest.mark.parametrize("reply", [[b"no delimiter"], [b""], [b"id", b"x"]], ids=["one frame", "delimiter only", "no delimiter"])
async def test_req_07_zmtp_84_a_reply_without_delimiter_closes_the_connection(make: Make, reply: list[bytes]) -> None:
    req = make(core.REQ, bind=TCP)
    watch = Watch(req)
    async with await WirePeer.connect(req.last_endpoint) as peer:
        await peer.shake(b"REP")
        await watch.peers()
        await req.send(b"q")
        await peer.message()
        await peer.send(message(*reply))
        await watch.lost()
    assert req.counters.malformed == 1
    assert not req.readable()


async def test_req_08_correlate_puts_an_id_in_front_and_takes_only_its_own(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP)
    req = make(core.REQ, connect=router.last_endpoint, req_correlate=1)
    ids = []
    for body in (b"one", b"two"):
        await req.send(body)
        routing_id, request_id, *rest = await router.recv_multipart()
        assert rest == [b"", body]
        assert len(request_id) == 4
        ids.append(int.from_bytes(request_id, "little"))
        await router.send_multipart([routing_id, b"ABCD", b"", b"another's"])
        await router.send_multipart([routing_id, request_id, b"", b"ours"])
        assert await req.recv() == b"ours"
    assert ids[1] == (ids[0] + 1) & 0xFFFFFFFF
    assert req.counters.unexpected == 2


async def test_req_09_relaxed_and_correlated_an_old_reply_is_skipped(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP)
    req = make(core.REQ, connect=router.last_endpoint, req_correlate=1, req_relaxed=1)
    await req.send(b"abandoned")
    routing_id, old_id, *_ = await router.recv_multipart()
    await req.send(b"second")
    _, new_id, *_ = await router.recv_multipart()
    await router.send_multipart([routing_id, old_id, b"", b"old"])
    await router.send_multipart([routing_id, new_id, b"", b"new"])
    assert await req.recv() == b"new"


async def test_req_10_an_identity_becomes_the_routing_id(make: Make, anywhere: str) -> None:
    router = make(core.ROUTER, bind=anywhere)
    req = make(core.REQ, connect=router.last_endpoint, identity=b"Lucy")
    await req.send(b"q")
    assert await router.recv_multipart() == [b"Lucy", b"", b"q"]


# -- REP


async def test_rep_01_rep_06_the_envelope_comes_back_untouched(make: Make, anywhere: str) -> None:
    rep = make(core.REP, bind=anywhere)
    dealer = make(core.DEALER, connect=rep.last_endpoint)
    await dealer.send_multipart([b"a", b"\x01\x02\x03\x04", b"", b"hi"])
    assert await rep.recv_multipart() == [b"hi"]
    await rep.send_multipart([b"yo"])
    assert await dealer.recv_multipart() == [b"a", b"\x01\x02\x03\x04", b"", b"yo"]


async def test_rep_02_alternation_and_fair_queueing(make: Make, anywhere: str) -> None:
    rep = make(core.REP, bind=anywhere)
    with pytest.raises(core.BadState):
        rep.send(b"nothing asked")
    dealers = [make(core.DEALER, connect=rep.last_endpoint) for _ in range(2)]
    for dealer in dealers:
        for _ in range(3):
            await dealer.send_multipart([b"", b"q"])
    for _ in range(6):
        assert await rep.recv() == b"q"
        with pytest.raises(core.BadState):
            rep.recv()
        await rep.send(b"a")
    for dealer in dealers:
        assert [await dealer.recv_multipart() for _ in range(3)] == [[b"", b"a"]] * 3


async def test_rep_03_a_reply_to_a_requester_that_left_is_dropped(make: Make) -> None:
    rep = make(core.REP, bind=TCP)
    watch = Watch(rep)
    leaver = make(core.DEALER, connect=rep.last_endpoint)
    await leaver.send_multipart([b"", b"q"])
    assert await rep.recv() == b"q"
    leaver.close()
    await watch.lost()
    await rep.send(b"nobody")
    assert rep.counters.requester_gone == 1
    stayer = make(core.DEALER, connect=rep.last_endpoint)
    await stayer.send_multipart([b"", b"next"])
    assert await rep.recv() == b"next"


async def test_rep_04_rep_05_zmtp_85_only_requests_with_a_delimiter_are_taken(make: Make) -> None:
    rep = make(core.REP, bind=TCP)
    dealer = make(core.DEALER, connect=rep.last_endpoint)
    await dealer.send_multipart([b"no", b"delimiter"])
    await dealer.send_multipart([b"alone", b""])
    await dealer.send_multipart([b"", b""])
    assert await rep.recv_multipart() == [b""]
    assert rep.counters.malformed == 2


# -- DEALER


async def test_dlr_01_frames_are_untouched_and_sends_go_round(make: Make, anywhere: str) -> None:
    dealer = make(core.DEALER, bind=anywhere)
    others = [make(core.DEALER, connect=dealer.last_endpoint) for _ in range(2)]
    for other in others:
        await other.send_multipart([b"", b"here", b""])
        assert await dealer.recv_multipart() == [b"", b"here", b""]
    for number in range(4):
        await dealer.send_multipart([b"", b"%d" % number])
    got = [[(await other.recv_multipart())[1] for _ in range(2)] for other in others]
    assert sorted(got) == [[b"0", b"2"], [b"1", b"3"]]


async def test_dlr_02_towards_rep_the_application_writes_the_delimiter(make: Make) -> None:
    rep = make(core.REP, bind=TCP)
    dealer = make(core.DEALER, connect=rep.last_endpoint)
    await dealer.send_multipart([b"", b"q"])
    await rep.send(await rep.recv())
    assert await dealer.recv_multipart() == [b"", b"q"]


async def test_dlr_03_rtr_14_a_probe_tells_the_router_who_is_there(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP)
    make(core.DEALER, connect=router.last_endpoint, identity=b"probe", probe_router=1)
    assert await router.recv_multipart() == [b"probe", b""]


# -- ROUTER


async def test_rtr_01_the_routing_id_comes_and_goes_as_first_frame(make: Make, anywhere: str) -> None:
    router = make(core.ROUTER, bind=anywhere)
    dealers = [make(core.DEALER, connect=router.last_endpoint, identity=name) for name in (b"A", b"B")]
    for dealer in dealers:
        await dealer.send(b"from")
    assert sorted([await router.recv_multipart(), await router.recv_multipart()]) == [[b"A", b"from"], [b"B", b"from"]]
    await router.send_multipart([b"B", b"to", b"B"])
    assert await dealers[1].recv_multipart() == [b"to", b"B"]


async def test_rtr_02_generated_ids_have_five_octets_and_count_up(make: Make, anywhere: str) -> None:
    router = make(core.ROUTER, bind=anywhere)
    ids = []
    for _ in range(3):
        dealer = make(core.DEALER, connect=router.last_endpoint)
        await dealer.send(b"x")
        ids.append((await router.recv_multipart())[0])
    assert [len(routing_id) for routing_id in ids] == [5, 5, 5]
    assert {routing_id[:1] for routing_id in ids} == {b"\0"}
    first = int.from_bytes(ids[0][1:], "big")
    assert [int.from_bytes(routing_id[1:], "big") for routing_id in ids] == [(first + n) & 0xFFFFFFFF for n in range(3)]


async def test_rtr_04_a_message_of_an_id_alone_is_ignored(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP)
    dealer = make(core.DEALER, connect=router.last_endpoint, identity=b"A")
    await dealer.send(b"x")
    await router.recv_multipart()
    await router.send(b"A")
    await router.send_multipart([b"A", b"seen"])
    assert await dealer.recv_multipart() == [b"seen"]
    assert router.counters.empty == 1


async def test_rtr_05_unroutable_and_overflowing_messages_are_dropped_and_counted(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP, sndhwm=10)
    await router.send_multipart([b"nobody", b"x"])
    await router.send_many([[b"nobody", b"x"], [b"nobody"]])
    assert router.counters.unroutable == 3
    async with await WirePeer.connect(router.last_endpoint) as peer:
        watch = Watch(router)
        await peer.shake(b"DEALER", b"slow")
        await watch.peers()
        for _ in range(400):
            await router.send_multipart([b"slow", b"x" * 100_000])
        assert router.counters.peer_full > 0


async def test_rtr_06_mandatory_tells_about_unknown_and_full_peers(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP, sndhwm=1, router_mandatory=1)
    with pytest.raises(core.HostUnreachable) as refused:
        router.send_multipart([b"nobody", b"x"])
    assert refused.value.errno == core.EHOSTUNREACH
    assert not await router.poll(0, core.POLLOUT)
    watch = Watch(router)
    async with await WirePeer.connect(router.last_endpoint) as peer:
        await peer.shake(b"DEALER", b"slow")
        await watch.peers()
        assert await router.poll(0, core.POLLOUT)
        sent = 0
        with pytest.raises(core.Again):
            while True:
                router.send_multipart([b"slow", b"x" * 100_000], core.NOBLOCK)
                sent += 1
        waiting = asyncio.ensure_future(router.send_multipart([b"slow", b"the last"]))
        got = [await peer.message() for _ in range(sent + 1)]
        await waiting
        assert got[-1] == [b"the last"]


async def test_rtr_07_a_second_peer_with_the_same_id_is_cut_and_tries_again(make: Make, anywhere: str) -> None:
    """Fault R1."""
    router = make(core.ROUTER, bind=anywhere)
    holder = make(core.DEALER, connect=router.last_endpoint, identity=b"same")
    await holder.send(b"holder")
    assert await router.recv_multipart() == [b"same", b"holder"]
    newcomer = make(core.DEALER, connect=router.last_endpoint, identity=b"same")
    if not anywhere.startswith("inproc"):  # there is no second attempt over inproc
        watch = Watch(newcomer)
        await watch.until(core.EVENT_CONNECT_RETRIED)
        taken = Watch(router)
        holder.close()
        await taken.peers()
        await newcomer.send(b"newcomer")
        assert await router.recv_multipart() == [b"same", b"newcomer"]
    assert router.counters.duplicate_id >= 1


@pytest.mark.parametrize("way", ["inbox", "receiver", "batches"])
async def test_rtr_08_rtr_09_with_handover_the_newcomer_takes_the_id_once(make: Make, way: str) -> None:
    """Fault R1: only where it was asked for.

    The holder stays connected, is answered its PINGs, and is not heard any more.
    """
    router = make(core.ROUTER, bind=TCP, router_handover=1)
    got: list[list[bytes]] = []
    if way == "receiver":
        router.set_receiver(got.extend)
    elif way == "batches":
        router.set_batch_receiver(got.extend)
    watch = Watch(router)
    async with await WirePeer.connect(router.last_endpoint) as old, await WirePeer.connect(router.last_endpoint) as new:
        await old.shake(b"DEALER", b"same")
        await watch.peers(1)
        await old.send(message(b"before"))
        await old.send(command(b"PING", b"\0\0first"))
        assert await old.frame() == (4, b"\x04PONGfirst")
        await new.shake(b"DEALER", b"same")
        await watch.peers(2)
        for n in range(3):
            await old.send(message(b"after", b"%d" % n))
        await old.send(message(bytes(300_000)))
        await old.send(command(b"PING", b"\0\0second"))
        assert await old.frame() == (4, b"\x04PONGsecond")
        await new.send(message(b"mine"))
        await router.send_multipart([b"same", b"yours"])
        assert await new.message() == [b"yours"]
        if way == "inbox":
            got += [await router.recv_multipart() for _ in range(2)]
        else:
            await eventually(lambda: len(got) == 2)
        assert sorted(got) == [[b"same", b"before"], [b"same", b"mine"]]
        assert router.counters.displaced == 4
        assert not watch.seen[core.EVENT_DISCONNECTED]
        await old.close()
        await watch.lost()
        await router.send_multipart([b"same", b"still yours"])
        assert await new.message() == [b"still yours"]


async def test_rtr_08_two_live_peers_of_one_id_do_not_take_it_from_each_other(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP, router_handover=1, router_mandatory=1)
    watch = Watch(router)
    first = make(core.DEALER, connect=router.last_endpoint, identity=b"same")
    await watch.peers(1)
    second = make(core.DEALER, connect=router.last_endpoint, identity=b"same")
    await watch.peers(2)
    retried = Watch(first)
    for n in range(50):
        await router.send_multipart([b"same", b"%d" % n])
        assert await second.recv() == b"%d" % n
        await first.send(b"deaf")
    assert not await first.poll(50)
    assert not retried.events


async def test_rtr_08_over_inproc_the_holder_loses_its_connection(make: Make) -> None:
    router = make(core.ROUTER, bind="inproc://router", router_handover=1)
    old = make(core.DEALER, connect="inproc://router", identity=b"same")
    await old.send(b"before")
    new = make(core.DEALER, connect="inproc://router", identity=b"same")
    await router.send_multipart([b"same", b"yours"])
    assert await new.recv() == b"yours"
    assert await router.recv_multipart() == [b"same", b"before"]
    with pytest.raises(core.Again):
        old.send(b"nobody", core.NOBLOCK)


async def test_rtr_10_connect_routing_id_names_the_peer_of_the_next_connect(make: Make) -> None:
    dealer = make(core.DEALER, bind=TCP, identity=b"announced")
    router = make(core.ROUTER, router_mandatory=1, connect_routing_id=b"local")
    router.connect(dealer.last_endpoint)
    await router.send_multipart([b"local", b"at once"])
    assert await dealer.recv_multipart() == [b"at once"]
    await dealer.send(b"back")
    assert await router.recv_multipart() == [b"local", b"back"]
    assert router.connect_routing_id == b""


async def test_rtr_10_a_peer_that_loses_its_routing_id_is_counted_and_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    router = make(core.ROUTER, router_mandatory=1, bind=TCP)
    old = make(core.DEALER, identity=b"same", connect=router.last_endpoint)
    await old.send(b"here")
    assert await router.recv_multipart() == [b"same", b"here"]
    new = make(core.DEALER, bind=TCP)
    router.connect_routing_id = b"same"
    router.connect(new.last_endpoint)
    await router.send_multipart([b"same", b"yours"])
    assert await new.recv() == b"yours"
    assert router.counters.taken_over == 1
    (record,) = (record for record in caplog.records if "CONNECT_ROUTING_ID" in record.getMessage())
    assert getattr(record, "routing_id", "") == b"same".hex()
    router.connect_routing_id = b"other"
    router.connect(new.last_endpoint)
    assert router.counters.taken_over == 1


async def test_rtr_11_router_to_router_once_the_handshake_is_through(make: Make) -> None:
    server = make(core.ROUTER, identity=b"server", bind=TCP)
    client = make(core.ROUTER, router_mandatory=1)
    watch = Watch(client)
    client.connect(server.last_endpoint)
    with pytest.raises(core.HostUnreachable):
        client.send_multipart([b"server", b"too early"])
    await watch.peers()
    await client.send_multipart([b"server", b"ping"])
    routing_id, body = await server.recv_multipart()
    await server.send_multipart([routing_id, b"pong"])
    assert body == b"ping"
    assert await client.recv_multipart() == [b"server", b"pong"]


async def test_rtr_12_a_peer_that_left_is_unroutable(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP, router_mandatory=1)
    watch = Watch(router)
    dealer = make(core.DEALER, connect=router.last_endpoint, identity=b"A")
    await watch.peers()
    dealer.close()
    await watch.lost()
    with pytest.raises(core.HostUnreachable):
        router.send_multipart([b"A", b"x"])


async def test_rtr_13_the_id_of_a_connected_peer_is_that_of_its_first_handshake(make: Make) -> None:
    dealer = make(core.DEALER, bind=TCP, identity=b"first")
    router = make(core.ROUTER, connect=dealer.last_endpoint)
    watch = Watch(router)
    await dealer.send(b"x")
    assert (await router.recv_multipart())[0] == b"first"
    endpoint = dealer.last_endpoint
    dealer.close()
    await dealer.wait_closed()
    await watch.lost()
    again = make(core.DEALER, bind=endpoint, identity=b"second")
    await again.send(b"y")
    assert await router.recv_multipart() == [b"first", b"y"]
