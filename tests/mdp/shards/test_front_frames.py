"""Messages that the front forwards and answers, with sockets of the test in the place of the shards.

Rules of specs/mdp.md: SHD-07 to SHD-09, SHD-11.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import core
from core.zmtp.frames import encode_message
from mdp.broker.limits import BrokerOptions
from mdp.shards.front import REMEMBERED_MAX, Front
from mdp.shards.identity import USER_BYTES_MAX
from mdp.wire.commands import (
    CLIENT_CANCEL_03,
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_PARTIAL_03,
    CLIENT_PROGRESS_03,
    client_final,
    client_heartbeat,
    client_request,
    worker_disconnect,
    worker_final,
    worker_heartbeat,
    worker_ready,
)
from mdp.wire.shards import shard_of
from tests.scenes.mdp_front import COUNT, ONE, TWO, FrontScene, name_of
from tests.scenes.raw_octets import WirePeer
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from mdp.wire.commands import Dialect

MIB = 2**20
BODY = b"x" * 2**15
MANY = 100  # bodies: three times what the front keeps for a peer


def retry(id: bytes) -> list[bytes]:
    return client_request("0.3", b"mmi.dlq.retry", [b"7"], id=id)


def cancel(id: bytes) -> list[bytes]:
    return [CLIENT_CANCEL_03 + id]


async def test_a_cancel_follows_its_request_in_the_same_read(scene: FrontScene) -> None:
    request = client_request("0.3", name_of(1), [b"x"], id=ONE)
    await scene.peer().send_many([request, cancel(ONE), client_heartbeat()])
    name, first = await scene.asked(1)
    assert first == request
    assert await scene.asked(1) == (name, cancel(ONE))
    assert await scene.asked(1) == (name, client_heartbeat())


async def test_each_message_of_a_read_is_forwarded_in_order(scene: FrontScene) -> None:
    peer = scene.peer()
    requests = [client_request("0.3", name_of(number % 2), [b"%d" % number], id=number.to_bytes(8, "big")) for number in range(10)]
    await peer.send_many([client_heartbeat(), *requests])
    assert (await scene.asked(0))[1] == client_heartbeat()
    for shard in (0, 1):
        assert [(await scene.asked(shard))[1] for _ in requests[shard::2]] == requests[shard::2]


async def test_a_retry_is_answered_with_all_that_its_shard_says(scene: FrontScene) -> None:
    peer = scene.peer()
    await peer.send_multipart(retry(ONE))
    names = await scene.asked_all(retry(ONE))
    await scene.say(0, names[0], [CLIENT_FINAL_03 + ONE, b"404"])
    for message in ([CLIENT_PROGRESS_03 + ONE, b"\x80"], [CLIENT_PARTIAL_03 + ONE, b"1"], [CLIENT_FINAL_03 + ONE, b"2"]):
        await scene.say(1, names[1], message)
        assert await peer.recv_multipart() == message
    for watch in scene.watches:
        await watch.lost()


async def test_the_cancel_of_a_retry_reaches_the_shard_that_has_it(scene: FrontScene) -> None:
    peer, ended = scene.peer(), [CLIENT_ERROR_03 + ONE, b"CANCELLED", b""]
    await peer.send_multipart(retry(TWO))
    await scene.asked_all(retry(TWO))
    await peer.send_many([retry(ONE), cancel(ONE)])
    names = await scene.asked_all(retry(ONE))
    assert await scene.asked_all(cancel(ONE)) == names
    await scene.say(1, names[1], ended)
    assert await peer.recv_multipart() == ended


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
async def test_a_worker_whose_shard_ends_registers_again(scene: FrontScene, dialect: Dialect) -> None:
    peer = scene.peer()
    sent = [worker_ready(dialect, name_of(1)), worker_heartbeat(dialect), worker_final(dialect, ONE, [b"y"])]
    await peer.send_many(sent)
    assert [(await scene.asked(1))[1] for _ in sent] == sent
    await scene.end(1)
    assert await peer.recv_multipart() == worker_disconnect(dialect)
    await peer.send_multipart(worker_ready(dialect, name_of(2)))
    await peer.send_multipart(worker_heartbeat(dialect))
    assert [(await scene.asked(2))[1] for _ in range(2)] == [worker_ready(dialect, name_of(2)), worker_heartbeat(dialect)]
    await scene.end(2)
    assert await peer.recv_multipart() == worker_disconnect(dialect)
    assert scene.front.counters["links_lost"] == 2


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
async def test_what_a_worker_sent_before_its_disconnect_came_is_dropped(scene: FrontScene, dialect: Dialect) -> None:
    """A shard that does not know the worker would answer with another DISCONNECT, which ends its next registration."""
    peer = scene.peer()
    await peer.send_multipart(worker_ready(dialect, name_of(1)))
    await scene.asked(1)
    await scene.end(1)
    await eventually(lambda: scene.front.counters["links_lost"])
    await peer.send_many([worker_heartbeat(dialect), worker_final(dialect, ONE, [b"y"]), worker_ready(dialect, name_of(2))])
    assert (await scene.asked(2))[1] == worker_ready(dialect, name_of(2))
    assert scene.shown("links", "links_opened", "dropped_late") == [1, 2, 2]


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
async def test_a_worker_that_the_front_does_not_know_is_refused_by_the_first_shard(scene: FrontScene, dialect: Dialect) -> None:
    sent = [worker_heartbeat(dialect), worker_final(dialect, ONE, [b"y"])]
    peer = scene.peer()
    await peer.send_many(sent)
    found = [await scene.asked(0) for _ in sent]
    assert [message for _, message in found] == sent
    await scene.say(0, found[0][0], worker_disconnect(dialect))
    assert await peer.recv_multipart() == worker_disconnect(dialect)


async def test_a_client_of_03_is_disconnected_when_the_shard_of_a_request_ends(scene: FrontScene) -> None:
    request, other = (client_request("0.3", name_of(shard), [b"x"], id=ONE) for shard in (1, 2))
    learnt, known = scene.peer(), scene.peer()
    watches = [Watch(learnt), Watch(known)]
    await learnt.send_many([request, other])
    assert [(await scene.asked(shard))[1] for shard in (1, 2)] == [request, other]
    await known.send_multipart(request)  # the route of its service is known by then
    assert (await scene.asked(1))[1] == request
    await scene.end(1)
    for watch in watches:
        await watch.lost()


async def test_a_client_of_02_keeps_its_connection_when_a_shard_ends(scene: FrontScene) -> None:
    peer = scene.peer()
    watch = Watch(peer)
    requests = [client_request("0.2", name_of(shard), [b"x"]) for shard in (1, 2)]
    await peer.send_many(requests)
    (_, first), (name, second) = await scene.asked(1), await scene.asked(2)
    assert [first, second] == requests
    await scene.end(1)
    await eventually(lambda: scene.front.counters["links_lost"])
    answer = client_final("0.2", name_of(2), b"", [b"z"])
    await scene.say(2, name, answer)
    assert await peer.recv_multipart() == answer
    assert watch.seen[core.EVENT_DISCONNECTED] == 0


async def test_the_connections_of_a_peer_end_with_it(scene: FrontScene) -> None:
    peer = scene.peer()
    await peer.send_multipart(client_request("0.2", name_of(1), [b"x"]))
    await scene.asked(1)
    await peer.send_multipart(retry(ONE))
    await scene.asked_all(retry(ONE))
    peer.close(0)
    assert scene.shown("peers", "links", "to_shards") == [1, 1, 1]
    for watch, count in zip(scene.watches, (1, 2, 1), strict=True):
        await watch.lost(count)
    assert scene.shown("peers", "links") == [0, 0]


async def test_a_list_without_the_shard_that_ends_is_answered_at_once(scene: FrontScene) -> None:
    peer, question = scene.peer(), client_request("0.2", b"mmi.services", [b""])
    await peer.send_multipart(question)
    names = await scene.asked_all(question)
    await scene.end(1)
    for shard in (2, 0):
        await scene.say(shard, names[shard], client_final("0.2", b"mmi.services", b"", [b"200", b"[%d]" % shard]))
    assert await peer.recv_multipart() == client_final("0.2", b"mmi.services", b"", [b"200", b"[0,2,null]", b"[1]"])
    for shard in (0, 2):
        await scene.watches[shard].lost()


async def test_the_oldest_question_of_a_peer_is_closed_beyond_the_limit(scene: FrontScene) -> None:
    peer = scene.peer()
    questions = [client_request("0.3", b"mmi.dlq.retry", [b"7"], id=number.to_bytes(8, "big")) for number in range(65)]
    names = []
    for question in questions[:2]:
        await peer.send_multipart(question)
        names.append(await scene.asked_all(question))
    await peer.send_many(questions[2:])  # at once: a question is closed after a second too
    for watch in scene.watches:
        await watch.lost()
    assert scene.shown("questions", "questions_dropped") == [65, 1]
    answer = [CLIENT_FINAL_03 + (1).to_bytes(8, "big"), b"done"]
    await scene.say(0, names[1][0], answer)
    assert await peer.recv_multipart() == answer


async def test_peers_get_the_limits_of_the_front(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", maxmsgsize=1000) as scene:
        peer = scene.peer()
        await Watch(peer).peers()
        with pytest.raises(core.MessageTooLarge):
            await peer.send_multipart(client_request("0.2", name_of(1), [b"x" * 1001]))


async def test_a_peer_is_not_read_from_while_its_shard_does_not_read(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=MIB)) as scene:
        await scene.end(1)
        peer = scene.peer(sndhwm=0)
        requests = [client_request("0.2", name_of(1), [b"%d" % number, BODY]) for number in range(MANY)]
        await peer.send_many(requests)
        await scene.until(held=1, holds=1)
        assert MIB // 2 <= scene.shown("to_shards")[0] * len(BODY) < MIB
        await scene.begin(1)
        assert [(await scene.asked(1))[1] for _ in requests] == requests
        await scene.until(held=0, cut=0, dropped_full=0)


async def test_a_shard_is_not_read_from_while_its_peer_does_not_read(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=MIB)) as scene:
        peer = scene.peer(rcvhwm=1)
        await peer.send_multipart(client_request("0.2", name_of(1), [b"x"]))
        name, _ = await scene.asked(1)
        answers = [client_final("0.2", name_of(1), b"", [b"%d" % number, BODY]) for number in range(MANY)]
        for answer in answers:
            await scene.say(1, name, answer)
        await eventually(lambda: scene.shown("held")[0])
        assert scene.shown("to_peers")[0] * len(BODY) < 2 * MIB
        assert [await peer.recv_multipart() for _ in answers] == answers
        await scene.until(held=0, cut=0, to_peers=MANY)


async def test_half_of_what_may_wait_for_a_peer_is_the_mark(tmp_path: Path) -> None:
    size = MIB // 16
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=24 * size), sndbuf=4096) as scene:
        peer = await WirePeer.connect(scene.endpoint)
        await peer.shake(b"DEALER")
        peer.pause()
        await peer.send(encode_message(client_request("0.2", name_of(1), [b"x"])))
        name, _ = await scene.asked(1)
        count = 0
        while scene.shown("held") == [0]:
            await scene.say(1, name, client_final("0.2", name_of(1), b"", [b"x" * size]))
            count += 1
            await scene.until(to_peers=count)
        assert 12 <= count <= 14  # the system has taken some
        other, answer = scene.peer(), client_final("0.2", name_of(1), b"", [b"x"])
        await scene.say(1, name, answer)  # is not read
        await other.send_multipart(client_request("0.2", name_of(1), [b"y"]))
        await scene.say(1, (await scene.asked(1))[0], answer)
        assert await other.recv_multipart() == answer
        assert scene.shown("to_peers") == [count + 1]
        await peer.abort()


async def test_connections_count_in_the_sum_of_the_marks(tmp_path: Path) -> None:
    size = MIB // 16
    limits = BrokerOptions(unread_max_bytes=32 * size, unread_total_max_bytes=24 * size)
    async with FrontScene(f"ipc://{tmp_path}/b", limits) as scene:
        await scene.end(1)
        peer, request = scene.peer(), client_request("0.2", name_of(1), [b"x" * size])
        await peer.send_multipart(client_request("0.2", name_of(2), [b"x"]))
        await scene.asked(2)
        count = 0
        while scene.shown("held") == [0]:
            await peer.send_multipart(request)
            count += 1
            await scene.until(to_shards=1 + count)
        assert count == 24 // 3  # of the peer and two connections


async def test_a_peer_is_disconnected_when_its_shard_takes_nothing_more(tmp_path: Path) -> None:
    async with FrontScene(f"ipc://{tmp_path}/b", BrokerOptions(unread_max_bytes=1000)) as scene:
        await scene.end(1)
        peer = scene.peer()
        watch, request = Watch(peer), client_request("0.2", name_of(1), [b"x" * 1500])
        for count in (1, 2):
            await peer.send_multipart(request)
            await eventually(lambda count=count: sum(scene.shown("to_shards", "dropped_full")) == count)  # type: ignore[misc]
        await watch.lost()
        assert scene.shown("to_shards", "dropped_full", "cut") == [1, 1, 1]


async def test_no_more_services_are_remembered_than_the_limit(scene: FrontScene) -> None:
    """Names come from peers; one whose frame is too long is none."""
    long = [next(name for name in (b"%d" % n + b"x" * 256 for n in range(1000)) if shard_of(name, COUNT) == shard) for shard in (1, 2)]
    peer, remembered = scene.peer(sndhwm=0), scene.front._known
    for shard, name in zip((1, 2), long, strict=True):
        await peer.send_multipart(client_request("0.2", name, [b"x"]))
        assert (await scene.asked(shard))[1] == client_request("0.2", name, [b"x"])
    assert remembered == {}
    await peer.send_many([client_request("0.2", b"%d" % number, [b"x"]) for number in (*range(REMEMBERED_MAX), 0)])
    await scene.until(to_shards=REMEMBERED_MAX + 3)
    assert len(remembered) == REMEMBERED_MAX
    await peer.send_multipart(client_request("0.2", name_of(1), [b"x"]))
    await scene.until(to_shards=REMEMBERED_MAX + 4)
    assert [route.service for route in remembered.values()] == [name_of(1)]


async def test_a_heartbeat_of_a_client_without_requests_is_answered_by_the_first_shard(scene: FrontScene) -> None:
    peer = scene.peer()
    await peer.send_multipart(client_heartbeat())
    name, first = await scene.asked(0)
    assert first == client_heartbeat()
    await scene.say(0, name, client_heartbeat())
    assert await peer.recv_multipart() == client_heartbeat()


async def test_other_frames_of_mdp_02_are_translated_in_both_directions(scene: FrontScene) -> None:
    peer, service = scene.peer(), name_of(1)
    for _ in range(2):  # the second time, the route of the service is known
        await peer.send_multipart([b"", b"MDPC02", b"\x02", service, b"x"])
        name, message = await scene.asked(1)
        assert message == client_request("0.2", service, [b"x"])
        await scene.say(1, name, client_final("0.2", service, b"", [b"y"]))
        assert await peer.recv_multipart() == [b"", b"MDPC02", b"\x04", b"y"]


async def test_the_user_of_a_peer_is_in_the_name_of_its_connection(tmp_path: Path) -> None:
    names = [b"u" * USER_BYTES_MAX, b"u" * (USER_BYTES_MAX + 1)]
    security = core.Plain(users={name.decode(): "secret" for name in names})
    async with FrontScene(f"ipc://{tmp_path}/b", security=security) as scene:
        fitting, too_long = (scene.peer(plain_username=name, plain_password=b"secret") for name in names)
        watch, request = Watch(too_long), client_request("0.2", name_of(1), [b"x"])
        await fitting.send_multipart(request)
        name, message = await scene.asked(1)
        assert (name[9:], message) == (names[0], request)
        await too_long.send_many([client_request("0.2", b"mmi.services", [b""]), request])
        await watch.lost()
        assert scene.shown("to_shards", "cut", "questions") == [1, 1, 0]


async def test_a_front_that_drains_serves_the_peers_it_has(scene: FrontScene) -> None:
    peer, request = scene.peer(), client_request("0.2", name_of(1), [b"x"])
    await Watch(peer).peers()
    scene.front.refuse_connections()
    late = scene.peer()
    await Watch(late).until(core.EVENT_CONNECT_RETRIED)
    await peer.send_multipart(request)
    assert (await scene.asked(1))[1] == request


async def test_the_last_port_leaves_place_for_the_shards() -> None:
    async with Front(COUNT) as front:
        with suppress(core.AddressInUse):
            front.bind(f"tcp://127.0.0.1:{65_535 - COUNT}")
        with pytest.raises(core.InvalidEndpoint):
            front.bind(f"tcp://127.0.0.1:{65_536 - COUNT}")
