"""core.runtime.loop_thread: submitted work is done or refused, and nothing is left at the end."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from core.errors import WrongOwner
from core.runtime.loop_thread import LoopThread


class Ended(Exception):
    """Too late."""


@pytest.fixture
def thread() -> LoopThread:
    return LoopThread("loop-thread-test", Ended)


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_coroutines_and_calls_run_on_the_thread(thread: LoopThread) -> None:
    called: list[str] = []
    assert thread.run(name_of_thread()) == "loop-thread-test"
    thread.call_soon(lambda: called.append(threading.current_thread().name))
    assert thread.start(name_of_thread()).result() == "loop-thread-test"
    assert called == ["loop-thread-test"]
    thread.end()


def test_what_comes_too_late_is_refused(thread: LoopThread) -> None:
    thread.end()
    thread.end()
    for hand_over in (thread.run, thread.start):
        with pytest.raises(Ended):  # and nothing warns of a coroutine that was never awaited: it is closed
            hand_over(name_of_thread())
    with pytest.raises(Ended):
        thread.call_soon(print)


def test_the_last_word_comes_once_and_the_thread_ends_even_if_it_fails(thread: LoopThread) -> None:
    said: list[int] = []

    async def last() -> None:
        said.append(1)
        raise ValueError

    with pytest.raises(ValueError):
        thread.end(last)
    thread.end(last)
    assert said == [1]
    assert "loop-thread-test" not in {other.name for other in threading.enumerate()}


def test_what_still_runs_is_cancelled_at_the_end(thread: LoopThread) -> None:
    begun = threading.Event()

    async def for_ever() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    future = thread.start(for_ever())
    assert begun.wait(30)
    thread.end()
    assert future.cancelled()


def test_of_many_threads_each_is_served_or_refused(thread: LoopThread) -> None:
    ends: list[bool] = []

    def ask() -> None:
        for _ in range(200):
            try:
                ends.append(thread.run(name_of_thread()) == "loop-thread-test")
            except Ended:
                ends.append(True)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    thread.end()
    for asker in askers:
        asker.join(100)
    assert ends == [True] * 800


def test_a_forked_copy_gets_an_error_and_ends_nothing(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault P7."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="make another one after the fork"):
            thread.run(name_of_thread())
        thread.end()
    assert thread.run(name_of_thread()) == "loop-thread-test"
    thread.end()


def test_a_call_on_its_own_thread_that_would_wait_for_itself_is_refused(thread: LoopThread) -> None:
    """It waited for ever, with all other callers."""

    async def wait_for_own() -> None:
        for call in (lambda: thread.run(name_of_thread()), thread.end):
            with pytest.raises(WrongOwner, match="wait for itself"):
                call()

    thread.run(wait_for_own())
    assert thread.run(name_of_thread()) == "loop-thread-test"
    thread.end()
