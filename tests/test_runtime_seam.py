"""The product asks its system through `core.runtime.runtime` only, so that a simulation can take the system's place.

A use past it stands in `PAST`, with the reason. The table only shrinks: an entry that is no longer needed fails the test.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.test_architecture import PACKAGE_FILES, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

SEAM = "core/runtime/runtime.py"
CLOCKS = "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns clock_gettime sleep"
FILES = (
    "open fdopen read write pread preadv pwrite pwritev fsync fdatasync ftruncate truncate rename replace unlink remove link symlink mkdir "
    "makedirs rmdir listdir scandir stat lstat fstat chmod posix_fallocate lseek pipe"
)
# Functions that ask the system, by module.
ASKING: dict[str, frozenset[str]] = {
    "time": frozenset(CLOCKS.split()),
    "random": frozenset("Random SystemRandom random randrange randint choice choices sample shuffle uniform getrandbits".split()),
    "secrets": frozenset("token_bytes token_hex token_urlsafe randbits randbelow choice".split()),
    "uuid": frozenset("uuid1 uuid4".split()),
    "threading": frozenset("Thread Lock RLock Condition Event Semaphore BoundedSemaphore Barrier Timer".split()),
    "queue": frozenset("Queue SimpleQueue LifoQueue PriorityQueue".split()),
    "concurrent.futures": frozenset("ThreadPoolExecutor ProcessPoolExecutor".split()),
    "socket": frozenset("socket socketpair create_connection create_server getaddrinfo gethostbyname".split()),
    "os": frozenset(["urandom", *FILES.split()]),
    "fcntl": frozenset("flock lockf fcntl ioctl".split()),
    "datetime": frozenset({"datetime.now", "datetime.utcnow", "datetime.today"}),
    "tempfile": frozenset("mkdtemp mkstemp TemporaryDirectory NamedTemporaryFile TemporaryFile".split()),
    "subprocess": frozenset("Popen run check_output check_call call".split()),
}
# The last word of each of them: most names in the code end in none.
LAST_WORDS = frozenset(name.rpartition(".")[2] for functions in ASKING.values() for name in functions)
METHODS = frozenset("read_text write_text read_bytes write_bytes mkdir touch iterdir".split())  # of paths
EVENT_LOG = "the event log is a file per process, read by tools outside; its thread writes what the broker has recorded and decides nothing"
TICKETS = "a file of a client that survives its restarts; a program opens it, no daemon"
COMMAND = "a command that runs once and prints, or a picture for an operator: outside of every daemon"
KEYS = "files of keys, settings and pages are read when a daemon starts, and again when an operator says so"
SYNCHRONOUS = "a thread for synchronous programs, which wait for the system's threads"
VIRTUAL = "the runtime of tests in virtual time, which takes the system's place"
SYSTEM = "asks the system about one of its own sockets, descriptors, processes or signals"
# Folders that run in processes that Spark starts, with Spark's own threads and files.
SPARK = "/spark/"
# Reason -> "file function".
PAST: dict[str, tuple[str, ...]] = {
    EVENT_LOG: (
        "mdp/eventlog/files.py mkdir",
        "mdp/eventlog/files.py os.fstat",
        "mdp/eventlog/files.py open",
        "mdp/eventlog/files.py os.open",
        "mdp/eventlog/files.py read_bytes",
        "mdp/eventlog/tail.py open",
    ),
    TICKETS: (
        "titanic/tickets.py open",
        "titanic/tickets.py read_bytes",
    ),
    KEYS: (
        "core/auth/certificates.py open",
        "core/auth/certificates.py os.open",
        "core/auth/certificates.py write_text",
        "core/daemon/config.py open",
        "core/daemon/http_server.py read_bytes",
        "core/runtime/cold_files.py open",
        "core/runtime/cold_files.py os.open",
        "core/runtime/cold_files.py os.stat",
        "core/security/authenticator.py read_text",
        "core/security/key_files.py open",
        "core/security/key_files.py os.fstat",
        "core/security/key_files.py os.stat",
    ),
    VIRTUAL: (
        "mdp/testing/virtual_time.py concurrent.futures.ThreadPoolExecutor",
        "mdp/testing/virtual_time.py queue.SimpleQueue",
        "mdp/testing/virtual_time.py random.Random",
    ),
    SYNCHRONOUS: (
        "core/blocking/shared_loop.py threading.RLock",
        "core/runtime/instances.py threading.RLock",
        "core/runtime/leftovers.py threading.Event",
        "core/runtime/loop_thread.py threading.RLock",
    ),
    SYSTEM: (
        "core/daemon/command.py os.open",
        "core/daemon/logs.py os.write",
        "core/daemon/run.py os.open",
        "core/daemon/run.py os.write",
        "core/daemon/service_manager.py socket.socket",
        "core/net/listener.py os.rmdir",
        "core/net/listener.py os.unlink",
        "core/net/os_sockets.py fcntl.ioctl",
        "core/net/os_sockets.py socket.socket",
        "core/net/os_sockets.py tempfile.mkdtemp",
        "core/net/read_ahead.py os.read",
        "core/net/writing.py socket.socket",
        "core/processes/children.py socket.socketpair",
        "core/processes/parent.py socket.socket",
        "core/runtime/event_loop.py socket.socketpair",
        "majordomo_toolkit/starting.py open",
        "majordomo_toolkit/starting.py os.open",
        "titanic/journal/disk.py fcntl.fcntl",
        "titanic/journal/disk.py read_text",
    ),
    COMMAND: (
        "mdp/commands/settings/contexts.py iterdir",
        "mdp/commands/settings/contexts.py mkdir",
        "mdp/commands/settings/contexts.py open",
        "mdp/commands/settings/contexts.py os.open",
        "mdp/commands/settings/contexts.py read_text",
        "core/cli.py open",
        "core/cli.py os.open",
        "majordomo_toolkit/extension.py concurrent.futures.ThreadPoolExecutor",
        "majordomo_toolkit/extension.py mkdir",
        "majordomo_toolkit/extension.py subprocess.run",
        "majordomo_toolkit/extension.py tempfile.TemporaryDirectory",
        "majordomo_toolkit/extension.py write_text",
        "mdp/commands/bench.py time.perf_counter",
        "mdp/commands/top.py time.monotonic",
        "peering/simulation.py random.Random",
        "peering/simulation.py tempfile.TemporaryDirectory",
        "titanic/commands/operator.py open",
    ),
}


def named(tree: ast.Module) -> dict[str, str]:
    """Return what each imported name stands for: `sleep` for `from time import sleep`."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return found


def asked(tree: ast.Module) -> Iterator[str]:
    """Yield every function by which a file asks the system."""
    names = named(tree)
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in annotations or not isinstance(node, ast.Name | ast.Attribute):
            continue
        if node.id not in names if isinstance(node, ast.Name) else node.attr not in LAST_WORDS | METHODS:
            continue
        first, _, rest = ast.unparse(node).partition(".")
        whole = ".".join(filter(None, (names.get(first, first), rest)))
        for module, functions in ASKING.items():
            if whole.startswith(f"{module}.") and whole.removeprefix(f"{module}.") in functions and names.get(first):
                yield whole
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            yield node.attr
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (
            (isinstance(node.func, ast.Name) and node.func.id == "open")
            or (isinstance(node.func, ast.Attribute) and node.func.attr == "open" and "path" in ast.unparse(node.func.value).lower())
        ):
            yield "open"


def imported_for_types(tree: ast.Module) -> ast.Module:
    """Return the file without what is imported and used for types only."""
    return ast.Module(
        [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")], type_ignores=[]
    )


def past_the_seam() -> set[str]:
    return {
        f"{name} {call}" for name in PACKAGE_FILES if name != SEAM and SPARK not in name for call in asked(imported_for_types(parse(name)))
    }


def test_the_system_is_asked_through_the_runtime_only() -> None:
    known = {entry for entries in PAST.values() for entry in entries}
    found = past_the_seam()
    assert sorted(found - known) == []
    assert sorted(known - found) == []
