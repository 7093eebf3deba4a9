"""Event loops of the tests, and a net under each: a task or an unhandled error left behind fails it.

Tests of sockets run on stock asyncio and on uvloop, those above sockets on one of them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from hypothesis import settings

from core.runtime import supervision
from core.runtime.supervision import Supervisor
from tests.scenes.broker_invariants import watch_brokers, watch_states
from tests.scenes.loops import is_within
from tests.scenes.ports import kept_port
from tests.scenes.programs import Programs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from tests.scenes.distribution import Distribution
    from tests.scenes.spark_processes import AllServices
    from tests.scenes.titanic_spark_processes import House

    LoopFactory = Callable[[], asyncio.AbstractEventLoop]

LOOP_FACTORIES: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
if sys.platform != "win32":  # there is no uvloop for Windows
    import uvloop

    LOOP_FACTORIES["uvloop"] = uvloop.new_event_loop

HERE = Path(__file__).parent
# The simulator brings its own loop with a virtual clock: a second run would repeat the first.
SIMULATED = HERE / "sim"
# Where the loop matters: transports, their back-pressure, their closing, their timers. What stands on sockets sees nothing of the loop:
# half of its tests run on the one and half on the other; `--loops both` runs each on both.
ON_BOTH_LOOPS = (HERE / "core", HERE / "interop", HERE / "spec")
ABOVE_SOCKETS = re.compile(r"test_(mdp|titanic|bstar|freelance|peering|pirate|ppp|spp|lazy|lru|queue|example|guide)")
# A task that was cancelled or has its result needs an event-loop iteration or two before it counts as done.
SETTLE_TURNS = 5
SPARK_TIMEOUT_S = 240
GENERATION_0_THRESHOLD = 50_000
FOLDERS = pytest.StashKey[dict[Path, pytest.Collector]]()

# The same examples in every run, so that a failure is the change's and not the day's; and no time limit: machines are busy at times.
settings.register_profile("test", derandomize=True, deadline=None)
# `make fuzz`: other examples each time, and many; a failure prints how to repeat it.
settings.register_profile("fuzz", max_examples=20_000, deadline=None, print_blob=True)
settings.load_profile("test")


watch_states()
take_wrong = watch_brokers()


def pytest_configure(config: pytest.Config) -> None:
    """Let the programs that tests start have SIGINT and SIGHUP: a shell in the background, and nohup, start them without."""
    if hasattr(config, "workerinput"):
        # A process of pytest-xdist: only here is that known to be installed.
        from tests.scenes.distribution import say_less

        say_less(config)
    if threading.current_thread() is threading.main_thread():
        for name, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
            number = getattr(signal, name, None)  # there is no SIGHUP on Windows
            if number is not None and signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, usual)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make models` ask for the long searches, and anybody for both loops."""
    parser.addoption("--loops", choices=["one", "both"], default="one", help="on which event loops tests above sockets run")
    parser.addoption("--sim-states", type=int, default=0, help="states for each long search of the Binary Star model")


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, LoopFactory]:
    """Name the event loops a test runs on."""
    if is_within(item.path, SIMULATED):
        return {"asyncio": LOOP_FACTORIES["asyncio"]}
    near = any(is_within(item.path, folder) for folder in ON_BOTH_LOOPS) and not ABOVE_SOCKETS.match(item.path.name)
    marker = item.get_closest_marker("asyncio")
    if marker is not None and "loop_factories" in marker.kwargs:
        return LOOP_FACTORIES  # it says itself which
    if near or item.config.getoption("loops") == "both":
        return LOOP_FACTORIES
    # By its name, so that a test runs on the same loop every time and everywhere.
    names = sorted(LOOP_FACTORIES)
    chosen = names[crc32(f"{item.path.name}::{getattr(item, 'originalname', item.name)}".encode()) % len(names)]
    return {chosen: LOOP_FACTORIES[chosen]}


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
    """Return for each folder one and the same collector.

    pytest 9.1 makes another one after a file of the folder above was given by name, and that one has no fixtures (pytest-dev/pytest 14635).
    """
    made = yield
    return None if made is None else parent.session.stash.setdefault(FOLDERS, {}).setdefault(path, made)


def pytest_collection() -> None:
    """Collect the tests without the garbage collector, which would look at all of them again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let it collect only what the tests make: a full collection of everything holds a busy machine's loops for seconds.

    As seldom as in our daemons: walks over a machine then take a ninth less time.
    """
    gc.freeze()
    gc.set_threshold(GENERATION_0_THRESHOLD)
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse names that differ in each process; let all Spark tests share one, and give them time."""
    if " at 0x" in item.nodeid:
        raise pytest.UsageError(f"give this test an id without the address of an object, or pytest-xdist runs nothing: {item.nodeid}")
    if item.get_closest_marker("spark"):
        # Here and not later: by the next hook pytest-xdist has looked for groups.
        item.add_marker(pytest.mark.xdist_group("spark"))
        item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))  # the first waits for a Java process to start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Watch the loop of every asynchronous test; let the Spark tests start first, and then what takes long."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("asyncio"):
            # The first fixture set up is the last torn down: those of the test have ended their tasks by then.
            item.fixturenames.insert(0, "watched_loop")
    items.sort(key=lambda item: item.get_closest_marker("spark") is None and 1 + (item.get_closest_marker("long") is None))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Distribution | None:
    """Distribute the tests to several processes."""
    if config.getoption("dist") != "loadgroup":
        return None
    # Only the process that distributes needs it, and only where pytest-xdist is installed.
    from tests.scenes.distribution import Distribution

    return Distribution(config, log)


class Faults(logging.Handler):
    """Collects what the supervisor has logged: a fault it has taken care of is a fault all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@pytest.fixture
async def watched_loop(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail the test for an error in the loop's exception handler or the supervisor, or for a leftover task."""
    faults = Faults()
    if request.node.get_closest_marker("faults") is None:
        logging.getLogger("core.supervision").addHandler(faults)
    unhandled: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    yield
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
    logging.getLogger("core.supervision").removeHandler(faults)
    leaked = asyncio.all_tasks() - {asyncio.current_task()}
    gc.collect(1)  # "exception was never retrieved" is reported by the collector
    if leaked:
        pytest.fail(f"tasks left behind: {sorted(map(repr, leaked))}", pytrace=False)
    if faults.found:
        pytest.fail(f"the supervisor met faults: {faults.found}", pytrace=False)
    if unhandled:
        pytest.fail(f"the event loop met unhandled errors: {unhandled}", pytrace=False)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undo at the end of the test the log settings that a command made for its process."""
    root = logging.getLogger()
    level, before = root.level, [(handler, handler.formatter) for handler in root.handlers]
    disabled = root.manager.disable
    yield
    logging.disable(disabled)
    root.setLevel(level)
    for handler in root.handlers[:]:
        if all(handler is not one for one, _ in before):
            root.removeHandler(handler)
    for one, formatter in before:
        one.setFormatter(formatter)


@pytest.fixture(autouse=True)
def own_supervisor() -> Iterator[None]:
    """A supervisor for each test: the faults that one test injects are not on the status page of the next."""
    with supervision.scope(Supervisor()):
        yield


@pytest.fixture(autouse=True)
def brokers_in_order() -> Iterator[None]:
    """Fail the test whose broker had records that contradict each other when it stopped."""
    yield
    wrong = take_wrong()
    if wrong:
        pytest.fail(f"a broker is not in order: {wrong}", pytrace=False)


@pytest.fixture(scope="module")
def syntax_trees(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep syntax trees of the whole project from the garbage collector, and only as long as this module's tests run.

    A million objects: it would look at them again and again, now and with the tests that follow in this process.
    """
    gc.disable()
    yield
    for found in vars(request.module).values():
        if hasattr(found, "cache_clear"):
            found.cache_clear()
    gc.enable()


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Enter a working directory whose modules can be imported, and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Programs of ours as processes, in the test's own folder.

    Whatever still runs at the end of the test is killed.
    """
    made = Programs(tmp_path)
    yield made
    made.close()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port on which nothing listens before the test does."""
    with kept_port() as port:
        yield port


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session."""
    # Most test processes never need it.
    from tests.scenes.spark_session import session_of_tests

    with session_of_tests() as session:
        yield session


@pytest.fixture(scope="session")
def key_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllServices]:
    """Broker and worker of all services of Spark tests: each process more costs a second of imports."""
    from tests.scenes.spark_processes import AllServices

    with AllServices(tmp_path_factory.mktemp("services")) as processes:
        yield processes


@pytest.fixture(scope="session")
def house(key_service: AllServices, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A store at the broker of all services."""
    from tests.scenes.titanic_spark_processes import House

    with House(key_service, tmp_path_factory.mktemp("titanic-house")) as house:
        yield house
