from __future__ import annotations

import asyncio
from typing import Any

import pytest

import bstar
import core
from bstar.machine.wire import (
    DIGITS,
    STATE_TOPIC,
    ReplyKind,
    RequestHeader,
    RequestKind,
    StateMessage,
    decode_reply_header,
    encode_request_header,
    encode_state,
)
from core.runtime import supervision
from tests.scenes.bstar_sockets import CALM_MS, PATIENT, QUICK_MS, Scene, echo, until, vote_until_it_serves
from tests.scenes.raw_octets import listening, message

ANY = "tcp://127.0.0.1:*"


# --- normal life ------------------------------------------------------------------------------------------------------------------


async def test_primary_serves_and_backup_does_not() -> None:
    """BST-04, BST-09, BST-17, BST-37."""
    async with Scene() as scene, scene.client() as client:
        assert await client.request(b"hello", b"world") == [b"hello", b"world"]
        await scene.settle()
        assert scene.serving() == [True, False]
        assert client.server == "primary"
        status = scene.pairs[0].status()
        assert (status["role"], status["state"], status["guard"]) == ("primary", "active", "fenced")


async def test_many_requests_at_once() -> None:
    async with Scene() as scene, scene.client(window=50) as client:
        bodies = [b"%d" % number for number in range(500)]
        assert await asyncio.gather(*(client.request(body) for body in bodies)) == [[body] for body in bodies]


async def test_stock_client_is_answered_by_the_active_and_ignored_by_the_passive() -> None:
    """BST-03: read and discarded without reply."""
    async with Scene() as scene:
        await scene.settle()
        active, passive = (scene.context.socket(core.REQ, linger=0) for _ in range(2))
        active.connect(scene.frontends[0])
        passive.connect(scene.frontends[1])
        await active.send(b"1")
        await passive.send(b"1")
        assert await active.recv() == b"1"
        await until(lambda: scene.pairs[1].counters["refused"] == 1)
        assert not passive.readable()


async def test_client_of_ours_learns_which_server_is_active() -> None:
    """F2: the backup refuses while it hears the primary, and names it."""
    async with Scene() as scene:
        await scene.settle()
        asker = scene.context.socket(core.DEALER, linger=0)
        asker.connect(scene.frontends[1])
        await asker.send_multipart([b"", encode_request_header(RequestHeader(RequestKind.REQUEST, 1, 2)), b"x"])
        frames = await asker.recv_multipart()
        header = decode_reply_header(frames[1])
        assert (len(frames), header.kind, header.sequence) == (2, ReplyKind.NOT_ACTIVE, 2)
        assert header.active is bstar.PRIMARY
        assert 0 < header.retry_ms <= 2 * CALM_MS


async def test_handlers_may_be_slow_fail_or_say_nothing() -> None:
    async def handler(request: bstar.Request) -> Any:
        await asyncio.sleep(0)
        if request.body == [b"fail"]:
            raise KeyError("what the user did")
        return None if request.body == [b"silent"] else b"one frame"

    async with Scene() as scene:
        await scene.stop(0)
        await scene.start(0, handler)
        async with scene.client() as client:
            assert await client.request(b"x") == [b"one frame"]
            with pytest.raises(bstar.HandlerError) as caught:
                await client.request(b"fail")
            assert caught.value.reason == "KeyError"
            with pytest.raises(bstar.NoServer) as gave_up:
                await client.request(b"silent", patience=0.01)
            assert gave_up.value.attempts == 1
            assert await client.request(b"x") == [b"one frame"]


@pytest.mark.parametrize("result", [["text"], 5, asyncio.CancelledError()])
async def test_a_handler_that_cancels_itself_or_returns_no_frames_has_failed(result: Any) -> None:
    async def handler(request: bstar.Request) -> Any:
        if request.body == [b"well"]:
            return b"well"
        if isinstance(result, BaseException):
            raise result
        return result

    async with Scene() as scene:
        await scene.stop(0)
        await scene.start(0, handler)
        async with scene.client() as client:
            with pytest.raises(bstar.HandlerError):
                await client.request(b"x")
            assert await client.request(b"well") == [b"well"]


@pytest.mark.faults
async def test_a_callback_of_a_client_that_fails_is_logged_and_requests_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    def fails(server: str) -> None:
        raise ValueError(server)

    async with Scene() as scene:
        await scene.settle()
        async with scene.client(on_switch=fails) as client:
            assert await client.request(b"1") == [b"1"]
            await scene.pairs[0].switchover()
            assert await client.request(b"2") == [b"2"]
    assert supervision.current().faults["bstar client callback"]
    assert "bstar client callback: ValueError: backup" in caplog.text


async def test_request_key_is_the_same_when_sent_again() -> None:
    """BST-24, IDM-01."""
    keys: list[bytes | None] = []

    def forgetful(request: bstar.Request) -> Any:
        keys.append(request.key)
        return request.body if len(keys) > 1 else None

    async with Scene() as scene:
        await scene.stop(0)
        await scene.start(0, forgetful)
        async with scene.client(timeout=0.05, settle=0.0) as client:
            await client.request(b"x")
        assert len(keys) >= 2
        assert keys[0] is not None
        assert set(keys) == {keys[0]}
        stock = scene.context.socket(core.REQ, linger=0)
        stock.connect(scene.frontends[0])
        await stock.send(b"y")
        await stock.recv()
        assert keys[-1] is None


async def test_callbacks_come_before_the_first_request_and_in_order() -> None:
    """BST-14."""
    log: list[str] = []
    loaded = asyncio.Event()

    async def load() -> None:
        log.append("loading")
        await loaded.wait()
        log.append("loaded")

    def handler(request: bstar.Request) -> list[bytes]:
        log.append("request")
        return request.body

    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.settle()
        backup = scene.pairs[1]
        backup.on_active(load)
        backup.on_passive(lambda: log.append("passive"))
        await scene.stop(1)
        backup = await scene.start(1, handler)
        backup.on_active(load)
        backup.on_passive(lambda: log.append("passive"))
        await until(lambda: log == ["passive"])
        await scene.stop(0)
        async with scene.client() as client:
            reply = client.request(b"x")
            await until(lambda: "loading" in log)
            assert not backup.serving
            assert not reply.done()
            loaded.set()
            assert await reply == [b"x"]
        assert log == ["passive", "loading", "loaded", "request"]


async def test_timers() -> None:
    ticks: list[int] = []
    async with Scene() as scene:
        scene.pairs[0].timer(0.005, lambda: ticks.append(1))
        await until(lambda: len(ticks) >= 3)
    seen = len(ticks)
    await asyncio.sleep(0.02)
    assert len(ticks) == seen


async def test_own_socket_asks_for_votes() -> None:
    """A broker has its own frontend: it asks the pair about each request, and before each answer."""
    async with Scene() as scene:
        await scene.settle()
        active, passive = scene.pairs
        assert await active.vote() is bstar.Verdict.ACCEPT
        assert await passive.vote() is bstar.Verdict.REJECT
        assert active.refusal().active == passive.refusal().active == "primary"


# --- the state channel ------------------------------------------------------------------------------------------------------------


async def test_garbage_on_the_state_channel_is_counted_and_is_no_sign_of_life() -> None:
    """BST-07."""
    async with core.Context() as context:
        peer = context.socket(core.XPUB)
        peer.bind("inproc://peer")
        async with bstar.Pair(bstar.BACKUP, local="inproc://us", remote="inproc://peer", heartbeat_ms=20, context=context) as pair:
            await peer.recv()
            for frames in ([b"1", b"more"], [STATE_TOPIC], [b"12"], [STATE_TOPIC + bytes(63)], [b"3 "]):
                await peer.send_multipart(frames)
            await until(lambda: pair.counters["state_malformed"] == 5)
            assert pair.status()["peer"]["state"] == "silent"
            assert pair.state is bstar.State.BACKUP


async def test_backlog_is_drained_to_the_newest() -> None:
    """BST-18: a thousand old words and one new one are one event."""
    async with core.Context() as context:
        peer = context.socket(core.XPUB)
        peer.bind("inproc://peer")
        changes: list[str] = []
        async with bstar.Pair(bstar.PRIMARY, local="inproc://us", remote="inproc://peer", heartbeat_ms=1000, context=context) as pair:
            pair.on_active(lambda: changes.append("active"))
            pair.on_passive(lambda: changes.append("passive"))
            for _ in range(5):
                await peer.recv()  # topics
            for _ in range(500):
                await peer.send(b"2")
            await peer.send(b"3")
            await until(lambda: bool(changes))
            assert changes == ["passive"]
            assert pair.counters["state_drained"] >= 500


async def test_state_is_published_while_handlers_are_busy() -> None:
    """BST-05: asynchronous handlers delay nothing."""

    async def never(request: bstar.Request) -> None:
        await asyncio.Event().wait()

    async with Scene(heartbeat_ms=4 * QUICK_MS) as scene:  # a pause of a busy machine would have the backup answer
        await scene.stop(0)
        primary = await scene.start(0, never)
        await scene.settle()
        async with scene.client(timeout=PATIENT) as client:
            replies = [client.request(b"x") for _ in range(200)]
            await until(lambda: primary.status()["running"] == 200)
            said = primary._sequence
            await until(lambda: primary._sequence > said + 2)
            await until(lambda: scene.pairs[1].status()["peer"]["state"] == "active")
            for reply in replies:
                reply.cancel()


async def test_two_different_heartbeats_are_reported() -> None:
    """BST-15: the figure travels with the state; a difference is counted once and shown."""
    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.stop(1)
        await scene.start(1, heartbeat_ms=QUICK_MS + 5)
        await until(lambda: scene.pairs[0].status()["peer"]["heartbeat_ms"] == QUICK_MS + 5)
        assert scene.pairs[0].counters["heartbeat_mismatch"] == 1


async def test_watchers_and_peers_get_what_they_understand() -> None:
    """BST-38: told apart by subscription."""
    async with core.Context() as context:
        peer = context.socket(core.XPUB)
        peer.bind("inproc://peer")
        async with bstar.Pair(bstar.PRIMARY, local="inproc://us", remote="inproc://peer", heartbeat_ms=20, context=context) as pair:
            assert [await peer.recv() for _ in range(5)] == [b"\x01" + topic for topic in (STATE_TOPIC, *DIGITS)]
            stock, ours = context.socket(core.SUB), context.socket(core.SUB)
            stock.setsockopt(core.SUBSCRIBE, b"")
            stock.connect("inproc://us")
            assert await stock.recv() == b"1"
            ours.setsockopt(core.SUBSCRIBE, STATE_TOPIC)
            ours.connect("inproc://us")
            assert len(await ours.recv()) == 70
            await peer.send(b"3")  # the peer is a stock member: nobody is sent anything it might choke on
            await until(lambda: pair.state is bstar.State.PASSIVE)
            assert pair.guard == "none"
            heard = b""
            while heard != b"4":
                heard = await stock.recv()
            assert {await stock.recv() for _ in range(6)} <= {b"1", b"4"}  # also after the peer has fallen silent


# --- control ----------------------------------------------------------------------------------------------------------------------


async def test_socket_options_may_name_what_a_pair_sets_itself() -> None:
    nobody = "tcp://127.0.0.1:9"
    async with bstar.Pair(bstar.PRIMARY, local=ANY, remote=nobody, witness=nobody, socket_options={"linger": 5, "immediate": 0}) as pair:
        assert pair.endpoint


async def test_control_socket() -> None:
    from bstar import operator

    async with Scene(control=ANY) as scene:
        await scene.settle()
        first, second = (pair.control_endpoint for pair in scene.pairs)
        status = await operator.order(first, RequestKind.STATUS, PATIENT)
        assert (status["state"], status["serving"]) == ("active", True)
        with pytest.raises(bstar.NotActive):
            await operator.order(second, RequestKind.SWITCHOVER, PATIENT)
        after = await operator.order(first, RequestKind.SWITCHOVER, PATIENT)
        assert after["state"] == "passive"
        await until(lambda: scene.serving() == [False, True])
        seen = await operator.look(scene.pairs[1].endpoint, PATIENT)
        assert operator.words(seen)["state"] == "active"


async def test_nonsense_on_control_and_voting_sockets_is_counted() -> None:
    async with Scene(control=ANY) as scene:
        await scene.settle()
        pair = scene.pairs[0]
        control, voter = (scene.context.socket(core.DEALER, linger=0) for _ in range(2))
        control.connect(pair.control_endpoint)
        voter.connect(scene.frontends[0])
        order = encode_request_header(RequestHeader(RequestKind.SWITCHOVER, 1, 1))
        request = encode_request_header(RequestHeader(RequestKind.REQUEST, 1, 1))
        for frames in ([b"x"], [b"", b"BSTARC\x01"], [b"", request], [b"x", order]):
            await control.send_multipart(frames)
        for frames in ([b"", order, b"x"], [b"", b"BSTARC\x01", b"x"]):
            await voter.send_multipart(frames)
        await until(lambda: pair.counters["control_malformed"] == 4)
        await until(lambda: pair.counters["request_malformed"] == 2)
        assert scene.serving() == [True, False]
        assert not control.readable()
        assert not voter.readable()


# --- limits and arguments ---------------------------------------------------------------------------------------------------------


async def test_limits_refuse_at_once() -> None:
    """Everything bounded: what does not fit is refused and counted, not queued without end."""

    async def never(request: bstar.Request) -> None:
        await asyncio.Event().wait()

    async with Scene(running_max=3) as scene:
        await scene.stop(0)
        primary = await scene.start(0, never)
        await scene.settle()
        async with scene.client(timeout=PATIENT) as client:
            replies = [client.request(b"x") for _ in range(5)]
            await until(lambda: primary.counters["running_overflow"] >= 2)
            assert primary.status()["running"] == 3
            for reply in replies:
                reply.cancel()


async def test_requests_that_wait_for_a_claim_are_bounded() -> None:
    async with Scene(heartbeat_ms=QUICK_MS, witness=True, held_max=4) as scene:
        await scene.settle()
        scene.isolate()
        for line in scene.witness_lines:
            line.cut()
        await until(lambda: scene.serving() == [False, False])
        primary = scene.pairs[0]
        asker = scene.context.socket(core.DEALER, linger=0)
        asker.connect(scene.frontends[0])
        for number in range(50):
            await asker.send_multipart([b"", b"%d" % number])
        await until(lambda: primary.counters["held_overflow"] > 0)
        assert primary.status()["held"] <= 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": bstar.State.ACTIVE},
        {"heartbeat_ms": 9},
        {"heartbeat_ms": 30_001},
        {"compatible": True, "witness": "tcp://127.0.0.1:1"},
        {"compatible": True, "store": "x"},
    ],
    ids=str,
)
def test_arguments_are_judged_at_once(wrong: dict[str, Any]) -> None:
    """BST-15: fail-over never takes longer than 60 seconds."""
    arguments: dict[str, Any] = {"role": bstar.PRIMARY, "local": ANY, "remote": "tcp://127.0.0.1:1", **wrong}
    with pytest.raises(ValueError):
        bstar.Pair(arguments.pop("role"), **arguments)


async def test_exactly_one_voter() -> None:
    """BST-04."""
    async with Scene() as scene:
        with pytest.raises(ValueError, match="exactly one"):
            scene.pairs[0].voter(ANY, handler=echo)


async def test_taken_endpoint_leaves_nothing_behind() -> None:
    async with Scene() as scene:
        taken = scene.pairs[0].endpoint
        with pytest.raises(core.ZMQError):
            await scene.start(1, local=taken)
        pair = bstar.Pair(bstar.PRIMARY, local=ANY, remote=taken, context=scene.context)
        with pytest.raises(RuntimeError, match="within its block"):
            pair.state  # noqa: B018
        async with pair:
            with pytest.raises(core.ZMQError):
                pair.voter(taken, handler=echo)
            assert pair.voter(ANY, handler=echo)


# --- a peer that is far away ------------------------------------------------------------------------------------------------------


async def test_bst_02_a_peer_is_not_silent_before_there_is_a_connection_to_it() -> None:
    """A server that starts again beside one that serves, behind a handshake of several round trips, would serve too."""
    heartbeat_s = 0.5
    peer_of = StateMessage(bstar.State.ACTIVE, bstar.BACKUP, node=9, incarnation=1, sequence=1, ballot=bstar.Ballot(3, 9), heartbeat_ms=500)
    async with listening() as there:
        async with bstar.Pair(bstar.PRIMARY, local="tcp://127.0.0.1:*", remote=there.endpoint, heartbeat_ms=500) as pair:
            peer = await there.accept()
            for _ in range(12):
                assert await pair.vote() is bstar.Verdict.REJECT
                await asyncio.sleep(heartbeat_s / 4)
            await peer.shake(b"XPUB")
            assert await pair.vote() is bstar.Verdict.REJECT, "its first message is on its way"
            await peer.send(message(encode_state(peer_of)))
            await until(lambda: pair.state is bstar.State.PASSIVE)
            assert pair.counters["became_active"] == 0
        await peer.abort()


async def test_bst_02_a_peer_that_hangs_does_not_keep_a_server_for_ever() -> None:
    async with listening() as there:
        async with bstar.Pair(bstar.PRIMARY, local="tcp://127.0.0.1:*", remote=there.endpoint, heartbeat_ms=50) as pair:
            peer = await there.accept()
            await vote_until_it_serves(pair)
        await peer.abort()
