"""PairedTitanic in virtual time: when it votes, and what its status and its metrics page say."""

from __future__ import annotations

import asyncio
import logging

import pytest

import bstar
import core
import mdp
from bstar.net.boot_clock import boot_clock
from tests.scenes.mdp_handlers import echo
from tests.scenes.titanic_scripted_pair import BROKER, HEARTBEAT_S, HeldSimDisk, ScriptedPair, half_in, pair_scene
from tests.scenes.virtual_loop import in_virtual_time
from tests.titanic.test_paired_store_parts import journal_of, together

# --- votes ----------------------------------------------------------------------------------------------------------------------------


async def votes_in(seconds: float, pair: ScriptedPair) -> int:
    before = pair.votes
    await asyncio.sleep(seconds)
    return pair.votes - before


@in_virtual_time
@pytest.mark.parametrize(
    ("guard", "there", "voted"), [("fenced", False, 20), ("fenced", True, 0), ("witness", True, 20), ("witness", False, 20)]
)
async def test_a_half_votes_twice_a_heartbeat_while_a_titanic_is_missed(guard: str, there: bool, voted: int) -> None:
    """BST-10: with a witness, which knows of the active one, it is enough that the broker can be reached."""
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        broker.bind(BROKER)
        pair = ScriptedPair(guard)
        async with (
            half_in(context, pair, HeldSimDisk()),
            mdp.Worker(BROKER, "titanic.request" if there else "other", handler=echo, context=context),
        ):
            await asyncio.sleep(HEARTBEAT_S)
            assert await votes_in(10.0 * HEARTBEAT_S, pair) == pytest.approx(voted, abs=1)
            pair.active = bstar.BACKUP
            await asyncio.sleep(HEARTBEAT_S)
            assert await votes_in(10.0 * HEARTBEAT_S, pair) == 0


@in_virtual_time
async def test_a_half_that_reaches_no_broker_does_not_vote(caplog: pytest.LogCaptureFixture) -> None:
    """The clients may well reach the other half."""
    async with core.Context() as context:
        pair = ScriptedPair()
        async with half_in(context, pair, HeldSimDisk()):
            assert await votes_in(10.0 * HEARTBEAT_S, pair) == 0
            assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
            async with mdp.Broker(context=context) as broker:
                broker.bind(BROKER)
                await asyncio.sleep(5.0)
                assert await votes_in(10.0 * HEARTBEAT_S, pair) == pytest.approx(20, abs=1)


# --- status ---------------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_the_status_of_a_mirror_says_how_long_it_may_take_over() -> None:
    async with pair_scene() as scene:
        _, other = await together(scene)
        mirror = other.mirror
        assert mirror is not None
        mirror.lease = mirror.lease._replace(until=boot_clock() + 1.23456)
        status = other.status()
        assert status == {"part": "mirror", "turns": 0, "holds": "whole", "epoch": 1, "connected": True, "may_take_over_s": 1.235}
        mirror.lease = mirror.lease._replace(until=boot_clock() - 5.0)
        assert other.status()["may_take_over_s"] == 0.0


@in_virtual_time
async def test_the_status_of_a_store_says_what_it_waits_for() -> None:
    async with pair_scene() as scene:
        one, other = await together(scene)
        ready = {"part": "store", "turns": 1, "state": "serving", "mirror": "in step", "requests": 0}
        assert one.status() == ready
        service = one.service
        assert service is not None
        scene.broker.stop()
        while service.connected:
            await asyncio.sleep(0.01)
        assert one.status() == {**ready, "state": "registers"}
        journal_of(one).stalled = "the mirror is away"
        assert one.status() == {**ready, "state": "the mirror is away"}
        journal_of(one).log.wounded = "EIO"
        assert one.status() == {**ready, "state": "wounded: EIO"}
        journal_of(one).log.wounded = None
        assert other.status()["connected"]


@in_virtual_time
async def test_a_store_whose_mirror_is_not_in_step_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair_scene() as scene:
        one, other = await scene.start(0), await scene.start(1)
        scene.pairs[0].become_active()
        states = set[str]()
        while one.turns == 0 or one.status()["state"] != "serving":
            states |= {one.status().get("state", "")}
            await asyncio.sleep(0)
        assert "waits for the mirror" in states or "the mirror is catching up" in states
        assert other.status()["connected"]


@in_virtual_time
async def test_operators_see_the_pair_in_the_status_of_the_store() -> None:
    async with pair_scene() as scene:
        await together(scene)
        status = await scene.client.look("status")
        assert (status["role"], status["ballot"], status["guard"]) == ("primary", str(scene.pairs[0].ballot()), "witness")


# --- the metrics page -----------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_the_page_of_a_half_is_that_of_the_pair_and_of_the_store_while_it_serves() -> None:
    async with pair_scene() as scene:
        one, other = await together(scene)
        await scene.client.submit("echo", b"x")
        pages = [half.page() for half in (one, other)]
        for page in pages:
            families = {family.name: family for family in page.families()}
            assert (families["bstar_active"].kind, families["bstar_active"].help) == ("gauge", "bstar active.")
            assert (families["bstar_became_active"].kind, families["bstar_became_active"].samples) == ("counter", [((), 2.0)])
        of_store, of_mirror = ({family.name for family in page.families()} for page in pages)
        assert ("titanic_requests_accepted" in of_store, "titanic_requests_accepted" in of_mirror) == (True, False)
        shown, mirrored = (page.snapshot() for page in pages)
        assert (shown.figures["part"], shown.figures["turns"], shown.figures["requests"]) == ("store", 1, 1)
        assert shown.counters["requests_accepted"] == 1
        assert shown.tables[0].rows == [("echo", 1)]
        assert mirrored.figures == other.status()
        assert (mirrored.tables, mirrored.counters) == ((), {})


@in_virtual_time
async def test_the_page_of_a_half_says_why_it_is_not_ready() -> None:
    async with pair_scene() as scene:
        one, other = await together(scene)
        assert [half.page().not_ready() for half in (one, other)] == ["", ""]
        for pair in scene.pairs:
            pair.trouble = "the witness is away"
        assert [half.page().not_ready() for half in (one, other)] == ["", "the witness is away"]
        journal_of(one).stalled = "the mirror is away"
        assert "the mirror is away" in one.page().not_ready()
        journal_of(one).stalled = None
