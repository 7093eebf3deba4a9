"""A handler that is called at once, in the name of a runner that waits.

Nothing it can look at tells it so.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from core.runtime import supervision
from mdp.worker.handler import HandlerKind
from tests.scenes.mdp_runners import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mdp.request import Request


SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


async def test_a_handler_that_never_waits_ends_in_the_same_iteration() -> None:
    async def echo(request: Request) -> bytes:
        return request.body[0]

    async with Stage(echo) as stage:
        turns: list[int] = []

        def give() -> None:
            stage.runners.put([stage.request(b"now")])
            turns.append(len(stage.session.answers))

        asyncio.get_running_loop().call_soon(give)
        await stage.done()
        assert (turns, stage.session.answers) == ([1], [(b"now",)])
        assert (stage.runners.idle, stage.runners.counters.handled) == (True, 2)


async def test_a_handler_has_a_task_a_context_and_timeouts_before_and_after_it_waits() -> None:
    async def look(request: Request) -> bytes:
        before = asyncio.current_task()
        SEEN.set(request.body[0].decode())
        async with asyncio.timeout(100):
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        assert asyncio.current_task() is before is not None
        return SEEN.get().encode()

    async with Stage(look) as stage:
        for body in (b"one", b"two"):
            stage.give(stage.request(body))
            await stage.done()
        assert stage.session.answers == [(b"one",), (b"two",)]
        assert SEEN.get() == "nothing"


async def test_a_handler_that_times_out_by_itself_gets_its_timeout() -> None:
    async def late(request: Request) -> bytes:
        if request.body[0] == b"warm":
            return b""
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return b"late"
        raise AssertionError("never")

    async with Stage(late) as stage:
        stage.give(stage.request())
        await stage.done()
        assert stage.session.answers == [(b"late",)]


@pytest.mark.parametrize("waits_for", ["a future", "the next turn", "a future that is done"])
async def test_a_started_handler_can_be_cancelled_before_its_runner_takes_it_over(waits_for: str) -> None:
    ended: list[str] = []

    async def wait(request: Request) -> bytes:
        if request.body[0] == b"warm":
            return b""
        try:
            if waits_for == "the next turn":
                await asyncio.sleep(0)
                await asyncio.Event().wait()
            else:
                future = asyncio.get_running_loop().create_future()
                if waits_for == "a future that is done":
                    asyncio.get_running_loop().call_soon(future.set_result, None)
                await future
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return b"never"

    async with Stage(wait) as stage:
        request = stage.request()

        def give_and_drop() -> None:
            stage.runners.put([request])
            assert request in stage.runners.running
            assert not stage.runners.drop(request)

        asyncio.get_running_loop().call_soon(give_and_drop)
        await stage.done()
        assert (ended, stage.session.answers, stage.session.refusals) == (["cancelled"], [], ["CANCELLED"])
        stage.give(stage.request(b"warm"))  # the runner goes on
        await stage.done()
        assert stage.session.answers == [(b"",)]


async def test_a_handler_that_fails_at_once_or_later_is_refused_and_the_next_is_served() -> None:
    async def fail(request: Request) -> bytes:
        if request.body[0] == b"later":
            await asyncio.sleep(0)
        if request.body[0] != b"warm":
            raise KeyError("secret")
        return b""

    async with Stage(fail) as stage:
        for body in (b"now", b"later", b"warm"):
            stage.give(stage.request(body))
            await stage.done()
        assert (stage.session.refusals, stage.session.answers) == (["HANDLER_ERROR"] * 2, [(b"",)])
        assert stage.runners.counters.errors == 2


async def test_an_invalid_reply_is_a_failure() -> None:
    async def nonsense(request: Request) -> Any:
        return b"" if request.body[0] == b"warm" else 7

    async with Stage(nonsense) as stage:
        stage.give(stage.request())
        await stage.done()
        assert (stage.session.refusals, stage.session.answers) == (["HANDLER_ERROR"], [])


async def test_closing_ends_a_handler_that_has_just_started() -> None:
    ended = asyncio.Event()

    async def wait(request: Request) -> bytes:
        if request.body[0] == b"warm":
            return b""
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b"never"

    async with Stage(wait) as stage:
        asyncio.get_running_loop().call_soon(stage.runners.put, [stage.request()])
        await asyncio.sleep(0)
        await stage.runners.close()
        assert ended.is_set()
        assert stage.session.answers == []


async def test_called_from_a_task_requests_wait_for_a_runner() -> None:
    """A task cannot stand in for another while it runs itself."""

    async def echo(request: Request) -> bytes:
        assert asyncio.current_task() is not None
        return request.body[0]

    async with Stage(echo) as stage:
        stage.runners.put([stage.request(b"a"), stage.request(b"b")])
        stage.runners.put([stage.request(b"c")])
        assert stage.session.answers == []
        await stage.done()
        assert stage.session.answers == [(b"a",), (b"b",), (b"c",)]


@pytest.mark.parametrize("kind", [HandlerKind.COROUTINE, HandlerKind.GENERATOR, HandlerKind.THREAD])
async def test_a_deadline_that_passes_while_a_request_waits_for_a_runner_is_answered(kind: HandlerKind) -> None:
    called: list[bytes] = []
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def in_thread(request: Request) -> bytes:
        called.append(request.body[0])
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(100)
        return request.body[0]

    async def waits(request: Request) -> bytes:
        called.append(request.body[0])
        begun.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)
        return request.body[0]

    async def yields(request: Request) -> AsyncIterator[bytes]:
        yield await waits(request)

    now = 1000.0
    handlers: dict[HandlerKind, Callable[[Request], Any]] = {HandlerKind.GENERATOR: yields, HandlerKind.THREAD: in_thread}
    stage = Stage(handlers.get(kind, waits), 1, kind=kind, clock=lambda: now)
    given = [stage.request(body) for body in (b"runs", b"late", b"at", b"early", b"never")]
    for request, expires_at in zip(given, (1001.0, 1001.5, 1002.0, 1002.5, None), strict=True):
        request.expires_at = expires_at
    stage.give(*given)
    await begun.wait()
    now = 1002.0
    go_on.set()
    await stage.done()
    assert called == [b"runs", b"early", b"never"]
    assert stage.session.refusals == ["DEADLINE_EXCEEDED"] * 2
    assert stage.flushes >= 2
    assert (stage.runners.counters.expired, stage.runners.counters.handled, stage.runners.counters.errors) == (2, 3, 0)
    assert stage.runners.idle
    await stage.runners.close()


@pytest.mark.parametrize("kind", [HandlerKind.COROUTINE, HandlerKind.INLINE])
async def test_a_request_that_comes_after_its_deadline_is_answered_at_once(kind: HandlerKind) -> None:
    called: list[bytes] = []

    async def handler(request: Request) -> bytes:
        return plain(request)

    def plain(request: Request) -> bytes:
        called.append(request.body[0])
        return request.body[0]

    now = 1000.0
    async with Stage(plain if kind is HandlerKind.INLINE else handler, 1, kind=kind, clock=lambda: now) as stage:
        called.clear()
        told: list[int] = []

        def give() -> None:
            for body, expires_at in ((b"late", 999.0), (b"at", 1000.0), (b"early", 1000.5), (b"dropped", None)):
                request = stage.request(body)
                request.expires_at = expires_at
                request.cancelled = body == b"dropped"
                stage.runners.put([request])
                told.append(len(stage.session.refusals) + len(stage.session.answers))

        asyncio.get_running_loop().call_soon(give)
        await stage.done()
        assert (called, told) == ([b"early"], [1, 2, 3, 3])
        assert stage.session.refusals == ["DEADLINE_EXCEEDED"] * 2
        assert (stage.runners.counters.expired, stage.runners.idle) == (2, True)


async def test_an_answer_leaves_while_others_wait_or_run() -> None:
    """It does not wait for a handler that takes long."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> bytes:
        if request.body[0] == b"long":
            begun.set()
            await go_on.wait()
        return request.body[0]

    for concurrency in (1, 2):
        begun.clear()
        go_on.clear()
        stage = Stage(handler, concurrency)
        first, last = stage.request(b"short"), stage.request(b"long")
        stage.give(*((first, last) if concurrency == 1 else (last, first)))
        await begun.wait()
        while not stage.session.answers:
            await asyncio.sleep(0)
        assert stage.flushes == 1
        go_on.set()
        await stage.done()
        await stage.runners.close()


async def test_an_error_or_the_end_of_a_cancelled_request_leaves_at_once() -> None:
    begun = asyncio.Event()

    async def handler(request: Request) -> bytes:
        if request.body[0] == b"fails":
            raise ValueError("no")
        if request.body[0] == b"waits":
            begun.set()
            await asyncio.Event().wait()
        return request.body[0]

    async with Stage(handler) as stage:
        for body in (b"fails", b"waits"):
            stage.flushes = 0
            request = stage.request(body)
            stage.give(request)
            if body == b"waits":
                await begun.wait()
                assert not stage.runners.drop(request)
            await stage.done()
            assert stage.flushes == 1
        assert [*stage.session.refusals[-2:]] == ["HANDLER_ERROR", "CANCELLED"]
        assert (stage.runners.counters.errors, stage.runners.counters.cancelled) == (1, 1)


@pytest.mark.faults
async def test_a_runner_that_ends_with_an_error_is_a_fault_and_is_replaced() -> None:
    async def echo(request: Request) -> bytes:
        return request.body[0]

    with supervision.scope(supervision.Supervisor()) as supervisor:
        stage = Stage(echo, 1)
        stage.fails_flushing = True
        stage.give(stage.request(b"one"), stage.request(b"two"))
        await stage.done()
        assert stage.session.answers == [(b"one",), (b"two",)]
        assert supervisor.faults == {"mdp runner": 1}
        assert stage.runners.counters.replaced == 1
        await stage.runners.close()


@pytest.mark.parametrize("way", ["called at once", "queued", "inline", "behind a slow one"])
async def test_a_deadline_that_passed_before_a_handler_was_free_is_answered(way: str) -> None:
    """Whatever way a request comes to a handler.

    It is not begun, and its credit comes back with an answer that is sent.
    """
    begun: list[bytes] = []
    go_on = asyncio.Event()

    async def handler(request: Request) -> bytes:
        begun.append(request.body[0])
        if request.body[0] == b"slow":
            await go_on.wait()
        return b""

    def inline(request: Request) -> bytes:
        begun.append(request.body[0])
        return b""

    kind = HandlerKind.INLINE if way == "inline" else HandlerKind.COROUTINE
    stage = Stage(inline if way == "inline" else handler, 1, kind=kind)
    flushed: list[int] = []
    stage.runners._on_answer = lambda: flushed.append(len(stage.session.refusals))
    if way == "called at once":
        await stage.warm()
    late, later, fine = stage.request(b"late"), stage.request(b"later"), stage.request(b"fine")
    late.expires_at = later.expires_at = time.monotonic() - 1
    fine.expires_at = time.monotonic() + 3600
    if way == "behind a slow one":
        stage.runners.put([stage.request(b"slow")])
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(go_on.set)
    if way == "called at once":
        stage.give(late)
        stage.give(later)
        stage.give(fine)
    else:
        stage.give(late, later, fine)
    async with asyncio.timeout(100):
        while b"fine" not in begun:
            await asyncio.sleep(0)
    assert stage.session.refusals == ["DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"]
    assert [refusals for refusals in flushed if refusals][:2] == [1, 2]
    assert stage.runners.counters.expired == 2
    assert not {b"late", b"later"} & set(begun)
    await stage.runners.close()


async def test_a_cancelled_request_costs_no_runner_and_is_counted_once() -> None:
    async def wait(request: Request) -> bytes:
        if request.body[0] != b"warm":
            await asyncio.Event().wait()
        return b""

    async with Stage(wait, 1) as stage:
        runs, waits = stage.request(b"runs"), stage.request(b"waits")
        stage.runners.put([runs, waits])
        await asyncio.sleep(0)
        assert [stage.runners.drop(waits), stage.runners.drop(waits)] == [True, True]
        assert [stage.runners.drop(runs), stage.runners.drop(runs)] == [False, False]
        await stage.done()
        assert (stage.runners.counters.cancelled, stage.runners.counters.replaced) == (2, 0)
        assert stage.session.refusals == ["CANCELLED"]


async def test_an_idle_runner_that_is_cancelled_from_outside_is_replaced_also_for_what_comes_in_that_moment() -> None:
    async def echo(request: Request) -> bytes:
        return request.body[0]

    async with Stage(echo, 1) as stage:
        (task,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("mdp runner"))

        def cancel_and_give() -> None:
            task.cancel()
            stage.runners.put([stage.request(b"one")])

        asyncio.get_running_loop().call_soon(cancel_and_give)
        async with asyncio.timeout(100):
            while not stage.session.answers:
                await asyncio.sleep(0)
        assert stage.session.answers == [(b"one",)]
        assert stage.runners.counters.replaced == 1


@pytest.mark.parametrize("kind", [HandlerKind.COROUTINE, HandlerKind.INLINE])
async def test_handlers_that_never_wait_do_not_block_the_loop(kind: HandlerKind) -> None:
    turns: list[int] = []

    def work(request: Request) -> bytes:
        time.sleep(0.002)
        return b""

    async def wait_not(request: Request) -> bytes:
        return work(request)

    stage = Stage(work if kind is HandlerKind.INLINE else wait_not, 1, kind=kind)
    loop = asyncio.get_running_loop()

    def turn() -> None:
        turns.append(len(stage.session.answers))
        if len(stage.session.answers) < 30:
            loop.call_soon(turn)

    stage.runners.put([stage.request() for _ in range(30)])
    loop.call_soon(turn)
    await stage.done()
    await stage.runners.close()
    assert len({count for count in turns if 0 < count < 30}) >= 2


async def test_the_end_of_an_abandoned_handler_is_ignored() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def stubborn(request: Request) -> bytes:
        begun.set()
        try:
            while not ended.is_set():
                with suppress(asyncio.CancelledError):
                    await ended.wait()
        finally:
            ended.set()
        return request.body[0]

    stage = Stage(stubborn, cancel_s=0.01)
    stage.give(stage.request())
    await begun.wait()
    await stage.runners.close()
    assert ended.is_set()
    assert (stage.session.answers, stage.session.refusals, stage.given_back) == ([], [], [])
    assert (stage.runners.counters.left, stage.runners.counters.errors, stage.flushes) == (1, 0, 0)


async def test_a_runner_waits_once_however_often_it_was_called_at_once() -> None:
    async def waits(request: Request) -> bytes:
        await asyncio.sleep(0)
        return request.body[0]

    async with Stage(waits, 3) as stage:
        for _ in range(20):
            stage.give(stage.request())
            await stage.done()
        assert len(stage.session.answers) == 20
        assert len(stage.runners._idle_runners) == len(stage.runners._tasks) == 1


async def test_a_handler_is_overdue_when_its_own_time_is_over() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def stubborn(request: Request) -> bytes:
        begun.set()
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()
        return b""

    stage = Stage(stubborn, cancel_s=3600)
    request = stage.request()
    stage.give(request)
    await begun.wait()
    stage.runners.drop(request)
    stage.runners._cancellations.check()
    assert stage.runners.counters.overdue == 0
    stage.runners._cancellations.since[request] -= 3600
    stage.runners._cancellations.check()
    stage.runners._cancellations.check()
    assert stage.runners.counters.overdue == 1
    go_on.set()
    await stage.done()
    await stage.runners.close()
