"""Rules PPL and PAIR (RFC 30, RFC 31), and the options that change how queues behave (OPT)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from core.net.connector import ReconnectDelay
from tests.scenes.raw_octets import WirePeer, message
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from tests.spec.conftest import Make

TCP = "tcp://127.0.0.1:*"


async def test_ppl_01_push_goes_round_and_pull_takes_it_unchanged(make: Make, anywhere: str) -> None:
    push = make(core.PUSH, bind=anywhere)
    watch = Watch(push)
    pulls = [make(core.PULL, connect=push.last_endpoint) for _ in range(3)]
    if not anywhere.startswith("inproc"):
        await watch.peers(3)
    for number in range(9):
        await push.send_multipart([b"", b"%d" % number, b""])
    got = [[await pull.recv_multipart() for _ in range(3)] for pull in pulls]
    assert all(message[::2] == [b"", b""] for messages in got for message in messages)
    numbers = sorted([int(message[1]) for message in messages] for messages in got)
    assert numbers == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


async def test_ppl_02_a_connecting_push_keeps_its_queue(make: Make) -> None:
    pull = make(core.PULL, bind=TCP)
    push = make(core.PUSH, connect=pull.last_endpoint)
    watch = Watch(push)
    await push.send(b"one")
    assert await pull.recv() == b"one"
    endpoint = pull.last_endpoint
    pull.close()
    await pull.wait_closed()
    await watch.lost()
    await push.send(b"two")
    again = make(core.PULL, bind=endpoint)
    assert await again.recv() == b"two"


async def test_pair_01_one_peer_both_ways_and_waiting_without_one(make: Make, anywhere: str) -> None:
    one = make(core.PAIR, bind=anywhere)
    with pytest.raises(core.Again):
        one.send(b"x", core.NOBLOCK)
    other = make(core.PAIR, connect=one.last_endpoint)
    await other.send_multipart([b"a", b""])
    assert await one.recv_multipart() == [b"a", b""]
    await one.send(b"b")
    assert await other.recv() == b"b"


async def test_pair_02_a_second_peer_is_cut_and_a_new_one_taken_when_the_first_is_gone(make: Make) -> None:
    pair = make(core.PAIR, bind=TCP)
    watch = Watch(pair)
    async with await WirePeer.connect(pair.last_endpoint) as first:
        await first.shake(b"PAIR")
        await watch.peers()
        async with await WirePeer.connect(pair.last_endpoint) as second:
            await second.shake(b"PAIR")
            await second.rest()
        assert pair.counters.extra_peer == 1
        await first.send(message(b"still here"))
        assert await pair.recv() == b"still here"
    await watch.lost()
    third = make(core.PAIR, connect=pair.last_endpoint)
    await third.send(b"new")
    assert await pair.recv() == b"new"


async def test_pair_03_a_connecting_pair_reconnects(make: Make) -> None:
    one = make(core.PAIR, bind=TCP)
    other = make(core.PAIR, connect=one.last_endpoint)
    watch = Watch(other)
    await other.send(b"x")
    assert await one.recv() == b"x"
    endpoint = one.last_endpoint
    one.close()
    await one.wait_closed()
    await watch.lost()
    again = make(core.PAIR, bind=endpoint)
    await other.send(b"y")
    assert await again.recv() == b"y"


async def test_opt_01_immediate_queues_nothing_without_a_connection(make: Make) -> None:
    dealer = make(core.DEALER, immediate=1)
    dealer.connect("tcp://127.0.0.1:9")
    with pytest.raises(core.Again):
        dealer.send(b"x", core.NOBLOCK)
    router = make(core.ROUTER, bind=TCP)
    dealer.connect(router.last_endpoint)
    for number in range(4):
        await dealer.send(b"%d" % number)
    assert [(await router.recv_multipart())[1] for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    watch = Watch(dealer)
    router.close()
    await watch.lost()
    with pytest.raises(core.Again):
        dealer.send(b"x", core.NOBLOCK)


@pytest.mark.parametrize("kind", ["PUSH-PULL", "DEALER-DEALER"])
async def test_opt_02_conflate_keeps_the_newest_only(make: Make, kind: str) -> None:
    sender, receiver = kind.split("-")
    pull = make(getattr(core, receiver), conflate=1, bind=TCP)
    push = make(getattr(core, sender), connect=pull.last_endpoint)
    for number in range(100):
        await push.send(b"%d" % number)
    await eventually(lambda: [list(pipe.inbox) for pipe in pull.pattern.pipes] == [[[b"99"]]])
    assert await pull.recv() == b"99"
    assert not pull.readable()


async def test_opt_02_a_conflating_sender_queues_one_message(make: Make) -> None:
    pull = make(core.PULL, bind=TCP)
    endpoint = pull.last_endpoint
    pull.close()
    await pull.wait_closed()
    push = make(core.PUSH, conflate=1, connect=endpoint, reconnect_ivl=1)
    for number in range(100):
        await push.send(b"%d" % number)
    again = make(core.PULL, bind=endpoint)
    assert await again.recv() == b"99"


def test_opt_03_each_delay_is_the_interval_and_up_to_as_much_again() -> None:
    low, high = ReconnectDelay(0.1, 0, lambda: 0.0), ReconnectDelay(0.1, 0, lambda: 0.999)
    assert [low.next_s() for _ in range(3)] == pytest.approx([0.1] * 3)
    assert [high.next_s() for _ in range(3)] == pytest.approx([0.1999] * 3)


def test_opt_04_delays_double_up_to_the_maximum_and_start_again() -> None:
    delay = ReconnectDelay(0.1, 0.4, lambda: 0.0)
    assert [delay.next_s() for _ in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.4])
    delay.reset()
    assert delay.next_s() == pytest.approx(0.1)
    assert ReconnectDelay(0.1, 0.05, lambda: 0.0).next_s() == pytest.approx(0.05)
    jittered = ReconnectDelay(0.1, 0.4, lambda: 1.0)
    assert all(0 < jittered.next_s() <= 0.4 for _ in range(5))


@pytest.mark.parametrize("interval", [-1, 0])
async def test_opt_03_without_an_interval_there_is_one_attempt(make: Make, interval: int) -> None:
    dealer = make(core.DEALER, reconnect_ivl=interval)
    watch = Watch(dealer)
    dealer.connect("tcp://127.0.0.1:9")
    await watch.until(core.EVENT_CLOSED)
    await eventually(lambda: not dealer.pattern.pipes)
    assert watch.seen[core.EVENT_CONNECT_RETRIED] == 0


async def test_opt_05_a_name_nobody_knows_is_tried_again(make: Make) -> None:
    dealer = make(core.DEALER)
    watch = Watch(dealer)
    dealer.connect("tcp://no-such-host.invalid:5555")
    await watch.until(core.EVENT_CONNECT_RETRIED, 2)
    assert watch.seen[core.EVENT_CONNECTED] == 0


async def test_mon_03_the_usual_sequences(make: Make) -> None:
    router = make(core.ROUTER)
    bound = Watch(router)
    router.bind(TCP)
    dealer = make(core.DEALER)
    connected = Watch(dealer)
    dealer.connect(router.last_endpoint)
    await bound.peers()
    await connected.peers()
    assert [event.event.name for event in bound.events] == ["LISTENING", "ACCEPTED", "HANDSHAKE_SUCCEEDED"]
    assert [event.event.name for event in connected.events] == ["CONNECT_DELAYED", "CONNECTED", "HANDSHAKE_SUCCEEDED"]
    router.close()
    await connected.until(core.EVENT_CONNECT_RETRIED, 2)
    tail = [event.event.name for event in connected.events[3:7]]
    assert tail == ["DISCONNECTED", "CONNECT_RETRIED", "CONNECT_DELAYED", "CLOSED"]
    await asyncio.sleep(0)
    assert bound.seen[core.EVENT_CLOSED] == 1
