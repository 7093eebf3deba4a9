from __future__ import annotations

import asyncio
from errno import ENOSPC
from typing import TYPE_CHECKING

import pytest

import bstar
import core
from bstar import operator
from bstar.machine.ballot import CLAIMS_PER_S_MAX, COUNTER_MAX, MEMBER_JUMP_MAX, NO_BALLOT, WITNESS_JUMP_MAX, Ballot, Record, RecordRole
from bstar.machine.signing import PairKey
from bstar.machine.wire import Question, QuestionKind, WitnessAnswer, WitnessAnswerKind, decode_answer, encode_question, signed_by
from bstar.net.ballot_file import BallotFile
from tests.scenes.bstar_sockets import Clock, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

A, B = Ballot(1, 10), Ballot(2, 20)
LEASE_MS = 2000


class Asker:
    """A server of the pair, as the witness sees it."""

    def __init__(self, context: core.Context, endpoint: str, key: PairKey | None = None) -> None:
        self.key = key
        self.socket = context.socket(core.DEALER, linger=0)
        self.socket.connect(endpoint)
        self.nonce = 0

    async def say(self, kind: QuestionKind, ballot: Ballot = NO_BALLOT, lease_ms: int = LEASE_MS) -> None:
        self.nonce += 1
        await self.socket.send(encode_question(Question(kind, self.nonce, ballot, lease_ms), self.key))

    async def ask(self, kind: QuestionKind, ballot: Ballot = NO_BALLOT, lease_ms: int = LEASE_MS) -> WitnessAnswer:
        await self.say(kind, ballot, lease_ms)
        frame = await self.socket.recv()
        answer = decode_answer(frame)
        assert answer.nonce == self.nonce
        # An unsigned question gets an unsigned answer, so that programs without the key can read it.
        if self.key is not None and answer.kind is not WitnessAnswerKind.NOT_SIGNED:
            assert signed_by(self.key, frame)
        return answer


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made:
        yield made


def witness(context: core.Context, clock: Clock, store: Path | None = None) -> bstar.Witness:
    return bstar.Witness("tcp://127.0.0.1:*", heartbeat_ms=1000, context=context, clock=clock, store=store)


async def test_one_lease_at_a_time(context: core.Context) -> None:
    """BEY-12."""
    clock = Clock()
    async with witness(context, clock) as one:
        clock.ahead_s += 2.0
        first, second = Asker(context, one.endpoint), Asker(context, one.endpoint)
        granted = await first.ask(QuestionKind.ASK, A)
        assert granted == WitnessAnswer(WitnessAnswerKind.GRANTED, 1, A, A, LEASE_MS)
        refused = await second.ask(QuestionKind.ASK, B)
        assert (refused.kind, refused.holder, refused.highest) == (WitnessAnswerKind.REFUSED, A, A)
        assert 0 < refused.wait_ms <= LEASE_MS
        await first.say(QuestionKind.RELEASE, A)
        await until(lambda: one.counters["released"] == 1)
        assert (await second.ask(QuestionKind.ASK, B)).kind is WitnessAnswerKind.GRANTED
        assert dict(one.counters) == {"granted": 2, "refused": 1, "released": 1}


async def test_lease_is_never_longer_than_two_heartbeats(context: core.Context) -> None:
    clock = Clock()
    async with witness(context, clock) as one:
        clock.ahead_s += 2.0
        assert (await Asker(context, one.endpoint).ask(QuestionKind.ASK, A, 3_600_000)).wait_ms == LEASE_MS


async def test_nothing_new_is_granted_until_every_old_lease_has_run_out(context: core.Context) -> None:
    """BST-32."""
    clock = Clock()
    async with witness(context, clock) as one:
        server = Asker(context, one.endpoint)
        assert (await server.ask(QuestionKind.ASK, A)).kind is WitnessAnswerKind.REFUSED
        assert (await server.ask(QuestionKind.KEEP, A)).kind is WitnessAnswerKind.GRANTED
        assert (await server.ask(QuestionKind.ASK, Ballot(2, 10))).kind is WitnessAnswerKind.REFUSED


async def test_highest_ballot_is_on_disk_before_its_grant_leaves(context: core.Context, tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "witness.ballot"
    async with witness(context, clock, path) as one:
        clock.ahead_s += 2.0
        server = Asker(context, one.endpoint)
        assert (await server.ask(QuestionKind.ASK, Ballot(7, 10))).kind is WitnessAnswerKind.GRANTED
        assert (await server.ask(QuestionKind.KEEP, Ballot(7, 10))).kind is WitnessAnswerKind.GRANTED
    with BallotFile(path, RecordRole.WITNESS) as store:
        assert store.load() == Record(RecordRole.WITNESS, 10, 1, 7)
    async with witness(context, clock, path) as again:
        clock.ahead_s += 2.0
        refused = await Asker(context, again.endpoint).ask(QuestionKind.ASK, Ballot(6, 20))
        assert (refused.kind, refused.highest, refused.wait_ms) == (WitnessAnswerKind.REFUSED, Ballot(7, 10), 0)


async def test_witness_that_cannot_write_refuses_and_says_why(
    context: core.Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BST-27: what cannot be written is not granted.

    Leases without writing are, and refused ones when there is space again.
    """
    clock, path, save = Clock(), tmp_path / "witness.ballot", BallotFile.save
    full = False

    def saved(store: BallotFile, record: Record) -> None:
        if full:
            raise OSError(ENOSPC, "No space left on device", str(store.path))
        save(store, record)

    monkeypatch.setattr(BallotFile, "save", saved)
    async with witness(context, clock, path) as one:
        clock.ahead_s += 2.0
        first, second = Asker(context, one.endpoint), Asker(context, one.endpoint)
        assert (await first.ask(QuestionKind.ASK, A)).kind is WitnessAnswerKind.GRANTED
        full = True
        assert (await first.ask(QuestionKind.KEEP, A)).kind is WitnessAnswerKind.GRANTED
        clock.ahead_s += 2.0
        for _ in range(2):
            refused = await second.ask(QuestionKind.ASK, B)
            assert (refused.kind, refused.holder, refused.highest) == (WitnessAnswerKind.NOT_WRITTEN, NO_BALLOT, A)
        assert one.trouble == "the ballot file cannot be written: No space left on device"
        assert (await second.ask(QuestionKind.LOOK)).kind is WitnessAnswerKind.NOT_WRITTEN
        assert (await operator.look_at_witness(one.endpoint, 10.0))["trouble"] == "the ballot file cannot be written"
        assert (await first.ask(QuestionKind.KEEP, A)).kind is WitnessAnswerKind.GRANTED
        await first.say(QuestionKind.RELEASE, A)
        await first.ask(QuestionKind.LOOK)  # it has the release, which comes before this
        full = False
        clock.ahead_s += 5.0
        assert (await second.ask(QuestionKind.ASK, B)).kind is WitnessAnswerKind.GRANTED
        assert one.trouble == ""
        assert one.counters["not_written"] == 2
        assert one.counters["ballot_not_written"] in (1, 2)  # once for both, unless the machine paused between them
    with BallotFile(path, RecordRole.WITNESS) as store:
        assert store.load() == Record(RecordRole.WITNESS, B.node, 1, B.counter)


async def test_an_implausible_ballot_is_refused(context: core.Context, tmp_path: Path) -> None:
    """BST-47: 36 bytes of any sender must not end the pair permanently. Accepted counters leave higher ones."""
    clock = Clock()
    async with witness(context, clock, tmp_path / "witness.ballot") as one:
        clock.ahead_s += 2.0
        stranger, server = Asker(context, one.endpoint), Asker(context, one.endpoint)
        for counter in (COUNTER_MAX, 1 << 40, WITNESS_JUMP_MAX + 3000):
            for kind in (QuestionKind.ASK, QuestionKind.KEEP):
                refused = await stranger.ask(kind, Ballot(counter, 99))
                assert (refused.kind, refused.highest) == (WitnessAnswerKind.TOO_FAR, NO_BALLOT)
        assert one.counters["too_far"] == 6
        assert (await server.ask(QuestionKind.ASK, A)).kind is WitnessAnswerKind.GRANTED
        assert WITNESS_JUMP_MAX < MEMBER_JUMP_MAX < COUNTER_MAX


async def test_jumps_do_not_add_up(context: core.Context) -> None:
    """BST-47: from the second on a counter rises with time only."""
    clock = Clock()
    async with witness(context, clock) as one:
        clock.ahead_s += 2.0
        stranger = Asker(context, one.endpoint)
        granted = await stranger.ask(QuestionKind.ASK, Ballot(WITNESS_JUMP_MAX, 99))
        assert granted.kind is WitnessAnswerKind.GRANTED
        assert (await stranger.ask(QuestionKind.ASK, Ballot(2 * WITNESS_JUMP_MAX, 99))).kind is WitnessAnswerKind.TOO_FAR
        clock.ahead_s += 86_400.0
        most = WITNESS_JUMP_MAX + 86_400 * CLAIMS_PER_S_MAX
        assert (await stranger.ask(QuestionKind.ASK, Ballot(most, 99))).kind is WitnessAnswerKind.GRANTED


async def test_witness_with_a_pair_key_answers_servers_that_have_it(context: core.Context) -> None:
    """BST-46: status needs no key; asking, renewing and releasing do."""
    clock, key = Clock(), PairKey(bytes(range(32)))
    async with bstar.Witness("tcp://127.0.0.1:*", context=context, clock=clock, pair_key=bytes(range(32))) as one:
        clock.ahead_s += 2.0
        stranger, server = Asker(context, one.endpoint), Asker(context, one.endpoint, key)
        other = Asker(context, one.endpoint, PairKey(bytes(32)))
        assert (await server.ask(QuestionKind.ASK, A)).kind is WitnessAnswerKind.GRANTED
        for who in (stranger, other):
            for kind in (QuestionKind.ASK, QuestionKind.KEEP, QuestionKind.RELEASE):
                refused = await who.ask(kind, A)
                assert (refused.kind, refused.holder) == (WitnessAnswerKind.NOT_SIGNED, NO_BALLOT)
        seen = await stranger.ask(QuestionKind.LOOK)
        assert (seen.kind, seen.holder, seen.highest) == (WitnessAnswerKind.STATUS, A, A)
        assert one.counters["not_signed"] == 6
        assert one.lease.until > clock()


@pytest.mark.parametrize("kind", [QuestionKind.ASK, QuestionKind.KEEP])
async def test_a_recorded_question_does_not_renew_the_lease_of_a_server_that_is_gone(context: core.Context, kind: QuestionKind) -> None:
    """BST-46: a program that sees a signed question can send it again, and would prevent the take-over."""
    clock, key = Clock(), PairKey(bytes(range(32)))
    async with bstar.Witness("tcp://127.0.0.1:*", context=context, clock=clock, pair_key=bytes(range(32))) as one:
        clock.ahead_s += 2.0
        gone, other, stranger = Asker(context, one.endpoint, key), Asker(context, one.endpoint, key), Asker(context, one.endpoint)
        other.nonce = 1000
        assert (await gone.ask(QuestionKind.ASK, A)).kind is WitnessAnswerKind.GRANTED
        assert (await gone.ask(kind, A)).kind is WitnessAnswerKind.GRANTED
        recorded = encode_question(Question(kind, gone.nonce, A, LEASE_MS), key)
        for seconds in (1.0, 0.5, 0.5):
            clock.ahead_s += seconds
            await stranger.socket.send(recorded)
            await stranger.ask(QuestionKind.LOOK)  # the one before has been read
        assert one.counters["repeated"] == 3
        assert (await other.ask(QuestionKind.ASK, B)).kind is WitnessAnswerKind.GRANTED


async def test_a_recorded_release_does_not_end_a_lease(context: core.Context) -> None:
    clock, key = Clock(), PairKey(bytes(range(32)))
    async with bstar.Witness("tcp://127.0.0.1:*", context=context, clock=clock, pair_key=bytes(range(32))) as one:
        clock.ahead_s += 2.0
        server, stranger = Asker(context, one.endpoint, key), Asker(context, one.endpoint)
        await server.ask(QuestionKind.ASK, A)
        await server.say(QuestionKind.RELEASE, A)
        recorded = encode_question(Question(QuestionKind.RELEASE, server.nonce, A, LEASE_MS), key)
        assert (await server.ask(QuestionKind.ASK, A)).kind is WitnessAnswerKind.GRANTED
        await stranger.socket.send(recorded)
        assert (await stranger.ask(QuestionKind.LOOK)).holder == A


async def test_key_derived_from_curve_is_demanded_once_it_was_used(context: core.Context) -> None:
    """BST-46: a witness that shares its CURVE key with the servers learns that; until then it accepts every connected sender."""
    clock, (public, secret) = Clock(), core.curve_keypair()
    curve = core.Curve(secret_key=secret, server_key=public, keys={public: "pair"})
    async with bstar.Witness("tcp://127.0.0.1:*", security=curve, clock=clock) as one, core.Context(security=curve) as inside:
        clock.ahead_s += 2.0
        octets = curve.lasting_secret
        assert octets is not None
        stranger, server = Asker(inside, one.endpoint), Asker(inside, one.endpoint, PairKey.derived(octets))
        assert (await stranger.ask(QuestionKind.ASK, A)).kind is WitnessAnswerKind.GRANTED
        clock.ahead_s += 2.0
        assert (await server.ask(QuestionKind.ASK, B)).kind is WitnessAnswerKind.GRANTED
        assert (await stranger.ask(QuestionKind.KEEP, B)).kind is WitnessAnswerKind.NOT_SIGNED


async def test_file_of_a_server_is_refused(context: core.Context, tmp_path: Path) -> None:
    path = tmp_path / "x.ballot"
    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(Record(RecordRole.SERVER, 1, 1, 1))
    with pytest.raises(bstar.StoreDamaged, match="belongs to a server"):
        await witness(context, Clock(), path).__aenter__()


async def test_nonsense_is_counted_and_not_answered(context: core.Context) -> None:
    clock = Clock()
    async with witness(context, clock) as one:
        server = Asker(context, one.endpoint)
        for frames in ([b""], [b"x" * 36], [encode_question(Question(QuestionKind.LOOK, 1)), b""]):
            await server.socket.send_multipart(frames)
        assert (await server.ask(QuestionKind.LOOK)).kind is WitnessAnswerKind.STATUS
        assert one.counters["malformed"] == 3


async def test_operator_looks_at_it(context: core.Context) -> None:
    clock = Clock()
    async with witness(context, clock) as one:
        clock.ahead_s += 2.0
        assert (await operator.look_at_witness(one.endpoint, 10.0))["holder"] == "none"
        await Asker(context, one.endpoint).ask(QuestionKind.ASK, A)
        seen = await operator.look_at_witness(one.endpoint, 10.0)
        assert (seen["holder"], seen["highest"]) == (str(A), str(A))
        assert 0 < seen["left_ms"] <= LEASE_MS


async def test_flood_is_bounded(context: core.Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The questions that wait for the disk are bounded; the newest of a server is the one that matters."""
    monkeypatch.setattr("bstar.witness.WAITING_MAX", 4)
    clock = Clock()
    async with witness(context, clock, tmp_path / "w") as one:
        clock.ahead_s += 2.0
        server = Asker(context, one.endpoint)
        for number in range(1, 60):
            await server.say(QuestionKind.ASK, Ballot(number, 10))
        last = WitnessAnswer(WitnessAnswerKind.STATUS, 0, A, A, 0)
        while last.nonce != server.nonce:
            last = decode_answer(await server.socket.recv())
        assert last.highest == Ballot(60 - 1, 10)
        assert one.counters["waiting_overflow"] > 0


async def test_without_its_block_there_is_no_endpoint() -> None:
    with pytest.raises(RuntimeError):
        bstar.Witness("tcp://127.0.0.1:*").endpoint  # noqa: B018
    await asyncio.sleep(0)
