"""Functions of the user that run once a row: whatever they raise is the error of their row."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

A = TypeVar("A")
R = TypeVar("R")


class UserFunctionFailed(ValueError):
    """A function of the user raised an error for one row; the text names the error."""


def guarded(function: Callable[[A], R]) -> Callable[[A], R]:
    """Return the function with every exception turned into `UserFunctionFailed`."""

    def call(argument: A) -> R:
        try:
            return function(argument)
        except Exception as error:
            raise UserFunctionFailed(f"{type(error).__name__}: {error}") from error

    return call
