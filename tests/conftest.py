"""Every asynchronous test runs on stock asyncio and on uvloop, and fails when it leaves a task or an unhandled error behind."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.command_line import Programs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    LoopFactory = Callable[[], asyncio.AbstractEventLoop]

LOOP_FACTORIES: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
if sys.platform != "win32":  # there is no uvloop for Windows
    import uvloop

    LOOP_FACTORIES["uvloop"] = uvloop.new_event_loop

# The simulator brings its own loop with a virtual clock: a second run would repeat the first.
SIMULATED = Path(__file__).parent / "sim"
# A task that was cancelled or has its result needs a turn of the loop or two before it counts as done.
SETTLE_TURNS = 5
SPARK_TIMEOUT_S = 240

# The same examples in every run, so that a failure is the change's and not the day's; and no time limit: machines are busy at times.
settings.register_profile("test", derandomize=True, deadline=None)
# `make fuzz`: other examples each time, and many; a failure prints how to repeat it.
settings.register_profile("fuzz", max_examples=20_000, deadline=None, print_blob=True)
settings.load_profile("test")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make sim` ask for the long searches."""
    parser.addoption("--sim-states", type=int, default=0, help="states for each long search of the Binary Star model")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, LoopFactory]:
    """Name the event loops a test runs on."""
    if SIMULATED in item.path.parents:
        return {"asyncio": LOOP_FACTORIES["asyncio"]}
    return LOOP_FACTORIES


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let all Spark tests share one process, and give them time: the first waits for a Java process to start."""
    if item.get_closest_marker("spark"):
        # Here and not later: by the next hook pytest-xdist has looked for groups.
        item.add_marker(pytest.mark.xdist_group("spark"))
        item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Watch the loop of every asynchronous test; let the Spark tests start first, they take longest."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("asyncio"):
            # The first fixture set up is the last torn down: those of the test have ended their tasks by then.
            item.fixturenames.insert(0, "watched_loop")
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.fixture
async def watched_loop() -> AsyncIterator[None]:
    """Fail the test for an error that reached the loop's exception handler, or for a task that outlives it."""
    unhandled: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    yield
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
    leaked = asyncio.all_tasks() - {asyncio.current_task()}
    gc.collect(1)  # "exception was never retrieved" is reported by the collector
    if leaked:
        pytest.fail(f"tasks left behind: {sorted(map(repr, leaked))}", pytrace=False)
    if unhandled:
        pytest.fail(f"the event loop met unhandled errors: {unhandled}", pytrace=False)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Programs of ours as processes, in the test's own folder; whatever still runs at the end of the test is killed."""
    made = Programs(tmp_path)
    yield made
    made.close()
