"""bstar.Pair: its options, its votes, what is finished and handed over, and what its end leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
from tests.scenes.bstar_sockets import PATIENT, QUICK_MS, Scene, echo, until, vote_until_it_serves

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ANY = "tcp://127.0.0.1:*"
NOWHERE = "tcp://127.0.0.1:9"
STILL_MS = 30_000  # within which a test ends


class Slow:
    """A handler that answers once its gate is open."""

    def __init__(self) -> None:
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def answer(self, request: bstar.Request) -> list[bytes]:
        self.asked.set()
        await self.gate.wait()
        return request.body


def lone(role: bstar.State = bstar.PRIMARY, **options: Any) -> bstar.Pair:
    return bstar.Pair(role, **{"local": ANY, "remote": NOWHERE, "heartbeat_ms": STILL_MS, **options})


@pytest.mark.parametrize("option", ["held_max", "running_max"])
def test_limits_of_requests_are_at_least_one(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        lone(bstar.PRIMARY, **{option: 0})


async def test_the_witness_is_trusted_by_the_key_that_it_has() -> None:
    """It may be another one than that of the peer, which is our own."""
    (mine, secret), (other, _) = core.curve_keypair(), core.curve_keypair()
    witness = "tcp://127.0.0.1:10"
    security = core.Curve(secret_key=secret, server_key=mine, server_keys={witness: other}, keys={mine: "pair"})
    async with lone(witness=witness, security=security) as pair:
        peers, of_witness = pair._trusts
        assert (peers.key is None, of_witness.key is None) == (False, True)
        assert pair._lease_client is not None
        assert pair._lease_client._trust is of_witness


async def test_what_a_pair_is_asked_outside_of_its_block() -> None:
    pair = lone()
    for asked in ("endpoint", "machine", "state"):
        with pytest.raises(RuntimeError, match="within its block"):
            getattr(pair, asked)
    assert (pair.serving, pair.control_endpoint) == (False, "")


async def test_a_pair_without_a_voter_has_no_requests_and_has_finished_them() -> None:
    async with lone() as pair:
        numbers = pair.metrics()
        assert (numbers["bstar_held"], numbers["bstar_running"]) == (0, 0)
        assert await pair.drain(PATIENT)
        pair.voter(ANY, handler=echo)
        assert pair._voter is not None
        assert pair._voter.socket.options.tell_limits == 1


async def test_a_voter_that_cannot_listen_is_none() -> None:
    async with core.Context() as context, lone(context=context) as pair:
        taken = pair.voter(ANY, handler=echo)
        async with lone(bstar.BACKUP, context=context) as other:
            sockets = len(context._sockets)
            with pytest.raises(core.AddressInUse):
                other.voter(taken, handler=echo)
            assert len(context._sockets) == sockets
            assert other.voter(ANY, handler=echo) != taken


async def test_on_serving_is_called_when_a_claim_has_come_through() -> None:
    served = list[bool]()
    async with lone(heartbeat_ms=QUICK_MS) as pair:
        pair.on_serving(lambda: served.append(pair.serving))
        await vote_until_it_serves(pair)
        assert served[0]


async def test_what_runs_is_finished_before_a_server_that_drains_hands_over() -> None:
    """BST-16: the other one need not wait for silence."""
    slow = Slow()
    async with Scene(heartbeat_ms=STILL_MS) as scene:
        await scene.stop(0)
        primary = await scene.start(0, slow.answer)
        await scene.settle()
        async with scene.client() as client:
            reply = client.request(b"x")
            await slow.asked.wait()
            draining = asyncio.ensure_future(primary.drain(PATIENT))
            await until(lambda: primary._voter is not None and primary._voter.draining)
            assert not draining.done()
            with pytest.raises(bstar.errors.NotActive, match="stopping"):
                await primary.switchover()
            slow.gate.set()
            assert await draining
            assert await reply == [b"x"]
            await until(lambda: scene.serving() == [False, True])
            assert primary.state is bstar.State.PASSIVE


async def test_a_server_that_has_handed_over_to_stop_ends_its_part_first() -> None:
    """The end of the block cancelled on-passive before it was begun, or in the middle."""
    done = list[str]()

    async def store() -> None:
        await asyncio.sleep(0.01)
        done.append("stored")

    async with Scene(heartbeat_ms=STILL_MS) as scene:
        await scene.settle()
        scene.pairs[0].on_passive(store)
        await scene.pairs[0].drain(PATIENT)
        await scene.stop(0)
        assert done == ["stored"]


async def test_a_server_that_stops_waits_no_longer_for_its_part_than_it_may() -> None:
    async with Scene(heartbeat_ms=STILL_MS) as scene:
        await scene.settle()
        scene.pairs[0].on_passive(asyncio.Event().wait)
        assert await scene.pairs[0].drain(0.01)
        assert scene.pairs[0].state is bstar.State.PASSIVE


async def test_a_passive_or_compatible_server_that_drains_changes_nothing() -> None:
    async with Scene(heartbeat_ms=STILL_MS, compatible=True) as scene:
        await scene.settle()
        for pair, state in zip(scene.pairs, (bstar.State.ACTIVE, bstar.State.PASSIVE), strict=True):
            assert await pair.drain(PATIENT)
            assert pair.state is state


async def test_the_lease_is_given_back_at_the_end() -> None:
    async with Scene(heartbeat_ms=200, witness=True) as scene:
        await scene.settle()
        assert scene.witness is not None
        held = scene.pairs[0].ballot()
        assert scene.witness.lease.holder == held
        await scene.stop(1)
        assert scene.witness.counters["released"] == 0
        await scene.stop(0)
        await until(lambda: scene.witness.counters["released"] == 1)  # type: ignore[union-attr]


# --- switchover ---------------------------------------------------------------------------------------------------------------------


async def switched(scene: Scene, during: Callable[[], Awaitable[Any]]) -> list[str]:
    """Order a switchover; return what was called, and why it was refused."""
    called = list[str]()

    async def finish(drain_s: float) -> bool:
        called.append("finish")
        await during()
        return True

    scene.pairs[0].on_handover(finish, lambda: called.append("resume"))
    try:
        await scene.pairs[0].switchover()
    except bstar.errors.NotActive as refused:
        called.append(str(refused))
    return called


async def test_of_two_switchovers_the_second_is_refused() -> None:
    async with Scene(heartbeat_ms=STILL_MS) as scene:
        await scene.settle()

        async def again() -> None:
            with pytest.raises(bstar.errors.NotActive, match="another switchover"):
                await scene.pairs[0].switchover()

        assert await switched(scene, again) == ["finish"]
        await until(lambda: scene.serving() == [False, True])


async def test_a_switchover_whose_peer_goes_away_meanwhile_is_undone() -> None:
    async with Scene(heartbeat_ms=STILL_MS) as scene:
        await scene.settle()

        async def silent() -> None:
            scene.pairs[0].machine.member = scene.pairs[0].machine.member._replace(peer_until=0.0)

        called = await switched(scene, silent)
        assert called[:2] == ["finish", "resume"]
        assert "went away meanwhile" in called[2]
        async with scene.client() as client:
            assert await client.request(b"x") == [b"x"]


@pytest.mark.parametrize(("left_s", "called"), [(0.001, ["finish"]), (0.0, ["the peer cannot take over; primary is active"])])
async def test_a_switchover_needs_a_peer_that_is_not_silent(left_s: float, called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is, from the moment on in which it has been silent for too long."""
    async with Scene(heartbeat_ms=STILL_MS) as scene:
        await scene.settle()
        pair = scene.pairs[0]
        now_s = pair._clock()
        monkeypatch.setattr(pair, "_clock", lambda: now_s)
        pair.machine.member = pair.machine.member._replace(peer_until=now_s + left_s)

        async def nothing() -> None:
            pass

        assert await switched(scene, nothing) == called
