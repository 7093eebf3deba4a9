"""No coroutine waits for a disk: file calls in asynchronous functions of the product go through `core.runtime.cold_files`.

Journal, mirror and ballots have threads of their own. A call is found where it is written, and through functions, methods of the same class
and constructors that can be resolved by their names.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.test_architecture import PROJECT, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.xdist_group("architecture"), pytest.mark.usefixtures("syntax_trees")]

PACKAGES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
# Calls that may wait for a disk, by module or by the kind of object; `replace`, `open` and `rename` of other objects are none.
OF_OS = frozenset(
    (
        "open read write pread pwrite stat lstat fstat listdir scandir walk mkdir makedirs rmdir removedirs remove unlink rename "
        "replace link symlink fsync fdatasync truncate ftruncate chmod chown utime access statvfs sendfile"
    ).split()
)
OF_PATHS = frozenset(
    "read_text read_bytes write_text write_bytes touch mkdir rmdir unlink stat lstat exists is_file is_dir iterdir rglob glob".split()
)
OF_MODULES = frozenset("shutil tempfile tomllib sqlite3".split())
AT_THE_START = "once, before the program serves"
NO_DISK = "asks a terminal or makes a directory of its own"
OWN_JOB = "runs in a worker or a command that has nothing else to do"
# "file function" -> why it may.
ALLOWED = {
    "core/daemon/http.py serve_page": AT_THE_START,
    "mdp/commands/broker_daemon.py _observed": AT_THE_START,
    "mdp/commands/events.py _follow": OWN_JOB,
    "mdp/commands/top.py top.talk": NO_DISK,
    "mdp/spark/demo/nearest.py nearest": OWN_JOB,
    "peering/simulation.py simulate": NO_DISK,
    "titanic/mirror/replica_server.py Mirror._start": AT_THE_START,
}


class Function(NamedTuple):
    """A function of the product."""

    module: str
    name: str  # with its class
    node: ast.FunctionDef | ast.AsyncFunctionDef


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def trees() -> dict[str, ast.Module]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def functions_in(module: str, body: list[ast.stmt], prefix: str = "") -> Iterator[Function]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions_in(module, node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(module, prefix + node.name, node)
            yield from functions_in(module, node.body, f"{prefix}{node.name}.")


def calls_in(function: Function) -> Iterator[ast.Call]:
    """Yield the calls of a function's own body, without those of functions and lambdas in it."""
    waiting: list[ast.AST] = list(function.node.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting.extend(ast.iter_child_nodes(node))


def names_in(tree: ast.Module) -> dict[str, str]:
    """Return what imported names stand for: `package.module` or `package.module.name`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update({one.asname or one.name: f"{node.module}.{one.name}" for one in node.names})
        elif isinstance(node, ast.Import):
            found.update({one.asname or one.name: one.name for one in node.names})
    return found


def blocks_itself(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id="open"):
            return True
        case ast.Attribute(value=ast.Name(id="os" | "os.path"), attr=name):
            return name in OF_OS
        case ast.Attribute(value=ast.Name(id=module)) if module in OF_MODULES:
            return True
        case ast.Attribute(value=ast.Call(func=ast.Name(id="Path")), attr="open" | "rename" | "replace"):
            return True
        case ast.Attribute(attr=name):
            return name in OF_PATHS
    return False


class Calls:
    """Functions of the product that wait for a disk, themselves or in what they call."""

    def __init__(self, sources: dict[str, ast.Module]) -> None:
        self.functions = {f"{one.module}.{one.name}": one for module, tree in sources.items() for one in functions_in(module, tree.body)}
        self.names = {module: names_in(tree) for module, tree in sources.items()}
        calls = {
            key: [(call.func, blocks_itself(call), self.target(one, call.func)) for call in calls_in(one)]
            for key, one in self.functions.items()
        }
        self.waits = {key for key, found in calls.items() if any(blocks for _, blocks, _ in found)}
        # Without calls of asynchronous functions: these are looked at by themselves.
        self.calls = {key: [one for one in found if not self.is_asynchronous(one[2])] for key, found in calls.items()}
        before = -1
        while len(self.waits) != before:
            before = len(self.waits)
            self.waits |= {key for key in self.functions if self.culprits(key)}

    def is_asynchronous(self, key: str) -> bool:
        return key in self.functions and isinstance(self.functions[key].node, ast.AsyncFunctionDef)

    def culprits(self, key: str) -> list[ast.expr]:
        """Return what a function calls that waits for a disk."""
        return [called for called, blocks, target in self.calls[key] if blocks or target in self.waits]

    def target(self, function: Function, called: ast.expr) -> str:
        names = self.names[function.module]
        match called:
            case ast.Name(id=name):
                whole = names.get(name, f"{function.module}.{name}")
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                whole = f"{function.module}.{function.name.rpartition('.')[0]}.{name}"
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                whole = f"{names.get(owner, f'{function.module}.{owner}')}.{name}"
            case _:
                return ""
        return whole if whole in self.functions else f"{whole}.__init__"


def found_in(sources: dict[str, ast.Module]) -> dict[str, list[str]]:
    calls = Calls(sources)
    return {
        f"{one.module.replace('.', '/')}.py {one.name}": [ast.unparse(called) for called in culprits]
        for key, one in calls.functions.items()
        if calls.is_asynchronous(key) and (culprits := calls.culprits(key))
    }


@cache
def found_in_product() -> dict[str, list[str]]:
    return found_in(trees())


def test_no_coroutine_waits_for_a_disk() -> None:
    found = {place: calls for place, calls in found_in_product().items() if place not in ALLOWED}
    assert found == {}, "use core.runtime.cold_files, or say in ALLOWED why this may block"


def test_no_exception_is_left_over() -> None:
    assert set(ALLOWED) <= set(found_in_product())


def test_calls_are_found_also_in_what_is_called() -> None:
    source = """
import os
import other
from other import reads, Reader
class Here:
    def look(self): return os.stat("x")
    async def direct(self): open("x")
    async def of_a_path(self, where): where.read_text()
    async def by_itself(self): self.look()
    async def by_a_function(self): reads()
    async def by_a_constructor(self): Reader()
    async def nested(self):
        def later(): open("x")
        return later
    async def handed_on(self): await somewhere(self.look)
    async def by_another(self): await other.read_text()
    async def other_things(self): "a".replace("a", "b"); self.door.open()
"""
    other = """
class Reader:
    def __init__(self): self.text = reads()
def reads(): return open("x").read()
async def read_text(): await somewhere(reads)
"""
    found = found_in({"here": ast.parse(source), "other": ast.parse(other)})
    assert {place.rpartition(".")[2] for place in found} == {"direct", "of_a_path", "by_itself", "by_a_function", "by_a_constructor"}
