"""Tests in virtual time, which need no plugin: their loop never sleeps."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

from mdp.testing import virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ["in_virtual_time"]

P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run a test in virtual time."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        virtual_time.run(test(*args, **kwargs))

    return run
