"""The shape of the house: who may import whom, which files are pure, how large things may grow, what is never written."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Package -> what of ours it may import besides itself.
ARROWS: dict[str, tuple[str, ...]] = {
    "core": (),
    "bstar": ("core",),
    "freelance": ("core",),
    "pirate": ("core",),
    "peering": ("core",),
    "mdp": ("core", "peering.peer_router", "bstar", "bstar.pair"),
    "titanic": ("core", "mdp", "bstar"),
}
PURE = {
    "core": "errors options endpoint message clock liveness lru",
    "core/zmtp": "greeting box encoding legacy framing command mechanism plain curve sealed zap z85 connection",
    "core/pattern": "pipe fair_queue load_balancer distributor subscription topic_map pattern envelope reqrep pubsub pipeline pair",
    "mdp": (
        "protocol events options limits counters directory records book sharing results letters relay table mmi dispatcher "
        "patience waiting requester lockstep link eventlog recorder request worker_session errors"
    ),
    "mdp/spark": "ids frames",
    "titanic": "tsp record ledger content manifest checkpoint dispatch errors",
    "bstar": "fsm ballot wire member effects machine requester errors",
    "freelance": "flp roster agent shotgun effects errors",
    "pirate": "ppp lazy lru_queue worker_session conversations timing errors",
    "peering": "flows peer_router task local_workers exchange errors",
}
# What a pure file must be given instead of fetching it: the loop, the time, chance, the outside world, a log.
IMPURE = frozenset(
    (
        "asyncio time random secrets os socket select selectors ssl logging threading subprocess signal tempfile shutil aiofiles uvloop"
    ).split()
)
# A table the interpreter carries, no question to the system.
PURE_OF_OS = frozenset({"strerror"})
PICKLES = frozenset({"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal"})
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600
# Where a handler of the user is called: its error, whatever it is, is the answer to the request and not a failure of ours.
FOREIGN_CODE_CALLED_IN = frozenset({"mdp/worker.py", "mdp/runners.py", "freelance/server.py", "pirate/worker.py"})
# Spelt backwards, or this file would be the first to be found.
UNFINISHED = re.compile(r"\b(" + "|".join(word[::-1] for word in ("ODOT", "EMXIF", "KCAH")) + "|" + 3 * "X" + r")\b")

PACKAGES = [name for name in ARROWS if (ROOT / name / "__init__.py").is_file()]
OUTSIDE = [name for name in ("tests", "benchmarks", "examples") if (ROOT / name).is_dir()]


def sources(*folders: str) -> list[str]:
    """Name the Python files below some folders, relative to the root with slashes."""
    return sorted(p.relative_to(ROOT).as_posix() for folder in folders for p in (ROOT / folder).rglob("*.py"))


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


def imports(name: str) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) of everything a file imports, names taken out of a module included."""
    package = name.split("/")[:-1]
    for node in ast.walk(parse(name)):
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


PURE_FILES = [name for name in PACKAGE_FILES if name in NAMED_PURE or says_pure(name)]


@pytest.mark.parametrize("name", PACKAGE_FILES)
def test_imports_follow_the_arrows(name: str) -> None:
    home = name.split("/", 1)[0]
    allowed = (home, *ARROWS[home])
    wrong = [
        f"{name}:{line} imports {imported}"
        for line, imported in imports(name)
        if imported.split(".")[0] in {*ARROWS, *OUTSIDE} and not any(within(imported, other) for other in allowed)
    ]
    assert not wrong


@pytest.mark.parametrize("name", PURE_FILES)
def test_pure_files_import_nothing_that_acts(name: str) -> None:
    asked = {node.attr for node in ast.walk(parse(name)) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os"}
    acting = [
        f"{name}:{line} imports {imported}"
        for line, imported in imports(name)
        if imported.split(".")[0] in IMPURE and not (imported == "os" and asked <= PURE_OF_OS)
    ]
    assert not acting


@pytest.mark.parametrize("name", ALL_FILES)
def test_third_parties_stay_in_their_rooms(name: str) -> None:
    wrong = []
    for line, imported in imports(name):
        top = imported.split(".")[0]
        outside = name.split("/")[0] in OUTSIDE
        if (
            (top == "zmq" and name.split("/")[0] not in {"tests", "benchmarks"})
            or (top in {"pyspark", "pyarrow", "pandas"} and not outside and "/spark/" not in name)
            or top in PICKLES
        ):
            wrong.append(f"{name}:{line} imports {imported}")
    assert not wrong


@pytest.mark.parametrize("name", ALL_FILES)
def test_sizes(name: str) -> None:
    lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
    long_functions = [
        f"{name}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(parse(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert lines <= FILE_LINES_MAX
    assert not long_functions


def catches_everything(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(c is None or (isinstance(c, ast.Name) and c.id in {"Exception", "BaseException"}) for c in caught)


@pytest.mark.parametrize("name", [name for name in PACKAGE_FILES if name not in FOREIGN_CODE_CALLED_IN])
def test_errors_are_caught_by_name(name: str) -> None:
    """Whoever catches everything raises it again."""
    swallowed = [
        f"{name}:{node.lineno}"
        for node in ast.walk(parse(name))
        if isinstance(node, ast.ExceptHandler)
        and catches_everything(node)
        and (node.type is None or not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)))
    ]
    assert not swallowed


@pytest.mark.parametrize("name", ALL_FILES)
def test_nothing_is_left_unfinished_and_no_path_is_of_one_machine(name: str) -> None:
    places = {f"/{ROOT.parts[1]}/", f"{Path.home()}/", "/home" + "/", "/Users" + "/"} - {"/" + "tmp/", "//"}
    found = [
        f"{name}:{number} {line.strip()}"
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
        or "NotImplemented" + "Error" in line
        or any(quote + place in line for quote in "\"'" for place in places)
    ]
    assert not found


@pytest.mark.timeout(240)  # everything is imported again and again, on a machine that may be busy
def test_every_module_can_be_imported_first() -> None:
    """No module leans on another having been imported before it (a circle of imports shows only from one of its ends)."""
    code = f"""
import importlib, sys
ours = {tuple(ARROWS)!r}
for name in {MODULES!r}:
    if name.endswith("__main__"):
        continue
    for loaded in [m for m in sys.modules if m.split(".")[0] in ours]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except Exception as error:
        sys.exit(f"import {{name}}: {{type(error).__name__}}: {{error}}")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_no_heavy_third_party(package: str) -> None:
    heavy = ("pyspark", "pandas", "pyarrow", "matplotlib", "zmq", "aiohttp", "textual")
    names = [package, *([f"{package}.cli"] if (ROOT / package / "cli.py").is_file() else [])]
    code = f"import sys, {', '.join(names)}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_project_file_names_what_exists() -> None:
    assert set(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(PACKAGES)
    assert {*PACKAGES, "tests"} == set(PROJECT["tool"]["mypy"]["packages"]) - {"benchmarks", "examples"}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_console_scripts_can_be_called() -> None:
    for target in PROJECT["project"]["scripts"].values():
        module, _, attribute = target.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_every_command_line_has_its_console_script() -> None:
    scripts = {value.split(".")[0] for value in PROJECT["project"]["scripts"].values()}
    assert scripts == {package for package in PACKAGES if (ROOT / package / "cli.py").is_file()}
