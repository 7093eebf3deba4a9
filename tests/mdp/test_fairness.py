"""MDP-32, BEY-06: a slow worker beside a quick one gets less, and what it has not begun goes to whoever is free."""

from __future__ import annotations

import asyncio
import heapq
import threading
from typing import TYPE_CHECKING

import pytest

import mdp
import mdp.testing
from mdp.events import Cancel, Final, Ping, Recall, Work, parse_at_worker
from mdp.options import encode_options
from mdp.protocol import WORKER_HEARTBEAT_03, WORKER_PING_03, worker_error, worker_final, worker_heartbeat, worker_ready, worker_return
from tests.mdp.scene import ECHO, Scene
from tests.watch import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Any


class Shop(Scene):
    """Workers with a concurrency, which tell it."""

    def join(self, peer: bytes, concurrency: int, credit: int = 0) -> None:
        told = {"credit": credit or 4 * concurrency, "concurrency": concurrency}
        self.send(peer, worker_ready("0.3", ECHO, options=encode_options(told)))

    def given(self, peer: bytes) -> list[Work]:
        """Take the requests a worker was sent."""
        events = [event for event in self.at_worker(peer) if not isinstance(event, Ping)]
        assert all(isinstance(event, Work) for event in events), events
        return [event for event in events if isinstance(event, Work)]

    def recalled(self, peer: bytes) -> list[bytes]:
        """Take the tokens a worker was asked for."""
        events = self.at_worker(peer)
        assert all(isinstance(event, Recall) for event in events), events
        return [event.id for event in events if isinstance(event, Recall)]


def test_the_next_request_goes_to_the_worker_that_holds_least() -> None:
    """In quarters of what it can work on: so who does not answer gets no more than others have in hand."""
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


def test_what_may_be_given_once_is_not_asked_back() -> None:
    scene = Shop()
    scene.join(b"W1", 1)
    for _ in range(4):
        scene.ask("0.3", b"C1", options={"once": True})
    scene.given(b"W1")
    scene.wait(1)
    scene.join(b"W2", 1)
    scene.wait(1)
    assert scene.at_worker(b"W1") == []
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


@pytest.mark.parametrize("concurrency", [1, 4, 16])
@pytest.mark.parametrize(("requests", "ratio"), [(40, 10), (200, 10), (1000, 10), (40, 300), (77, 5), (500, 50)])
def test_the_whole_takes_as_long_as_if_each_waited_for_the_next_free_worker(concurrency: int, requests: int, ratio: float) -> None:
    """At most 1.3 times as long, in a time that is set here: two workers, one `ratio` times slower, each message 0.2 ms on its way."""
    quick_s = 0.0101
    times = {b"QUICK": quick_s, b"SLOW": quick_s * ratio}
    free = [(0.0, each_s) for each_s in times.values() for _ in range(concurrency)]
    ideal_s = 0.0
    heapq.heapify(free)
    for _ in range(requests):
        at, each_s = heapq.heappop(free)
        ideal_s = max(ideal_s, at + each_s)
        heapq.heappush(free, (at + each_s, each_s))

    scene = Shop()
    started = scene.now
    waiting: dict[bytes, list[Work]] = {peer: [] for peer in times}
    events: list[tuple[float, int, bytes, list[bytes], bool]] = []  # when, order, which worker, what it says, whether it is done with one
    running = dict.fromkeys(times, 0)
    order = 0

    def say(after_s: float, peer: bytes, frames: list[bytes], done: bool) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (scene.now + after_s, order, peer, frames, done))

    def work_on() -> None:
        for peer, queue in waiting.items():
            for event in [parse_at_worker(frames) for frames in scene.got(peer)]:
                if isinstance(event, Work):
                    queue.append(event)
                elif isinstance(event, Recall):
                    found = [work for work in queue if work.id == event.id]
                    for work in found:
                        queue.remove(work)
                        say(0.0002, peer, worker_return(work.id), False)
            while queue and running[peer] < concurrency:
                running[peer] += 1
                say(times[peer] + 0.0002, peer, worker_final("0.3", queue.pop(0).id, [b"y"]), True)

    for peer in times:
        scene.join(peer, concurrency)
    for _ in range(requests):
        scene.ask("0.3", b"C1")
    work_on()
    last = started
    while scene.machine.counters.closed < requests:
        due = events[0][0]
        if scene.machine.deadline() < due:
            scene.wait(max(0.0, scene.machine.deadline() - scene.now))
        else:
            scene.wait(max(0.0, due - scene.now))
            _, _, peer, frames, done = heapq.heappop(events)
            running[peer] -= done
            if scene.now - last > 2:
                last = scene.now
                for one in times:
                    scene.send(one, worker_heartbeat("0.3"))
            scene.send(peer, frames)
        work_on()
    took_s = scene.now - started
    assert took_s <= 1.3 * ideal_s, f"{took_s:.3f} s, {ideal_s:.3f} s would do"
    scene.check()


@pytest.mark.parametrize("kind", ["coroutine", "thread", "generator"])
@pytest.mark.parametrize("options", [{"concurrency": 1}, {"concurrency": 4}, {}], ids=["1", "4", "default"])
async def test_one_worker_hangs_and_the_other_answers_all_it_has_not_begun(kind: str, options: dict[str, int]) -> None:
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
