from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import bstar
import core
from bstar.machine.ballot import Ballot
from tests.scenes.bstar_sockets import CALM_MS, PATIENT, QUICK_MS, Scene, until, vote_until_it_serves

if TYPE_CHECKING:
    from pathlib import Path


# --- fail-over --------------------------------------------------------------------------------------------------------------------


async def test_backup_takes_over_with_a_vote_and_the_primary_does_not_come_back() -> None:
    """BST-10, BST-11, BST-12: kill, vote, restart, and manual recovery."""
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
        async with scene.client(timeout=100) as client:
            replies = [client.request(b"%d" % number) for number in range(20)]
            await asked.wait()
            await scene.stop(0)
            assert await asyncio.gather(*replies) == [[b"%d" % number] for number in range(20)]


async def test_black_hole_is_noticed_like_a_crash() -> None:
    """N2: connections stay, but nothing passes."""
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


async def test_two_masters_without_a_witness_are_one_again_and_clients_believe_the_higher() -> None:
    """F1, G7, BST-30, BST-33: the fenced pair."""
    async with Scene(heartbeat_ms=QUICK_MS) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        scene.isolate()
        lost = scene.context.socket(core.REQ, linger=0, req_relaxed=1)
        lost.connect(scene.frontends[1])
        await until(lambda: scene.pairs[1].status()["peer"]["state"] == "silent")
        while not scene.pairs[1].serving:  # again, as clients do: on a busy machine a pause of our own puts off the verdict
            await lost.send(b"vote")
            await lost.poll(QUICK_MS)
        assert scene.serving() == [True, True]
        low, high = (pair.ballot() for pair in scene.pairs)
        assert low < high
        scene.heal()
        await until(lambda: scene.serving() == [False, True])
        assert await client.request(b"2") == [b"2"]
        assert client.ballot == high


async def test_client_that_has_seen_the_higher_ballot_refuses_the_lower() -> None:
    """BST-33: and so deposes a master that only it can reach."""
    # Two heartbeats are longer than a pause of a busy machine, which would end the terms of both.
    async with Scene(heartbeat_ms=1000) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        scene.isolate()
        await until(lambda: scene.pairs[1].status()["peer"]["state"] == "silent")
        async with bstar.Client(scene.frontends[1], scene.frontends[0], context=scene.context, timeout=2.0) as other:
            await other.request(b"vote")
            assert scene.serving() == [True, True]
            high = other.ballot
        client._running().highest.accept(high)
        assert await client.request(b"2") == [b"2"]
        assert client.ballot >= high
        assert scene.pairs[0].ballot() == client.ballot or client.server == "backup"


@pytest.mark.parametrize("witness", [False, True])
async def test_clients_of_a_pair_that_lost_its_ballots_come_back(witness: bool) -> None:
    """BST-45: no server is active under their ballot; the server says so when peer or witness confirms it."""
    async with Scene(heartbeat_ms=CALM_MS, witness=witness) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        client._running().highest.accept(Ballot(100_000, 1))
        ballot = scene.pairs[0].ballot()
        assert await client.request(b"2") == [b"2"]
        assert client.ballot < Ballot(100_000, 1)
        assert scene.pairs[0].ballot() == ballot
        assert scene.pairs[0].counters["became_passive"] == 0


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


async def test_switchover_is_refused_if_no_server_would_be_active() -> None:
    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        await scene.settle()
        with pytest.raises(bstar.NotActive) as caught:
            await scene.pairs[1].switchover()
        assert caught.value.active == "primary"
        await scene.stop(1)
        await until(lambda: scene.pairs[0].status()["peer"]["state"] == "silent")
        await vote_until_it_serves(scene.pairs[0])  # a machine that was busy for two heartbeats has made it step down
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
    """BEY-12, G7: the backup gets requests, hears no peer, and still may not serve."""
    async with Scene(heartbeat_ms=QUICK_MS, witness=True) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        scene.isolate()
        asker = scene.context.socket(core.REQ, linger=0, req_relaxed=1)
        asker.connect(scene.frontends[1])
        await until(lambda: scene.pairs[1].status()["peer"]["state"] == "silent")
        assert scene.witness is not None
        while scene.witness.counters["refused"] <= 3:  # as above
            await asker.send(b"vote")
            await asker.poll(QUICK_MS)
        assert scene.serving() == [True, False]
        assert scene.pairs[0].status()["guard"] == "witness"
        scene.heal()
        await scene.settle()


async def test_active_that_loses_the_witness_and_its_peer_stops_and_the_other_takes_over() -> None:
    """BST-29: its lease runs out; the other one, asked by clients, gets it."""
    async with Scene(heartbeat_ms=QUICK_MS, witness=True) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        scene.isolate()
        scene.witness_lines[0].cut()
        await until(lambda: scene.serving() == [False, False])
        assert await client.request(b"2") == [b"2"]
        assert client.server == "backup"
        assert scene.serving() == [False, True]


async def test_without_the_witness_the_pair_serves_as_long_as_both_are_there() -> None:
    """BST-39: an acknowledged announcement is a lease.

    Without the peer no server is active until one of the two is back.
    """
    # Not quick: a server whose process stands still for two heartbeats gives up its term, and there is no witness to give it another one.
    async with Scene(heartbeat_ms=1000, witness=True) as scene, scene.client() as client:
        await client.request(b"1")
        await scene.settle()
        for line in scene.witness_lines:
            line.cut()
        primary = scene.pairs[0]
        asked = primary.counters["witness_unreachable"]
        # Four times a heartbeat: that is two leases.
        await until(lambda: primary.counters["witness_unreachable"] > asked + 16)
        assert await client.request(b"2") == [b"2"]
        assert scene.serving() == [True, False]
        assert primary.counters["became_active"] == 1
        await scene.stop(1)
        await until(lambda: not primary.serving)
        reply = client.request(b"3")
        asked = primary.counters["witness_unreachable"]
        await until(lambda: primary.counters["witness_unreachable"] > asked + 2)
        assert not reply.done()
        scene.heal()
        assert await reply == [b"3"]


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
        witness.lease = witness.lease._replace(until=witness.lease.until + 3600)
        scene.witness_lines[0].heal()
        await scene.start(0, store=tmp_path / "primary.ballot")
        await until(lambda: witness.lease.holder != held or witness.counters["released"] > 0)
        await until(lambda: sum(scene.serving()) == 1)
