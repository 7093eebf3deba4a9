"""The hunt for mutants itself.

What it changes, that it sees what it has to see, and that what is accepted still exists.
"""

from __future__ import annotations

import ast
import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from tests.mutants.accepted import Accepted, read_accepted
from tests.mutants.forked import in_fork
from tests.mutants.known import KNOWN, Known
from tests.mutants.operators import mutants
from tests.mutants.table import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.mutants.forked import Allow

ROOT = Path(__file__).resolve().parents[2]
FAST = ("mdp/broker/dispatcher.py",)  # its tests fail at once; a mistake in another file is noticed by a wait that ends


def all_of(source: str) -> dict[tuple[str, str], str]:
    """Return the changed source of each mutant, by line and change."""
    source = dedent(source).strip()
    made: dict[tuple[str, str], str] = {}
    for number in range(len(mutants(ast.parse(source), source))):
        tree = ast.parse(source)
        mutant = mutants(tree, source)[number]
        mutant.apply()
        compile(tree, "changed", "exec")
        made[mutant.text, mutant.change] = ast.unparse(tree)
    return made


def test_mistakes_that_were_not_seen_once_are_seen() -> None:
    """In a process of its own, which changes functions; `make mutants` looks at the files with slower tests too."""
    slice_of = [one for one in KNOWN if one.file in FAST]
    assert {one.lives for one in slice_of} == {True, False}
    ended = subprocess.run([sys.executable, "-m", "tests.mutants", "--known", *FAST], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("as it should: ") == len(slice_of)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.file)
def test_what_is_written_down_can_still_be_made_and_has_its_tests(known: Known) -> None:
    source = (ROOT / known.file).read_text(encoding="utf-8")
    assert source.count(known.old) == 1
    ast.parse(source.replace(known.old, known.new))
    for test in known.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("if a < 3:\n        b()", {"a < 3 -> a <= 3", "a < 3 -> a >= 3", "3 -> 4", "3 -> 2", "removed"}),
        ("if a:\n        pass", {"condition negated"}),
        ("if not a:\n        pass", {"not a -> a"}),
        ("return a and b", {"a and b -> a or b"}),
        ("return a - -1", {"a - -1 -> a + -1", "-1 -> 1", "1 -> 2", "1 -> 0"}),
        ("return min(a, b)", {"min(a, b) -> max(a, b)"}),
        ("a += b", {"a += b -> a -= b", "removed"}),
        ("a.x = True", {"removed", "True -> False"}),
        ("c = b", set()),  # without a value the name would be an error wherever it is read
        ("b = c()", {"removed"}),
        ("del a[b]", {"removed"}),
        ("raise ValueError(f'{a + 1}')", {"removed"}),
        (
            "while a:\n        if b in a: continue\n        break",
            {"condition negated", "b in a -> b not in a", "continue -> break", "break -> continue", "removed"},
        ),
        ("return [x for x in a if x != b]", {"x != b -> x == b"}),
        ("return lambda x=1: x is None", {"x is None -> x is not None"}),
    ],
)
def test_each_kind_of_mistake_is_made(line: str, changes: set[str]) -> None:
    made = all_of(f"def f(a: int, b: int = 5) -> int:\n    '''Says what it does.'''\n    {line}\n")
    assert {change for _, change in made} == changes


def test_what_runs_while_a_module_is_imported_is_left_alone() -> None:
    source = """
        LIMIT = 1 + 2
        class A:
            size: int = 4
            @mark(5)
            def f(self, x: int = 6) -> int:
                return 7
            def __repr__(self) -> str:
                return "a" * 8
    """
    assert {change for _, change in all_of(source)} == {"7 -> 8", "7 -> 6"}


def loops(allow: Allow) -> str:
    allow(0.2)
    while True:
        pass


def grows(allow: Allow) -> str:
    kept = []
    while True:
        kept.append(bytes(1 << 28))


def leaves_a_process(allow: Allow) -> str:
    multiprocessing.get_context("fork").Process(target=signal.pause).start()
    return "done"


def goes_on(allow: Allow) -> str:
    for _ in range(3):
        allow(1000.0)
    return "done"


@pytest.mark.parametrize(
    ("work", "said", "timed_out"),
    [(loops, None, True), (grows, None, False), (leaves_a_process, "done", False), (goes_on, "done", False)],
)
def test_no_mutant_holds_up_the_hunt(work: Callable[[Allow], Any], said: str | None, timed_out: bool, tmp_path: Path) -> None:
    """Neither by a loop, nor by memory, nor by a process that is left."""
    ended = in_fork(work, 1000.0, tmp_path / "log")
    assert (ended.said, ended.timed_out) == (said, timed_out)


def test_the_files_of_the_table_and_their_tests_exist() -> None:
    assert [name for name in TABLE if not (ROOT / name).is_file()] == []
    assert [pattern for patterns in TABLE.values() for pattern in patterns if not [*ROOT.glob(pattern)]] == []


def test_what_is_accepted_is_a_mutant_of_today() -> None:
    accepted = read_accepted(ROOT / "specs" / "mutants.md")
    assert accepted
    sources = {name: (ROOT / name).read_text(encoding="utf-8") for name in {row.file for row in accepted}}
    possible = {Accepted(name, one.text, one.change) for name, source in sources.items() for one in mutants(ast.parse(source), source)}
    assert sorted(accepted - possible) == []
