"""mdp.cluster.paired_broker with a scripted pair: what a term begins and ends with, and what is kept meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

import mdp
from bstar.machine.ballot import Ballot
from bstar.machine.fsm import Verdict
from core.zmtp.frames import encode_message
from mdp.broker.broker import HELD_BEHIND_MIN
from mdp.cluster.paired_broker import WITHHELD_S
from mdp.wire.commands import client_request
from mdp.wire.events import Failure, Final, Work
from mdp.wire.failover import PAIR_SERVICE, ballot_text
from tests.scenes.mdp_dispatcher import number
from tests.scenes.mdp_scripted_pair import BALLOT, PairedScene, Peer
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    import bstar
    from mdp.wire.events import ClientEvent

LIMIT = "mdp.cluster.paired_broker.WITHHELD_MAX_BYTES"
CALL_BYTES = 500
ASKS = b"mmi.service"
HIGHER = Ballot(BALLOT.counter + 1, 1)


def is_final(event: ClientEvent, of: int) -> bool:
    return isinstance(event, Final) and event.id == number(of)


async def asked(client: Peer, of: int) -> None:
    await client.socket.send_multipart(client_request("0.3", ASKS, [b"echo"], id=number(of)))


PROTOCOL = client_request("0.1", b"mmi.protocol", [b"0.3"])
ASKED_BYTES = CALL_BYTES + len(encode_message(client_request("0.3", ASKS, [b"echo"], id=number(1))))  # what is counted of one that is kept


# --- terms ------------------------------------------------------------------------------------------------------------------------


async def test_a_term_ends_with_all_peers_disconnected_and_the_next_begins_with_none() -> None:
    async with PairedScene(heartbeat_ms=50, liveness=10_000) as scene:
        recorder = scene.broker.watch()
        for _ in range(2):
            before = scene.broker.pair_counters.copy()
            scene.pair.begin()
            assert scene.broker.machine.request_table.recorder is recorder
            assert scene.broker.wakes_at is not None
            client = scene.peer()
            await client.request(0, wait=False, deadline_ms=3_600_000)
            await eventually(lambda: scene.broker.stats["queued"])  # its worker may come back
            worker = await scene.worker()
            await worker.answer(await worker.work())
            assert is_final(await client.told(), 0)
            for of in (1, 2, 3):
                await client.request(of)
            await worker.answer(await worker.work())
            assert is_final(await client.told(), 1)
            assert isinstance(await worker.work(), Work)
            assert (scene.broker.stats["running"], scene.broker.stats["queued"]) == (1, 1)
            scene.pair.end()
            counted = scene.broker.pair_counters - before
            assert (counted["requests_let_go"], counted["peers_let_go"]) == (2, 2)
            assert (scene.broker.stats["workers"], scene.broker.machine.counters.accepted) == (0, 0)
            await worker.watch.lost()
            await client.watch.lost()
            worker.socket.close(0)
            client.socket.close(0)
            asker = scene.peer()
            await asker.socket.send_multipart(PROTOCOL)
            assert (await asker.socket.recv_multipart())[3:] == [b"300", ballot_text(BALLOT), b"500"]
            asker.socket.close(0)
            await eventually(lambda: scene.broker.wakes_at is None)


async def test_a_pair_that_ends_no_term_changes_nothing() -> None:
    async with PairedScene() as scene:
        client = scene.peer()
        for _ in range(2):
            await client.socket.send_multipart(PROTOCOL)
            assert (await client.socket.recv_multipart())[3:] == [b"300", ballot_text(BALLOT), b"500"]
            scene.pair.end()
            scene.pair.resume()
            assert await scene.pair.finish(3600.0)
        assert scene.counters.get("peers_let_go", 0) == 0


async def test_a_broker_that_is_not_entered_or_has_ended_begins_no_term() -> None:
    scene = PairedScene()

    async def changes() -> None:
        scene.pair.begin()
        scene.pair.resume()
        assert await scene.pair.finish(3600.0)
        scene.pair.end()

    broker = mdp.PairedBroker(cast("bstar.Pair", scene.pair))
    await changes()
    assert broker.wakes_at is None
    async with scene:
        scene.pair.begin()
        await scene.worker()
        machine = scene.broker.machine
        scene.broker.stop()
        await changes()
        assert scene.broker.wakes_at is None
    await changes()
    assert (scene.broker.wakes_at, scene.broker.machine) == (None, machine)
    assert scene.counters.get("peers_let_go", 0) == 0


@pytest.mark.parametrize("held", [True, False])
async def test_requests_held_during_a_claim_are_those_of_the_term(held: bool) -> None:
    """Of a broker whose pair serves when it comes there are none."""
    scene = PairedScene()
    scene.pair.may_answer = not held
    scene.pair.says = Verdict.HOLD
    async with scene:
        clients = [scene.peer(), scene.peer()]
        for client in clients:
            for of in (1, 2):
                await asked(client, of)
        if held:
            await eventually(lambda: len(scene.pair.asked) == 4)
            scene.pair.begin()
        assert [is_final(await client.told(), of) for client in clients for of in (1, 2)] == [True] * 4
        assert scene.counters.get("served_after_a_claim", 0) == 4 * held


async def test_limits_of_a_peer_that_came_before_the_term_count_in_it() -> None:
    """A reply beyond them ended the connection of the client, which then sent the request again."""
    scene = PairedScene()
    scene.pair.says = Verdict.HOLD
    async with scene:
        client = scene.peer(maxmsgsize=1000, tell_limits=1)
        await client.request(1, bytes(900), bytes(900))
        await eventually(lambda: scene.pair.asked)
        scene.pair.begin()
        worker = await scene.worker()
        work = await worker.work()
        assert isinstance(work, Work)
        await worker.answer(replace(work, body=[bytes(2000)]))
        refused = await client.told()
        assert isinstance(refused, Failure)
        assert refused.code == "TOO_LARGE"


async def test_the_numbers_of_a_pair() -> None:
    async with PairedScene() as scene:
        scene.pair.begin()
        scene.pair.end()
        numbers = scene.broker.metrics()
        assert numbers["bstar_serving"] == 0
        assert numbers["mdp_pair_requests_let_go_total"] == 0
        assert numbers["workers"] == 0


async def test_a_broker_that_is_left_refuses_no_request_that_it_holds() -> None:
    """Its timer has ended with it."""
    scene = PairedScene()
    scene.pair.says = Verdict.HOLD
    async with scene:
        await asked(scene.peer(), 1)
        await eventually(lambda: scene.pair.asked)
        clock = scene.broker._frontend._hold_clock
        await eventually(lambda: clock.when is not None)
    assert clock.when is None
    assert scene.counters.get("refused", 0) == 0


# --- replies that wait for more -----------------------------------------------------------------------------------------------------


async def with_a_reply_that_waits(scene: PairedScene) -> Peer:
    """Return a client with many requests, the first of which is answered."""
    count = HELD_BEHIND_MIN + 1
    scene.pair.begin()
    worker, client = await scene.worker(credit=count), scene.peer()
    for of in range(count):
        await client.request(of)
    await worker.answer(await worker.work())
    await eventually(lambda: scene.broker.counters["replies"])
    return client


async def test_replies_that_wait_for_more_end_with_their_term() -> None:
    async with PairedScene(hold_replies_ms=10_000) as scene:
        client = await with_a_reply_that_waits(scene)
        scene.pair.end()
        assert scene.counters["withheld"] == 1
        await client.watch.lost()
        assert not client.socket.readable()
        scene.pair.end()
        assert scene.counters["withheld"] == 1


async def test_replies_that_wait_for_more_leave_once_they_may() -> None:
    async with PairedScene(hold_replies_ms=10) as scene:
        refused = 0

        def serves() -> bool:
            """Refuse twice while the reply waits."""
            nonlocal refused
            if scene.broker._held and refused < 2:
                refused += 1
                return False
            return True

        scene.pair.serves = serves  # type: ignore[method-assign]
        client = await with_a_reply_that_waits(scene)
        assert is_final(await client.told(), 0)
        assert refused == 2


async def test_replies_that_wait_for_more_leave_before_the_other_broker_takes_over() -> None:
    async with PairedScene(hold_replies_ms=10_000) as scene:
        client = await with_a_reply_that_waits(scene)
        assert not await scene.pair.finish(0.01)
        scene.pair.end()
        assert is_final(await client.told(), 0)


# --- what may not be answered yet ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0, 1])
async def test_what_may_not_be_answered_yet_is_kept_in_so_many_octets(missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many in each such moment, also after the end of a term."""
    monkeypatch.setattr(LIMIT, 2 * ASKED_BYTES - missing)
    kept = 2 - missing
    async with PairedScene() as scene:
        scene.pair.begin()
        client = scene.peer(b"C")
        for moment in range(4):
            if moment % 2 == 0:
                await asked(client, 9)
                assert is_final(await client.told(), 9)
            before = scene.broker.pair_counters.copy()
            scene.pair.may_answer = False
            for of in range(3):
                await asked(client, of)
                await eventually(lambda: (scene.broker.pair_counters - before).total() == of + 1)  # noqa: B023
            assert scene.broker.pair_counters - before == {"held_back": kept, "withheld": 3 - kept}
            for _ in range(2):  # it looks again and again
                wakes_at = scene.broker.wakes_at
                assert wakes_at is not None
                assert wakes_at <= asyncio.get_running_loop().time() + WITHHELD_S
                await eventually(lambda: scene.broker.wakes_at != wakes_at)  # noqa: B023
            assert not client.socket.readable()
            if moment % 2 == 0:
                scene.pair.may_answer = True
                assert [is_final(await client.told(), of) for of in range(kept)] == [True] * kept
            else:
                scene.pair.end()
                assert (scene.broker.pair_counters - before)["withheld"] == 3
                await client.watch.lost()
                assert not client.socket.readable()
                client.socket.close(0)
                scene.pair.begin()
                client = scene.peer(b"C")


async def test_messages_over_inproc_count_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async with PairedScene() as scene:
        scene.pair.begin()
        client = scene.peer(b"C", scene.broker.bind("inproc://near"))
        await asked(client, 1)
        assert is_final(await client.told(), 1)
        size = CALL_BYTES + sum(map(len, [b"C", *client_request("0.3", ASKS, [b"echo"], id=number(1))]))
        monkeypatch.setattr(LIMIT, 2 * size - 1)
        scene.pair.may_answer = False
        for of in (2, 3):
            await asked(client, of)
            await eventually(lambda: scene.broker.pair_counters.total() == of - 1)  # noqa: B023
        assert scene.counters["held_back"] == scene.counters["withheld"] == 1


async def test_messages_that_go_on_coming_do_not_put_off_what_is_kept() -> None:
    """After a moment in which nothing may leave, a busy broker goes on within its time."""
    async with PairedScene() as scene:
        scene.pair.begin()
        client = scene.peer()
        await asked(client, 1)
        assert is_final(await client.told(), 1)
        scene.pair.may_answer = False
        await asked(client, 2)
        await scene.until("held_back")
        scene.pair.may_answer = True
        sent, end = 2, asyncio.get_running_loop().time() + 5.0
        while not client.socket.readable():
            assert asyncio.get_running_loop().time() < end, f"{scene.broker.pair_counters['held_back']} kept"
            sent += 1
            await asked(client, sent)
            await asyncio.sleep(0)
        for of in range(2, sent + 1):
            assert is_final(await client.told(), of)


async def test_peers_that_come_where_nothing_more_may_be_kept_are_disconnected_and_the_leaving_of_others_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with PairedScene(heartbeat_ms=20, liveness=10_000) as scene:
        scene.pair.begin()
        worker = await scene.worker(b"W")
        monkeypatch.setattr(LIMIT, CALL_BYTES - 1)
        for name in (b"A", b"B"):
            scene.pair.may_answer = False
            before = scene.broker.pair_counters.copy()
            late = scene.peer(name)
            await eventually(lambda: (scene.broker.pair_counters - before)["withheld"])  # noqa: B023
            late.socket.close(0)
            await eventually(lambda: not scene.broker._turned_away)  # it has left
            assert not (scene.broker.pair_counters - before)["held_back"]
            worker.socket.close(0)
            await eventually(lambda: (scene.broker.pair_counters - before)["held_back"])  # noqa: B023
            assert scene.broker.stats["workers"] == 1
            scene.pair.may_answer = True
            await eventually(lambda: scene.broker.stats["workers"] == 0)
            worker = await scene.worker(name)  # its leaving is one that counts, now


# --- ballots ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("withheld", [False, True])
async def test_each_ballot_that_clients_claim_is_asked_about_at_once(withheld: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with PairedScene() as scene:
        scene.pair.begin()
        client, loop = scene.peer(), asyncio.get_running_loop()
        await eventually(lambda: scene.broker.wakes_at is not None and scene.broker.wakes_at > loop.time() + WITHHELD_S)
        scene.pair.may_answer = not withheld
        for ballot in (HIGHER, BALLOT, HIGHER):
            await client.socket.send_multipart(client_request("0.1", PAIR_SERVICE, [ballot_text(ballot)]))
        if withheld:
            await scene.until("held_back")
            assert scene.pair.asked == []
            scene.pair.may_answer = True
        codes = [(await client.socket.recv_multipart())[3] for _ in range(3)]
        assert codes == [b"300", b"200", b"300"]
        assert scene.counters["ballots_named"] == len([one for one in caplog.records if one.name == "mdp.audit"]) == 2
        assert {*scene.pair.asked} == {HIGHER}


# --- handing over -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0, 1])
async def test_requests_postponed_during_a_hand_over_are_kept_in_so_many_octets(missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are processed; a client of which not all could be kept sends them again."""
    size = CALL_BYTES + sum(map(len, [b"C", *client_request("0.1", b"echo", [b"late"])]))
    monkeypatch.setattr(LIMIT, 2 * size - missing)
    async with PairedScene() as scene:
        scene.pair.begin()
        worker, client, other = await scene.worker(), scene.peer(b"C"), scene.peer(b"O")
        for turn in range(2):
            await other.request(turn)
            work = await worker.work()
            finishing = asyncio.ensure_future(scene.pair.finish(3600.0))
            await eventually(lambda: scene.broker._drained.awaited)
            for _ in range(2):
                await client.socket.send_multipart(client_request("0.1", b"echo", [b"late"]))
            await eventually(lambda: len(scene.broker._postponed) == 2 - missing)
            await other.request(10 + turn, once=True)
            await eventually(lambda: scene.broker.stats["queued"])
            await worker.answer(work)
            work = await worker.work()
            assert isinstance(work, Work)
            assert not finishing.done()
            await worker.answer(work)
            assert await finishing
            assert [is_final(await other.told(), of) for of in (turn, 10 + turn)] == [True, True]
            scene.pair.resume()
            if missing:
                await client.watch.lost()
                assert scene.broker.stats["queued"] == scene.broker.stats["running"] == 0
                client.socket.close(0)
                client = scene.peer(b"C")
                await client.watch.peers()
            else:
                for _ in range(2):
                    await worker.answer(await worker.work())
                    assert (await client.socket.recv_multipart())[3:] == [b"late"]
            assert scene.counters.get("withheld", 0) == missing * (turn + 1)


async def test_of_one_read_only_requests_are_postponed_that_may_be_sent_again() -> None:
    async with PairedScene() as scene:
        scene.pair.begin()
        worker, client = await scene.worker(), scene.peer()
        await client.request(1)
        work = await worker.work()
        finishing = asyncio.ensure_future(scene.pair.finish(3600.0))
        await eventually(lambda: scene.broker._drained.awaited)
        for of in (2, 3, 4):
            await client.request(of, once=of == 3)
        await eventually(lambda: scene.broker.stats["queued"])
        assert len(scene.broker._postponed) == 2
        await worker.answer(work)
        await worker.answer(await worker.work())
        assert await finishing
        assert [is_final(await client.told(), of) for of in (1, 3)] == [True] * 2
        scene.pair.resume()
        for of in (2, 4):
            await worker.answer(await worker.work())
            assert is_final(await client.told(), of)


async def test_a_term_that_ends_drops_what_it_had_postponed() -> None:
    async with PairedScene() as scene:
        scene.pair.begin()
        worker, client = await scene.worker(), scene.peer()
        await client.request(1)
        await worker.work()
        finishing = asyncio.ensure_future(scene.pair.finish(3600.0))
        await eventually(lambda: scene.broker._drained.awaited)
        await client.request(2)
        await eventually(lambda: scene.broker._postponed)
        scene.pair.end()
        await finishing
        assert scene.counters["requests_let_go"] == 2
        scene.pair.begin()
        scene.pair.resume()
        await client.watch.lost()
        await worker.watch.lost()
        assert scene.broker.machine.counters.accepted == 0


async def test_a_hand_over_waits_for_requests_no_longer_than_it_may() -> None:
    async with PairedScene() as scene:
        scene.pair.begin()
        worker, client = await scene.worker(), scene.peer()
        await client.request(1)
        await worker.work()
        assert not await scene.pair.finish(0.01)


# --- draining -----------------------------------------------------------------------------------------------------------------------


async def test_requests_kept_while_a_lone_broker_drains_are_refused_like_those_of_a_single_one() -> None:
    """None of them is begun, only to be broken off."""
    async with PairedScene() as scene:
        scene.pair.begin()
        worker, client = await scene.worker(), scene.peer()
        await client.request(1, b"early")
        work = await worker.work()
        draining = asyncio.ensure_future(scene.broker.drain(3600.0))
        await eventually(lambda: scene.broker._drained.awaited)
        await client.request(2, b"late")
        await eventually(lambda: scene.broker._postponed)
        await worker.answer(work)
        assert await draining
        told = [await client.told(), await client.told()]
        assert is_final(told[0], 1)
        assert isinstance(told[1], Failure)
        assert told[1].code == "BUSY"
        assert scene.broker.endpoints == []


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("handed_over", [True, False])
async def test_a_broker_that_drains_says_whether_all_was_finished(finished: bool, handed_over: bool) -> None:
    """It goes on listening where the other one has taken over, and refuses."""
    async with PairedScene() as scene:
        scene.pair.begin()
        scene.pair.finished = finished
        if handed_over:
            scene.pair.end()
        assert await scene.broker.drain(3600.0) is finished
        assert scene.broker.endpoints == ([scene.endpoint] if handed_over else [])


async def test_a_lone_broker_with_an_open_request_has_not_drained() -> None:
    async with PairedScene() as scene:
        scene.pair.begin()
        worker, client = await scene.worker(), scene.peer()
        await client.request(1)
        await worker.work()
        assert not await scene.broker.drain(0.01)
