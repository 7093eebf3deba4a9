from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import bstar
import core
from bstar import operator
from bstar.ballot import NO_BALLOT, Ballot, Owner, Record
from bstar.store import BallotStore
from bstar.wire import Question, QuestionKind, WitnessAnswer, WitnessAnswerKind, decode_answer, encode_question
from tests.bstar.scene import Clock, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

A, B = Ballot(1, 10), Ballot(2, 20)
LEASE_MS = 2000


class Asker:
    """A server of the pair, as the witness sees it."""

    def __init__(self, context: core.Context, endpoint: str) -> None:
        self.socket = context.socket(core.DEALER, linger=0)
        self.socket.connect(endpoint)
        self.nonce = 0

    async def say(self, kind: QuestionKind, ballot: Ballot = NO_BALLOT, lease_ms: int = LEASE_MS) -> None:
        self.nonce += 1
        await self.socket.send(encode_question(Question(kind, self.nonce, ballot, lease_ms)))

    async def ask(self, kind: QuestionKind, ballot: Ballot = NO_BALLOT, lease_ms: int = LEASE_MS) -> WitnessAnswer:
        await self.say(kind, ballot, lease_ms)
        answer = decode_answer(await self.socket.recv())
        assert answer.nonce == self.nonce
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
    with BallotStore(path, Owner.WITNESS) as store:
        assert store.load() == Record(Owner.WITNESS, 10, 1, 7)
    async with witness(context, clock, path) as again:
        clock.ahead_s += 2.0
        refused = await Asker(context, again.endpoint).ask(QuestionKind.ASK, Ballot(6, 20))
        assert (refused.kind, refused.highest, refused.wait_ms) == (WitnessAnswerKind.REFUSED, Ballot(7, 10), 0)


async def test_witness_that_cannot_write_grants_nothing(context: core.Context, tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "witness.ballot"
    async with witness(context, clock, path) as one:
        clock.ahead_s += 2.0
        (tmp_path / "witness.ballot.tmp").mkdir()
        await Asker(context, one.endpoint).say(QuestionKind.ASK, A)
        with pytest.raises(IsADirectoryError):
            await one.serve_forever()
        assert one.counters["granted"] == 0


async def test_file_of_a_server_is_refused(context: core.Context, tmp_path: Path) -> None:
    path = tmp_path / "x.ballot"
    with BallotStore(path, Owner.SERVER) as store:
        store.save(Record(Owner.SERVER, 1, 1, 1))
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
    """What waits for the disk is bounded; the newest question of an asker is the one that matters."""
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
