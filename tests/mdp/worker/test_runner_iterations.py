"""Runners and loop iterations: what runs while handlers are busy, the number of runners, and their end."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from mdp.request import Request
from mdp.worker.handler import HandlerKind
from mdp.worker.runners import FRAME_OVERHEAD_BYTES, SLICE_S
from tests.scenes.mdp_runner_ledger import staged, turns, until
from tests.scenes.mdp_runners import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

COROUTINE, GENERATOR, THREAD, INLINE = HandlerKind


def runner_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task.get_name().startswith("mdp runner")}


def of_kind(kind: HandlerKind, plain: Callable[[Request], Any]) -> Any:
    """Return a handler that never waits, of any kind."""

    async def coroutine(request: Request) -> Any:
        return plain(request)

    async def generator(request: Request) -> AsyncIterator[Any]:
        yield plain(request)

    return {COROUTINE: coroutine, GENERATOR: generator}.get(kind, plain)


# --- how many there are ---------------------------------------------------------------------------------------------------------


async def test_handlers_that_wait_get_their_places_two_four_eight_at_a_time() -> None:
    running: list[Request] = []
    end = asyncio.Event()

    async def handler(request: Request) -> bytes:
        running.append(request)
        await end.wait()
        return b""

    stage = Stage(handler, 100)
    stage.runners.put([stage.request() for _ in range(100)])
    await turns(20)  # one by one it would be a hundred
    assert len(running) == 100
    end.set()
    await stage.done()
    await stage.runners.close()


@pytest.mark.parametrize("kind", [COROUTINE, GENERATOR, THREAD])
async def test_there_are_no_more_runners_than_there_was_work_for_at_once(kind: HandlerKind) -> None:
    stage = Stage(of_kind(kind, lambda request: request.body[0]), 16, kind=kind)
    for _ in range(5):
        stage.give(stage.request())
        await stage.done()
        await turns(5)
        assert len(runner_tasks()) == 1
    for _ in range(5):
        stage.give(stage.request(), stage.request())
        await stage.done()
        await turns(5)
        assert len(runner_tasks()) <= 2
    await stage.runners.close()


async def test_a_runner_that_ended_is_replaced_by_one_and_only_if_there_is_something_to_do() -> None:
    async def handler(request: Request) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        if request.body[0] == b"ends":
            task.cancel()
        await asyncio.sleep(0)
        return request.body[0]

    stage, ledger = staged(handler, 1)
    stage.runners.put([stage.request(b"ends")])
    await stage.done()  # waiting for the end of everything ends
    await turns(3)
    assert (len(runner_tasks()), stage.runners.counters.replaced) == (0, 1)
    stage.runners.put([stage.request(b"ends"), stage.request(b"fine")])
    await stage.done()
    await turns(3)
    assert (len(runner_tasks()), stage.runners.counters.replaced) == (1, 2)
    assert [*ledger.ends.values()] == ["HANDLER_ERROR", "HANDLER_ERROR", "answered"]
    await stage.runners.close()
    stage, _ = staged(handler, 8)
    stage.runners.put([stage.request(b"ends")])
    await asyncio.sleep(0)
    stage.runners.put([stage.request(b"fine")])
    await until(lambda: stage.runners.idle)
    await turns(5)
    assert len(runner_tasks()) == 1
    await stage.runners.close()


@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_that_swallows_its_cancellation_ends_no_runner(waits: bool) -> None:
    begun = asyncio.Event()

    async def handler(request: Request) -> bytes:
        if request.body[0] == b"swallows":
            begun.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            if waits:
                await asyncio.sleep(0)
        return request.body[0]

    stage, ledger = staged(handler, 1)
    for _ in range(3):
        begun.clear()
        request = stage.request(b"swallows")
        stage.runners.put([request, stage.request(b"fine")])
        await begun.wait()
        (task,) = runner_tasks()
        assert stage.runners.drop(request) is False
        await stage.done()
        assert runner_tasks() == {task}
        assert stage.runners.stuck() == ""
    assert (stage.runners.counters.replaced, stage.runners.counters.overdue) == (0, 0)
    assert [*ledger.ends.values()] == ["answered"] * 6
    await stage.runners.close()


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_handler_that_drops_its_own_request_and_fails_was_cancelled(at_once: bool) -> None:
    async def handler(request: Request) -> bytes:
        if request.body[0] == b"drops":
            assert stage.runners.drop(request) is False
            raise ValueError
        return b""

    stage, ledger = staged(handler)
    if at_once:
        await stage.warm()
        ledger.ends.clear()
    stage.give(stage.request(b"drops"))
    await stage.done()
    assert [*ledger.ends.values()] == ["CANCELLED"]
    assert (stage.runners.counters.cancelled, stage.runners.counters.errors) == (1, 0)
    await stage.runners.close()


# --- loop iterations ------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("kind", [COROUTINE, GENERATOR, INLINE])
async def test_what_a_socket_has_is_read_before_the_next_handler_is_called_when_a_slice_is_over(kind: HandlerKind) -> None:
    """RECALL and CANCEL come that way: they may be for what waits here."""
    loop = asyncio.get_running_loop()
    ours, others = socket.socketpair()
    ours.setblocking(False)
    seen: list[bytes] = []

    def take() -> None:
        seen.append(b"read " + ours.recv(9))

    def busy(request: Request) -> bytes:
        seen.append(request.body[0])
        others.send(request.body[0])
        ends = time.monotonic() + 1.1 * SLICE_S
        while time.monotonic() < ends:
            pass
        return b""

    loop.add_reader(ours, take)
    stage = Stage(of_kind(kind, busy), 1, kind=kind)
    stage.give(*(stage.request(b"%d" % number) for number in range(4)))
    await stage.done()
    assert seen[:7] == [b"0", b"read 0", b"1", b"read 1", b"2", b"read 2", b"3"]
    await stage.runners.close()
    loop.remove_reader(ours)
    ours.close()
    others.close()


@pytest.mark.parametrize("kind", [COROUTINE, INLINE])
async def test_quick_handlers_are_called_one_after_the_other_in_one_iteration(kind: HandlerKind) -> None:
    """Three of a hundred thousandths of a second each, unless the machine takes the processor away just then."""
    others: list[int] = []
    seen: list[int] = []

    def quick(request: Request) -> bytes:
        seen.append(len(others))
        return b""

    for _ in range(20):
        stage = Stage(of_kind(kind, quick), 1, kind=kind)
        await stage.warm()
        seen.clear()
        others.clear()
        requests = [stage.request() for _ in range(3)]
        stage.give(*requests)
        while stage.runners.waiting or not seen:
            others.append(1)
            await asyncio.sleep(0)
        await until(lambda: len(stage.session.answers) == 3)  # noqa: B023
        await stage.runners.close()
        if len({*seen}) == 1:
            return
    pytest.fail("others had a turn between two handlers each time")


async def test_a_generator_that_never_waits_lets_others_go_on_and_is_done_in_its_own_time() -> None:
    others = 0

    async def parts(request: Request) -> AsyncIterator[bytes]:
        for _ in range(12):
            ends = time.monotonic() + 1.1 * SLICE_S
            while time.monotonic() < ends:
                pass
            yield b"%d" % others

    stage, ledger = staged(parts, 1, kind=GENERATOR)
    bodies: list[bytes] = []
    ledger.send_part = lambda request, body: bodies.extend(body)  # type: ignore[method-assign]
    stage.give(stage.request())
    while len(bodies) < 12:
        others += 1
        await asyncio.sleep(0)
    assert len({*bodies}) == 12
    async with asyncio.timeout(100):
        await until(lambda: ledger.ends)
    await stage.runners.close()


def stubborn(begun: asyncio.Event, end: asyncio.Event) -> Callable[[Request], Awaitable[bytes]]:
    """Return a handler that is not ended by a cancellation."""

    async def handler(request: Request) -> bytes:
        begun.set()
        while not end.is_set():
            with suppress(asyncio.CancelledError):
                await end.wait()
        return b""

    return handler


@pytest.mark.parametrize("behind", ["waits", "was cancelled", "nothing"])
async def test_the_loop_is_idle_while_no_handler_can_continue(behind: str) -> None:
    """All places are taken: this is not checked again and again."""
    begun = asyncio.Event()
    end = asyncio.Event()

    stage = Stage(stubborn(begun, end), 1, cancel_s=0)
    first = stage.request()
    stage.runners.put([first])
    await begun.wait()
    if behind != "nothing":
        stage.runners.put([stage.request(), stage.request(), stage.request()])
    if behind == "was cancelled":
        stage.runners.drop(first)
    busy_s = []
    for _ in range(3):
        before = time.thread_time()
        await asyncio.sleep(0.02)
        busy_s.append(time.thread_time() - before)
    assert min(busy_s) < 0.001, "it was busy, as far as it was let"
    end.set()
    await stage.done()
    await stage.runners.close()


class Stubborn:
    """A handler that goes on, whatever happens to its requests, until it may end."""

    def __init__(self) -> None:
        self.begun: set[bytes] = set()
        self.end = asyncio.Event()

    async def __call__(self, request: Request) -> bytes:
        self.begun.add(request.body[0])
        while not self.end.is_set():
            with suppress(asyncio.CancelledError):
                await self.end.wait()
        return b""


async def test_each_overdue_handler_is_logged_with_its_own_time(caplog: pytest.LogCaptureFixture) -> None:
    """Also one that was cancelled when the look at another was due already."""
    handler = Stubborn()
    stage = Stage(handler, 2, cancel_s=0.05)
    first, second = stage.request(b"first"), stage.request(b"second")
    stage.runners.put([first, second])
    await until(lambda: len(handler.begun) == 2)
    asyncio.get_running_loop().call_later(0.03, stage.runners.drop, second)
    stage.runners.drop(first)
    with caplog.at_level(logging.WARNING, "mdp.worker"):
        await until(lambda: stage.runners.counters.overdue == 2)
    told = [float(record.getMessage().split("goes on ")[1].split()[0]) for record in caplog.records]
    assert len(told) == 2
    assert all(0 <= seconds < 60 for seconds in told)  # and not the time of the clock
    handler.end.set()
    await stage.done()
    await stage.runners.close()


async def test_the_begin_of_a_standstill_is_known_without_a_query() -> None:
    handler = Stubborn()
    stage = Stage(handler, 1, cancel_s=0.02)
    request = stage.request(b"first")
    stage.runners.put([request, stage.request()])
    await until(lambda: handler.begun)
    stage.runners.drop(request)
    await until(lambda: stage.runners.counters.overdue)
    await asyncio.sleep(0.03)  # longer than it may be so
    assert stage.runners.stuck().startswith("1 requests wait and nothing runs")
    handler.end.set()
    await stage.done()
    await stage.runners.close()


# --- what is answered -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HandlerKind)
@pytest.mark.parametrize(("value", "frames"), [(b"x", [b"x"]), ([b"a", b"b"], [b"a", b"b"]), ((b"a", b""), [b"a", b""])])
async def test_what_handlers_of_every_kind_may_return(kind: HandlerKind, value: Any, frames: list[bytes]) -> None:
    stage = Stage(of_kind(kind, lambda request: value), kind=kind)
    stage.session.can_send_parts = False
    for _ in range(3):  # the first finds no runner that waits
        stage.give(stage.request())
        await stage.done()
    assert [[*answer] for answer in stage.session.answers] == [frames] * 3
    if kind is INLINE:
        assert (stage.flushes, stage.session.outgoing) == (3, [])
    await stage.runners.close()


@pytest.mark.parametrize(("octets", "fits"), [(8, True), (9, True), (10, False)])
async def test_kept_parts_are_counted_to_the_byte(octets: int, fits: bool) -> None:
    async def parts(request: Request) -> AsyncIterator[bytes]:
        yield bytes(octets)

    stage = Stage(parts, kind=GENERATOR, parts_max_bytes=FRAME_OVERHEAD_BYTES + 9)
    stage.session.can_send_parts = False
    stage.give(stage.request())
    await stage.done()
    assert (len(stage.session.answers), len(stage.session.refusals), stage.runners.counters.parts_dropped) == (fits, not fits, not fits)
    await stage.runners.close()


# --- what is left ---------------------------------------------------------------------------------------------------------------


async def test_what_ends_in_time_when_runners_close_is_given_back_and_its_threads_end() -> None:
    begun, end = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    seen: list[bool] = []

    def handler(request: Request) -> bytes:
        threads.append(threading.current_thread())
        seen.append(request.cancelled)
        begun.set()
        end.wait(30)
        seen.append(request.cancelled)
        return b"late"

    stage, ledger = staged(handler, 1, kind=THREAD)
    stage.runners.put([stage.request()])
    await asyncio.to_thread(begun.wait, 30)
    closing = asyncio.get_running_loop().create_task(stage.runners.close())
    await turns(3)
    assert not closing.done(), "a thread cannot be stopped"
    end.set()
    await closing
    counters = stage.runners.counters
    assert (ledger.ends, counters.errors, counters.cancelled, counters.handled, counters.left) == ({}, 0, 0, 0, 0)
    assert seen == [False, True], "a handler in a thread is told, and may look"
    await asyncio.to_thread(threads[0].join, 30)
    assert not threads[0].is_alive()


async def test_an_abandoned_handler_may_clean_up_and_is_counted_once() -> None:
    begun = asyncio.Event()
    steps: list[int] = []

    async def handler(request: Request) -> bytes:
        begun.set()
        try:
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        finally:
            for step in range(3):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                steps.append(step)

    stage, ledger = staged(handler, 1, cancel_s=0.05)
    request = stage.request()
    stage.runners.put([request])
    await begun.wait()
    stage.runners.drop(request)
    await stage.runners.close()
    counters = stage.runners.counters
    assert (steps, runner_tasks()) == ([0, 1, 2], set())
    assert (counters.left, counters.overdue, counters.errors, counters.cancelled, ledger.ends) == (1, 0, 0, 0, {})


def kept(body: bytes) -> list[Request]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, Request) and one.body == [body]]


@pytest.mark.parametrize("kind", HandlerKind)
@pytest.mark.parametrize("end", ["answers", "fails", "waits"])
async def test_nothing_of_a_request_is_kept_until_the_next_one_comes(kind: HandlerKind, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be large, and a worker has as many runners as it has ever had requests at once."""
    monkeypatch.setattr(logging.getLogger("mdp.worker"), "disabled", True)  # pytest keeps what is logged, with its traceback
    name = end.encode()

    def plain(request: Request) -> bytes:
        if request.body[0] == b"fails":
            raise ValueError
        return b""

    async def waits(request: Request) -> bytes:
        await asyncio.sleep(0)
        return plain(request)

    stage = Stage(waits if end == "waits" and kind is COROUTINE else of_kind(kind, plain), 3, kind=kind)
    for count in (1, 3, 1):
        stage.give(*(stage.request(name) for _ in range(count)))
        await stage.done()
        await until(lambda: not kept(name))  # a thread has some steps to go after it has answered
    await stage.runners.close()


async def test_an_overdue_handler_is_forgotten_when_it_has_ended() -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    stage = Stage(stubborn(begun, end), 1, cancel_s=0)
    name = b"overdue, and not any more"
    request = stage.request(name)
    stage.runners.put([request])
    await begun.wait()
    stage.runners.drop(request)
    del request
    await until(lambda: stage.runners.counters.overdue)
    end.set()
    await stage.done()
    await turns(3)
    assert not kept(name)
    await stage.runners.close()


async def test_a_runner_ends_with_its_abandoned_handler() -> None:
    begun, end = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def handler(request: Request) -> bytes:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        begun.set()
        while not end.is_set():
            with suppress(BaseException):
                await end.wait()
        raise ValueError

    stage, ledger = staged(handler, 1, cancel_s=0)
    stage.runners.put([stage.request()])
    await begun.wait()
    await stage.runners.close()
    assert not tasks[0].done()
    assert runner_tasks() == set(), "the end of the loop would wait for it"
    end.set()
    await until(tasks[0].done)
    assert tasks[0].exception() is None, "its handler's error is nobody's business any more"
    assert (ledger.ends, stage.runners.counters.errors, stage.runners.counters.left) == ({}, 0, 1)
