"""Options of `dispatch` that bound and order its requests, with their defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from mdp.spark.dispatch_choices import WINDOW_MAX
from mdp.spark.rows.exchange import WINDOW_BYTES

__all__ = ["Bounds", "DispatchOptions"]


class DispatchOptions(TypedDict, total=False):
    """Further keyword arguments of `dispatch`, for type checkers; `Bounds` says what they mean."""

    window: int
    window_bytes: int
    ordered: bool
    timeout: float
    attempts: int
    wait: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds and order of a job's requests.

    Attributes:
        window: maximum requests in flight per partition.
        window_bytes: maximum bytes of a partition's requests in flight and of replies that are not yielded; one request is always in
            flight, whatever its size.
        ordered: rows keep the order of their partition; False: they come as their chunks are finished, so that a slow row holds back less.
        timeout: seconds to wait for each attempt.
        attempts: maximum times a request is sent.
        wait: wait for a service that has no worker, as long as attempts x timeout allow, instead of failing with NO_SERVICE.

    Raises:
        ValueError: one is out of range.
    """

    window: int = 256
    window_bytes: int = WINDOW_BYTES
    ordered: bool = True
    timeout: float = 30.0
    attempts: int = 5
    wait: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.window <= WINDOW_MAX:
            raise ValueError(f"window is 1 to {WINDOW_MAX}, not {self.window}")
        if self.window_bytes < 1:
            raise ValueError(f"window_bytes is 1 or more, not {self.window_bytes}")
        if not self.timeout > 0:
            raise ValueError(f"timeout is a number of seconds above 0, not {self.timeout}")
        if self.attempts < 1:
            raise ValueError(f"attempts is 1 or more, not {self.attempts}")
