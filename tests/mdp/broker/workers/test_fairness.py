"""MDP-32, BEY-06: a slow worker beside a quick one gets less; what it has not begun goes to free ones."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import mdp
import mdp.testing
from mdp.broker.workers.pacing import Pace
from mdp.wire.commands import WORKER_HEARTBEAT_03, WORKER_PING_03, worker_error, worker_final, worker_heartbeat, worker_return
from mdp.wire.events import Cancel, Final, Recall, Work, parse_at_worker
from tests.scenes.mdp_shop import Shop
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from typing import Any

    from mdp.worker.handler import WorkerSettings


def test_the_next_request_goes_to_the_worker_that_holds_least() -> None:
    """In quarters of its concurrency: a worker that does not answer gets no more than others have in flight."""
    scene = Shop()
    scene.join(b"SLOW", 4)
    scene.join(b"QUICK", 4)
    for i in range(100):
        scene.ask("0.3", b"C1", b"%d" % i)
        for work in scene.given(b"QUICK"):
            scene.answer(b"QUICK", work)
    assert len(scene.given(b"SLOW")) == 1
    scene.check()


def test_the_first_heartbeat_to_a_worker_that_knows_ping_is_one() -> None:
    """So it learns that it may say more in its own than brokers of before understand."""
    scene = Shop(heartbeat_ms=1000)
    scene.join(b"NEW", 4)
    scene.ready("0.3", b"OLD", credit=4)
    for peer in (b"NEW", b"OLD"):
        scene.send(peer, worker_heartbeat("0.3"))
    scene.wait(1.01)
    assert (scene.got(b"NEW"), scene.got(b"OLD")) == ([[WORKER_PING_03]], [[WORKER_HEARTBEAT_03]])
    scene.send(b"NEW", worker_heartbeat("0.3"))
    scene.wait(1.01)
    assert scene.got(b"NEW") == [[WORKER_HEARTBEAT_03]]


def test_a_worker_that_is_long_in_giving_back_is_asked_for_all_it_has_not_begun_while_another_is_free() -> None:
    """Its handlers block its loop: what was not asked for before the next one begins waits for that one too."""
    scene = Shop()
    scene.join(b"BLOCKED", 1, 64)
    scene.join(b"QUICK", 1, 64)
    for i in range(40):
        scene.ask("0.3", b"C1", b"%d" % i)
    blocked, quick = scene.given(b"BLOCKED"), scene.given(b"QUICK")
    scene.wait(0.01)
    for work in quick:
        scene.answer(b"QUICK", work)
    scene.wait(0.1)
    asked = scene.recalled(b"BLOCKED")
    assert sorted(asked) == sorted(work.id for work in blocked[1:])
    for token in asked:
        scene.send(b"BLOCKED", worker_return(token))
    assert len(scene.given(b"QUICK")) + len(scene.given(b"BLOCKED")) == len(asked)
    scene.check()


def test_a_worker_is_not_asked_for_what_it_works_on_but_for_what_waits_behind_it() -> None:
    """The second is given to it just before the other worker is free.

    It is too young to be asked for at once, and is asked for a little later.
    """
    scene = Shop()
    scene.join(b"HANGS", 1, 4)
    scene.join(b"QUICK", 1, 4)
    for i in range(2):
        scene.ask("0.3", b"C1", b"%d" % i)
    scene.wait(0.01)
    for i in range(2, 4):
        scene.ask("0.3", b"C1", b"%d" % i)
    hangs = scene.given(b"HANGS")
    assert len(hangs) == 2
    for work in scene.given(b"QUICK"):
        scene.answer(b"QUICK", work)
    scene.wait(0.1)
    assert scene.recalled(b"HANGS") == [hangs[1].id]
    scene.send(b"HANGS", worker_return(hangs[1].id))
    assert [work.body for work in scene.given(b"QUICK")] == [hangs[1].body]
    scene.check()


def test_what_was_asked_for_too_late_counts_as_what_a_worker_works_on() -> None:
    """It begins the request before it is asked to return it, and hangs.

    What it is given then still goes to the other worker.
    """
    scene = Shop()
    scene.join(b"HANGS", 1, 4)
    scene.join(b"QUICK", 1, 4)
    for i in range(4):
        scene.ask("0.3", b"C1", b"%d" % i)
    first, second = scene.given(b"HANGS")
    one, other = scene.given(b"QUICK")
    scene.wait(0.01)
    scene.answer(b"QUICK", one)
    scene.answer(b"QUICK", other)
    scene.wait(0.01)
    assert scene.recalled(b"HANGS") == [second.id]
    scene.answer(b"HANGS", first)  # it has begun the second, which was asked for
    for i in range(4, 8):
        scene.ask("0.3", b"C1", b"%d" % i)
    scene.wait(0.01)
    third = scene.given(b"HANGS")
    for work in scene.given(b"QUICK"):
        scene.answer(b"QUICK", work)
    scene.wait(0.1)
    assert third
    assert sorted(scene.recalled(b"HANGS")) == sorted(work.id for work in third)
    scene.check()


def test_larger_workers_get_more() -> None:
    scene = Shop()
    scene.join(b"W1", 4)
    scene.join(b"W2", 16)
    for _ in range(20):
        scene.ask("0.3", b"C1")
    assert (len(scene.given(b"W1")), len(scene.given(b"W2"))) == (4, 16)
    scene.check()


def test_what_was_not_begun_is_asked_back_for_a_free_worker() -> None:
    scene = Shop()
    scene.join(b"SLOW", 1)
    scene.join(b"QUICK", 1)
    for i in range(8):
        scene.ask("0.3", b"C1", b"%d" % i)
    slow, quick = scene.given(b"SLOW"), scene.given(b"QUICK")
    assert len(slow) == len(quick) == 4
    scene.wait(0.01)
    for work in quick:
        scene.answer(b"QUICK", work)
    assert scene.at_worker(b"SLOW") == []  # not at once: it may answer in this very moment
    scene.wait(0.0021)
    tokens = scene.recalled(b"SLOW")
    assert tokens == [slow[3].id, slow[2].id]
    for token in tokens:
        scene.send(b"SLOW", worker_return(token))
    again = scene.given(b"QUICK")
    assert [work.body[0] for work in again] == [slow[3].body[0], slow[2].body[0]]
    assert not again[0].options  # it is no second delivery
    scene.check()
    for work in again:
        scene.answer(b"QUICK", work)
    scene.wait(0.0021)
    assert scene.recalled(b"SLOW") == [slow[1].id]
    scene.answer(b"SLOW", slow[0])
    scene.answer(b"SLOW", slow[1])  # it was begun meanwhile, and the question is ignored
    assert len([event for event in scene.at_client(b"C1") if isinstance(event, Final)]) == 8
    assert (scene.counters["recalled"], scene.counters["returned"], scene.counters["redelivered"]) == (3, 2, 0)
    scene.check()


def test_nothing_is_asked_back_that_was_just_given() -> None:
    """Quick workers have answered before the question is there."""
    scene = Shop()
    scene.join(b"W1", 1)
    scene.join(b"W2", 1)
    for _ in range(8):
        scene.ask("0.3", b"C1")
    scene.given(b"W1")
    for work in scene.given(b"W2"):
        scene.answer(b"W2", work)
    scene.wait(0.0045)
    assert scene.at_worker(b"W1") == []
    scene.wait(0.002)
    assert scene.recalled(b"W1")


def test_a_worker_that_comes_gets_what_others_have_not_begun() -> None:
    scene = Shop()
    scene.join(b"W1", 2)
    for _ in range(8):
        scene.ask("0.3", b"C1")
    scene.given(b"W1")
    scene.wait(1)
    scene.join(b"W2", 2)
    scene.wait(0.003)
    for token in scene.recalled(b"W1"):
        scene.send(b"W1", worker_return(token))
    assert len(scene.given(b"W2")) == 3
    scene.check()


def test_what_the_first_worker_that_came_took_out_of_the_queue_is_asked_back_for_the_next() -> None:
    """It was given all its credit at once, and has never stood in a line."""
    scene = Shop()
    for i in range(4):
        scene.ask("0.3", b"C1", b"%d" % i, options={"wait": True})
    scene.join(b"FIRST", 1)
    assert len(scene.given(b"FIRST")) == 4
    scene.wait(0.1)
    scene.join(b"SECOND", 1)
    scene.wait(0.1)
    assert scene.recalled(b"FIRST") != []
    scene.check()


def test_what_may_be_given_once_is_asked_back_and_given_to_another() -> None:
    """A worker that returns a request has not begun it: only one worker executes it."""
    scene = Shop()
    scene.join(b"W1", 1)
    for _ in range(4):
        scene.ask("0.3", b"C1", options={"once": True})
    scene.given(b"W1")
    scene.wait(1)
    scene.join(b"W2", 1)
    scene.wait(0.003)
    tokens = scene.recalled(b"W1")
    scene.send(b"W1", worker_return(tokens[0]))
    (again,) = scene.given(b"W2")
    scene.lose(b"W2")
    assert scene.failure(b"C1") == "WORKER_LOST"
    assert again.body == [b"x"]
    scene.check()


def test_a_return_that_was_not_asked_for_sends_the_worker_away() -> None:
    scene = Shop()
    scene.join(b"W1", 1)
    scene.ask("0.3", b"C1")
    (work,) = scene.given(b"W1")
    scene.send(b"W1", worker_return(work.id))
    assert scene.is_sent_away(b"W1")
    scene.check()


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("how", ["cancel", "client", "worker", "failure"])
def test_a_request_ends_while_it_is_asked_back(how: str, key: bytes | None) -> None:
    scene = Shop()
    scene.join(b"W1", 1)
    scene.ask("0.3", b"C1", b"begun")
    scene.ask("0.3", b"C2", b"waits", options={"key": key})
    _, waits = scene.given(b"W1")
    scene.wait(1)
    scene.join(b"W2", 1)
    scene.wait(0.003)
    assert scene.recalled(b"W1") == [waits.id]
    if how == "worker":
        scene.lose(b"W1")
        scene.beat(b"W2")
        assert sorted(work.body[0] for work in scene.given(b"W2")) == [b"begun", b"waits"]
    elif how == "failure":
        scene.send(b"W1", worker_error(waits.id, "HANDLER_ERROR", "begun after all"))
        assert scene.failure(b"C2") == "HANDLER_ERROR"
    else:
        scene.lose(b"C2")
        assert all(isinstance(event, Cancel) for event in scene.at_worker(b"W1"))
        scene.send(b"W1", worker_return(waits.id))
        assert scene.at_worker(b"W2") == []
    scene.check()


class Floor:
    """Workers in a time that is set here, each message 0.2 ms on its way."""

    def __init__(self, times: dict[bytes, float], concurrency: int) -> None:
        self.times, self.concurrency = times, concurrency
        self.shop = Shop()
        self.begun: Counter[bytes] = Counter()
        self.had: Counter[bytes] = Counter()  # by worker
        self.fails: set[bytes] = set()
        self._waiting: dict[bytes, list[Work]] = {peer: [] for peer in times}
        self._running = dict.fromkeys(times, 0)
        # When, order, which worker, what it says, whether it is done with one.
        self._events: list[tuple[float, int, bytes, list[bytes], bool]] = []
        self._order = 0
        self._beat_at = self.shop.now
        for peer in times:
            self.shop.join(peer, concurrency)

    def burst(self, requests: int, **options: object) -> float:
        """Ask for so much at once; return the seconds until the last answer."""
        closed, started = self.shop.machine.counters.closed + requests, self.shop.now
        for number in range(requests):
            body = b"%d.%d" % (closed, number)
            self.shop.ask("0.3", b"C1", body, options={**options, "key": body} if "key" in options else options or None)
        self._work_on()
        while self.shop.machine.counters.closed < closed:
            self._step()
        return self.shop.now - started

    def rest(self, seconds: float) -> None:
        """Let time pass."""
        end = self.shop.now + seconds
        while self.shop.now < end:
            self._say(min(1.0, end - self.shop.now), next(iter(self.times)), worker_heartbeat("0.3"), False)
            self._step()

    def _say(self, after_s: float, peer: bytes, frames: list[bytes], done: bool) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.shop.now + after_s, self._order, peer, frames, done))

    def _step(self) -> None:
        shop, due = self.shop, self._events[0][0]
        if shop.machine.deadline() < due:
            shop.wait(max(0.0, shop.machine.deadline() - shop.now))
        else:
            shop.wait(max(0.0, due - shop.now))
            _, _, peer, frames, done = heapq.heappop(self._events)
            self._running[peer] -= done
            if shop.now - self._beat_at > 1.9:
                self._beat_at = shop.now
                for one in self.times:
                    shop.send(one, worker_heartbeat("0.3"))
            shop.send(peer, frames)
        self._work_on()

    def _work_on(self) -> None:
        for peer, queue in self._waiting.items():
            for event in [parse_at_worker(frames) for frames in self.shop.got(peer)]:
                if isinstance(event, Work):
                    queue.append(event)
                elif isinstance(event, Recall):
                    for work in [work for work in queue if work.id == event.id]:
                        queue.remove(work)
                        self._say(0.0002, peer, worker_return(work.id), False)
            while queue and self._running[peer] < self.concurrency:
                self._running[peer] += 1
                work = queue.pop(0)
                self.begun[work.body[0]] += 1
                self.had[peer] += 1
                fails = peer in self.fails
                answer = worker_error(work.id, "HANDLER_ERROR", "no") if fails else worker_final("0.3", work.id, [b"y"])
                self._say(self.times[peer] + 0.0002, peer, answer, True)


@pytest.mark.parametrize("concurrency", [1, 4, 16])
@pytest.mark.parametrize(("requests", "ratio"), [(40, 10), (200, 10), (1000, 10), (40, 300), (77, 5), (500, 50)])
def test_the_whole_takes_as_long_as_if_each_waited_for_the_next_free_worker(concurrency: int, requests: int, ratio: float) -> None:
    """At most 1.3 times as long: two workers, one `ratio` times slower, of which nothing is known before."""
    quick_s = 0.0101
    times = {b"QUICK": quick_s, b"SLOW": quick_s * ratio}
    free = [(0.0, each_s) for each_s in times.values() for _ in range(concurrency)]
    ideal_s = 0.0
    heapq.heapify(free)
    for _ in range(requests):
        at, each_s = heapq.heappop(free)
        ideal_s = max(ideal_s, at + each_s)
        heapq.heappush(free, (at + each_s, each_s))
    floor = Floor(times, concurrency)
    took_s = floor.burst(requests)
    assert took_s <= 1.3 * ideal_s, f"{took_s:.3f} s, {ideal_s:.3f} s would do"
    floor.shop.check()


def least_s(times: Iterable[float], concurrency: int, requests: int) -> float:
    """Return in what time so many requests can be answered by somebody who knows how long each worker takes."""
    ends = sorted({each_s * rounds for each_s in times for rounds in range(1, requests + 1)})
    return next(end for end in ends if sum(concurrency * int(end / each_s + 1e-9) for each_s in times) >= requests)


@pytest.mark.parametrize(
    ("concurrency", "bursts", "options"),
    [
        (1, (25, 40, 5), {}),
        (4, (100, 40, 20), {}),
        (16, (400, 40, 1000), {}),
        (16, (400, 40), {"once": True}),
        (16, (400, 40), {"key": True}),
    ],
    ids=["1", "4", "16", "once", "key"],
)
@pytest.mark.parametrize("times", [(0.1, 1.0), (0.05, 0.5), (0.1, 0.1, 1.0), (0.03, 0.1, 0.4), (0.5, 1.2)], ids=str)
def test_a_slow_worker_costs_little(
    times: tuple[float, ...], concurrency: int, bursts: tuple[int, ...], options: dict[str, object]
) -> None:
    """Each burst takes at most 1.3 times its minimum, the first large one too; no request begins twice."""
    floor = Floor({b"W%d" % number: each_s for number, each_s in enumerate(times)}, concurrency)
    for requests in bursts:
        ideal_s = least_s(times, concurrency, requests)
        took_s = floor.burst(requests, **options)
        assert took_s <= 1.3 * ideal_s + 0.005, f"{requests}: {took_s:.3f} s, {ideal_s:.3f} s would do"
        floor.shop.check()
    assert set(floor.begun.values()) == {1}


def test_bursts_that_never_fill_the_workers_teach_how_quick_they_are() -> None:
    floor = Floor({b"QUICK": 0.1, b"SLOW": 1.0}, 16)
    took = [floor.burst(40) for _ in range(5)]
    assert took[-1] <= 1.3 * least_s((0.1, 1.0), 16, 40), took


def test_a_worker_that_was_slow_gets_work_again() -> None:
    """The estimate of a worker is forgotten after ten seconds without requests."""
    floor = Floor({b"QUICK": 0.1, b"ILL": 1.0}, 16)
    floor.burst(400)
    floor.times[b"ILL"] = 0.1
    assert 0.3 <= floor.burst(40) < 0.31
    floor.rest(10.1)
    assert floor.burst(40) < 0.21
    floor.shop.check()


def test_a_worker_that_fails_all_at_once_is_no_quick_one() -> None:
    floor = Floor({b"BROKEN": 0.0001, b"GOOD": 0.1}, 16)
    floor.fails.add(b"BROKEN")
    for _ in range(3):
        floor.had.clear()
        floor.burst(200)
        assert floor.had[b"GOOD"] >= 16
    floor.shop.check()


def test_the_time_before_a_worker_came_is_not_counted() -> None:
    pace = Pace()
    for now_us, done in ((10**12, 0), (10**12 + 10_000, 0), (10**12 + 20_000, 4)):
        pace.note(now_us, done, 1, 1)
    assert (pace.known, pace.least_us, pace.most_us) == (True, 5_000, 5_000)


def test_what_is_kept_for_a_quick_worker_goes_to_the_slow_one_when_that_is_lost() -> None:
    floor = Floor({b"QUICK": 0.1, b"SLOW": 1.0}, 16)
    floor.burst(400)
    shop = floor.shop
    shop.ask("0.3", b"C1", b"first")
    (first,) = shop.given(b"QUICK")
    shop.answer(b"QUICK", first)
    shop.lose(b"QUICK")
    shop.wait(0.021)
    shop.ask("0.3", b"C1", b"second")
    assert [work.body for work in shop.given(b"SLOW")] == [[b"second"]]
    shop.check()


@pytest.mark.parametrize("kind", ["coroutine", "thread", "generator"])
@pytest.mark.parametrize("options", [{"concurrency": 1}, {"concurrency": 4}, {}], ids=["1", "4", "default"])
async def test_one_worker_hangs_and_the_other_answers_all_it_has_not_begun(kind: str, options: WorkerSettings) -> None:
    """With real workers: of 200 requests all but those that the one works on are answered before it answers any."""
    concurrency = options.get("concurrency", 16)
    released = threading.Event()
    over = asyncio.Event()

    async def coroutine(request: mdp.Request) -> list[bytes]:
        await over.wait()
        return request.body

    def thread(request: mdp.Request) -> list[bytes]:
        released.wait()
        return request.body

    async def generator(request: mdp.Request) -> AsyncIterator[bytes]:
        await over.wait()
        yield request.body[0]

    async def quickly(request: mdp.Request) -> list[bytes]:
        await asyncio.sleep(0.001)
        return request.body

    handlers: dict[str, Callable[..., Any]] = {"coroutine": coroutine, "thread": thread, "generator": generator}
    async with mdp.testing.broker() as local:
        hanging = await local.add_worker("echo", handlers[kind], **options)
        await local.add_worker("echo", quickly, **options)
        asked = [local.client.request("echo", b"%d" % i) for i in range(200)]
        try:
            await eventually(lambda: sum(one.done() for one in asked) == 200 - concurrency)
            assert hanging.running == concurrency
        finally:
            released.set()
            over.set()
        assert [(await one)[0] for one in asked] == [b"%d" % i for i in range(200)]
        assert local.broker.counters["returned"] > 0
        assert local.broker.counters["redelivered"] == 0
