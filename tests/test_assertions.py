"""Each test has something that can fail: an assert, an expected error, a wait; or calls what has one."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.xdist_group("architecture"), pytest.mark.usefixtures("syntax_trees")]

ROOT = Path(__file__).resolve().parents[1]
EXPECTATIONS = frozenset(("raises", "warns", "fail", "assert_type"))


class Function:
    """A function of a file, the names in it, and whether it can fail by itself."""

    def __init__(self, node: ast.FunctionDef | ast.AsyncFunctionDef, path: str) -> None:
        self.place = f"{path}:{node.lineno}"
        self.name = node.name
        self.names: set[str] = set()
        self.expects = False
        repeats = False
        for part in ast.walk(node):
            if isinstance(part, ast.Name | ast.Attribute | ast.arg):
                self.names.add(part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else part.arg)
            self.expects |= isinstance(part, ast.Assert | ast.Raise)
            repeats |= isinstance(part, ast.While)
        waits = not self.names.isdisjoint(("timeout", "wait_for"))
        # A loop within a time limit waits for something, such as `eventually`.
        self.expects |= (waits and repeats) or not self.names.isdisjoint(EXPECTATIONS)


class File:
    """The functions of a file by name, and the files of tests that it imports."""

    def __init__(self, path: str, source: str) -> None:
        tree = ast.parse(source)
        self.path = path
        self.functions: dict[str, list[Function]] = {}
        self.imports: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.setdefault(node.name, []).append(Function(node, path))
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                folder = (node.module or "").replace(".", "/")
                self.imports |= {f"{folder}.py", f"{folder}/__init__.py", *(f"{folder}/{alias.name}.py" for alias in node.names)}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):  # its name stands for its methods
                methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
                self.functions.setdefault(node.name, []).extend(one for name in methods for one in self.functions[name])


@cache
def files() -> dict[str, File]:
    paths = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "tests").rglob("*.py"))}
    return {name: File(name, path.read_text(encoding="utf-8")) for name, path in paths.items()}


def in_reach(file: File, found: dict[str, File]) -> list[File]:
    """Return a file, what it imports, and the files with fixtures for it."""
    folders = [Path(file.path).parent, *Path(file.path).parent.parents]
    names = [*sorted(file.imports), *(f"{folder.as_posix()}/conftest.py" for folder in folders)]
    return [file, *(found[name] for name in names if name in found)]


def without_expectation(found: dict[str, File]) -> Iterator[str]:
    """Yield the tests that cannot fail but by an error."""
    reach = {name: in_reach(file, found) for name, file in found.items()}
    failing = {id(one) for file in found.values() for several in file.functions.values() for one in several if one.expects}
    open_ones = {
        id(one): (one, [*reach[file.path]])
        for file in found.values()
        for several in file.functions.values()
        for one in several
        if not one.expects
    }
    while more := [
        key
        for key, (one, near) in open_ones.items()
        if any(id(other) in failing for file in near for name in one.names & file.functions.keys() for other in file.functions[name])
    ]:
        failing.update(more)
        for key in more:
            del open_ones[key]
    yield from sorted(f"{one.place} {one.name}" for one, _ in open_ones.values() if one.name.startswith("test_"))


def test_each_test_has_something_that_can_fail() -> None:
    assert [*without_expectation(files())] == []


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("def test_x():\n    run()", True),
        ("def run():\n    pass\ndef test_x():\n    run()", True),
        ("def run():\n    assert True\ndef test_x():\n    run()", False),
        ("class Scene:\n    def run(self):\n        assert True\ndef test_x(scene):\n    scene.run()", False),
        ("def test_x():\n    with raises(ValueError):\n        run()", False),
        ("def until(done):\n    with timeout(9):\n        while not done():\n            pass\ndef test_x():\n    until(run)", False),
        ("def test_x():\n    with timeout(9):\n        run()", True),
    ],
)
def test_a_test_without_expectation_is_found(source: str, is_found: bool) -> None:
    assert bool([*without_expectation({"tests/test_x.py": File("tests/test_x.py", source)})]) is is_found
