"""titanic.access.verbs without sockets: questions to the broker, and requests that reach the store, by verb and user."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.scenes.builds import stands_in
from titanic.access.broker_permissions import Question, Verdict
from titanic.access.verbs import NAMES_MAX, Access, user_of
from titanic.wire import tsp
from titanic.wire.tsp import BAD, FAILED, OK, PENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from titanic.access.broker_permissions import Permissions
    from titanic.wire.tsp import Done

REASON = b"the broker does not say what users may do: it is new"


class Entry:
    """A stored request."""

    def __init__(self, owner: bytes, reply: object = None) -> None:
        self.owner = owner
        self.reply = reply


class Scene:
    """Access to a store that answers with what it was asked, and a broker that gives one verdict."""

    reason = "it is new"

    def __init__(self, verdict: Verdict = Verdict.YES, ownerless: str = "operators") -> None:
        self.verdict = verdict
        self.asked: list[Question] = []
        self.counters = {"forbidden": 0, "refused": 0}
        self.entries = {b"ann's": Entry(b"ann"), b"bob's": Entry(b"bob"), b"old": Entry(b"")}
        self.submitted: list[list[bytes]] = [[OK, b"ann's"]]
        self.seen: list[Sequence[bytes]] = []  # bodies of requests, and of waits
        self.waited: list[float] = []
        self.reply = [OK, b"first", b"last"]
        permissions = cast("Permissions", self)
        self.access = Access(self, partial(self._took, "batch"), partial(self._took, "look"), permissions, ownerless=ownerless)

    def ask(self, question: Question, decided: Callable[[Any, Verdict], None], about: object) -> None:
        self.asked.append(question)
        decided(about, self.verdict)

    def find(self, frames: Sequence[bytes]) -> Any:
        return self.entries.get(frames[0])

    def submit(self, frames: Sequence[bytes], done: Done, parse: object = None, owner: bytes = b"") -> None:
        self.seen.append([*frames])
        done([*self.submitted[0], *([] if parse is None else [b"parsed"]), *([owner] if owner else [])])

    def fetch(self, frames: Sequence[bytes], done: Done) -> None:
        done([b"fetched", *frames])

    def wait(self, frames: Sequence[bytes], timeout_s: float, done: Done) -> None:
        self.seen.append([*frames])
        self.waited.append(timeout_s)
        done(self.reply)

    def close_request(self, frames: Sequence[bytes], done: Done) -> None:
        done([b"closed", *frames])

    def _took(self, name: str, frames: Sequence[bytes], done: Done, owner: bytes | None) -> None:
        done([name.encode(), b"all" if owner is None else owner])

    def said(self, verb: str, user: str | None, *frames: bytes) -> list[bytes]:
        answers: list[list[bytes]] = []
        getattr(self.access, verb)([*frames], user, answers.append)
        (answer,) = answers
        return answer


def test_requests_of_a_user_are_stored_for_services_that_it_may_call() -> None:
    scene = Scene()
    assert scene.said("submit", "ann", b"echo", b"x") == [OK, b"ann's", b"parsed", b"ann"]
    assert scene.asked == [Question(b"call", b"ann", b"echo")]
    assert scene.said("submit", None, b"echo", b"x") == [OK, b"ann's"]
    assert scene.said("submit", "ann", b"echo") == [OK, b"ann's"], "the store says why it does not take this"
    assert scene.said("submit", None, b"echo") == [OK, b"ann's"]
    assert scene.said("submit", "ann", tsp.EXTENSIONS) == [OK, *tsp.EXTENSIONS_KNOWN]
    assert len(scene.asked) == 1
    scene.verdict = Verdict.NO
    assert scene.said("submit", "ann", b"echo", b"x") == [BAD, b"FORBIDDEN: ann may not call echo"]
    assert scene.counters["forbidden"] == 1
    scene.verdict = Verdict.UNKNOWN
    assert scene.said("submit", "ann", b"echo", b"x") == [FAILED, REASON]


VERBS: tuple[tuple[str, bytes, list[bytes], list[bytes]], ...] = (
    ("fetch", tsp.REPLY, [b"fetched"], [BAD]),
    ("close", tsp.CLOSE, [b"closed"], [OK]),
)


@stands_in
@pytest.mark.parametrize(("verb", "service", "done", "unknown"), VERBS)
def test_a_request_is_visible_to_its_user_and_to_operators(verb: str, service: bytes, done: list[bytes], unknown: list[bytes]) -> None:
    scene = Scene(Verdict.NO)
    assert scene.said(verb, "ann", b"ann's") == [*done, b"ann's"]
    assert scene.said(verb, None, b"old") == [*done, b"old"]
    assert scene.said(verb, None, b"none") == [*done, b"none"], "the store says that there is none"
    assert scene.said(verb, None, b"ann's") == unknown
    assert scene.asked == []
    for uuid in (b"bob's", b"old"):
        assert scene.said(verb, "ann", uuid) == unknown
    assert scene.said(verb, "ann", b"none") == [*done, b"none"]
    assert scene.asked == [Question(b"manage", b"ann", service)] * 3
    scene.verdict = Verdict.YES
    assert scene.said(verb, "ann", b"bob's") == [*done, b"bob's"]
    scene.verdict = Verdict.UNKNOWN
    for uuid in (b"bob's", b"none"):
        assert scene.said(verb, "ann", uuid) == [FAILED, REASON]
    shared = Scene(Verdict.NO, "everybody")
    assert shared.said(verb, "ann", b"old") == [*done, b"old"]
    assert shared.said(verb, "ann", b"bob's") == unknown


def test_all_may_ask_for_extensions() -> None:
    assert Scene(Verdict.NO).said("fetch", "ann", tsp.EXTENSIONS) == [OK, *tsp.EXTENSIONS_KNOWN]


@stands_in
def test_waits_are_limited() -> None:
    scene = Scene(Verdict.NO)
    for wait_ms in (b"0", b"1500", b"60000", b"60001", b"999999"):
        assert scene.said("wait", "ann", b"ann's", wait_ms) == [OK, b"first", b"last"]
    assert scene.seen == [[b"ann's"]] * 5
    assert scene.waited == [0.0, 1.5, 60.0, 60.0, 60.0]
    wrong: tuple[list[bytes], ...] = ([b"ann's"], [b"ann's", b"x"], [b"ann's", b"-1"], [b"ann's", b"1", b"2"])
    for frames in wrong:
        assert scene.said("wait", "ann", *frames) == [BAD, b"a wait is a UUID and milliseconds"]
    assert scene.said("wait", "ann", b"bob's", b"1") == [BAD]
    assert scene.asked == [Question(b"manage", b"ann", tsp.WAIT)]


def test_a_list_is_of_ones_own_or_of_all_for_operators() -> None:
    scene = Scene(Verdict.NO)
    assert scene.said("look", "ann", b"") == [b"look", b"ann"]
    assert scene.said("look", None, b"") == [b"look", b"all"]
    assert scene.asked == [Question(b"manage", b"ann", tsp.LOOK)]
    scene.verdict = Verdict.YES
    assert scene.said("look", "ann", b"") == [b"look", b"all"]
    scene.verdict = Verdict.UNKNOWN
    assert scene.said("look", "ann", b"") == [FAILED, REASON]


def test_rows_are_staged_for_services_that_the_user_may_call() -> None:
    scene = Scene(Verdict.NO)
    stage = [b"stage", b"job/0", b"0", b"60000", b"echo", b"rows"]
    assert scene.said("batch", "ann", *stage) == [BAD, b"FORBIDDEN: ann may not call echo"]
    assert scene.said("batch", None, *stage) == [b"batch", b""]
    for frames in ([b"commit", *stage[1:]], stage[:5], [*stage[:4], b"", b"rows"]):
        assert scene.said("batch", "ann", *frames) == [b"batch", b"ann"]
    assert scene.asked == [Question(b"call", b"ann", b"echo")]
    scene.verdict = Verdict.YES
    assert scene.said("batch", "ann", *stage) == [b"batch", b"ann"]


@stands_in
def test_what_is_asked_for_has_a_key_and_waits_for_its_reply() -> None:
    scene = Scene()
    options = [b"\x01TSP\x01", b"\x81\xa3key\xc4\x01k"]
    asked = [b"ask", b"2500", *options, b"echo", b"x"]
    scene.submitted = [[OK, b"ann's"]]
    assert scene.said("batch", "ann", *asked) == [OK, b"new", b"first", b"last"]
    assert scene.seen == [asked[2:], [b"ann's", b"parsed", b"ann"]]
    assert (scene.asked, scene.waited) == ([Question(b"call", b"ann", b"echo")], [2.5])
    scene.entries[b"ann's"].reply = object()
    assert scene.said("batch", None, *asked) == [OK, b"kept", b"first", b"last"]
    scene.reply = [PENDING, b"nothing yet"]
    assert scene.said("batch", None, *asked) == [PENDING, b"kept", b"ann's", b"parsed"]
    scene.entries.clear()
    assert scene.said("batch", None, *asked) == [BAD, b"CLOSED: the store has forgotten the reply"]
    scene.submitted = [[FAILED, b"full"]]
    assert scene.said("batch", None, *asked) == [FAILED, b"full", b"parsed"]
    scene.verdict = Verdict.NO
    assert scene.said("batch", "ann", *asked) == [BAD, b"FORBIDDEN: ann may not call echo"]
    assert scene.counters["refused"] == 0
    for frames in ([b"ask"], [b"ask", b"1"], [b"ask", b"x", *asked[2:]], [b"ask", b"1", b"echo", b"x"]):
        assert scene.said("batch", None, *frames)[0] == BAD
    assert scene.counters["refused"] == 4


def test_names_of_users_share_an_object_and_have_a_limit() -> None:
    access = Scene().access
    first, other = access._owner("ann"), access._owner("bob")
    assert (access._owner("ann") is first, access._owner("bob") is other) == (True, True)
    for number in range(2 * NAMES_MAX):
        access._owner(str(number))
        assert len(access._names) <= NAMES_MAX
    assert len(access._names) == 2


@stands_in
def test_the_user_of_a_request_is_text() -> None:
    assert [user_of(cast("Any", Entry(owner))) for owner in (b"ann", b"\xff", b"")] == ["ann", "\ufffd", None]
