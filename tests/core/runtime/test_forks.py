"""core.runtime.forks: the number of the process, which a fork changes."""

from __future__ import annotations

import os

import pytest

from core.runtime.forks import process_id


def test_it_is_the_number_of_this_process() -> None:
    assert process_id() == os.getpid()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # later Pythons warn of forks with threads
def test_a_child_has_its_own_number() -> None:
    before = process_id()
    child = os.fork()
    if not child:
        os._exit(0 if process_id() == os.getpid() != before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process_id() == before
