"""Pairs with a key: unsigned messages are ignored (BST-46); and implausible counters (BST-47)."""

from __future__ import annotations

import asyncio
import os

import pytest

import bstar
import core
from bstar import operator
from bstar.machine.ballot import COUNTER_MAX, Ballot
from bstar.machine.fsm import State
from bstar.machine.signing import PairKey
from bstar.machine.wire import Flag, StateMessage, decode_state, encode_state, signed_by
from tests.scenes.bstar_sockets import QUICK_MS, Scene, until, vote_until_it_serves

KEY = bytes(range(32))
LIAR = StateMessage(State.ACTIVE, State.BACKUP, Flag.SERVES, 99, 1, 1, Ballot(50, 99), 0, 0, 2000)


def test_a_signed_message_is_the_plain_one_with_its_mac_behind() -> None:
    key, other = PairKey(KEY), PairKey(bytes(32))
    plain, signed = encode_state(LIAR), encode_state(LIAR, key)
    assert (len(plain), len(signed)) == (70, 86)
    assert signed[:7] == b"BSTARS\x02"
    assert signed[7:70] == plain[7:]
    assert decode_state([signed]) == decode_state([plain]) == LIAR
    assert signed_by(key, signed)
    assert not signed_by(None, signed)
    assert not signed_by(other, signed)
    assert not signed_by(key, plain)
    for bit in range(len(signed) * 8):
        octets = bytearray(signed)
        octets[bit // 8] ^= 1 << bit % 8
        assert not signed_by(key, bytes(octets))
    for length in range(len(signed)):
        assert not signed_by(key, signed[:length])


def test_a_key_has_its_length_and_does_not_show() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        PairKey(bytes(31))
    assert "\\x" not in repr(PairKey(KEY))
    with pytest.raises(ValueError, match="compatible"):
        bstar.Pair(bstar.PRIMARY, local="inproc://a", remote="inproc://b", compatible=True, pair_key=KEY)


@pytest.mark.parametrize("witness", [False, True])
async def test_a_pair_with_a_key_serves_fails_over_and_is_watched_without_it(witness: bool) -> None:
    async with Scene(heartbeat_ms=QUICK_MS, pair_key=KEY) as scene:
        if witness:
            one = bstar.Witness("tcp://127.0.0.1:*", heartbeat_ms=QUICK_MS, context=scene.context, pair_key=KEY)
            await scene.stack.enter_async_context(one)
            for i in (0, 1):
                await scene.stop(i)
                await scene.start(i, witness=one.endpoint)
        await scene.settle()
        async with scene.client() as client:
            assert await client.request(b"x") == [b"x"]
            assert operator.words(await operator.look(scene.pairs[0].endpoint, 10.0))["state"] == "active"
            await scene.stop(0)
            assert await client.request(b"y") == [b"y"]
            assert client.server == "backup"
            assert scene.pairs[1].counters["state_unsigned"] == 0


@pytest.mark.parametrize(
    "forged", [encode_state(LIAR), encode_state(LIAR, PairKey(bytes(32))), b"3"], ids=["unsigned", "another key", "digit"]
)
async def test_who_can_publish_where_a_server_listens_and_has_no_key_is_not_its_peer(forged: bytes) -> None:
    async with core.Context() as context, context.socket(core.XPUB, linger=0, xpub_verbose=1) as liar:
        liar.bind("inproc://liar")
        async with bstar.Pair(
            bstar.PRIMARY, local="inproc://us", remote="inproc://liar", heartbeat_ms=200, pair_key=KEY, context=context
        ) as pair:
            assert await liar.recv() == b"\x01BSTARS\x02"
            await liar.send(forged)
            # A frame under a topic it has not subscribed to never reaches it; one that does is dropped.
            await until(lambda: pair._clock() >= pair.machine.member.peer_until)
            await vote_until_it_serves(pair)
            assert pair.ballot().counter == 1
            assert pair.counters["state_unsigned"] == (forged[6:7] == b"\x02")


async def test_witness_with_another_key_is_named_in_the_status() -> None:
    """BST-46: the server says why it does not serve."""
    other = os.urandom(32)
    async with Scene(heartbeat_ms=QUICK_MS) as scene:
        for theirs, mine, words in (
            (KEY, None, "the witness has a pair key, and our questions are not signed with it"),
            (KEY, other, "the witness has a pair key, and our questions are not signed with it"),
            (None, KEY, "the answers of the witness are not signed with our pair key"),
        ):
            one = bstar.Witness("tcp://127.0.0.1:*", heartbeat_ms=QUICK_MS, context=scene.context, pair_key=theirs)
            async with one:
                for i in (0, 1):
                    await scene.stop(i)
                    await scene.start(i, witness=one.endpoint, pair_key=mine)
                await until(lambda words=words: scene.pairs[0].trouble == words, words)  # type: ignore[misc]
                assert scene.serving() == [False, False]


async def test_servers_that_share_a_curve_key_sign_by_themselves(free_port: int) -> None:
    public, secret = core.curve_keypair()

    def curve() -> core.Curve:
        return core.Curve(secret_key=secret, server_key=public, keys={public: "pair"})

    async with bstar.Witness("tcp://127.0.0.1:*", heartbeat_ms=QUICK_MS, security=curve()) as one:
        where: dict[str, object] = {"heartbeat_ms": QUICK_MS, "witness": one.endpoint}
        place = f"tcp://127.0.0.1:{free_port}"
        first = bstar.Pair(bstar.PRIMARY, local=place, remote="tcp://127.0.0.1:1", security=curve(), **where)  # type: ignore[arg-type]
        async with first:
            second = bstar.Pair(bstar.BACKUP, local="tcp://127.0.0.1:*", remote=place, security=curve(), **where)  # type: ignore[arg-type]
            async with second:
                await until(lambda: second._trusts[0].required, "the state is signed")
                await until(lambda: pair_votes(first), "it serves")
                assert one._trust.required
                assert second.status()["peer"]["state"] != "silent"


def pair_votes(pair: bstar.Pair) -> bool:
    """Vote, and return whether the server serves."""
    pair.verdict(Ballot(0, 0))
    return pair.serving


# --- counters nobody can have come to -------------------------------------------------------------------------------------------


async def test_an_implausible_counter_of_a_peer_is_ignored() -> None:
    """BST-47: its word would leave no ballot for us; the log, a counter and the status say so."""
    async with core.Context() as context, context.socket(core.XPUB, linger=0, xpub_verbose=1) as liar:
        liar.bind("inproc://liar")
        async with bstar.Pair(bstar.PRIMARY, local="inproc://us", remote="inproc://liar", heartbeat_ms=20, context=context) as pair:
            await liar.recv()
            await liar.send(encode_state(LIAR._replace(state=State.PASSIVE, ballot=Ballot(COUNTER_MAX, 99))))
            await until(lambda: pair.counters["ballot_too_far"] == 1)
            assert pair.machine.member.counter == 0
            assert pair.trouble == f"the peer names counter {COUNTER_MAX}, which no pair can have come to"
            await until(lambda: pair._clock() >= pair.machine.member.peer_until)
            await vote_until_it_serves(pair)
            # Each claim draws the next counter from 1; on a busy machine some may come to nothing.
            assert pair.ballot().counter == pair.counters["claims_failed"] + pair.counters["became_active"]
            assert pair.trouble == ""


async def test_a_question_with_the_highest_counter_does_not_end_the_pair() -> None:
    """BST-47: 36 bytes at the witness; once it granted them, and both servers were refused permanently."""
    async with (
        Scene(witness=True, heartbeat_ms=QUICK_MS) as scene,
        core.Context() as context,
        context.socket(core.DEALER, linger=0) as liar,
    ):
        assert scene.witness is not None
        liar.connect(scene.witness.endpoint)
        for counter in ((1 << 48) - 1, 1 << 47, 1 << 36):
            ballot = counter.to_bytes(8, "big") + (0xBAD).to_bytes(8, "big")
            for kind in (b"\x01", b"\x02"):
                await liar.send(b"BSTARW\x01" + kind + bytes(7) + b"\x09" + ballot + (2000).to_bytes(4, "big"))
                answer = await liar.recv()
                assert (len(answer), answer[7]) == (52, 16)
        async with scene.client() as client:
            assert await client.request(b"x") == [b"x"]
            await scene.settle()
            await scene.stop(0)
            assert await client.request(b"y") == [b"y"]


async def test_why_no_claim_comes_through_is_said() -> None:
    """The three stuck states of a witness: away, just started or leased to another server, and a ballot it refuses."""
    async with Scene(witness=True, heartbeat_ms=QUICK_MS) as scene:
        await scene.settle()
        for line in scene.witness_lines:
            line.cut()
        await scene.stop(0)
        async with scene.client() as client:
            reply = client.request(b"x")
            await until(lambda: scene.pairs[1].trouble == "the witness does not answer")
            await until(lambda: scene.pairs[1].counters["claims_failed"] > 0 or scene.pairs[1].status()["claim"] == "acquiring")
            for line in scene.witness_lines:
                line.heal()
            assert await reply == [b"x"]
            await until(lambda: scene.pairs[1].trouble == "")
        machine = scene.pairs[1].machine
        assert scene.witness is not None
        machine.member = machine.member._replace(counter=(1 << 34))
        scene.pairs[1].counters.clear()
        machine.member = machine.member._replace(state=State.PASSIVE, ballot=0, lease_until=0.0)
        scene.pairs[1]._callbacks.enter_passive()
        async with scene.client() as client:
            reply = client.request(b"y")
            await until(lambda: scene.pairs[1].trouble == "the witness takes our ballot for one nobody can have drawn")
            reply.cancel()
            await asyncio.gather(reply, return_exceptions=True)
