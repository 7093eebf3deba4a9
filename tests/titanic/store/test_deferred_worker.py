"""titanic.store.deferred_worker: when its answers leave, what it holds while half of a pair may not answer, and its end."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
import mdp
from tests.scenes.virtual_loop import in_virtual_time
from titanic.store.deferred_worker import HELD_S, DeferredWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

AT = "inproc://broker"


class Taken:
    """Takes requests; `fast` ones are answered at once, and some fail."""

    def __init__(self) -> None:
        self.bodies: list[list[bytes]] = []
        self.users: list[str | None] = []
        self.answers: list[Callable[[list[bytes]], None]] = []
        self.failing = False

    def __call__(self, body: Sequence[bytes], user: str | None, answer: Callable[[list[bytes]], None]) -> None:
        self.bodies.append([*body])
        self.users.append(user)
        if body[0] == b"fails":
            raise KeyError("fault")
        if body[0] == b"fast":
            answer([b"200", *body])
        elif body[0] == b"answers and fails":
            answer([b"200", *body])
            raise KeyError("fault")
        else:
            self.answers.append(answer)


class Scene:
    """A broker, a client, and a worker that answers when the test says so."""

    def __init__(self, broker: mdp.Broker, client: mdp.Client, worker: DeferredWorker, taken: Taken) -> None:
        self.broker, self.client, self.worker, self.taken = broker, client, worker, taken
        self.loop = asyncio.get_running_loop()

    def ask(self, *frames: bytes) -> asyncio.Future[Sequence[bytes]]:
        return asyncio.ensure_future(self.client.request("deferred", *frames, wait=True))

    async def taking(self, count: int) -> None:
        while len(self.taken.answers) < count:
            await asyncio.sleep(0.001)

    async def received(self, count: int) -> None:
        while self.worker.open < count:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def deferred(guard: Callable[[], bool] | None = None, **options: Any) -> AsyncIterator[Scene]:
    taken = Taken()
    async with core.Context() as context, mdp.Broker(context=context) as broker:
        broker.bind(AT)
        async with mdp.Client(AT, context=context, timeout=1000.0) as client:
            worker = DeferredWorker(AT, "deferred", taken, guard, context=context, **{"drain_s": 0.0, **options})
            async with worker:
                yield Scene(broker, client, worker, taken)


# --- answers --------------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_an_answer_leaves_at_once_whatever_else_is_open() -> None:
    async with deferred() as scene:
        slow = [scene.ask(b"slow %d" % number) for number in range(3)]
        await scene.taking(3)
        assert scene.worker.open == 3
        begun = scene.loop.time()
        for _ in range(3):
            assert await scene.ask(b"fast", b"x") == [b"200", b"fast", b"x"]
        scene.taken.answers[1]([b"200", b"second"])
        assert await slow[1] == [b"200", b"second"]
        assert scene.loop.time() - begun < 0.05
        assert (scene.worker.open, scene.taken.users) == (2, [None] * 6)
        for place in (0, 2):
            scene.taken.answers[place]([b"200"])
        assert [await one for one in (slow[0], slow[2])] == [[b"200"]] * 2
        assert scene.worker.open == 0


@in_virtual_time
async def test_requests_that_come_together_are_all_answered() -> None:
    async with deferred() as scene:
        asked = [scene.ask(b"fast", b"%d" % number) for number in range(50)]
        assert await asyncio.gather(*asked) == [[b"200", b"fast", b"%d" % number] for number in range(50)]
        assert scene.worker.open == 0


@in_virtual_time
async def test_a_request_that_met_an_internal_fault_is_answered_once(caplog: pytest.LogCaptureFixture) -> None:
    """The broker does not repeat what is in flight here; the requests behind it are taken."""
    caplog.set_level(logging.CRITICAL)
    async with deferred() as scene:
        asked = [scene.ask(body) for body in (b"fails", b"answers and fails", b"fast")]
        assert await asyncio.gather(*asked) == [[b"500", b"internal fault: KeyError"], [b"200", b"answers and fails"], [b"200", b"fast"]]
        assert scene.worker.open == 0
        assert scene.worker.connected


@in_virtual_time
async def test_what_was_answered_is_not_kept_in_memory() -> None:
    async with deferred() as scene:
        asked = scene.ask(b"slow")
        await scene.taking(1)
        answer = scene.taken.answers.pop()
        request = answer._request  # type: ignore[attr-defined]
        answer([b"200"])
        await asked
        del answer
        assert sys.getrefcount(request) == 2


async def test_a_request_comes_with_its_user() -> None:
    rules = mdp.Rules({"allow": [{"who": ["ann"], "call": ["*"]}, {"who": ["store"], "serve": ["*"], "see_users": ["*"]}]})
    taken = Taken()
    async with mdp.Broker(security=core.Plain(users={"ann": "a", "store": "s"}), rules=rules) as broker:
        at = broker.bind("tcp://127.0.0.1:*")
        async with (
            DeferredWorker(at, "deferred", taken, security=core.Plain(user="store", password="s")),
            mdp.Client(at, security=core.Plain(user="ann", password="a")) as client,
        ):
            assert await client.request("deferred", b"fast", wait=True) == [b"200", b"fast"]
    assert taken.users == ["ann"]


# --- half of a pair -------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_what_comes_while_nothing_may_be_answered_is_held_and_then_taken() -> None:
    may = False
    async with deferred(lambda: may) as scene:
        asked = [scene.ask(b"fast", b"%d" % number) for number in range(3)]
        await scene.received(3)
        await asyncio.sleep(5.0)
        assert (scene.taken.bodies, scene.worker.open) == ([], 3)
        may, begun = True, scene.loop.time()
        assert await asyncio.gather(*asked) == [[b"200", b"fast", b"%d" % number] for number in range(3)]
        assert scene.loop.time() - begun <= HELD_S + 0.05
        assert scene.worker.open == 0


@in_virtual_time
async def test_answers_are_held_while_they_may_not_leave() -> None:
    may = True
    async with deferred(lambda: may) as scene:
        asked = [scene.ask(b"slow %d" % number) for number in range(2)]
        await scene.taking(2)
        may = False
        for number, answer in enumerate(scene.taken.answers):
            answer([b"200", b"%d" % number])
        await asyncio.sleep(5.0)
        assert ([one.done() for one in asked], scene.worker.open) == ([False, False], 2)
        may = True
        assert await asyncio.gather(*asked) == [[b"200", b"0"], [b"200", b"1"]]
        may = False
        late = scene.ask(b"fast")
        await scene.received(1)
        may = True
        assert await late == [b"200", b"fast"]  # what was held once is answered once
        assert scene.worker.open == 0


@in_virtual_time
async def test_a_worker_that_ends_while_it_holds_requests_leaves_them_to_others() -> None:
    async with deferred(lambda: False) as scene:
        asked = scene.ask(b"fast")
        await scene.received(1)
        await asyncio.sleep(1.0)
        await scene.worker.__aexit__(None, None, None)
        assert scene.worker._clock.when is None
        async with DeferredWorker(AT, "deferred", scene.taken, context=scene.worker._context):
            assert await asked == [b"200", b"fast"]


@in_virtual_time
async def test_an_answer_that_comes_after_the_worker_has_ended_is_not_held() -> None:
    """The store ends behind its workers, which went on to look whether they may answer."""
    asked_at: list[float] = []
    may = True

    def guard() -> bool:
        asked_at.append(asyncio.get_running_loop().time())
        return may

    async with deferred(guard) as scene:
        asked = scene.ask(b"slow")
        await scene.taking(1)
        may = False
        await scene.worker.__aexit__(None, None, None)
        scene.taken.answers[0]([b"200"])
        ended_at = scene.loop.time()
        await asyncio.sleep(10 * HELD_S)
        assert asked_at[-1] == ended_at
        asked.cancel()


# --- the end --------------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_worker_that_drains_takes_nothing_new_and_waits_for_what_is_open() -> None:
    async with deferred() as scene:
        asked = scene.ask(b"slow")
        await scene.taking(1)
        draining, begun = asyncio.ensure_future(scene.worker.drain(60.0)), scene.loop.time()
        await asyncio.sleep(1.0)
        later = scene.ask(b"fast")
        await asyncio.sleep(1.0)
        assert (draining.done(), later.done(), len(scene.taken.bodies)) == (False, False, 1)
        scene.taken.answers[0]([b"200"])
        assert await draining
        assert scene.loop.time() - begun == pytest.approx(2.0, abs=0.1)
        assert await asked == [b"200"]
        later.cancel()


@in_virtual_time
@pytest.mark.parametrize(("given", "option", "waits_s"), [(None, 3.0, 3.0), (5.0, 3.0, 5.0), (0.0, 3.0, 0.0)])
async def test_a_worker_waits_as_long_as_is_said_and_not_once_more(given: float | None, option: float, waits_s: float) -> None:
    async with deferred(drain_s=option) as scene:
        asked = scene.ask(b"slow")
        await scene.taking(1)
        begun = scene.loop.time()
        assert not await scene.worker.drain(given)
        assert scene.loop.time() - begun == pytest.approx(waits_s, abs=0.1)
        left_at = scene.loop.time()
        await scene.worker.__aexit__(None, None, None)
        while scene.broker.stats["workers"]:
            await asyncio.sleep(0.001)
        assert scene.loop.time() - left_at < 0.1
        asked.cancel()


@in_virtual_time
async def test_a_worker_that_calls_no_handler_is_not_watched_and_runs_one_at_a_time() -> None:
    async with deferred() as scene:
        await asyncio.sleep(1.0)
        assert scene.worker._watchdog is None
        (worker,) = scene.broker.machine.directory.workers.values()
        assert worker.concurrency == 1


@pytest.mark.parametrize("drains", [True, False])
async def test_what_was_taken_is_not_given_to_another_worker(drains: bool) -> None:
    """The broker asks for what was not begun: where it drains for all, else for what is beyond one request."""
    taken, other = Taken(), Taken()
    beats: dict[str, Any] = {"heartbeat_ms": 20, "liveness": 1000}
    async with core.Context() as context, mdp.Broker(context=context, **beats) as broker, mdp.Client(AT, context=context) as client:
        broker.bind(AT)
        async with DeferredWorker(AT, "deferred", taken, context=context, **beats) as worker:
            replies = [asyncio.ensure_future(client.request("deferred", b"%d" % n, wait=True, timeout=100)) for n in range(3)]
            while len(taken.answers) < 3 or not worker.session_counters.heartbeats:
                await asyncio.sleep(0.001)
            ending = asyncio.ensure_future(worker.drain(100)) if drains else None
            async with DeferredWorker(AT, "deferred", other, context=context, **beats):
                while not broker.counters.get("recalled"):
                    await asyncio.sleep(0.001)
                heard = broker.counters["heartbeats_received"]
                while broker.counters["heartbeats_received"] < heard + 4:
                    await asyncio.sleep(0.001)
                for answer in taken.answers:
                    answer([b"200"])
                assert [await reply for reply in replies] == [[b"200"]] * 3
                assert ending is None or await ending
    assert other.bodies == []
