"""core.runtime.forks: the number of the process, which a fork changes."""

from __future__ import annotations

import os

import pytest

from core.runtime.forks import process_id
from tests.scenes.forked_child import in_child


def test_it_is_the_number_of_this_process() -> None:
    assert process_id() == os.getpid()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_has_its_own_number() -> None:
    before = process_id()
    assert in_child(lambda: str(process_id() == os.getpid() != before)) == "True"
    assert process_id() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_a_child_of_a_test_that_fails_says_so_and_does_not_go_on_with_the_tests(error: type[BaseException]) -> None:
    def fail() -> str:
        raise error("here")

    assert in_child(fail) == repr(error("here"))
