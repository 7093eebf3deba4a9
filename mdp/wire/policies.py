"""Policies of a service: how often its requests run, and run again. Workers announce them, the broker enforces them.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - compiled: annotations name it
from dataclasses import dataclass
from typing import Any, Final

from core.machine.backoff import backoff_s
from core.machine.value_copies import check_whole, reduced

# Classes of priority by their name in the options of a request; others are "normal", 0.
PRIORITIES: Final = {"high": 1, "normal": 0, "low": -1}
# More executions of one request do not help, and hide a fault.
ATTEMPTS_MAX: Final = 100
# A request that waits longer than a day belongs to Titanic.
DELAY_S_MAX: Final = 86_400.0
# One request in three hours, and more than a broker passes on.
PER_S_MIN: Final = 0.0001
PER_S_MAX: Final = 1e6


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of how many requests of a service are given to its workers, all of them together.

    Further requests wait in the broker's queue, in their order.

    Args:
        per_s: requests a second, on average.
        burst: how many may be given at once after a pause.

    Raises:
        ValueError: a number is out of range.
    """

    per_s: float
    burst: int = 1

    def __post_init__(self) -> None:
        check_whole(self)
        if not PER_S_MIN <= self.per_s <= PER_S_MAX or not 1 <= self.burst <= PER_S_MAX:
            raise ValueError(f"rate of {self.per_s} requests a second with a burst of {self.burst}: not {PER_S_MIN} to {PER_S_MAX:.0f}")

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    def __str__(self) -> str:
        return f"{self.per_s:g} request{'s' * (self.per_s != 1)} a second with a burst of {self.burst}"

    def entries(self) -> dict[str, Any]:
        """Return the entry of READY's options."""
        return {"per_s": float(self.per_s), "burst": self.burst}

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> Rate:
        """Return the rate of an entry.

        Raises:
            ValueError: it is not valid.
        """
        return cls(_number(entries, "per_s", 0.0), _whole(entries, "burst", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Further executions of a request whose handler failed, and their delays.

    The broker repeats it after HANDLER_ERROR, which is every error that a handler does not raise with a code of its own; never if it is
    `once`, if a part of its reply was sent, or if its deadline would have passed.

    Args:
        attempts: executions in all, 2 or more.
        base_s: seconds before the second one.
        factor: by which the delay grows each time.
        max_s: longest delay.
        jitter: part of the delay that is random, 0 to 1.

    Raises:
        ValueError: a number is out of range.
    """

    attempts: int = 3
    base_s: float = 0.1
    factor: float = 2.0
    max_s: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        check_whole(self)
        if not 2 <= self.attempts <= ATTEMPTS_MAX:
            raise ValueError(f"{self.attempts} attempts are not 2 to {ATTEMPTS_MAX}")
        if not 0 <= self.base_s <= self.max_s <= DELAY_S_MAX:
            raise ValueError(f"delays of {self.base_s} s to {self.max_s} s are not 0 to {DELAY_S_MAX:.0f} s, in this order")
        if not 1 <= self.factor <= ATTEMPTS_MAX or not 0 <= self.jitter <= 1:
            raise ValueError(f"factor {self.factor} is not 1 to {ATTEMPTS_MAX}, or jitter {self.jitter} not 0 to 1")

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    def delay_s(self, done: int, chance: float) -> float:
        """Return the delay after `done` executions; `chance` is a number of 0 to 1."""
        return backoff_s(self.base_s, self.max_s, done - 1, self.jitter, chance, self.factor)

    def entries(self) -> dict[str, Any]:
        """Return the entry of READY's options."""
        return {
            "attempts": self.attempts,
            "base_s": float(self.base_s),
            "factor": float(self.factor),
            "max_s": float(self.max_s),
            "jitter": float(self.jitter),
        }

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> Retry:
        """Return the policy of an entry.

        Raises:
            ValueError: it is not valid.
        """
        return cls(
            attempts=_whole(entries, "attempts", 3),
            base_s=_number(entries, "base_s", 0.1),
            factor=_number(entries, "factor", 2.0),
            max_s=_number(entries, "max_s", 30.0),
            jitter=_number(entries, "jitter", 0.5),
        )


def _number(entries: Mapping[str, Any], name: str, default: float) -> float:
    value = entries.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is not a number")
    return float(value)


def _whole(entries: Mapping[str, Any], name: str, default: int) -> int:
    value = entries.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is not a whole number")
    return value
