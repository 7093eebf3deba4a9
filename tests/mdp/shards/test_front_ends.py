"""Ends of peers, shards and questions while the front still has messages of them, and its own end.

Rules of specs/mdp.md: SHD-07, SHD-09, SHD-10, SHD-12.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

import core
from core.zmtp.frames import encode_message
from mdp.broker.limits import BrokerOptions
from mdp.shards.questions import Question
from mdp.wire.commands import CLIENT_FINAL_03, CLIENT_PARTIAL_03, client_final, client_heartbeat, client_request, worker_ready
from tests.scenes.mdp_front import COUNT, ONE, TWO, FrontScene, name_of
from tests.scenes.raw_octets import WirePeer
from tests.scenes.waiting import Watch

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


def request(shard: int, size: int) -> list[bytes]:
    return client_request("0.2", name_of(shard), [b"x" * size])


def question(id: bytes, service: bytes = b"mmi.services") -> list[bytes]:
    return client_request("0.3", service, [b"" if service == b"mmi.services" else b"7"], id=id)


async def test_a_peer_that_has_gone_and_is_cut_in_a_read_leaves_no_connections(tmp_path: Path) -> None:
    """The front has read ahead of a held peer; behind what is too much is a request for another shard."""
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=1000)) as scene:
        await scene.end(1)
        await scene.end(2)
        peer = await WirePeer.connect(scene.endpoint)
        await peer.shake(b"DEALER")
        await peer.send(encode_message(request(1, 5000)))
        await scene.until(held=1)
        apart = client_request("0.2", b"mmi.protocol", [b"x" * 2**19])  # what is before and behind it comes in reads of their own
        await peer.send(b"".join(map(encode_message, (request(2, 1500), apart, request(2, 1500), request(0, 1)))))
        peer.end_stream()
        await peer.rest()  # the front has read everything
        assert scene.shown("held", "cut", "peers", "links") == [1, 0, 1, 1]
        await scene.begin(1)
        await scene.until(cut=1)
        assert scene.shown("peers", "links", "links_opened") == [0, 0, 2]


def open_questions() -> list[Question]:
    """Return what is kept of questions to all shards, by a timer too."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, Question)]


async def unread_answer(scene: FrontScene) -> WirePeer:
    """Return a peer that does not read the answer to a request, which is more than the system takes."""
    peer = await WirePeer.connect(scene.endpoint)
    await peer.shake(b"DEALER")
    peer.pause()
    await peer.send(encode_message(request(1, 1)))
    name, _ = await scene.asked(1)
    await scene.say(1, name, client_final("0.2", name_of(1), b"", [b"x" * 2 * MIB]))
    await scene.until(held=1)
    return peer


async def test_what_a_peer_has_sent_behind_its_end_is_neither_forwarded_nor_asked(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=1000)) as scene:
        peer, other = await unread_answer(scene), scene.peer()
        hello = client_request("0.3", b"mmi.protocol", [b"0.3"], id=ONE)
        await peer.send(b"".join(map(encode_message, (*[hello] * 100, question(ONE), request(2, 1)))))
        await scene.until(peers=0)
        answered = scene.front.counters["hellos"]
        await other.send_multipart(hello)
        assert await other.recv_multipart() == [CLIENT_FINAL_03 + ONE, b"200", b"shards", b"%d" % COUNT]
        assert answered < 100
        assert scene.shown("cut", "hellos", "questions", "held", "links", "links_opened") == [1, answered + 1, 0, 0, 0, 1]
        await peer.abort()


async def test_a_peer_that_takes_no_more_of_its_answer_is_disconnected_once(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=1000)) as scene:
        peer, asked = await unread_answer(scene), question(ONE, b"mmi.dlq.retry")
        await peer.send(encode_message(asked))
        names = await scene.asked_all(asked)
        await scene.shards[2].send_many([[names[2], CLIENT_PARTIAL_03 + ONE, b"x" * 100]] * 100)
        await scene.until(peers=0)
        assert scene.shown("cut", "held", "links") == [1, 0, 0]
        await peer.abort()


async def test_a_retry_is_answered_when_the_last_shard_that_may_know_the_dead_letter_ends(scene: FrontScene) -> None:
    peer, asked = scene.peer(), question(ONE, b"mmi.dlq.retry")
    await peer.send_multipart(asked)
    names = await scene.asked_all(asked)
    for shard in (0, 2):
        await scene.say(shard, names[shard], [CLIENT_FINAL_03 + ONE, b"404"])
    await scene.end(1)
    assert await peer.recv_multipart() == [CLIENT_FINAL_03 + ONE, b"404"]


RETRY = question(ONE, b"mmi.dlq.retry")


async def test_a_retry_is_answered_in_the_time_of_a_question_without_the_shard_that_is_away(scene: FrontScene) -> None:
    peer = scene.peer()
    await scene.end(1)
    await peer.send_multipart(RETRY)
    for shard in (0, 2):
        await scene.say(shard, await scene.asked_one(shard, RETRY), [CLIENT_FINAL_03 + ONE, b"404"])
    assert await peer.recv_multipart() == [CLIENT_FINAL_03 + ONE, b"504", b"", b"[1]"]


@pytest.mark.parametrize("executed", [True, False])
async def test_a_retry_waits_for_the_shard_that_has_read_it_and_for_no_silent_one(scene: FrontScene, executed: bool) -> None:
    peer = scene.peer()
    await scene.end(1)
    await peer.send_multipart(RETRY)
    await scene.say(0, await scene.asked_one(0, RETRY), [CLIENT_FINAL_03 + ONE, b"404"])
    name = await scene.asked_one(2, RETRY)
    await scene.say(2, name, client_heartbeat())
    await peer.send_multipart(question(TWO))  # its time is over later
    assert (await peer.recv_multipart())[0] == CLIENT_FINAL_03 + TWO
    reply = [CLIENT_FINAL_03 + ONE, *([b"200", b"x"] if executed else [b"404"])]  # no worker of its service is left
    await scene.say(2, name, reply)
    assert await peer.recv_multipart() == (reply if executed else [CLIENT_FINAL_03 + ONE, b"504", b"", b"[1]"])


async def test_a_retry_that_is_answered_in_parts_waits_for_the_shard_of_the_parts_alone(scene: FrontScene) -> None:
    peer = scene.peer()
    await scene.end(1)
    await peer.send_multipart(RETRY)
    name, part, reply = await scene.asked_one(2, RETRY), [CLIENT_PARTIAL_03 + ONE, b"1"], [CLIENT_FINAL_03 + ONE, b"2"]
    await scene.say(2, name, part)
    assert await peer.recv_multipart() == part
    await peer.send_multipart(question(TWO))
    assert (await peer.recv_multipart())[0] == CLIENT_FINAL_03 + TWO
    await scene.say(2, name, reply)
    assert await peer.recv_multipart() == reply


async def test_a_client_whose_shards_end_at_once_is_disconnected_once(scene: FrontScene) -> None:
    peer = scene.peer()
    watch = Watch(peer)
    for shard in range(COUNT):
        await peer.send_multipart(client_request("0.3", name_of(shard), [b"x"], id=ONE))
        await scene.asked(shard)
    for ending in scene.shards:
        ending.close(0)
    await watch.lost()
    await scene.until(peers=0)
    assert scene.shown("cut", "links") == [1, 0]


async def test_a_peer_that_takes_over_the_routing_id_of_another_has_connections_of_its_own(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", router_handover=1) as scene:
        names = []
        for _ in range(2):
            await scene.peer(routing_id=b"same").send_multipart(request(1, 1))
            names.append((await scene.asked(1))[0])
        await scene.watches[1].lost()
        assert names[0] != names[1]
        assert scene.shown("peers", "links", "links_opened") == [1, 1, 2]


@pytest.mark.parametrize("sent", ["ready", "request"])
async def test_what_waits_for_a_starting_shard_is_not_delivered_when_its_peer_has_gone(scene: FrontScene, sent: str) -> None:
    """A worker would be registered, or a request executed, of a peer that is not there."""
    await scene.end(1)
    gone, stays = [scene.peer() for _ in range(10)], scene.peer()
    for peer in gone:
        await peer.send_multipart(worker_ready("0.3", name_of(1)) if sent == "ready" else client_request("0.3", name_of(1), [b"x"], id=ONE))
    await stays.send_multipart(request(1, 1))
    await scene.until(links=len(gone) + 1)
    for peer in gone:
        peer.close(0)
    await scene.until(peers=1)
    await scene.begin(1)
    assert (await scene.asked(1))[1] == request(1, 1)


async def test_nothing_is_held_for_a_peer_that_has_gone(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b") as scene:
        await (await unread_answer(scene)).abort()
        await scene.until(peers=0)
        assert scene.shown("held", "links") == [0, 0]


async def test_a_peer_is_read_from_again_when_the_shard_that_does_not_read_has_ended(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=MIB)) as scene:
        scene.shards[1].rcvhwm = 1
        peer = scene.peer(sndhwm=0)
        await peer.send_many([request(1, 2**15)] * 100)
        await scene.until(held=1)
        await peer.send_multipart(request(2, 1))
        await scene.end(1)
        await scene.until(links_lost=1)
        assert scene.shown("held") == [0]
        await scene.begin(1)
        assert (await scene.asked(2))[1] == request(2, 1)


async def test_a_peer_is_read_from_again_when_all_its_shards_read(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=MIB // 64)) as scene:
        for shard in (1, 2):
            await scene.end(shard)
        peer = await WirePeer.connect(scene.endpoint)
        await peer.shake(b"DEALER")
        await peer.send(b"".join(encode_message(request(shard, 1000)) for shard in (1, 2) * 10))
        await scene.until(held=2)
        await peer.send(encode_message(request(0, 1)))
        await scene.begin(1)
        for _ in range(10):
            assert (await scene.asked(1))[1] == request(1, 1000)
        await scene.until(held=1)
        await scene.peer().send_multipart(request(1, 1))
        assert (await scene.asked(1))[1] == request(1, 1)
        assert scene.shown("to_shards") == [21]
        await scene.begin(2)
        assert (await scene.asked(0))[1] == request(0, 1)
        await peer.close()


async def test_a_question_that_is_answered_is_not_kept(scene: FrontScene) -> None:
    peer = scene.peer()
    await peer.send_multipart(question(ONE, b"mmi.dlq.retry"))
    names = await scene.asked_all(question(ONE, b"mmi.dlq.retry"))
    await scene.say(1, names[1], [CLIENT_FINAL_03 + ONE, b"200"])
    assert await peer.recv_multipart() == [CLIENT_FINAL_03 + ONE, b"200"]
    for watch in scene.watches:
        await watch.lost()
    assert open_questions() == []


async def test_a_front_that_closes_does_not_wait_for_a_shard_that_has_ended(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=1000)) as scene:
        await scene.end(1)
        peer, other = scene.peer(), scene.peer()
        await peer.send_many([request(1, 5000), question(ONE)])
        await other.send_multipart(request(0, 1))
        await scene.until(held=1, links=2, questions=1)
        closing = asyncio.ensure_future(scene.front.__aexit__(None, None, None))
        await asyncio.sleep(0)  # it has begun
        await other.send_multipart(request(2, 1))
        await scene.begin(1)
        watch = Watch(scene.shards[1])
        await closing
        assert watch.seen[core.EVENT_HANDSHAKE_SUCCEEDED] == 0
        assert scene.shown("held", "links_opened") == [0, 2 + COUNT]
        assert open_questions() == []
