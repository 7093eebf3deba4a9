"""pirate.fault_injection: when simulated failures come, and that the other requests are handled."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from pirate.errors import SimulatedCrash
from pirate.fault_injection import Mishaps


class Dice(Random):
    """Falls as it is said, and keeps how many sides were asked for."""

    def __init__(self, *falls: int) -> None:
        super().__init__()
        self.falls = [*falls]
        self.sides: list[int] = []

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        self.sides.append(start)
        return self.falls.pop(0)


async def echo(body: list[bytes]) -> list[bytes]:
    return body


async def test_the_first_three_requests_are_calm_and_each_later_one_may_crash_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    dice = Dice(1, 2, 0, 1, 1)
    handler = Mishaps(echo, dice, one_in=7)
    for _ in range(3):
        assert await handler([b"x"]) == [b"x"]
    assert dice.sides == []
    assert await handler([b"y"]) == [b"y"]
    with pytest.raises(SimulatedCrash, match="simulated crash"):
        await handler([b"z"])
    assert await handler([b"z"]) == [b"z"]
    assert dice.sides == [7] * 5
    assert [record.getMessage() for record in caplog.records if record.name == "pirate.fault_injection"] == ["simulating a crash"]


async def test_a_slow_request_is_answered_later(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    handler = Mishaps(lambda body: body, Dice(4, 0), overload_s=2.5)
    for _ in range(4):
        assert await handler([b"x"]) == [b"x"]
    assert pauses == [2.5]
    assert "simulating CPU overload" in caplog.text
