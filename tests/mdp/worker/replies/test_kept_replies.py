"""A request with a key is not executed again when its broker was killed, or has lost the connection (IDM-07)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import mdp
from core.zmtp.frames import Encoded
from core.zmtp.limits import PeerLimits
from mdp.session.broker_search import BrokerSearch, SearchTimes
from mdp.wire.commands import V03, WORKER_READY_03, worker_cancel, worker_error, worker_final, worker_recall
from mdp.wire.options import encode_options
from mdp.worker.replies.kept_replies import EXECUTION_OVERHEAD_BYTES, KeptReplies
from mdp.worker.session import WorkerSession
from mdp.worker.session_options import SessionCounters, SessionOptions
from tests.scenes.mdp_messages import read, worker_request
from tests.scenes.mdp_scripted_broker import StandIn, give, token
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.request import Request

KEYED = encode_options({"key": b"order-17"})


class KeepingSession:
    """A session that keeps replies, and what it has sent."""

    def __init__(self, results_max: int = 3, results_max_bytes: int = 10_000, results_s: float = 60.0) -> None:
        counters = SessionCounters()
        self.kept = KeptReplies(counters, results_max=results_max, results_max_bytes=results_max_bytes, results_s=results_s)
        search = BrokerSearch(["tcp://broker:5555"], V03, SearchTimes(), lambda: 1.0)
        self.session = WorkerSession("echo", search, SessionOptions(credit=8), counters, self.kept)
        self.now = 0.0
        self.session.search.start(self.now)
        self.join()

    def join(self, limits: PeerLimits | None = None) -> None:
        self.session.joined(self.now, limits)
        self.sent()

    def reconnect(self, limits: PeerLimits | None = None) -> None:
        """Lose the connection with all requests in flight, and have another one."""
        self.session.lost(self.now)
        self.session.take_unwanted()
        self.now += 10.0
        self.session.search.tick(self.now)
        self.join(limits)

    def give(self, number: int, *body: bytes, options: bytes = KEYED) -> list[Request]:
        return self.session.receive(read([worker_request(V03, token(number), body or (b"x",), options=options)]), self.now)

    def sent(self) -> list[list[bytes]]:
        return [Encoded(one).frames() if isinstance(one, bytes) else [*one] for one in self.session.take_outgoing(self.now)]

    @property
    def seen(self) -> tuple[int, int]:
        return self.session.counters.replayed, self.session.counters.joined


def final(number: int, *body: bytes) -> list[bytes]:
    return worker_final(V03, token(number), body)


def frames_of(message: Any) -> list[bytes]:
    return Encoded(message).frames() if isinstance(message, bytes) else [*message]


def test_a_kept_reply_answers_the_request_on_the_next_connection() -> None:
    keeping = KeepingSession()
    (first,) = keeping.give(1, b"x", b"y")
    keeping.session.answer(first, [b"one", b"two"])
    keeping.reconnect()
    assert keeping.give(2, b"x", b"y") == []
    assert keeping.sent() == [frames_of(final(2, b"one", b"two"))]
    assert (keeping.seen, keeping.session.in_flight) == ((1, 0), 0)
    # The same key with another body is another request; so is one without a key.
    assert len(keeping.give(3, b"x")) == len(keeping.give(4, b"x", b"y", options=b"")) == 1


def test_the_same_key_of_another_user_is_another_key() -> None:
    """The digest of the user comes from the broker."""
    keeping = KeepingSession(results_max=9)
    owners = [b"", b"1" * 16, b"2" * 16]
    given = [keeping.give(n, options=encode_options({"key": b"k", "owner": owner or None})) for n, owner in enumerate(owners)]
    assert [len(one) for one in given] == [1, 1, 1]
    for (one,), owner in zip(given, owners, strict=True):
        keeping.session.answer(one, [owner])
    keeping.sent()
    for number, owner in enumerate(owners, 10):
        assert keeping.give(number, options=encode_options({"key": b"k", "owner": owner or None})) == []
        assert keeping.sent() == [frames_of(final(number, owner))]


def test_requests_without_a_key_do_not_wait_for_one_another() -> None:
    keeping = KeepingSession()
    assert len(keeping.give(1, options=b"")) == len(keeping.give(2, options=b"")) == 1
    keeps_none = KeepingSession(results_max=0)
    assert len(keeps_none.give(1)) == len(keeps_none.give(2)) == 1


def test_a_reply_is_kept_if_it_is_as_large_as_all_may_be_and_as_long_as_it_may_be() -> None:
    for more, kept in ((0, True), (1, False)):
        keeping = KeepingSession(results_max_bytes=EXECUTION_OVERHEAD_BYTES + 10)
        (first,) = keeping.give(1)
        keeping.session.answer(first, bytes(10 + more).split(b"-"))
        assert (keeping.kept.size, len(keeping.kept)) == ((EXECUTION_OVERHEAD_BYTES + 10, 1) if kept else (0, 0))
    keeping = KeepingSession(results_s=60.0)
    (first,) = keeping.give(1)
    keeping.session.answer(first, [b"r"])
    keeping.now = 59.9
    assert keeping.give(2) == []
    keeping.now = 60.0
    assert len(keeping.give(3)) == 1


def test_a_reply_that_was_not_sent_is_kept_too() -> None:
    keeping = KeepingSession()
    (first,) = keeping.give(1)
    keeping.reconnect()
    keeping.session.answer(first, [b"late"])
    assert keeping.give(2) == []
    assert keeping.sent() == [frames_of(final(2, b"late"))]


def test_a_request_waits_for_the_handler_that_runs() -> None:
    keeping = KeepingSession()
    (first,) = keeping.give(1)
    keeping.reconnect()
    assert keeping.give(2) == []
    keeping.reconnect()
    assert keeping.give(3) == []
    assert (keeping.sent(), keeping.session.in_flight) == ([], 1)
    keeping.session.answer(first, [b"late"])
    assert keeping.sent() == [frames_of(final(3, b"late"))]
    assert (keeping.seen, keeping.session.counters.unwanted) == ((0, 2), 1)  # only the one that ran is gone with its connection


def test_an_error_is_not_kept_and_ends_those_that_wait() -> None:
    keeping = KeepingSession()
    (first,) = keeping.give(1)
    keeping.reconnect()
    assert keeping.give(2) == []
    keeping.session.refuse(first, "HANDLER_ERROR", "no")
    assert keeping.sent() == [frames_of(worker_error(token(2), "HANDLER_ERROR", "no"))]
    assert len(keeping.give(3)) == 1


@pytest.mark.parametrize("code", ["CANCELLED", "DEADLINE_EXCEEDED"])
def test_the_end_of_one_request_alone_ends_no_other(code: str) -> None:
    keeping = KeepingSession()
    (first,) = keeping.give(1)
    for number in (2, 3, 4):
        assert keeping.give(number) == []
    keeping.session.refuse(first, code, "")
    (second,) = keeping.kept.take_successors()
    assert keeping.kept.take_successors() == []
    assert keeping.give(5) == []
    keeping.session.receive(read([worker_cancel(token(3))]), keeping.now)
    (third,) = keeping.session.take_unwanted()
    keeping.session.refuse(third, "CANCELLED", "")
    keeping.session.answer(second, [b"done"])
    ends = [worker_error(token(1), code, ""), worker_error(token(3), "CANCELLED", ""), *(final(n, b"done") for n in (4, 5, 2))]
    assert keeping.sent() == [frames_of(one) for one in ends]


def test_a_successor_that_is_gone_before_its_handler_is_called_has_a_successor_too() -> None:
    keeping = KeepingSession()
    (first,) = keeping.give(1)
    assert keeping.give(2) + keeping.give(3) == []
    keeping.session.refuse(first, "CANCELLED", "")
    keeping.session.receive(read([worker_cancel(token(2))]), keeping.now)
    (second,) = keeping.session.take_unwanted()
    keeping.session.refuse(second, "CANCELLED", "")
    assert [one._token for one in keeping.kept.take_successors()] == [token(3)]


def test_a_reply_in_parts_is_not_kept() -> None:
    keeping = KeepingSession()
    (first,) = keeping.give(1)
    assert keeping.give(2) == []
    keeping.session.send_part(first, [b"part"])
    keeping.session.answer(first, [b""])
    busy, part, end = keeping.sent()
    assert busy == frames_of(worker_error(token(2), "BUSY", "a request with this key runs, and its reply comes in parts"))
    assert part[1:] == [b"part"]
    assert end == frames_of(final(1, b""))
    assert len(keeping.give(3)) == 1


def test_one_that_was_returned_or_cancelled_can_be_executed_later() -> None:
    keeping = KeepingSession()
    (first,) = keeping.give(1)
    keeping.session.receive(read([worker_recall(token(1))]), keeping.now)
    keeping.session.return_one(first)
    (again,) = keeping.give(2)
    keeping.session.receive(read([worker_cancel(token(2))]), keeping.now)
    keeping.session.refuse(again, "CANCELLED", "")
    assert len(keeping.give(3)) == 1


def test_a_broker_with_lower_limits_gets_an_error() -> None:
    keeping = KeepingSession()
    (first,) = keeping.give(1)
    keeping.session.answer(first, [b"r" * 2000])
    keeping.reconnect(PeerLimits(7, 1000, 1000))
    assert keeping.give(2) == []
    ((head, *_),) = keeping.sent()
    assert head.endswith(token(2))
    assert keeping.session.in_flight == 0


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"results_max": 2}, [1, 2]),
        ({"results_max": 10, "results_max_bytes": 2 * (EXECUTION_OVERHEAD_BYTES + 1)}, [1, 2]),
        ({"results_max": 10, "results_max_bytes": EXECUTION_OVERHEAD_BYTES}, []),
        ({"results_max": 10, "results_s": 2.5}, [1, 2]),
        ({"results_max": 0}, []),
    ],
)
def test_number_octets_and_age_are_bounded(limits: dict[str, Any], kept: list[int]) -> None:
    keeping = KeepingSession(**limits)
    options = [encode_options({"key": b"%d" % number}) for number in range(3)]
    for number in range(3):
        (request,) = keeping.give(number, options=options[number])
        keeping.session.answer(request, [b"r"])
        keeping.now += 1.0
        keeping.session.tick(keeping.now)
    assert len(keeping.kept) == len(kept)
    assert keeping.kept.size == len(kept) * (EXECUTION_OVERHEAD_BYTES + 1)
    assert [number for number in range(3) if not keeping.give(10 + number, options=options[number])] == kept


# ------------------------------------------------------------------------------------------------------------ with a connection


class Slow:
    """A handler that waits until it may end.

    Attributes:
        begun: bodies of the requests it was called for.
        cancelled: how many of them were cancelled.
    """

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.cancelled = 0
        self.gate = asyncio.Event()

    async def __call__(self, request: Request) -> bytes:
        self.begun.append(request.body[0])
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return b"done"


async def ready(broker: StandIn) -> bytes:
    while True:
        peer, frames = await broker.next()
        if frames[0] == WORKER_READY_03:
            return peer


async def test_a_handler_goes_on_when_the_connection_ends_and_one_that_waits_is_forgotten() -> None:
    slow = Slow()
    other, without = encode_options({"key": b"other"}), b""
    async with StandIn() as broker, mdp.Worker(broker.endpoint, "echo", handler=slow, concurrency=2, reconnect_ms=20, drain_s=0) as worker:
        peer = await ready(broker)
        give(broker, peer, 1, b"a", options=KEYED)
        give(broker, peer, 2, b"b", options=without)
        give(broker, peer, 3, b"c", options=other)
        await eventually(lambda: worker.session_counters.received == 3 and len(slow.begun) == 2)
        broker.cut(peer)
        peer = await ready(broker)
        assert slow.cancelled == 1  # nobody can ask for the reply of the one without a key
        give(broker, peer, 4, b"a", options=KEYED)
        give(broker, peer, 5, b"c", options=other)
        await eventually(lambda: slow.begun == [b"a", b"b", b"c"])
        slow.gate.set()
        answers = {(await broker.next())[1][0][-8:] for _ in range(2)}
        assert answers == {token(4), token(5)}
        assert slow.begun == [b"a", b"b", b"c"]


async def test_a_handler_that_runs_for_too_long_is_cancelled_all_the_same() -> None:
    slow = Slow()
    async with StandIn() as broker, mdp.Worker(broker.endpoint, "echo", handler=slow, stuck_s=0.01, reconnect_ms=20, drain_s=0):
        peer = await ready(broker)
        give(broker, peer, 1, options=KEYED)
        await eventually(lambda: slow.begun)
        await asyncio.sleep(0.02)
        broker.cut(peer)
        await eventually(lambda: slow.cancelled == 1)


@pytest.mark.parametrize("when", ["executed", "running"])
async def test_idm_07_a_broker_that_is_killed_costs_no_second_execution(when: str) -> None:
    slow = Slow()
    if when == "executed":
        slow.gate.set()
    async with AsyncExitStack() as later, mdp.Broker() as second:
        async with mdp.Broker() as first:
            endpoint = first.bind("tcp://127.0.0.1:*")
            worker = await later.enter_async_context(mdp.Worker(endpoint, "pay", handler=slow, drain_s=0, reconnect_ms=20))
            async with mdp.Client(endpoint, timeout=PATIENCE_S) as client:
                asked = client.request("pay", b"17", key="order-17", wait=True)
                await eventually(lambda: slow.begun)
                if when == "executed":
                    assert await asked == [b"done"]
        # The first one has forgotten everything with its end.
        second.bind(endpoint)
        client = await later.enter_async_context(mdp.Client(endpoint, timeout=PATIENCE_S, reconnect_ms=20))
        asked = client.request("pay", b"17", key="order-17", wait=True)
        await eventually(lambda: sum((worker.session_counters.joined, worker.session_counters.replayed)))
        slow.gate.set()
        assert await asked == [b"done"]
        assert slow.begun == [b"17"]
        await later.aclose()


class Patient(Slow):
    """A handler whose clean-up waits, too."""

    def __init__(self) -> None:
        super().__init__()
        self.cleaned = asyncio.Event()

    async def __call__(self, request: Request) -> bytes:
        try:
            return await super().__call__(request)
        except asyncio.CancelledError:
            await self.cleaned.wait()
            raise


async def test_a_request_that_waits_for_one_that_was_cancelled_is_executed() -> None:
    """The handler is in its clean-up when other requests with the key come: those were not cancelled."""
    patient = Patient()
    async with StandIn() as broker, mdp.Worker(broker.endpoint, "echo", handler=patient, drain_s=0) as worker:
        peer = await ready(broker)
        give(broker, peer, 1, options=KEYED)
        await eventually(lambda: patient.begun)
        broker.send(peer, *worker_cancel(token(1)))
        await eventually(lambda: patient.cancelled)
        give(broker, peer, 2, options=KEYED)
        give(broker, peer, 3, options=KEYED)
        await eventually(lambda: worker.session_counters.joined == 2)
        patient.cleaned.set()
        patient.gate.set()
        answers = [(await broker.next())[1] for _ in range(3)]
        assert answers[0][0].endswith(token(1))
        assert sorted(one[0][-8:] for one in answers[1:]) == [token(2), token(3)]
        assert {one[-1] for one in answers[1:]} == {b"done"}
        assert len(patient.begun) == 2


async def test_the_key_of_a_handler_that_was_cancelled_as_stuck_is_free_again() -> None:
    slow = Slow()
    async with StandIn() as broker, mdp.Worker(broker.endpoint, "echo", handler=slow, stuck_s=0.01, reconnect_ms=20, drain_s=0):
        peer = await ready(broker)
        give(broker, peer, 1, options=KEYED)
        await eventually(lambda: slow.begun)
        await asyncio.sleep(0.02)
        broker.cut(peer)
        await eventually(lambda: slow.cancelled == 1)
        slow.gate.set()
        peer = await ready(broker)
        give(broker, peer, 2, options=KEYED)
        _, frames = await broker.next()
        assert frames[0].endswith(token(2))
        assert frames[-1] == b"done"


@pytest.mark.parametrize("ended", [worker_cancel, worker_recall], ids=["cancelled", "recalled"])
async def test_the_next_request_of_a_key_is_executed_when_the_first_leaves_before_it_was_begun(
    ended: Callable[[bytes], list[bytes]],
) -> None:
    slow = Slow()
    async with StandIn() as broker, mdp.Worker(broker.endpoint, "echo", handler=slow, concurrency=1, drain_s=0) as worker:
        peer = await ready(broker)
        give(broker, peer, 1, b"running")
        await eventually(lambda: slow.begun)
        for number in (2, 3):
            give(broker, peer, number, b"a", options=KEYED)
        await eventually(lambda: worker.session_counters.joined)
        broker.send(peer, *ended(token(2)))
        assert token(2) in (await broker.next())[1][0]
        await eventually(lambda: worker.waiting == 1)
        slow.gate.set()
        assert [(await broker.next())[1][0][-8:] for _ in range(2)] == [token(1), token(3)]
        assert slow.begun == [b"running", b"a"]
