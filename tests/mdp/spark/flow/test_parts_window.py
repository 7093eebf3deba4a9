"""Replies in parts: their outcomes as they end, their limits, and what is given up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mdp.errors import NoService
from mdp.spark.flow.windows import PartsOutcome, PartsWindow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


class Client:
    """Answers `n` with n parts when the gate is open; "endless" with parts without end."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0

    async def stream(self, service: str, *frames: bytes, key: str, wait: bool) -> AsyncGenerator[list[bytes], None]:
        self.under_way += 1
        try:
            await self.gate.wait()
            if frames[0] == b"refused":
                raise NoService(service, attempts=3)
            if frames[0] == b"bug":
                raise ZeroDivisionError
            number = 0
            while frames[0] == b"endless" or number < int(frames[0]):
                yield [b"x"]
                number += 1
            if not number:
                yield [b""]  # the end of a reply without parts
        finally:
            self.under_way -= 1


async def outcomes(window: PartsWindow, wake: asyncio.Event, count: int) -> dict[int, PartsOutcome]:
    found: dict[int, PartsOutcome] = {}
    while len(found) < count:
        await wake.wait()
        wake.clear()
        for outcome in window.take():
            assert isinstance(outcome, PartsOutcome)
            found[outcome.index] = outcome
    return found


def opened(client: Client, on_end: Callable[[], None]) -> PartsWindow:
    return PartsWindow(client, "parts", on_end, wait=False)  # type: ignore[arg-type]  # all that a window of parts uses


async def test_parts_are_joined_under_the_index_of_their_request() -> None:
    wake = asyncio.Event()
    window = opened(Client(), wake.set)
    assert window.send([(b"2",), (b"refused",)], ["a", "b"]) == 0
    assert window.send([(b"0",)], ["c"]) == 2
    found = await outcomes(window, wake, 3)
    assert [found[index].parts for index in range(3)] == [[[b"x"], [b"x"]], None, []]
    assert isinstance(found[1].error, NoService)
    assert found[1].attempts == 3


async def test_a_reply_beyond_the_limits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.spark.flow.windows.PARTS_MAX", 10)
    wake = asyncio.Event()
    window = opened(Client(), wake.set)
    window.send([(b"endless",)], ["a"])
    found = await outcomes(window, wake, 1)
    assert "more than 10 parts" in str(found[0].error)
    assert found[0].parts is None


async def test_what_is_withdrawn_is_cancelled() -> None:
    client = Client()
    client.gate.clear()
    window = opened(client, lambda: None)
    window.send([(b"1",)] * 3, ["a", "b", "c"])
    while client.under_way < 3:
        await asyncio.sleep(0)
    await window.withdraw()
    assert (client.under_way, window.take()) == (0, [])
    await window.withdraw()


async def test_an_error_that_is_no_outcome_is_raised() -> None:
    wake = asyncio.Event()
    window = opened(Client(), wake.set)
    window.send([(b"bug",)], ["a"])
    await wake.wait()
    with pytest.raises(ZeroDivisionError):
        window.take()
