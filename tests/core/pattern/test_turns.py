"""Order of messages: fair queueing of receives (SOCK-08), load balancing of sends (SOCK-09)."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from core.options import Options
from core.pattern.base import Counters, Pattern
from core.pattern.fair_queue import FairQueue
from core.pattern.load_balancer import LoadBalancer
from core.pattern.pipeline import Push
from core.pattern.reqrep import Router
from core.zmtp.frames import encode_message
from core.zmtp.limits import PeerLimits
from tests.scenes.builds import stands_in

if TYPE_CHECKING:
    from core.zmtp.frames import Message

pytestmark = stands_in


class Made(SimpleNamespace):
    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def pipe(name: str, *, throttled: bool = False, limit: int = 2, flushes: bool = False) -> Any:
    made = Made(name=name, inbox=deque(), outbox=[], limit=limit, throttled=throttled, unread_bytes=99, resumed=0)
    made.take = made.inbox.popleft
    made.listed = made.waiting_for_capacity = False

    def resume() -> None:
        made.resumed += 1

    made.engine = SimpleNamespace(resume=resume, flush=lambda: flushes)
    made.write = lambda frames, first=0: made.outbox.append(frames[first:])
    return made


def filled(*counts: int, throttled: bool = False) -> tuple[FairQueue, list[Any]]:
    queue, pipes = FairQueue(), [pipe(name, throttled=throttled) for name in "abc"[: len(counts)]]
    for one, count in zip(pipes, counts, strict=True):
        queue.push(one, [[f"{one.name}{number}".encode()] for number in range(count)])
    return queue, pipes


def popped(queue: FairQueue) -> list[bytes]:
    found = []
    while (message := queue.pop()) is not None:
        found += message
    return found


def test_receives_alternate_between_pipes_that_hold_something() -> None:
    assert popped(filled(3, 0, 2)[0]) == [b"a0", b"c0", b"a1", b"c1", b"a2"]
    assert popped(filled(3, 1, 2)[0]) == [b"a0", b"b0", b"c0", b"a1", b"c1", b"a2"]


@pytest.mark.parametrize("counts", [(3,), (1,), (3, 1, 2), (2, 0, 3), (0, 0, 4), (0,)])
@pytest.mark.parametrize("throttled", [True, False])
def test_all_at_once_is_what_one_after_the_other_gives(counts: tuple[int, ...], throttled: bool) -> None:
    queue, pipes = filled(*counts, throttled=throttled)
    assert [frame for message in queue.pop_many() for frame in message] == popped(filled(*counts)[0])
    assert not queue.active
    assert queue.pop_many() == []
    for one, count in zip(pipes, counts, strict=True):
        assert not one.inbox
        assert (one.unread_bytes, one.resumed) == ((0, int(throttled)) if count else (99, 0))
        queue.push(one, [[b"next"]])
        assert queue.pop_from() == (one, [b"next"])


def test_what_is_put_back_comes_next_and_once() -> None:
    queue, pipes = filled(2, 2)
    taken = queue.pop_from()
    assert taken == (pipes[0], [b"a0"])
    queue.put_back(pipes[0], [b"a0"])
    queue.put_back(None, [b"never"])
    assert popped(queue) == [b"a0", b"b0", b"a1", b"b1"]
    queue.put_back(pipes[1], [b"b1"])
    assert popped(queue) == [b"b1"]


def test_what_a_pipe_holds_is_dropped_and_counted() -> None:
    queue, pipes = filled(3, 1)
    assert [queue.discard(pipes[0]), queue.discard(pipes[0])] == [3, 0]
    assert popped(queue) == [b"b0"]
    assert queue.discard(pipes[1]) == 0


def balanced(*pipes: Any) -> LoadBalancer:
    balancer = LoadBalancer()
    for one in (*pipes, *pipes):  # the second time each is a candidate already
        balancer.add(one)
    return balancer


def names(balancer: LoadBalancer, count: int) -> str:
    return "".join(getattr(balancer.choose(), "name", "-") for _ in range(count))


@pytest.mark.parametrize(
    ("chosen", "removed", "then"), [(0, 0, "bcb"), (1, 0, "bcb"), (1, 1, "cac"), (1, 2, "bab"), (2, 0, "cbc"), (2, 1, "cac"), (3, 2, "aba")]
)
def test_whose_turn_it_is_stays_when_another_pipe_goes(chosen: int, removed: int, then: str) -> None:
    pipes = [pipe(name) for name in "abc"]
    balancer = balanced(*pipes)
    assert names(balancer, chosen) == "abc"[:chosen]
    balancer.remove(pipes[removed])
    balancer.remove(pipes[removed])
    assert names(balancer, 3) == then
    assert [one.listed for one in pipes] == [place != removed for place in range(3)]


def test_a_full_pipe_is_passed_over_until_it_has_capacity() -> None:
    pipes = [pipe("a", limit=1), pipe("b"), pipe("c", limit=0)]
    balancer = balanced(*pipes)
    assert balancer.has_capacity()
    sent = [balancer.send([b"0", b"%d" % number], 1) for number in range(4)]
    assert sent == [True, True, True, False]
    assert balancer.last is pipes[1]
    assert [one.outbox for one in pipes] == [[[b"0"]], [[b"1"], [b"2"]], []]
    assert [(one.listed, one.waiting_for_capacity) for one in pipes] == [(False, True)] * 3
    assert not balancer.has_capacity()
    pipes[0].outbox.clear()
    balancer.add(pipes[0])
    assert balancer.has_capacity()
    assert names(balancer, 2) == "aa"


def test_when_all_were_full_the_first_with_capacity_again_is_the_first() -> None:
    pipes = [pipe("a", limit=1), pipe("b", limit=0), pipe("c", limit=0)]
    balancer = balanced(*pipes)
    assert [balancer.send([b"x"]) for _ in range(2)] == [True, False]
    for one in (pipes[1], pipes[2], pipes[0]):
        one.limit += 1
        balancer.add(one)
    assert names(balancer, 4) == "bcab"


def test_a_full_pipe_that_can_be_emptied_has_capacity() -> None:
    balancer = balanced(pipe("a", limit=0, flushes=True))
    assert balancer.has_capacity()
    assert names(balancer, 2) == "aa"


def test_what_follows_a_message_that_has_to_wait_waits_too() -> None:
    tried: list[list[bytes]] = []

    class Slow(Pattern):
        def send(self, frames: Message) -> bool:
            tried.append(frames)
            return frames != [b"waits"]

    pattern = Slow(Options(), Counters())
    assert pattern.send_many([[b"1"], [b"2"], [b"waits"], [b"3"]]) == 2
    assert tried == [[b"1"], [b"2"], [b"waits"]]
    assert pattern.send_many([]) == 0


def test_with_immediate_a_pipe_is_a_candidate_once_it_is_connected() -> None:
    for immediate in (0, 1):
        push = Push(Options(immediate=immediate), Counters())
        one = pipe("a")
        one.connected, one.connecting, one.takes_octets = False, True, True
        push.attach(one)
        assert push.outbound.pipes == ([] if immediate else [one])
        assert push.send([b"x"]) is not bool(immediate)
        one.connected = True
        push.ready(one)
        assert push.outbound.pipes == [one]


def routed(limit: int, held: int = 0, **options: int) -> tuple[Router, Any]:
    router, one = Router(Options(**options), Counters(), 1), pipe("a", limit=limit)
    one.outbox += [b"before"] * held
    one.takes_octets, one.limits = True, PeerLimits(message_bytes=10)
    one.engine.try_write = lambda piece: False
    router.routes[b"id"] = one
    return router, one


def test_a_router_sends_where_there_is_capacity_and_says_when_there_is_none() -> None:
    router, one = routed(2)
    assert [router.send([b"id", b"x"]) for _ in range(3)] == [True] * 3
    assert one.outbox == [[b"x"]] * 2
    assert router.counters.peer_full == 1
    router, one = routed(1, router_mandatory=1)
    assert [router.send([b"id", b"x"]) for _ in range(2)] == [True, False]
    assert (one.outbox, one.waiting_for_capacity) == ([[b"x"]], True)


def test_a_batch_of_a_router_ends_where_one_has_to_wait_and_nothing_overtakes_it() -> None:
    batch = [[b"id", b"1"], [b"id"], [b"id", b"2", b""], [b"id", b"3"], [b"away", b"4"]]
    router, one = routed(2, router_mandatory=1)
    assert router.send_many(batch) == 3
    assert one.outbox == [encode_message([b"1"]), encode_message([b"2", b""])]
    assert router.counters.empty == 1
    router, one = routed(2)
    assert router.send_many(batch) == 5
    assert len(one.outbox) == 2
    assert (router.counters.empty, router.counters.peer_full, router.counters.unroutable) == (1, 1, 1)


def test_a_router_judges_by_the_peer_it_goes_to() -> None:
    router, one = routed(2)
    assert router.judge([b"id", b"x" * 10]) is None
    assert router.judge([b"id", b"x" * 11]) is not None
    assert router.judge([b"away", b"x" * 11]) is None
    assert router.judge([]) is None
    one.limits = None
    assert router.judge([b"id", b"x" * 11]) is None
