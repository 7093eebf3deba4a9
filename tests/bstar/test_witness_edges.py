"""bstar.Witness: ends of leases and limits to the millisecond, its log, and questions that wait for its disk."""

from __future__ import annotations

import asyncio
import threading
from errno import ENOSPC
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
from bstar.machine.ballot import NO_BALLOT, WITNESS_JUMP_MAX, Ballot, LeaseTable
from bstar.machine.signing import PairKey
from bstar.machine.wire import Question, QuestionKind, WitnessAnswer, WitnessAnswerKind, decode_answer, encode_question, signed_by
from bstar.net.ballot_file import BallotFile
from bstar.witness import WAITING_MAX
from tests.scenes.bstar_sockets import until

if TYPE_CHECKING:
    from pathlib import Path

A, B = Ballot(1, 10), Ballot(2, 20)
LEASE_S = 2.0
KEY = bytes(range(32))
ASK, KEEP, LOOK = QuestionKind.ASK, QuestionKind.KEEP, QuestionKind.LOOK


class Scene:
    """A witness whose clock a test sets, in a block with one server."""

    def __init__(self, **options: Any) -> None:
        self.now_s = 100.0
        self.context = core.Context()
        self.witness = bstar.Witness("inproc://witness", context=self.context, clock=lambda: self.now_s, **options)
        self.nonce = 0

    async def __aenter__(self) -> Scene:
        await self.witness.__aenter__()
        self.now_s += LEASE_S
        self.server = self.context.socket(core.DEALER, linger=0)
        self.server.connect("inproc://witness")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.witness.__aexit__(None, None, None)
        await self.context.aclose()

    def say(self, kind: QuestionKind, ballot: Ballot = NO_BALLOT, lease_ms: int = 2000, key: bytes | None = None) -> None:
        self.nonce += 1
        frame = encode_question(Question(kind, self.nonce, ballot, lease_ms), None if key is None else PairKey(key))
        self.server.send(frame)

    async def hear(self) -> WitnessAnswer:
        return decode_answer(await self.server.recv())

    async def ask(self, kind: QuestionKind, ballot: Ballot = NO_BALLOT, lease_ms: int = 2000, key: bytes | None = None) -> WitnessAnswer:
        self.say(kind, ballot, lease_ms, key)
        return await self.hear()


class Disk:
    """The disk of a witness: full or slow when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        save = BallotFile.save
        self.full = False
        self.saved = 0
        self.free = threading.Event()  # a write ends
        self.free.set()

        def saved(store: BallotFile, record: Any) -> None:
            self.saved += 1
            self.free.wait()
            if self.full:
                raise OSError(ENOSPC, "No space left on device", str(store.path))
            save(store, record)

        monkeypatch.setattr(BallotFile, "save", saved)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "bstar.witness"]


def test_a_heartbeat_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="heartbeat"):
        bstar.Witness("tcp://127.0.0.1:*", heartbeat_ms=0)


def test_before_its_block_it_has_granted_no_lease() -> None:
    assert bstar.Witness("tcp://127.0.0.1:*").lease == LeaseTable()


async def test_a_lease_lasts_as_long_as_was_asked_and_is_free_then() -> None:
    async with Scene() as scene:
        assert (await scene.ask(ASK, A, 1500)).wait_ms == 1500
        scene.now_s += 1.25
        seen = await scene.ask(LOOK)
        assert (seen.holder, seen.wait_ms) == (A, 250)
        scene.now_s += 0.25
        seen = await scene.ask(LOOK)
        assert (seen.holder, seen.wait_ms) == (NO_BALLOT, 0)


async def test_the_highest_ballot_that_is_believed(caplog: pytest.LogCaptureFixture) -> None:
    """BST-47."""
    async with Scene() as scene:
        scene.now_s -= LEASE_S  # it rises with time
        assert (await scene.ask(KEEP, Ballot(WITNESS_JUMP_MAX + 1, 1))).kind is WitnessAnswerKind.TOO_FAR
        assert (await scene.ask(KEEP, Ballot(WITNESS_JUMP_MAX, 1))).kind is WitnessAnswerKind.GRANTED
    assert logged(caplog) == ["a ballot nobody can have drawn is refused"]


async def test_one_question_that_is_refused_holds_up_no_other_of_the_same_read(caplog: pytest.LogCaptureFixture) -> None:
    """BST-46. The answer to a question without a signature has none."""
    caplog.set_level("INFO")
    async with Scene(pair_key=KEY) as scene:
        scene.server.send(b"nonsense")
        scene.say(ASK, A)
        scene.say(ASK, A, key=KEY)
        scene.nonce -= 1
        scene.say(ASK, A, key=KEY)  # once more
        scene.say(LOOK)
        frames = [await scene.server.recv() for _ in range(3)]
        kinds = [WitnessAnswerKind.NOT_SIGNED, WitnessAnswerKind.GRANTED, WitnessAnswerKind.STATUS]
        assert [decode_answer(frame).kind for frame in frames] == kinds
        assert [signed_by(PairKey(KEY), frame) for frame in frames] == [False, True, False]
        assert scene.witness.counters == {"malformed": 1, "not_signed": 1, "granted": 1, "repeated": 1}
    assert logged(caplog) == [
        "a question that is not signed with the pair key is refused",
        "a signed question that came before is not taken again",
        "granted",
    ]


async def test_questions_of_one_read_are_all_answered_however_many_they_are() -> None:
    """Only the disk lets a question wait."""
    async with Scene() as scene:
        for _ in range(2 * WAITING_MAX):
            scene.say(LOOK)
        assert [(await scene.hear()).nonce for _ in range(scene.nonce)] == [*range(1, scene.nonce + 1)]
        assert not scene.witness.counters


async def test_questions_beyond_those_that_may_wait_for_the_disk_are_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest, whose server asks again; a release has no answer."""
    monkeypatch.setattr("bstar.witness.WAITING_MAX", 4)
    disk = Disk(monkeypatch)
    async with Scene(store=tmp_path / "w") as scene:
        disk.free.clear()
        scene.say(ASK, A)
        await until(lambda: disk.saved == 2)
        for kind in (KEEP, QuestionKind.RELEASE, LOOK, LOOK, LOOK, LOOK, LOOK):
            scene.say(kind, B)
        turned_away = [await scene.hear() for _ in range(2)]
        assert [(answer.nonce, answer.kind, answer.holder) for answer in turned_away] == [
            (number, WitnessAnswerKind.NOT_WRITTEN, NO_BALLOT) for number in (2, 4)
        ]
        assert scene.witness.counters["waiting_overflow"] == 3
        disk.free.set()
        assert [(await scene.hear()).nonce for _ in range(5)] == [1, 5, 6, 7, 8]
        assert scene.witness.counters == {"waiting_overflow": 3, "granted": 1}


async def test_a_lease_that_is_renewed_finds_that_the_disk_has_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not written to where nothing has failed."""
    disk = Disk(monkeypatch)
    async with Scene(store=tmp_path / "w") as scene:
        assert (await scene.ask(ASK, A)).kind is WitnessAnswerKind.GRANTED
        for _ in range(3):
            assert (await scene.ask(KEEP, A)).kind is WitnessAnswerKind.GRANTED
        assert disk.saved == 2  # at its start, and for the ballot
        disk.full = True
        scene.now_s += LEASE_S
        assert (await scene.ask(ASK, B)).kind is WitnessAnswerKind.NOT_WRITTEN
        assert scene.witness.trouble != ""
        disk.full = False
        scene.now_s += 10.0
        await scene.ask(KEEP, A)
        await until(lambda: scene.witness.trouble == "")


async def test_a_witness_that_ends_grants_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what waits for its disk nor a server that does not read keeps it."""
    disk = Disk(monkeypatch)
    async with Scene(store=tmp_path / "w") as scene:
        deaf = scene.context.socket(core.DEALER, linger=0, rcvhwm=1, max_ahead_bytes=0)
        tcp = bstar.Witness(f"ipc://{tmp_path}/s", context=scene.context, socket_options={"sndhwm": 0}, clock=lambda: 100.0)
        async with tcp:
            deaf.connect(tcp.endpoint)
            for nonce in range(20_000):
                await deaf.send(encode_question(Question(LOOK, nonce, NO_BALLOT, 0)))
            await deaf.send(encode_question(Question(QuestionKind.RELEASE, 0, A, 0)))
            await until(lambda: tcp.counters["released"] == 1)
        disk.free.clear()
        disk.full = True
        scene.say(ASK, A)
        await until(lambda: disk.saved == 2)
        await scene.witness.__aexit__(None, None, None)
        disk.free.set()
        await asyncio.sleep(0)
        assert "granted" not in scene.witness.counters
