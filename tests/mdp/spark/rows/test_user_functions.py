"""Whatever a function of the user raises is one kind of error."""

from __future__ import annotations

import pytest

from mdp.spark.rows.user_functions import UserFunctionFailed, guarded


class Strange(Exception):
    """Of a library that nobody here knows."""


@pytest.mark.parametrize("error", [KeyError("x"), Strange("odd"), RuntimeError(), StopIteration()])
def test_any_exception_becomes_one_that_names_it(error: Exception) -> None:
    def fail(_: int) -> int:
        raise error

    with pytest.raises(UserFunctionFailed, match=type(error).__name__) as raised:
        guarded(fail)(1)
    assert raised.value.__cause__ is error


def test_a_result_passes_and_what_ends_the_process_too() -> None:
    assert guarded(str)(1) == "1"

    def leave(_: int) -> int:
        raise SystemExit

    with pytest.raises(SystemExit):
        guarded(leave)(1)
