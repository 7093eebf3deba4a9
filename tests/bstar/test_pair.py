from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
from bstar.ballot import Owner
from bstar.store import BallotStore
from bstar.wire import (
    DIGITS,
    STATE_TOPIC,
    ReplyKind,
    RequestHeader,
    RequestKind,
    decode_reply_header,
    encode_request_header,
)
from tests.bstar.scene import CALM_MS, QUICK_MS, Scene, echo, until

if TYPE_CHECKING:
    from pathlib import Path

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


async def test_client_of_ours_is_told_who_serves() -> None:
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


# --- fail-over --------------------------------------------------------------------------------------------------------------------


async def test_backup_takes_over_with_a_vote_and_the_primary_does_not_come_back() -> None:
    """BST-10, BST-11, BST-12: kill, vote, restart, and recovery by hand."""
    async with Scene(heartbeat_ms=QUICK_MS) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        await scene.stop(0)
        await until(lambda: scene.pairs[1].status()["peer"]["state"] == "silent")
        assert scene.pairs[1].state is bstar.State.PASSIVE  # no client, no fail-over
        assert await client.request(b"2") == [b"2"]
        assert client.server == "backup"
        await scene.start(0)
        await until(lambda: scene.pairs[0].state is bstar.State.PASSIVE)
        assert await client.request(b"3") == [b"3"]
        assert client.server == "backup"
        await scene.stop(1)
        assert await client.request(b"4") == [b"4"]
        assert client.server == "primary"
        await scene.start(1)
        await scene.settle()


async def test_requests_in_flight_are_sent_again() -> None:
    """BST-24."""
    asked = asyncio.Event()

    async def never(request: bstar.Request) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.stop(0)
        await scene.start(0, never)
        await scene.settle()
        async with scene.client(timeout=10.0) as client:
            replies = [client.request(b"%d" % number) for number in range(20)]
            await asked.wait()
            await scene.stop(0)
            assert await asyncio.gather(*replies) == [[b"%d" % number] for number in range(20)]


async def test_black_hole_is_noticed_like_a_crash() -> None:
    """N2: connections stay, nothing comes through any more."""
    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.settle()
        scene.lines[1].hole()
        await until(lambda: scene.pairs[1].status()["peer"]["state"] == "silent")
        scene.lines[1].heal()
        await scene.settle()


async def test_active_that_stood_still_steps_down_before_it_answers() -> None:
    """P2, BST-34: its clock jumped by more than its peer needs to take over."""
    async with Scene() as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        scene.clocks[0].ahead_s += 10.0
        assert scene.serving() == [False, False]
        assert await client.request(b"2") == [b"2"]
        await until(lambda: [pair.state.name for pair in scene.pairs] == ["PASSIVE", "ACTIVE"])


async def test_answer_is_withheld_when_the_right_to_answer_is_gone() -> None:
    """BST-29: looked up when the reply is about to leave."""
    begun, finish = asyncio.Event(), asyncio.Event()

    async def slow(request: bstar.Request) -> list[bytes]:
        begun.set()
        await finish.wait()
        return [b"from the primary"]

    async with Scene() as scene:
        await scene.stop(0)
        primary = await scene.start(0, slow)
        await scene.settle()
        async with scene.client(timeout=PATIENT) as client:
            reply = client.request(b"x")
            await begun.wait()
            scene.clocks[0].ahead_s += 10.0
            finish.set()
            assert await reply == [b"x"]  # refused there, sent again, answered by the backup
            assert primary.counters["reply_withheld"] == 1
            assert client.server == "backup"


PATIENT = 10.0


async def test_two_masters_without_a_witness_are_one_again_and_clients_believe_the_higher() -> None:
    """F1, G7, BST-30, BST-33: the fenced pair."""
    async with Scene(heartbeat_ms=QUICK_MS) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        scene.isolate()
        lost = scene.context.socket(core.REQ, linger=0)
        lost.connect(scene.frontends[1])
        await until(lambda: scene.pairs[1].status()["peer"]["state"] == "silent")
        await lost.send(b"vote")
        assert await lost.recv() == b"vote"
        assert scene.serving() == [True, True]
        low, high = (pair.ballot() for pair in scene.pairs)
        assert low < high
        scene.heal()
        await until(lambda: scene.serving() == [False, True])
        assert await client.request(b"2") == [b"2"]
        assert client.ballot == high


async def test_client_that_has_seen_the_higher_ballot_refuses_the_lower() -> None:
    """BST-33: and by telling it deposes a master nobody else can reach."""
    async with Scene(heartbeat_ms=QUICK_MS) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        scene.isolate()
        await until(lambda: scene.pairs[1].status()["peer"]["state"] == "silent")
        async with bstar.Client(scene.frontends[1], scene.frontends[0], context=scene.context, timeout=1.0) as other:
            await other.request(b"vote")
            high = other.ballot
        assert scene.serving() == [True, True]
        client._running().highest.accept(high)
        assert await client.request(b"2") == [b"2"]
        assert client.ballot >= high
        assert scene.pairs[0].ballot() == client.ballot or client.server == "backup"


async def test_switchover_under_load_loses_nothing() -> None:
    """BST-36, F4: every request is answered, none twice by the servers."""
    keys: list[bytes] = []

    async def handler(request: bstar.Request) -> list[bytes]:
        await asyncio.sleep(0.001)
        assert request.key is not None
        keys.append(request.key)
        return request.body

    async with Scene() as scene:
        for i in (0, 1):
            await scene.stop(i)
            await scene.start(i, handler)
        await scene.settle()
        async with scene.client(window=20, timeout=PATIENT) as client:
            replies = [client.request(b"%d" % number) for number in range(1000)]
            for active, other in ((0, 1), (1, 0), (0, 1)):
                await until(lambda: scene.serving()[active])  # noqa: B023
                await until(lambda: scene.pairs[active].status()["peer"]["state"] == "passive")  # noqa: B023
                await scene.pairs[active].switchover()
                await until(lambda: scene.serving()[other])  # noqa: B023
            assert await asyncio.gather(*replies) == [[b"%d" % number] for number in range(1000)]
        assert len(keys) == len(set(keys)) == 1000


async def test_switchover_is_refused_where_it_would_leave_nobody() -> None:
    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.settle()
        with pytest.raises(bstar.NotActive) as caught:
            await scene.pairs[1].switchover()
        assert caught.value.active == "primary"
        await scene.stop(1)
        await until(lambda: scene.pairs[0].status()["peer"]["state"] == "silent")
        with pytest.raises(bstar.NotActive, match="cannot take over"):
            await scene.pairs[0].switchover()
        assert scene.pairs[0].serving


async def test_drain_finishes_what_runs_and_hands_over() -> None:
    """BST-16: an orderly stop of the active needs no vote and no silence."""
    begun, finish = asyncio.Event(), asyncio.Event()

    async def slow(request: bstar.Request) -> list[bytes]:
        begun.set()
        await finish.wait()
        return request.body

    async with Scene() as scene:
        await scene.stop(0)
        primary = await scene.start(0, slow)
        await scene.settle()
        async with scene.client(timeout=PATIENT) as client:
            reply = client.request(b"x")
            await begun.wait()
            draining = asyncio.ensure_future(primary.drain(PATIENT))
            await asyncio.sleep(0)
            finish.set()
            assert await draining
            assert await reply == [b"x"]
            await until(lambda: scene.serving() == [False, True])


# --- with a witness ---------------------------------------------------------------------------------------------------------------


async def test_isolation_leaves_one_master_when_there_is_a_witness() -> None:
    """BEY-12, G7: the backup is asked by clients, hears nobody, and still may not serve."""
    async with Scene(heartbeat_ms=QUICK_MS, witness=True) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        scene.isolate()
        asker = scene.context.socket(core.REQ, linger=0)
        asker.connect(scene.frontends[1])
        await until(lambda: scene.pairs[1].status()["peer"]["state"] == "silent")
        await asker.send(b"vote")
        assert scene.witness is not None
        witness = scene.witness
        await until(lambda: witness.counters["refused"] > 3)
        assert scene.serving() == [True, False]
        assert scene.pairs[0].status()["guard"] == "witness"
        scene.heal()
        await scene.settle()


async def test_active_that_loses_the_witness_stops_and_the_other_takes_over() -> None:
    """BST-29: its lease runs out; the other one, asked by clients, gets it."""
    async with Scene(heartbeat_ms=QUICK_MS, witness=True) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        scene.witness_lines[0].cut()
        await until(lambda: scene.serving() == [False, False])
        assert await client.request(b"2") == [b"2"]
        assert client.server == "backup"
        assert scene.serving() == [False, True]


async def test_without_the_witness_nobody_serves_and_with_it_somebody_does_again() -> None:
    async with Scene(heartbeat_ms=QUICK_MS, witness=True) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        for line in scene.witness_lines:
            line.cut()
        await until(lambda: scene.serving() == [False, False])
        reply = client.request(b"2")
        await until(lambda: scene.pairs[0].counters["witness_unreachable"] + scene.pairs[1].counters["witness_unreachable"] > 0)
        assert not reply.done()
        scene.heal()
        assert await reply == [b"2"]
        assert sum(scene.serving()) == 1


async def test_restarted_active_gives_its_lease_back(tmp_path: Path) -> None:
    """BST-25 with a witness: the lease of the life before is not waited for."""
    async with Scene(heartbeat_ms=QUICK_MS, witness=True) as scene:
        await scene.stop(0)
        primary = await scene.start(0, store=tmp_path / "primary.ballot")
        await until(lambda: primary.serving)
        await until(lambda: scene.pairs[1].state is bstar.State.PASSIVE)
        assert scene.witness is not None
        witness, held = scene.witness, primary.ballot()
        scene.witness_lines[0].cut()  # a crash says nothing to the witness
        await scene.stop(0)
        witness.book = witness.book._replace(until=witness.book.until + 3600)
        scene.witness_lines[0].heal()
        await scene.start(0, store=tmp_path / "primary.ballot")
        await until(lambda: witness.book.holder != held or witness.counters["released"] > 0)
        await until(lambda: sum(scene.serving()) == 1)


# --- the ballot file --------------------------------------------------------------------------------------------------------------


async def test_ballot_is_on_disk_before_the_first_answer(tmp_path: Path) -> None:
    """BST-27."""
    path = tmp_path / "deep" / "primary.ballot"
    async with Scene() as scene, scene.client() as client:
        await scene.stop(0)
        primary = await scene.start(0, store=path)
        await client.request(b"x")
        assert client.server == "primary"
        with pytest.raises(bstar.StoreLocked) as locked:
            await scene.start(1, store=path)
        assert locked.value.pid > 0
        ballot = primary.ballot()
        await scene.stop(0)
        with BallotStore(path, Owner.SERVER) as store:
            record = store.load()
        assert record is not None
        assert (record.node, record.counter, record.incarnation) == (ballot.node, ballot.counter, 1)
        again = await scene.start(0, store=path)
        assert again.machine.settings.node == ballot.node
        assert again.machine.settings.incarnation == 2
        assert again.machine.member.counter >= ballot.counter


async def test_server_does_not_start_on_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ballot"
    path.write_bytes(bytes(38))
    pair = bstar.Pair(bstar.PRIMARY, local=ANY, remote="tcp://127.0.0.1:1", store=path)
    with pytest.raises(bstar.StoreDamaged) as caught:
        await pair.__aenter__()
    assert caught.value.path == str(path)
    assert path.read_bytes() == bytes(38)
    path.unlink()
    with BallotStore(path, Owner.SERVER) as free:
        assert free.load() is None


async def test_ballot_that_cannot_be_written_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with bstar.Pair(bstar.PRIMARY, local=ANY, remote="tcp://127.0.0.1:1", heartbeat_ms=10, store=folder / "a.ballot") as pair:
        (folder / "a.ballot.tmp").mkdir()
        await until(lambda: pair._clock() >= pair.machine.member.peer_until)
        assert await pair.vote() is bstar.Verdict.HOLD
        with pytest.raises(IsADirectoryError):
            await pair.serve_forever()
        assert not pair.serving
        assert await pair.vote() is bstar.Verdict.REJECT


# --- what must stop a server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [bstar.PRIMARY, bstar.BACKUP])
async def test_two_servers_of_one_role_are_refused(role: bstar.State) -> None:
    """BST-06, BST-08, F3."""
    async with core.Context() as context:
        first = bstar.Pair(role, local="inproc://one", remote="inproc://two", heartbeat_ms=20, context=context)
        second = bstar.Pair(role, local="inproc://two", remote="inproc://one", heartbeat_ms=20, context=context)
        async with first, second:
            for pair in (first, second):
                with pytest.raises(bstar.Misconfigured, match=f"both servers are configured as {role.name.lower()}"):
                    await pair.serve_forever()
                assert await pair.vote() is bstar.Verdict.REJECT


async def test_server_that_hears_itself_is_refused() -> None:
    """F3: swapped or equal addresses."""
    async with core.Context() as context:
        async with bstar.Pair(bstar.PRIMARY, local="inproc://one", remote="inproc://one", heartbeat_ms=20, context=context) as pair:
            with pytest.raises(bstar.Misconfigured, match="our own address"):
                await pair.serve_forever()


async def test_wrongly_started_second_primary_does_not_stop_the_one_that_serves() -> None:
    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.settle()
        wrong = bstar.Pair(bstar.PRIMARY, local=ANY, remote=scene.pairs[0].endpoint, heartbeat_ms=QUICK_MS, context=scene.context)
        await scene.stop(1)
        async with wrong:
            scene.lines[0].target = wrong.endpoint
            scene.lines[0].cut()
            scene.lines[0].heal()
            with pytest.raises(bstar.Misconfigured):
                await wrong.serve_forever()
        assert scene.pairs[0].serving


@pytest.mark.parametrize("told, error", [(b"3", bstar.DualActive), (b"4", bstar.DualPassive)])
async def test_compatible_mode_dies_as_the_guide_has_it(told: bytes, error: type[Exception]) -> None:
    """BST-06: no further requests accepted, the error surfaced, silence instead of state."""
    async with core.Context() as context:
        peer = context.socket(core.XPUB)
        peer.bind("inproc://peer")
        pair = bstar.Pair(bstar.PRIMARY, local="inproc://us", remote="inproc://peer", heartbeat_ms=20, compatible=True, context=context)
        async with pair:
            frontend = pair.voter("inproc://front", handler=echo)
            await peer.recv()
            first = b"2" if told == b"3" else b"3"
            while pair.state not in (bstar.State.ACTIVE, bstar.State.PASSIVE):
                await peer.send(first)
                await asyncio.sleep(0.001)
            await peer.send(told)
            with pytest.raises(error):
                await pair.serve_forever()
            client = context.socket(core.REQ, linger=0)
            client.connect(frontend)
            await client.send(b"x")
            await until(lambda: pair.counters["refused"] == 1)
            assert not pair.serving


async def test_failing_callback_ends_the_pair() -> None:
    def broken() -> None:
        raise RuntimeError("cannot load")

    async with Scene() as scene:
        await scene.stop(0)
        pair = await scene.start(0)
        pair.on_active(broken)
        with pytest.raises(RuntimeError, match="cannot load"):
            await pair.serve_forever()
        assert not pair.serving


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

    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.stop(0)
        primary = await scene.start(0, never)
        await scene.settle()
        async with scene.client(timeout=PATIENT) as client:
            replies = [client.request(b"x") for _ in range(200)]
            await until(lambda: primary.status()["running"] == 200)
            said = primary._sequence
            await until(lambda: primary._sequence > said + 5)
            assert scene.pairs[1].status()["peer"]["state"] == "active"
            for reply in replies:
                reply.cancel()


async def test_two_heartbeats_are_told() -> None:
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
