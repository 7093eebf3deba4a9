"""The shape of the house.

Who may import whom, which files are pure, how large things may grow, what is never written.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import majordomo_toolkit

if TYPE_CHECKING:
    from collections.abc import Iterator

# In one process: each file is parsed once.
pytestmark = [pytest.mark.xdist_group("architecture"), pytest.mark.usefixtures("syntax_trees")]

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Package -> what of ours it may import besides itself.
ARROWS: dict[str, tuple[str, ...]] = {
    "majordomo_toolkit": ("core",),  # to run the command `zmtp`, after the check
    "core": ("majordomo_toolkit",),  # the version
    "bstar": ("core", "majordomo_toolkit"),
    "freelance": ("core", "majordomo_toolkit"),
    "pirate": ("core", "majordomo_toolkit"),
    "peering": ("core", "majordomo_toolkit"),
    "mdp": ("core", "majordomo_toolkit", "peering.peer_router", "bstar", "bstar.pair"),
    "titanic": ("core", "majordomo_toolkit", "mdp", "bstar"),
}
PURE = {
    "bstar": "errors",
    "bstar/machine": "ballot driver effects fsm member member_values requester wire",
    "core": "address errors options",
    "core/machine": "backoff deadlines envelope liveness requests worker_table",
    "core/pattern": "base distributor fair_queue load_balancer pair pipe pipeline pubsub reqrep subscriptions topic_trie",
    "core/security": "curve nacl plain",
    "core/zmtp": "commands connection decoder frames greeting mechanism secured_decoder z85 zap zmtp2",
    "freelance": "errors",
    "freelance/models": "agent client_machine flp sequential server_list shotgun",
    "mdp": "errors request",
    "mdp/broker": "counters dispatcher forwarding limits mmi recorder",
    "mdp/broker/requests": "dead_letters idempotency records reply_cache request_table",
    "mdp/broker/workers": "directory worker_states",
    "mdp/client": "calls pending requester requester_01 resending",
    "mdp/eventlog": "format",
    "mdp/session": "broker_search",
    "mdp/shards": "merging metrics_page routing",
    "mdp/spark/rows": "request_keys row_frames",
    "mdp/wire": "commands events options shards",
    "mdp/worker": "session",
    "peering": "errors local_workers peer_router task task_router wire",
    "pirate": "client_sessions errors lazy lru_queue ppp worker_session",
    "titanic": "errors",
    "titanic/journal": "checkpoint manifest record record_bodies",
    "titanic/store": "delivery_queue",
    "titanic/store/index": "limits loading packed_requests request_index stored_request tables",
    "titanic/wire": "tsp",
}
# What a pure file must be given instead of fetching it: the loop, the time, chance, the outside world, a log.
IMPURE = frozenset(
    (
        "asyncio time random secrets os socket select selectors ssl logging threading subprocess signal tempfile shutil aiofiles uvloop"
    ).split()
)
# A table the interpreter carries, no question to the system.
PURE_OF_OS = frozenset({"strerror"})
# Where a third party may be used; its types may be named in an API that passes them on.
_TABLES = ("/spark/", "mdp/batch/")
ROOMS = {"pyspark": ("/spark/",), "pandas": ("/spark/",), "pyarrow": (*_TABLES, "mdp/client/client.py", "mdp/client/sync.py")}
PICKLES = frozenset({"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal"})
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
# Where a handler of the user is called: its error, whatever it is, is the answer to the request and not a failure of ours. Errors of a
# callback of a client are logged and counted.
FOREIGN_CODE_CALLED_IN = frozenset(
    {
        "core/sockets/results/pending.py",
        "mdp/batch/handler.py",
        "mdp/client/replies.py",
        "mdp/worker/running_request.py",
        "mdp/worker/worker.py",
        "mdp/worker/runners.py",
        "mdp/worker/handler_threads.py",
        "mdp/worker/failure_log.py",
        "freelance/server.py",
        "pirate/worker.py",
    }
)
# Where everything that is started for long is guarded: a fault is logged and counted there, and answered as its owner says.
SUPERVISED_IN = frozenset({"core/runtime/supervision.py"})
# Spelt backwards, or this file would be the first to be found.
UNFINISHED = re.compile(r"\b(" + "|".join(word[::-1] for word in ("ODOT", "EMXIF", "KCAH")) + "|" + 3 * "X" + r")\b")
# What starts something that can fail with nothing to show it: outside `core.runtime.supervision` only where this table says why.
STARTERS = frozenset(
    "create_task ensure_future run_coroutine_threadsafe Thread Timer start_new_thread ThreadPoolExecutor Process call_later call_at "
    "run_in_executor add_done_callback".split()
)
AWAITED = "short-lived: the function that starts it awaits it and takes its error, or hands it to a caller that does"
HANDED_ON = "settles one future or removes one entry: nothing there can fail, and an error would reach the exception handler of the loop"
WAITED_FOR = "a program waits for it: a caller of another thread takes its error, or asks what became of it"
POOL = "a pool: the error of what runs in it is taken by its future, which is awaited, or by the supervisor there"
HANDLER = "a handler of the user: its error is the answer to the request, which the callback takes, logs and counts"
FOR_SUPERVISION = "`core.runtime.supervision` calls it, and nothing else does"
# Why -> "file function starter".
UNSUPERVISED: dict[str, tuple[str, ...]] = {
    AWAITED: (
        "core/security/zap_client.py verdict_of ensure_future",
        "core/daemon/run.py serve ensure_future",
        "core/runtime/event_loop.py until_one_ends ensure_future",
        "core/runtime/leftovers.py end_leftovers create_task",
        "core/sockets/poll.py _poll ensure_future",
        "core/sockets/poll.py poll ensure_future",
        "core/sockets/waiters.py poll_one ensure_future",
        "freelance/names/resolver.py _beside create_task",
        "mdp/client/middleware.py request create_task",
        "mdp/spark/flow/windows.py send create_task",
        "bstar/net/ballot_writer.py open run_in_executor",
        "titanic/client.py results ensure_future",
        "titanic/paired_store.py _ask_peer ensure_future",
        "titanic/paired_store.py _pause ensure_future",
        "titanic/paired_store.py _watch_service ensure_future",
        "titanic/store/service.py until_failed ensure_future",
        "titanic/paired_store.py _while_active ensure_future",
    ),
    HANDED_ON: (
        "bstar/net/ballot_writer.py open add_done_callback",
        "core/sockets/endpoints.py _retire add_done_callback",
        "core/runtime/leftovers.py leave add_done_callback",
        "core/sockets/waiters.py wait_for call_at",
        "core/sockets/results/futures.py expire add_done_callback",
        "core/sockets/sending.py _send_later add_done_callback",
        "core/sockets/results/futures.py expire call_later",
        "mdp/testing/virtual_time.py _Pool ThreadPoolExecutor",
        "mdp/testing/virtual_time.py submit add_done_callback",
        "mdp/testing/virtual_time.py run_in_executor add_done_callback",
        "mdp/testing/virtual_time.py run_in_executor run_in_executor",
        "mdp/worker/runners.py _start_runner add_done_callback",
        "mdp/client/middleware.py map add_done_callback",
        "mdp/client/sync.py ask add_done_callback",
        "mdp/spark/flow/windows.py send add_done_callback",
        "titanic/mirror/replica_link.py _session add_done_callback",
        "titanic/journal/group_commit.py after add_done_callback",
        "titanic/store/service.py _act add_done_callback",
    ),
    FOR_SUPERVISION: (
        "core/runtime/loop_timers.py call_at call_at",
        "core/runtime/runtime.py thread Thread",
    ),
    WAITED_FOR: (
        "core/devices/basedevice.py start Process",
        "core/runtime/loop_thread.py end run_coroutine_threadsafe",
        "core/runtime/loop_thread.py start run_coroutine_threadsafe",
        "mdp/spark/demo/demo.py Killer Thread",
        "mdp/spark/rows/loop_bridge.py _run run_coroutine_threadsafe",
        "mdp/spark/rows/loop_bridge.py request run_coroutine_threadsafe",
    ),
    POOL: (
        "core/runtime/runtime.py pool ThreadPoolExecutor",
        "majordomo_toolkit/extension.py compile_all ThreadPoolExecutor",
        "mdp/spark/worker.py __init__ ThreadPoolExecutor",
    ),
    HANDLER: (
        "core/rpc/running_handlers.py start add_done_callback",
        "core/rpc/running_handlers.py start ensure_future",
    ),
}

PACKAGES = [name for name in ARROWS if (ROOT / name / "__init__.py").is_file()]
OUTSIDE = [name for name in ("tests", "benchmarks", "examples") if (ROOT / name).is_dir()]


def sources(*folders: str) -> list[str]:
    """Name the Python files below some folders, relative to the root with slashes."""
    return sorted(p.relative_to(ROOT).as_posix() for folder in folders for p in (ROOT / folder).rglob("*.py"))


def command_module(package: str) -> str:
    """Return the module of a package's command, "" when it has none."""
    places = {f"{package}/cli.py": f"{package}.cli", f"{package}/commands/main.py": f"{package}.commands.main"}
    return next((module for file, module in places.items() if (ROOT / file).is_file()), "")


PACKAGE_FILES = sources(*PACKAGES)
ALL_FILES = sources(*PACKAGES, *OUTSIDE)
NAMED_PURE = {f"{room}/{name}.py" for room, names in PURE.items() for name in names.split()}
MODULES = [name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in PACKAGE_FILES]


def says_pure(name: str) -> bool:
    """Tell whether a module's docstring promises it: "Pure." """
    return re.search(r"\bPure\b", ast.get_docstring(parse(name)) or "") is not None


@cache
def parse(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), filename=name)


@cache
def nodes(name: str) -> list[ast.AST]:
    return list(ast.walk(parse(name)))


@cache
def imports(name: str) -> list[tuple[int, str]]:
    return list(imported_in(name))


def imported_in(name: str) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) of everything a file imports, names taken out of a module included."""
    package = name.split("/")[:-1]
    for node in nodes(name):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def within(imported: str, allowed: str) -> bool:
    return imported == allowed or imported.startswith(allowed + ".")


def test_imports_follow_the_arrows() -> None:
    wrong = []
    for name in PACKAGE_FILES:
        home = name.split("/", 1)[0]
        allowed = (home, *ARROWS[home])
        wrong += [
            f"{name}:{line} imports {imported}"
            for line, imported in imports(name)
            if imported.split(".")[0] in {*ARROWS, *OUTSIDE} and not any(within(imported, other) for other in allowed)
        ]
    assert not wrong


def test_pure_files_import_nothing_that_acts() -> None:
    acting = []
    pure_files = [name for name in PACKAGE_FILES if name in NAMED_PURE or says_pure(name)]
    for name in pure_files:
        asked = {node.attr for node in nodes(name) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os"}
        acting += [
            f"{name}:{line} imports {imported}"
            for line, imported in imports(name)
            if imported.split(".")[0] in IMPURE and not (imported == "os" and asked <= PURE_OF_OS)
        ]
    assert len(pure_files) >= len(NAMED_PURE & set(PACKAGE_FILES)) > 0
    assert not acting


def test_third_parties_stay_in_their_folders() -> None:
    wrong = []
    for name in ALL_FILES:
        home = name.split("/")[0]
        for line, imported in imports(name):
            top = imported.split(".")[0]
            if (
                (top == "zmq" and home not in {"tests", "benchmarks"})
                or (top in {"pyspark", "pyarrow", "pandas"} and home not in OUTSIDE and not any(room in name for room in ROOMS[top]))
                or top in PICKLES
            ):
                wrong.append(f"{name}:{line} imports {imported}")
    assert not wrong


def test_sizes() -> None:
    long = {}
    for name in ALL_FILES:
        lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES_MAX:
            long[name] = lines
        for node in nodes(name):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{name} {node.name}"] = lines
    assert long == {}


def catches_everything(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(c is None or (isinstance(c, ast.Name) and c.id in {"Exception", "BaseException"}) for c in caught)


def test_errors_are_caught_by_name() -> None:
    """Code that catches everything raises it again."""
    swallowed = [
        f"{name}:{node.lineno}"
        for name in PACKAGE_FILES
        if name not in FOREIGN_CODE_CALLED_IN | SUPERVISED_IN
        for node in nodes(name)
        if isinstance(node, ast.ExceptHandler)
        and catches_everything(node)
        and (node.type is None or not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)))
    ]
    assert not swallowed


def starts(name: str, found: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield (file, function and starter, line) of what a file starts, or hands on to be started, past the supervisor."""
    parents = {child: node for node in found for child in ast.iter_child_nodes(node)}

    def inside(node: ast.AST) -> ast.AST:
        above = parents[node]
        while not isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            above = parents[above]
        return above

    groups = {
        (inside(node), ast.unparse(item.optional_vars))
        for node in found
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if item.optional_vars is not None and ast.unparse(item.context_expr).endswith("TaskGroup()")
    }
    for node in found:
        above = parents.get(node)
        if isinstance(node, ast.alias) and node.asname not in (None, node.name) and node.name in STARTERS:
            yield f"{name} {getattr(inside(node), 'name', '')} {node.name}", node.lineno
        starter = getattr(node, "attr", "") or getattr(node, "id", "")
        if starter not in STARTERS or not isinstance(node, ast.Attribute | ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        is_called = isinstance(above, ast.Call) and above.func is node
        if starter[0].isupper():  # a class: not as a type
            counts = is_called or isinstance(above, ast.ClassDef | ast.Call | ast.keyword | ast.Assign)
        else:
            owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
            is_awaited = (
                starter == "run_in_executor" and isinstance(above, ast.Call) and is_called and isinstance(parents[above], ast.Await)
            )
            counts = not is_awaited and not (starter == "create_task" and (inside(node), owner) in groups)
        if counts:
            yield f"{name} {getattr(above if isinstance(above, ast.ClassDef) else inside(node), 'name', '')} {starter}", node.lineno


def test_what_runs_for_long_is_started_by_the_supervisor() -> None:
    """A task, thread or callback that dies must be seen: `core.runtime.supervision` starts it, or its owner awaits it."""
    found = {key: line for name in PACKAGE_FILES if name not in SUPERVISED_IN for key, line in starts(name, nodes(name))}
    known = {key for keys in UNSUPERVISED.values() for key in keys}
    assert sorted(f"{key} (line {line})" for key, line in found.items() if key not in known) == []
    assert sorted(known - found.keys()) == []


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.create_task(run())",
        "start = asyncio.get_running_loop().create_task\nstart(run())",
        "pool = partial(loop.create_task, run())",
        "from asyncio import create_task as go\ngo(run())",
        "class Beat(threading.Thread):\n    pass",
        "threading.Timer(1.0, run).start()",
        "make(threading.Thread)",
        "_thread.start_new_thread(run, ())",
        "asyncio.run_coroutine_threadsafe(run(), loop)",
        "ThreadPoolExecutor(1).submit(run)",
        "async def one():\n    async with TaskGroup() as group:\n        pass\ndef two(group):\n    group.create_task(run())",
        "done.add_done_callback(run)",
        "future = loop.run_in_executor(None, run)",
    ],
)
def test_nothing_gets_past_the_rule_of_the_supervisor(code: str) -> None:
    assert list(starts("some.py", list(ast.walk(ast.parse(code)))))


@pytest.mark.parametrize(
    "code",
    [
        "async def one():\n    async with TaskGroup() as group:\n        group.create_task(run())",
        "async def one():\n    await loop.run_in_executor(None, run)",
        "def one(thread: threading.Thread, timer: Timer | None) -> asyncio.Task[None]:\n    return self.task",
        "from asyncio import create_task\nsupervisor.task('name', run)",
    ],
)
def test_the_rule_of_the_supervisor_lets_pass_what_is_awaited(code: str) -> None:
    assert not list(starts("some.py", list(ast.walk(ast.parse(code)))))


def test_nothing_is_left_unfinished_and_no_path_is_of_one_machine() -> None:
    places = {f"/{ROOT.parts[1]}/", f"{Path.home()}/", "/home" + "/", "/Users" + "/"} - {"/" + "tmp/", "//"}
    found = [
        f"{name}:{number} {line.strip()}"
        for name in ALL_FILES
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
        or "NotImplemented" + "Error" in line
        or any(quote + place in line for quote in "\"'" for place in places)
    ]
    assert not found


def imported_modules(name: str) -> set[str]:
    """Return the modules of ours that a file imports, in functions and for types too."""
    needed = set()
    for _, imported in imports(name):
        module = imported if imported in MODULES else imported.rpartition(".")[0]
        needed.add(module)
    return (needed & set(MODULES)) - {MODULES[PACKAGE_FILES.index(name)]}


def test_no_import_goes_in_a_circle() -> None:
    """No module leans on another having been imported before it; imports for types count too."""
    graph = {module: imported_modules(name) for module, name in zip(MODULES, PACKAGE_FILES, strict=True)}
    while ends := [module for module, needed in graph.items() if not needed or not any(module in others for others in graph.values())]:
        for module in ends:
            del graph[module]
        for needed in graph.values():
            needed.difference_update(ends)
    assert graph == {}


def test_every_module_can_be_imported_and_a_package_loads_no_heavy_third_party() -> None:
    heavy = ("pyspark", "pandas", "pyarrow", "matplotlib", "zmq", "aiohttp", "textual")
    light = [*PACKAGES, *(command_module(package) for package in PACKAGES if command_module(package))]
    others = [name for name in MODULES if name not in light and not name.endswith("__main__")]
    code = f"""
import importlib, sys
for name in {light!r}:
    importlib.import_module(name)
    loaded = [m for m in {heavy!r} if m in sys.modules]
    if loaded:
        sys.exit(f"import {{name}} loads {{loaded}}")
for name in {others!r}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_project_file_names_what_exists() -> None:
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(PACKAGES)
    assert {*PACKAGES, "tests"} == set(PROJECT["tool"]["mypy"]["packages"]) - {"benchmarks", "examples"}
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []


def test_every_command_line_has_its_console_script() -> None:
    targets = PROJECT["project"]["scripts"].values()
    for target in targets:
        module, _, attribute = target.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))
    assert set(PROJECT["project"]["scripts"]) == set(majordomo_toolkit.COMMANDS)
    homes = {"core" if value == "majordomo_toolkit:zmtp" else value.split(".")[0] for value in targets}
    assert homes == {package for package in PACKAGES if command_module(package)}


# Octets of files of ours, behind a checksum.
OWN_MSGPACK = frozenset({"titanic/journal/checkpoint.py", "core/machine/bounded_msgpack.py"})


# Files of ours, what one process of ours tells another, and `recv_json`, whose caller asks for the error.
OWN_JSON = frozenset(
    "core/machine/peer_text.py core/sockets/serialization.py core/utils/jsonapi.py mdp/shards/identity.py "
    "titanic/journal/ownership.py titanic/tickets.py".split()
)


@pytest.mark.parametrize(
    ("decoders", "own"),
    [({"msgpack.unpackb", "msgpack.unpack", "msgpack.Unpacker"}, OWN_MSGPACK), ({"json.loads", "json.load"}, OWN_JSON)],
)
def test_values_of_peers_are_read_by_the_decoders_for_them(decoders: set[str], own: frozenset[str]) -> None:
    readers = {name for name in PACKAGE_FILES for node in nodes(name) if isinstance(node, ast.Attribute) and ast.unparse(node) in decoders}
    assert readers == own


# Their children never return: `in_child` for tests; and programs of their own, which no test process runs.
FORKING = frozenset({"forked_child", "prefork", "mdp_worker_processes", "titanic_processes", "titanic_killed_mirror", "forked"})


def test_a_test_forks_by_what_never_returns_to_the_tests() -> None:
    """A child that leaves its test by an error would run all others too, on its parent's pipes."""
    forking = {
        path
        for path in (ROOT / "tests").rglob("*.py")
        if "os.fork(" in path.read_text(encoding="utf-8")
        and any(isinstance(node, ast.Attribute) and ast.unparse(node) == "os.fork" for node in ast.walk(ast.parse(path.read_bytes())))
    }
    assert {path.stem for path in forking} == FORKING
    assert {path.parent.name for path in forking} == {"scenes", "mutants"}
