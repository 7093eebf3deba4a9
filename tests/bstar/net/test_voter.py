"""bstar.net.voter: requests in, the handler, replies and refusals out, over a scripted ROUTER."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest

from bstar.errors import NotActive
from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.fsm import State, Verdict
from bstar.machine.wire import ReplyHeader, ReplyKind, RequestHeader, RequestKind, decode_reply_header, encode_request_header
from bstar.net.voter import Request, Voter
from core.constants import ROUTER
from tests.scenes.scripted_socket import ScriptedSocket

if TYPE_CHECKING:
    from collections.abc import Callable

OURS, HIGHER = Ballot(3, 7), Ballot(4, 8)


class Policy:
    """A pair that decides as the test says."""

    def __init__(self) -> None:
        self.serving = True
        self.says = Verdict.ACCEPT
        self.seen: list[Ballot] = []
        self.held = OURS
        self.retry_s = 2.5
        self.role: State | None = State.PRIMARY
        self.vouched = True
        self.on_verdict: Callable[[], None] = lambda: None

    def serves(self) -> bool:
        return self.serving

    def verdict(self, seen: Ballot) -> Verdict:
        self.seen.append(seen)
        self.on_verdict()
        return self.says

    def vouches(self, seen: Ballot) -> bool:
        assert seen == HIGHER
        return self.vouched

    def ballot(self) -> Ballot:
        return self.held

    def refusal(self) -> NotActive:
        return NotActive("no", retry_s=self.retry_s)

    def known(self) -> Ballot:
        return HIGHER

    def active_role(self) -> State | None:
        return self.role


class Scene:
    """A voter on a scripted socket."""

    def __init__(self, handler: Callable[[Request], Any] | None = None, held_max: int = 10, running_max: int = 10) -> None:
        self.socket = ScriptedSocket(ROUTER, {})
        self.policy = Policy()
        self.counters: Counter[str] = Counter()
        self.voter = Voter(
            cast("Any", self.socket),
            handler or (lambda request: request.body),
            self.policy,
            held_max=held_max,
            running_max=running_max,
            counters=self.counters,
        )

    def replies(self) -> list[tuple[ReplyKind, int, list[bytes]]]:
        """Return the kind, sequence and body of each reply to a client with a header since the last call."""
        found = []
        for frames in self.socket.taken():
            assert frames[:2] == [b"id", b""]
            header = decode_reply_header(frames[2])
            found.append((header.kind, header.sequence, frames[3:]))
        return found


def header(sequence: int = 1, seen: Ballot = NO_BALLOT, kind: RequestKind = RequestKind.REQUEST) -> bytes:
    return encode_request_header(RequestHeader(kind, 9, sequence, seen))


def request(sequence: int = 1, *body: bytes) -> list[bytes]:
    return [b"id", b"", header(sequence), *body]


async def iterations(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("envelope", "head"),
    [([b"id", b""], True), ([b"id", b"hop", b""], True), ([b"id"], True), ([b"id", b""], False), ([b"id"], False)],
)
async def test_a_reply_has_the_envelope_of_its_request(envelope: list[bytes], head: bool) -> None:
    seen: list[Request] = []
    scene = Scene(seen.append)
    scene.socket.deliver([*envelope, *([header(5)] if head else []), b"a", b"b"])
    await iterations(3)
    assert ([one.envelope for one in seen], [one.body for one in seen]) == ([envelope], [[b"a", b"b"]])
    assert (seen[0].ballot, Request([b"id"], None, []).ballot) == (OURS, NO_BALLOT)
    assert seen[0].key == ((9).to_bytes(8, "big") + (5).to_bytes(8, "big") if head else None)
    assert scene.socket.sent == []  # None is no reply
    scene = Scene(lambda one: one.body)
    scene.socket.deliver([*envelope, *([header(5)] if head else []), b"a", b"b"])
    await iterations(3)
    (reply,) = scene.socket.taken()
    assert reply[: len(envelope)] == envelope
    rest = reply[len(envelope) :]
    assert (decode_reply_header(rest.pop(0)) if head else None) == (ReplyHeader(ReplyKind.REPLY, 5, OURS) if head else None)
    assert rest == [b"a", b"b"]
    assert scene.counters == {"accepted": 1, "replied": 1}


async def test_handlers_may_be_coroutines_and_return_one_frame() -> None:
    async def handler(request: Request) -> bytes:
        await asyncio.sleep(0)
        return request.body[0]

    scene = Scene(handler)
    scene.socket.deliver(request(1, b"one"), request(2, b"two"))
    assert scene.voter.running == 2
    await iterations(6)
    assert scene.replies() == [(ReplyKind.REPLY, 1, [b"one"]), (ReplyKind.REPLY, 2, [b"two"])]
    assert scene.voter.running == 0


async def test_what_is_malformed_is_counted_and_the_next_is_served() -> None:
    scene = Scene()
    scene.socket.deliver(
        [b"id", b"", header()[:-1], b"x"],
        [b"id", b"", header(kind=RequestKind.STATUS), b"x"],
        request(3, b"good"),
        [b"id", b"", header(kind=RequestKind.SWITCHOVER)],
    )
    await iterations(3)
    assert scene.replies() == [(ReplyKind.REPLY, 3, [b"good"])]
    assert scene.counters == {"request_malformed": 3, "accepted": 1, "replied": 1}


async def test_a_vote_is_decided_in_the_third_iteration_and_a_request_to_the_active_server_at_once() -> None:
    scene = Scene()
    scene.policy.serving = False
    scene.policy.says = Verdict.REJECT
    scene.socket.deliver([b"id", b"", header(1, HIGHER), b"x"])
    await iterations(1)
    scene.socket.deliver(request(2))
    await iterations(1)
    assert (scene.policy.seen, scene.voter.held) == ([], 2)
    await iterations(1)
    assert (scene.policy.seen, scene.voter.held) == ([HIGHER, NO_BALLOT], 0)
    assert [(kind, sequence) for kind, sequence, _ in scene.replies()] == [(ReplyKind.NOT_ACTIVE, 1), (ReplyKind.NOT_ACTIVE, 2)]
    scene.socket.deliver(request(3))  # there is a wait for each
    await iterations(2)
    assert len(scene.policy.seen) == 2
    await iterations(1)
    assert len(scene.policy.seen) == 3
    scene.policy.serving = True
    scene.socket.deliver([b"id", b"", b"stock"])
    assert len(scene.policy.seen) == 4


async def test_a_read_without_a_request_is_no_vote() -> None:
    scene = Scene()
    scene.policy.serving = False
    scene.socket.deliver([b"id", b"", header()[:-1]])
    await iterations(5)
    scene.socket.deliver(request(1))
    scene.policy.says = Verdict.REJECT
    await iterations(2)
    assert scene.policy.seen == []
    await iterations(1)
    assert scene.policy.seen == [NO_BALLOT]


async def test_a_refusal_names_who_is_active_and_when_to_ask_again() -> None:
    scene = Scene()
    scene.policy.says = Verdict.REJECT
    scene.socket.deliver(request(6, b"x"))
    assert [decode_reply_header(frames[2]) for frames in scene.socket.sent] == [
        ReplyHeader(ReplyKind.NOT_ACTIVE, 6, HIGHER, State.PRIMARY, 2500)
    ]
    assert scene.socket.taken()[0][3:] == []
    scene.policy.retry_s = 0.0
    scene.policy.role = None
    scene.socket.deliver(request(7), [b"id", b"", b"stock"])
    assert [decode_reply_header(frames[2]) for frames in scene.socket.taken()] == [ReplyHeader(ReplyKind.NOT_ACTIVE, 7, HIGHER, None, 1)]
    assert scene.counters == {"refused": 3}


async def test_requests_that_wait_are_bounded_and_served_in_their_order_when_the_claim_is_won() -> None:
    scene = Scene(held_max=2)
    scene.policy.serving = False
    scene.policy.says = Verdict.HOLD
    scene.socket.deliver(request(1), request(2), request(3))
    assert scene.counters == {"held_overflow": 1, "refused": 1}
    assert [sequence for _, sequence, _ in scene.replies()] == [3]
    await iterations(4)
    assert (scene.voter.held, scene.replies()) == (2, [])
    scene.socket.deliver(request(4))
    assert [sequence for _, sequence, _ in scene.replies()] == [4]
    scene.policy.serving, scene.policy.says = True, Verdict.ACCEPT
    scene.voter.release_held()
    await iterations(3)
    assert [sequence for _, sequence, _ in scene.replies()] == [1, 2]
    assert scene.voter.held == 0


async def test_held_requests_come_before_those_that_were_read_later() -> None:
    scene = Scene()
    scene.policy.serving = False
    scene.policy.says = Verdict.HOLD
    scene.socket.deliver(request(1), request(2))
    await iterations(4)
    scene.policy.serving = True
    scene.socket.deliver(request(3))
    await iterations(1)
    assert (len(scene.policy.seen), scene.voter.held) == (2, 3)  # it waits for its verdict behind them
    scene.policy.says = Verdict.ACCEPT
    scene.voter.release_held()
    await iterations(3)
    assert [sequence for _, sequence, _ in scene.replies()] == [1, 2, 3]


async def test_a_claim_that_is_won_at_once_serves_the_request_it_was_made_for() -> None:
    scene = Scene()
    scene.policy.serving = False
    scene.policy.says = Verdict.HOLD

    def win() -> None:
        if scene.policy.serving:
            scene.policy.says = Verdict.ACCEPT
        scene.policy.serving = True

    scene.policy.on_verdict = win
    scene.socket.deliver(request(1))
    await iterations(7)
    assert [sequence for _, sequence, _ in scene.replies()] == [1]


async def test_a_claim_that_is_dropped_refuses_those_that_wait_for_it() -> None:
    scene = Scene()
    scene.policy.serving = False
    scene.policy.says = Verdict.HOLD
    scene.socket.deliver(request(1), request(2))
    await iterations(4)
    scene.socket.deliver(request(3))
    scene.voter.refuse_held()
    assert [(kind, sequence) for kind, sequence, _ in scene.replies()] == [(ReplyKind.NOT_ACTIVE, 1), (ReplyKind.NOT_ACTIVE, 2)]
    assert scene.voter.held == 1


async def test_handlers_that_run_are_bounded() -> None:
    go = asyncio.Event()

    async def handler(request: Request) -> list[bytes]:
        await go.wait()
        return request.body

    scene = Scene(handler, running_max=2)
    scene.socket.deliver(request(1), request(2), request(3))
    assert [(kind, sequence) for kind, sequence, _ in scene.replies()] == [(ReplyKind.NOT_ACTIVE, 3)]
    assert scene.counters == {"accepted": 2, "running_overflow": 1, "refused": 1}
    go.set()
    await iterations(4)
    assert [sequence for _, sequence, _ in scene.replies()] == [1, 2]


async def test_an_error_of_the_handler_is_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    def handler(request: Request) -> None:
        raise LookupError(request.body)

    scene = Scene(handler)
    scene.socket.deliver(request(1, b"x"), [b"id", b"", b"stock"])
    await iterations(3)
    assert scene.replies() == [(ReplyKind.FAILED, 1, [b"LookupError"])]
    assert scene.counters == {"accepted": 2, "handler_failed": 2, "replied": 2}
    assert [(one.getMessage(), one.exc_info and one.exc_info[0]) for one in caplog.records] == [("handler failed", LookupError)]


@pytest.mark.parametrize("change", ["serving", "ballot"])
async def test_no_answer_leaves_when_the_right_to_answer_is_gone(change: str) -> None:
    go = asyncio.Event()

    async def handler(_: Request) -> bytes:
        await go.wait()
        return b"late"

    scene = Scene(handler)
    scene.socket.deliver(request(1))
    await iterations(1)
    if change == "serving":
        scene.policy.serving = False
    else:
        scene.policy.held = Ballot(5, 7)
    go.set()
    await iterations(4)
    assert scene.replies() == [(ReplyKind.NOT_ACTIVE, 1, [])]
    assert scene.counters == {"accepted": 1, "reply_withheld": 1, "refused": 1}


@pytest.mark.parametrize(
    ("seen", "vouched", "role"), [(HIGHER, True, State.PRIMARY), (HIGHER, False, None), (OURS, True, None), (NO_BALLOT, True, None)]
)
async def test_a_server_vouches_for_a_higher_ballot_only(seen: Ballot, vouched: bool, role: State | None) -> None:
    scene = Scene()
    scene.policy.vouched = vouched
    scene.socket.deliver([b"id", b"", header(1, seen)])
    await iterations(3)
    (reply,) = scene.socket.sent
    assert decode_reply_header(reply[2]) == ReplyHeader(ReplyKind.REPLY, 1, OURS, role)


async def test_a_voter_that_drains_accepts_nothing_and_finishes_what_runs() -> None:
    go = asyncio.Event()

    async def handler(request: Request) -> list[bytes]:
        await go.wait()
        return request.body

    scene = Scene(handler)
    assert await scene.voter.drain(0.0)
    scene.voter.draining = False
    scene.socket.deliver(request(1, b"x"))
    assert not await scene.voter.drain(0.0)
    scene.socket.deliver(request(2))
    assert scene.replies() == [(ReplyKind.NOT_ACTIVE, 2, [])]
    go.set()
    assert await scene.voter.drain(100.0)
    assert scene.replies() == [(ReplyKind.REPLY, 1, [b"x"])]


async def test_a_voter_that_closes_refuses_those_that_wait_and_ends_those_that_run() -> None:
    async def handler(_: Request) -> None:
        await asyncio.Event().wait()

    scene = Scene(handler)
    scene.socket.deliver(request(1))
    await iterations(1)
    scene.policy.serving = False
    scene.policy.says = Verdict.HOLD
    scene.socket.deliver(request(2))
    await iterations(4)
    scene.socket.deliver(request(3))
    decided = len(scene.policy.seen)
    await scene.voter.close()
    assert [(kind, sequence) for kind, sequence, _ in scene.replies()] == [(ReplyKind.NOT_ACTIVE, one) for one in (2, 3, 1)]
    assert (scene.socket.closed, scene.socket.linger, scene.socket.waited) == (True, 200, True)
    assert (scene.voter.draining, scene.voter.held, scene.voter.running) == (True, 0, 0)
    await iterations(5)
    assert len(scene.policy.seen) == decided
    await scene.voter.close()


async def test_after_the_end_there_is_no_refusal() -> None:
    scene = Scene()
    scene.policy.says = Verdict.REJECT
    await scene.voter.close()
    scene.socket.deliver(request(1))
    assert (scene.socket.sent, scene.counters) == ([], {"refused": 1})
