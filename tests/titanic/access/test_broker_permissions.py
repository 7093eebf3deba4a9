"""Questions of a store to its broker: each is asked once, its answer is kept for a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

import mdp
from titanic.access.broker_permissions import ALLOWED, ANSWERS_MAX, QUESTIONS_MAX, Permissions, Question, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

YES, NO, UNKNOWN = Verdict


def question(number: int = 0) -> Question:
    return Question(b"call", b"ann", b"echo-%d" % number)


class Scene:
    """Permissions at a broker of which a test gives the answers, a clock, and what was answered to each caller."""

    def __init__(self) -> None:
        self.now = 100.0
        self.closed = False
        self.open: list[tuple[Question, Callable[..., None], Any]] = []
        self.told: list[tuple[object, Verdict]] = []
        self.permissions = Permissions(cast("Any", self), 5.0, lambda: self.now)

    def ask(self, service: bytes, body: Question, then: Callable[..., None], about: Any) -> None:
        """Take the question, in the place of a client."""
        assert service == ALLOWED
        if self.closed:
            raise mdp.RequestError("mmi.allowed")
        self.open.append((body, then, about))

    def want(self, about: object, number: int = 0) -> None:
        self.permissions.ask(question(number), lambda about, verdict: self.told.append((about, verdict)), about)

    def answer(self, *reply: bytes) -> None:
        _, then, about = self.open.pop(0)
        then(about, [*reply], None)

    @property
    def counts(self) -> tuple[int, int]:
        return self.permissions.asked, self.permissions.failed


@pytest.mark.parametrize(("code", "verdict"), [(b"200", YES), (b"404", NO)])
async def test_an_answer_is_kept_for_its_time(code: bytes, verdict: Verdict) -> None:
    scene = Scene()
    assert (scene.counts, scene.permissions.reason) == ((0, 0), "")
    scene.want("first")
    assert [body for body, _, _ in scene.open] == [question()]
    scene.answer(code)
    scene.now = 104.9
    scene.want("second")
    assert (scene.told, scene.open) == ([("first", verdict), ("second", verdict)], [])
    scene.now = 105.0
    scene.want("third")
    assert (len(scene.open), scene.counts, scene.permissions.reason) == (1, (2, 0), "")


async def test_all_that_ask_the_same_share_one_question() -> None:
    scene = Scene()
    for about in ("first", "second"):
        scene.want(about)
    scene.want("other", 1)
    assert len(scene.open) == 2
    scene.answer(b"200")
    assert scene.told == [("first", YES), ("second", YES)]
    scene.answer(b"404")
    assert scene.told[2:] == [("other", NO)]


@pytest.mark.parametrize(
    ("reply", "reason"), [([b"403"], "see_users"), ([b"501"], "older than this store"), ([b"", b"200"], "older than"), ([], "older than")]
)
async def test_a_broker_that_does_not_say_is_asked_each_time(reply: list[bytes], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    for number in (1, 2):
        scene.want(number)
        scene.answer(*reply)
        assert scene.counts == (number, number)
        assert reason in scene.permissions.reason
    assert scene.told == [(1, UNKNOWN), (2, UNKNOWN)]
    assert len([record for record in caplog.records if "does not say what users may do" in record.getMessage()]) == 1
    scene.want(3)
    scene.answer(b"200")
    assert scene.permissions.reason == ""


async def test_an_old_answer_is_not_used_when_the_broker_cannot_be_asked() -> None:
    scene = Scene()
    scene.want(1)
    scene.answer(b"200")
    scene.now += 5.0
    scene.closed = True
    scene.want(2)
    assert (scene.told, scene.counts) == ([(1, YES), (2, UNKNOWN)], (2, 1))
    assert scene.permissions.reason != ""


@pytest.mark.parametrize(("user", "code", "lines"), [(b"", b"501", 0), (b"", b"403", 1), (b"ann", b"501", 1)])
async def test_a_broker_without_users_need_not_answer_a_question_without_one(
    user: bytes, code: bytes, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.permissions.ask(Question(b"call", user, b"echo"), lambda *_: None, None)
    scene.answer(code)
    assert len(caplog.records) == lines


async def test_questions_in_flight_are_bounded_and_the_others_wait() -> None:
    scene = Scene()
    for number in range(QUESTIONS_MAX + 2):
        scene.want(number, number)
    assert (len(scene.open), scene.counts) == (QUESTIONS_MAX, (QUESTIONS_MAX, 0))
    scene.answer(b"200")
    assert [body for body, _, _ in scene.open][-1:] == [question(QUESTIONS_MAX)]
    assert scene.told == [(0, YES)]
    while scene.open:
        assert len(scene.open) <= QUESTIONS_MAX
        scene.answer(b"200")
    assert [about for about, _ in scene.told] == list(range(QUESTIONS_MAX + 2))


async def test_answers_are_bounded_and_the_oldest_are_dropped() -> None:
    scene = Scene()
    for number in (0, 1):
        scene.want(number, number)
        scene.answer(b"404")
    scene.now = 105.0
    scene.want("again", 0)
    scene.answer(b"404")  # newer than the other one now
    for number in range(2, ANSWERS_MAX - 1):
        scene.permissions._answers[question(number)] = (110.0, NO)
    scene.want("last", ANSWERS_MAX)
    scene.answer(b"200")
    assert len(scene.permissions._answers) == ANSWERS_MAX
    scene.want("one more", ANSWERS_MAX + 1)
    scene.answer(b"200")
    assert len(scene.permissions._answers) == ANSWERS_MAX
    assert question(1) not in scene.permissions._answers
    for number in (0, 2, ANSWERS_MAX):
        scene.want("kept", number)
    assert scene.told[-3:] == [("kept", NO), ("kept", NO), ("kept", YES)]
    scene.want("dropped", 1)
    assert len(scene.open) == 1
