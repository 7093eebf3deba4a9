"""Maps of the tree: specs/layout.md has each module once; specs/ and CONTRIBUTING.md name paths, code, tests and rules that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from fnmatch import filter as matching
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.xdist_group("layout")  # one process parses the tests, not each

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering", "majordomo_toolkit")
ENTRIES = frozenset({"__init__.py", "__main__.py"})
FILES_MAX = 12
ROW = re.compile(r"^\| `([\w/]+\.py)` \| ([^|]+) \|$", re.M)
ROWS = ROW.findall((ROOT / "specs" / "layout.md").read_text(encoding="utf-8"))


PATH = re.compile(r"`([\w.*-]+(?:/[\w.*-]+)*(?:\.(?:py|md|toml|txt)|/))`")
SPECS = sorted((ROOT / "specs").glob("*.md"))
# Tables of mistakes that tests detect: they quote lines of code.
QUOTED = {"layout.md", "mutants.md"}
# A name in the code, as specs/ write it: `module.Class.method`, `Class.method`, `package.Name`, or names behind a file.
NAMES_IN_FILE = re.compile(r"([\w/]+\.py) ([A-Za-z_][\w., ]*)")
REFERENCE = re.compile(r"[\w/]+(?:\.[A-Za-z_]\w*)+(?:\(\))?")
# Look like names in the code: services, a logger, a file, an example of a file name, the standard library.
NO_REFERENCES = re.compile(r"(mmi|titanic)\.[a-z.]+|mdp\.refusals|py\.typed|N+\.seg|os\.urandom")
# A test, whole, or shortened with `…` or `*`; after `::` without its beginning.
TEST = re.compile(r"(?<![\w/])(?:test_\w+[…*]?|(?:::|…)\w+…?)(?![\w.])")
# How many rules each family has that the specifications describe: RFCs, the guide, and our own.
RULES = {
    family: int(count)
    for family, count in re.findall(
        r"(\w+)=(\d+)",
        "ZMTP=87 PLAIN=10 CURVE=18 Z85=1 ZAP=12 SOCK=17 REQ=10 REP=6 DLR=3 RTR=15 PSB=16 PPL=2 PAIR=3 OPT=9 TRN=13 MON=4 "
        "LRU=7 ENV=3 HB=6 LPP=7 SPP=4 PPP=14 MDP=47 MMI=10 TSP=20 IDM=5 BST=24 FRL=7 FLP=17 PEER=17 BEY=16",
    )
}
NUMBERS = re.compile(r"\b([A-Z][A-Z0-9]{1,5})-(\d+)((?:(?:, | and |/|, and | to |–)\d+\b)*)")
# A rule that is named alone: the lists in docstrings of modules tell what the module is about.
CITED = re.compile(r"(?<! to )\b([A-Z][A-Z0-9]{1,5})-(\d\d)\b(?!(?:, | and |/|, and | to |–|\.\.)(?:[A-Z]+-)?\d)")
# They have a line for each option, error or constant of all rules.
NO_CODE_OF_RULES = {"core/constants.py", "core/errors.py", "core/option_table.py"}
FOLDERS = (*PACKAGES, "specs", "docs", "tests", "benchmarks", "examples", "deploy")


@cache
def modules() -> frozenset[str]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name not in ENTRIES)
    return frozenset(path.relative_to(ROOT).as_posix() for path in files)


def test_each_module_is_in_one_row() -> None:
    assert Counter(module for module, _ in ROWS) == Counter(modules())


def test_no_folder_has_more_files_than_a_reader_can_keep_in_mind() -> None:
    folders = Counter(module.rsplit("/", 1)[0] for module in modules())
    assert {folder: count for folder, count in folders.items() if count > FILES_MAX} == {}


def test_every_line_of_a_table_is_a_row() -> None:
    lines = [line for line in (ROOT / "specs" / "layout.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS)


def endings() -> set[str]:
    """Return every file and folder of the tree, whole and without leading folders.

    Specs/ name files of their own package shortly.
    """
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    found = {path.name for path in ROOT.iterdir()}
    for path in [*(ROOT / folder for folder in FOLDERS), *files]:
        parts = path.relative_to(ROOT).parts
        found |= {"/".join(parts[start:]) + "/" * path.is_dir() for start in range(len(parts))}
    return found


def test_every_path_that_is_named_exists() -> None:
    there = endings()
    lost = [
        f"{page.name}:{number} {path}"
        for page in (ROOT / "CONTRIBUTING.md", *sorted((ROOT / "specs").glob("*.md")))
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for path in PATH.findall(line)
        if path not in there and not ("*" in path and matching(there, path))
    ]
    assert lost == []


def test_contributing_names_whole_paths() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = [path for path in PATH.findall(page) if "/" in path.rstrip("/") and "*" not in path]
    assert len(named) > 60
    assert [path for path in named if not (ROOT / path).exists()] == []


def quoted(page: Path) -> list[tuple[str, str]]:
    """Return (place, text between back-ticks) of a page."""
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    return [(f"{page.name}:{number}", text) for number, line in lines for text in re.findall(r"`([^`]+)`", line)]


class Names(NamedTuple):
    """Names in a module: all that it uses or defines, those it defines, and the classes among these."""

    used: frozenset[str]
    defined: frozenset[str]
    classes: frozenset[str]


@cache
def names_in(module: str) -> Names:
    used, functions, classes = set(), set(), set()
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                functions.add(name)
            case ast.ClassDef(name=name):
                classes.add(name)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                used.add(name)
    return Names(frozenset(used | functions | classes), frozenset(functions | classes), frozenset(classes))


def exists(reference: str, classes: dict[str, set[str]]) -> bool:
    """Tell whether a name is in the module or class that it is said to be in."""
    head, *rest = reference.removesuffix("()").split(".")
    files = {module for module in modules() if f"/{module}".endswith(f"/{head}.py")} | classes.get(head, set())
    if any(set(rest) <= names_in(file).used for file in files):
        return True
    return head in PACKAGES and offers(ROOT / head, rest)


def offers(place: Path, names: list[str]) -> bool:
    """Tell whether a package or module has a name, or leads to it."""
    first, *rest = names
    if (place / first).is_dir() or (place / f"{first}.py").is_file():
        return not rest or offers(place / first, rest)
    text = (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text(encoding="utf-8")
    stars = re.findall(r"^from [\w.]+\.(\w+) import \*", text, re.M)
    return first in re.findall(r"\w+", text) or any(offers(place / star, names) for star in stars)


def test_every_name_in_the_code_exists() -> None:
    classes = defaultdict(set)
    for module in modules():
        for name in names_in(module).classes:
            classes[name].add(module)
    lost = [
        f"{place} {text}"
        for page in SPECS
        if page.name not in QUOTED
        for place, text in quoted(page)
        if REFERENCE.fullmatch(text) and not PATH.fullmatch(f"`{text}`") and not NO_REFERENCES.fullmatch(text) and not exists(text, classes)
    ]
    lost += [
        f"{place} {name}"
        for page in SPECS
        if page.name not in QUOTED
        for place, text in quoted(page)
        if (found := NAMES_IN_FILE.fullmatch(text))
        for name in re.split(r"[., ]+", found[2])
        if not any(name in names_in(module).used for module in modules() if f"/{module}".endswith(f"/{found[1]}"))
    ]
    assert lost == []


def test_every_test_that_is_named_exists() -> None:
    _, tests = rules_of_each()
    modules_of_tests = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    lost = [
        f"{place} {name}"
        for page in SPECS
        if page.name not in QUOTED
        for place, text in quoted(page)
        for name in TEST.findall(text)
        if not matching(tests, re.sub("^(::)?…?(test_)?", "*" if "…" in name[:3] else "test_", name).replace("…", "*"))
        and name not in modules_of_tests
    ]
    assert lost == []


def rules_in(text: str) -> set[tuple[str, int]]:
    """Return the rules that a text names, those of ranges too."""
    found = set()
    for family, first, others in NUMBERS.findall(text):
        last = int(first)
        found.add((family, last))
        for between, number in re.findall(r"(, and |, | and |/| to |–)(\d+)", others):
            found.update((family, each) for each in range(last if between in {" to ", "–"} else int(number), int(number) + 1))
            last = int(number)
    return found


def test_every_rule_is_in_a_specification() -> None:
    found = set().union(*(rules_in(page.read_text(encoding="utf-8")) for page in SPECS))
    rules = {(family, number) for family, count in RULES.items() for number in range(1, count + 1)}
    assert sorted(rules - found) == []


def test_the_row_of_a_rule_names_code_that_cites_it() -> None:
    """A reader goes from the row to the line, and from the line to the row."""
    said: dict[tuple[str, int], set[str]] = defaultdict(set)
    for page in SPECS:
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("| ") and page.name not in QUOTED | {"events.md"}:  # which describes octets, not code
                for rule in rules_in(line.split("|")[1]):
                    said[rule].update(word for text in re.findall(r"`([^`]+)`", line) for word in re.findall(r"\w+", text))
    citing: dict[tuple[str, int], set[str]] = defaultdict(set)
    for module in modules() - NO_CODE_OF_RULES:
        for family, number in CITED.findall((ROOT / module).read_text(encoding="utf-8")):
            citing[family, int(number)].add(module)
    lost = [
        f"{family}-{number:02d} {sorted(found)}"
        for (family, number), found in citing.items()
        if (family, number) in said
        and not any(Path(module).stem in said[family, number] or said[family, number] & names_in(module).defined for module in found)
    ]
    assert sorted(lost) == []


@cache
def rules_of_each() -> tuple[dict[str, set[tuple[str, int]]], dict[str, set[tuple[str, int]]]]:
    """Return the rules that each file of tests cites, and those that each test cites."""
    files: dict[str, set[tuple[str, int]]] = {}
    functions: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        files[path.relative_to(ROOT).as_posix()] = rules_of_tests(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                functions[node.name] |= rules_of_tests(f"{node.name} {ast.get_docstring(node)}")
    return files, functions


def rules_of_tests(text: str) -> set[tuple[str, int]]:
    """Return the rules that a text of tests names, also in names such as `test_zmtp_07_zmtp_11_…`."""
    found = rules_in(re.sub(r"([A-Z]+)-(\d\d) to \1-(\d\d)", r"\1-\2 to \3", text))
    for name in re.findall(r"\btest_\w+", text):
        found |= {(family.upper(), int(number)) for family, number in re.findall(r"(?<=_)([a-z][a-z0-9]+)_(\d\d)(?=_)", name)}
    return found


def named_in(line: str) -> dict[str, set[tuple[str, int]]]:
    """Return the files and tests that a row names, with the rules that each of them cites."""
    files, functions = rules_of_each()
    named = {}
    for text in re.findall(r"`([^`]+)`", line):
        file, _, test = text.partition("::") if ".py" in text else ("", "", text)
        if file:
            named.update({path: rules for path, rules in files.items() if f"/{path}".endswith(f"/{file}")})
        for name in TEST.findall(f"::{test}" if file and test else test):
            pattern = re.sub("^(::)?…?(test_)?", "*" if "…" in name[:3] else "test_", name).replace("…", "*")
            named.update({found: functions[found] for found in matching(functions, pattern)})
    return named


def test_the_tests_of_a_row_cite_its_rules() -> None:
    """A reader goes from the row to the test, and from the test to the row.

    A row that names no test means those named after its rule.
    """
    files, _ = rules_of_each()
    everywhere = set().union(*files.values())
    untested, without = [], []
    for page in SPECS:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            rules = {rule for rule in rules_in(line.split("|")[1]) if rule[0] in RULES} if line.startswith("| ") else set()
            if not rules or page.name in QUOTED:
                continue
            named = named_in(line)
            untested += sorted(rules - (set().union(*named.values()) if named else everywhere))
            without += [f"{page.name}:{number} {test}" for test, cited in named.items() if not cited & rules]
    assert (untested, without) == ([], [])
