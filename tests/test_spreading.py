"""Distribution of the tests: each test once, a group in one process, and nothing kept of what has ended."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenes.spreading import Spreading, spreading

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = [f"tests/test_a.py::test_{number}" for number in range(40)]
NAMES[3::7] = [f"{name}@together" for name in NAMES[3::7]]


class Process:
    """Stands for a test process: keeps the numbers of its tests."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: deque[int] = deque()
        self.ran: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, numbers: Sequence[int]) -> None:
        self.given.extend(numbers)

    def shutdown(self) -> None:
        self.shutting_down = True


class Config:
    """Stands for the settings of a run with two processes."""

    option = SimpleNamespace(loadscopereorder=False, debug=False)

    def getvalue(self, name: str) -> Any:
        return {"tx": ["2*popen"], "dist": "loadgroup"}[name]


def begin() -> tuple[Spreading, list[Any]]:
    silent: Any = SimpleNamespace(loadscopesched=lambda *_: None, loadgroupsched=lambda *_: None)
    one = spreading(Config(), silent)
    assert one is not None
    processes: list[Any] = [Process("one"), Process("other")]
    for process in processes:
        one.add_node(process)
    for process in processes:
        one.add_node_collection(process, list(NAMES))
    one.schedule()
    return one, processes


def run_one(one: Spreading, process: Any) -> None:
    number = process.given.popleft()
    process.ran.append(NAMES[number])
    one.mark_test_complete(process, number)


def run_all(one: Spreading, processes: list[Any]) -> None:
    while any(process.given for process in processes):
        for process in processes:
            if process.given:
                run_one(one, process)


def test_each_test_runs_once_and_a_group_in_one_process() -> None:
    one, processes = begin()
    run_all(one, processes)
    assert sorted(name for process in processes for name in process.ran) == sorted(NAMES)
    assert sum(any(name.endswith("@together") for name in process.ran) for process in processes) == 1
    assert one.tests_finished
    assert not one.has_pending
    assert all(process.shutting_down for process in processes)


def test_what_has_ended_is_forgotten() -> None:
    one, processes = begin()
    for _ in range(6):
        for process in processes:
            run_one(one, process)
            kept = [name for group in one.assigned_work[process].values() for name in group]
            assert set(kept) & set(process.ran) <= {name for name in NAMES if name.endswith("@together")}
    run_all(one, processes)
    assert [dict(one.assigned_work[process]) for process in processes] == [{}, {}]


def test_the_tests_of_a_process_that_died_run_in_the_other() -> None:
    one, processes = begin()
    dead, other = processes
    for process in processes * 4:
        run_one(one, process)
    at_the_end = NAMES[dead.given[0]]
    assert one.remove_node(dead) == at_the_end
    run_all(one, [other])
    assert set(dead.ran) | set(other.ran) == set(NAMES)


@pytest.mark.parametrize("dist", ["load", "loadscope", "no"])
def test_another_way_is_that_of_xdist(dist: str) -> None:
    config: Any = SimpleNamespace(getvalue=lambda _: dist)
    assert spreading(config, None) is None
