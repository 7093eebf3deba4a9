"""core.rpc.shared_question: which callers share an error, and which ask again."""

from __future__ import annotations

import asyncio

import pytest

from core.rpc.shared_question import SharedQuestion


class Questions:
    """Counts the questions that were asked, and lets the test end each of them."""

    def __init__(self) -> None:
        self.shared = SharedQuestion()
        self.open: list[asyncio.Future[str]] = []

    async def question(self) -> str:
        self.open.append(asyncio.get_running_loop().create_future())
        return await self.open[-1]

    def ask(self) -> asyncio.Task[str]:
        return asyncio.get_running_loop().create_task(self.shared.ask(self.question))


async def rounds() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_thousand_wait_for_two_questions_and_no_more() -> None:
    asked = Questions()
    first = asked.ask()
    await rounds()
    others = [asked.ask() for _ in range(1000)]
    await rounds()
    assert len(asked.open) == 1
    asked.open[0].set_exception(TimeoutError("first"))
    await rounds()
    assert str(first.exception()) == "first"
    assert len(asked.open) == 2  # of the callers that came while the first was asked
    assert not any(one.done() for one in others)
    asked.open[1].set_exception(TimeoutError("second"))
    await asyncio.wait(others)
    assert len(asked.open) == 2
    assert {str(one.exception()) for one in others} == {"second"}
    assert asked.shared._error is None  # nobody else shares it


async def test_a_caller_that_comes_after_an_error_asks_anew() -> None:
    asked = Questions()
    for number in range(3):
        one = asked.ask()
        await rounds()
        assert len(asked.open) == number + 1
        asked.open[number].set_exception(TimeoutError)
        with pytest.raises(TimeoutError):
            await one


async def test_a_caller_that_waits_looks_again_after_an_answer() -> None:
    asked = Questions()
    first, second = asked.ask(), asked.ask()
    await rounds()
    asked.open[0].set_result("a")
    await rounds()
    assert first.result() == "a"
    asked.open[1].set_result("b")
    assert await second == "b"


async def test_a_caller_that_is_cancelled_leaves_the_question_to_the_next() -> None:
    asked = Questions()
    first, second, third = asked.ask(), asked.ask(), asked.ask()
    await rounds()
    second.cancel()
    first.cancel()
    await rounds()
    assert first.cancelled()
    assert second.cancelled()
    assert len(asked.open) == 2
    asked.open[1].set_result("c")
    assert await third == "c"
