"""Event loops of tests with many cases: each case runs on one of them.

The cases take turns, but not in a simple rhythm: so each value of each parameter meets both loops. `--loops both` runs all on both.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["each_case_on_one_loop", "is_within", "take_no_report_of"]

_LOOP: Final = "_asyncio_loop_factory"


def take_no_report_of(expected: type[Exception]) -> None:
    """Take reports of the running loop of an error that the test causes; others go to its handler."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    assert before is not None

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), expected):
            before(loop, context)

    loop.set_exception_handler(handle)


@cache
def is_within(path: Path, folder: Path) -> bool:
    """Tell whether a file is in a folder, once for all tests of the file."""
    return folder in path.parents


def each_case_on_one_loop(config: pytest.Config, items: list[pytest.Item], folder: Path) -> None:
    """Take out of a folder's tests the cases that run on another loop than theirs."""
    if config.getoption("loops") == "both":
        return
    tests: dict[tuple[Path, str], dict[int, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if is_within(item.path, folder) and (loop := _loop_of_case(item)) is not None:
            tests[item.path, item.nodeid.partition("[")[0]][loop].append(item)
    out: set[pytest.Item] = set()
    for by_loop in tests.values():
        if len({len(cases) for cases in by_loop.values()}) == 1:  # not where only some of the cases were asked for
            out |= {
                case
                for place, cases in enumerate(by_loop.values())
                for number, case in enumerate(cases)
                if number.bit_count() % len(by_loop) != place
            }
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]


def _loop_of_case(item: pytest.Item) -> int | None:
    """Return the number of the loop of a test with other parameters, unless it names its loops itself."""
    callspec: Any = getattr(item, "callspec", None)
    if callspec is None or len(callspec.indices) == 1 or any("loop_factories" in mark.kwargs for mark in item.iter_markers("asyncio")):
        return None
    loop: int | None = callspec.indices.get(_LOOP)
    return loop
