"""bstar.net.lease_client: questions to a witness and its answers, over a scripted DEALER."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

import core
from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.signing import PairKey, Trust
from bstar.machine.wire import Question, QuestionKind, WitnessAnswer, WitnessAnswerKind, decode_question, encode_answer, signed_by
from bstar.net.lease_client import QUESTIONS_MAX, LeaseClient
from tests.scenes.scripted_socket import ScriptedContext

OURS, THEIRS = Ballot(3, 7), Ballot(4, 8)
LEASE_MS = 2000
KEY = PairKey(bytes(32))


class Scene:
    """A client whose next nonce is 11."""

    def __init__(self, key: PairKey | None = None, nonce: int = 10, *, required: bool = True, **options: Any) -> None:
        context = ScriptedContext()
        self.counters: Counter[str] = Counter()
        self.heard: list[tuple[WitnessAnswer, Ballot, float]] = []
        self.client = LeaseClient(
            cast("Any", context),
            "inproc://witness",
            lease_ms=LEASE_MS,
            on_answer=lambda *answer: self.heard.append(answer),
            trust=Trust(key, required=required),
            nonce=nonce,
            counters=self.counters,
            socket_options=options,
        )
        (self.socket,) = context.sockets

    def questions(self) -> list[Question]:
        return [decode_question(frame) for (frame,) in self.socket.taken()]


def answer(nonce: int, kind: WitnessAnswerKind = WitnessAnswerKind.GRANTED, holder: Ballot = OURS) -> WitnessAnswer:
    return WitnessAnswer(kind, nonce, holder, THEIRS, 1900)


def test_nothing_waits_for_a_connection() -> None:
    scene = Scene(immediate=0, linger=-1, sndhwm=5)
    assert (scene.socket.kind, scene.socket.endpoints) == (core.DEALER, [("connect", "inproc://witness")])
    assert scene.socket.options == {"connect_timeout": 2500, "refused_ivl": 30_000, "immediate": 1, "linger": 0, "sndhwm": 5}
    scene.socket.full = True
    scene.client.ask(OURS, holding=False, now=1.0)
    assert (scene.socket.flags, scene.counters) == ([core.NOBLOCK], {"witness_unreachable": 1})


def test_each_question_has_a_nonce_of_its_own() -> None:
    scene = Scene(nonce=2**64 - 3)
    assert scene.client.trouble == ""
    scene.client.ask(OURS, holding=False, now=1.0)
    scene.client.ask(OURS, holding=True, now=2.0)
    scene.client.release(OURS)
    scene.client.ask(OURS, holding=True, now=3.0)
    assert scene.questions() == [
        Question(QuestionKind.ASK, 2**64 - 2, OURS, LEASE_MS),
        Question(QuestionKind.KEEP, 2**64 - 1, OURS, LEASE_MS),
        Question(QuestionKind.RELEASE, 0, OURS, 0),
        Question(QuestionKind.KEEP, 1, OURS, LEASE_MS),
    ]
    scene.socket.deliver([encode_answer(answer(1))])
    assert scene.heard == [(answer(1), OURS, 3.0)]


def test_an_answer_is_matched_with_its_question_once() -> None:
    scene = Scene()
    scene.client.ask(OURS, holding=False, now=1.0)
    scene.client.ask(THEIRS, holding=False, now=2.0)
    scene.socket.deliver([encode_answer(answer(12))], [encode_answer(answer(12))], [encode_answer(answer(13))], [encode_answer(answer(11))])
    assert scene.heard == [(answer(12), THEIRS, 2.0), (answer(11), OURS, 1.0)]
    assert scene.counters == {"witness_unasked": 2}
    assert (scene.client.heard_at, scene.client.trouble) == (1.0, "")


def test_nonsense_is_counted_and_what_follows_is_heard() -> None:
    scene = Scene()
    scene.client.ask(OURS, holding=False, now=1.0)
    good = encode_answer(answer(11))
    scene.socket.deliver([good, b""], [good[:-1]], [], [encode_answer(answer(11, WitnessAnswerKind.STATUS))], [good])
    assert scene.heard == [(answer(11), OURS, 1.0)]
    assert scene.counters == {"witness_malformed": 3, "witness_unasked": 1}


def test_old_questions_are_forgotten() -> None:
    scene = Scene(nonce=0)
    for number in range(1, QUESTIONS_MAX + 2):
        scene.client.ask(OURS, holding=True, now=float(number))
    scene.socket.deliver([encode_answer(answer(1))], [encode_answer(answer(2))])
    assert scene.heard == [(answer(2), OURS, 2.0)]
    assert scene.counters == {"witness_unasked": 1}


def test_a_release_leaves_as_soon_as_the_witness_is_there() -> None:
    scene = Scene()
    scene.socket.peer(joined=True)
    scene.socket.full = True
    scene.client.release(OURS)
    scene.socket.full = False
    scene.socket.peer(joined=False)
    assert (scene.questions(), scene.counters) == ([], {"witness_unreachable": 1})
    scene.socket.peer(joined=True)
    assert scene.questions() == [Question(QuestionKind.RELEASE, 12, OURS)]
    scene.socket.peer(joined=True)
    assert scene.questions() == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (WitnessAnswerKind.TOO_FAR, "nobody can have drawn"),
        (WitnessAnswerKind.NOT_WRITTEN, "cannot write its ballot file"),
        (WitnessAnswerKind.NOT_SIGNED, "has a pair key"),
    ],
)
def test_a_witness_that_cannot_grant_is_as_if_it_were_absent(kind: WitnessAnswerKind, words: str) -> None:
    scene = Scene()
    scene.client.ask(OURS, holding=True, now=1.0)
    scene.socket.deliver([encode_answer(answer(11, kind))])
    assert (scene.heard, scene.counters, scene.client.heard_at) == ([], {"witness_cannot": 1}, 1.0)
    assert words in scene.client.trouble
    assert scene.client.delay_reason(1.0) == ""
    scene.client.ask(OURS, holding=True, now=2.0)
    scene.socket.deliver([encode_answer(answer(12, WitnessAnswerKind.REFUSED))])
    assert (len(scene.heard), scene.client.trouble) == (1, "")


def test_why_nothing_was_granted_is_said() -> None:
    scene = Scene()
    silence, half_a_lease = "the witness does not answer", LEASE_MS / 2000
    assert scene.client.delay_reason(0.0) == silence
    scene.client.ask(OURS, holding=False, now=1.0)
    assert scene.client.delay_reason(1.0) == silence
    scene.socket.deliver([encode_answer(answer(11, WitnessAnswerKind.REFUSED, THEIRS))])
    assert scene.client.delay_reason(50.0) == f"the witness has granted the lease to {THEIRS}"
    scene.client.ask(OURS, holding=False, now=50.0)
    scene.client.ask(OURS, holding=False, now=50.5)
    assert scene.client.delay_reason(50.0 + half_a_lease - 0.0001) == f"the witness has granted the lease to {THEIRS}"
    assert scene.client.delay_reason(50.0 + half_a_lease) == silence
    scene.socket.deliver([encode_answer(answer(13, WitnessAnswerKind.REFUSED, NO_BALLOT))])
    assert scene.client.delay_reason(60.0) == "the witness grants nothing so soon after its start"
    scene.client.ask(OURS, holding=False, now=60.0)
    scene.socket.deliver([encode_answer(answer(14))])
    assert scene.client.delay_reason(70.0) == ""


def test_with_a_pair_key_questions_are_signed_and_unsigned_answers_are_not_believed() -> None:
    scene = Scene(KEY)
    scene.client.ask(OURS, holding=False, now=1.0)
    ((frame,),) = scene.socket.sent
    assert signed_by(KEY, frame)
    scene.socket.deliver([encode_answer(answer(11))], [encode_answer(answer(11), PairKey(bytes(31) + b"x"))])
    assert (scene.heard, scene.counters, scene.client.heard_at) == ([], {"witness_unsigned": 2}, None)
    assert scene.client.trouble == "the answers of the witness are not signed with our pair key"
    scene.socket.deliver([encode_answer(answer(11, WitnessAnswerKind.NOT_SIGNED))], [encode_answer(answer(11), KEY)])
    assert (len(scene.heard), scene.counters, scene.client.trouble) == (1, {"witness_unsigned": 3}, "")
    scene.client.ask(OURS, holding=False, now=2.0)
    scene.socket.deliver([encode_answer(answer(12, WitnessAnswerKind.NOT_SIGNED))])
    assert "has a pair key" in scene.client.trouble


def test_a_derived_key_is_demanded_once_the_witness_has_used_it() -> None:
    scene = Scene(KEY, required=False)
    for now in (1.0, 2.0, 3.0):
        scene.client.ask(OURS, holding=False, now=now)
    scene.socket.deliver([encode_answer(answer(11))], [encode_answer(answer(12), KEY)], [encode_answer(answer(13))])
    assert [when for _, _, when in scene.heard] == [1.0, 2.0]
    assert scene.counters == {"witness_unsigned": 1}


async def test_a_release_that_was_just_sent_still_leaves() -> None:
    scene = Scene()
    scene.client.close()
    await scene.client.wait_closed()
    assert (scene.socket.linger, scene.socket.waited) == (200, True)
