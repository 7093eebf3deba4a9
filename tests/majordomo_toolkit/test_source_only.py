"""`MAJORDOMO_PURE=1`: sources are loaded, whatever is compiled beside them."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from pathlib import Path

import pytest

from majordomo_toolkit.source_only import PACKAGES, VARIABLE, SourceOnly, is_wanted

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_the_environment_asks_for_it(value: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert is_wanted() is wanted


def test_a_source_is_found_beside_a_compiled_module(tmp_path: Path) -> None:
    for name in ("pipe.py", f"pipe{EXTENSION_SUFFIXES[0]}", f"only{EXTENSION_SUFFIXES[0]}"):
        (tmp_path / name).touch()
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").touch()
    finder = SourceOnly()
    found = finder.find_spec("core.pipe", ["/nowhere", str(tmp_path)])
    assert found is not None
    assert found.origin == str(tmp_path / "pipe.py")
    assert isinstance(found.loader, SourceFileLoader)
    package = finder.find_spec("core.inner", [str(tmp_path)])
    assert package is not None
    assert package.submodule_search_locations == [str(tmp_path / "inner")]
    assert finder.find_spec("core.only", [str(tmp_path)]) is None
    (tmp_path / "later.py").touch()
    finder.invalidate_caches()
    assert finder.find_spec("core.later", [str(tmp_path)]) is not None


@pytest.mark.parametrize("name", ["core", "json.decoder", "corecore.pipe", "mdp"])
def test_what_is_not_a_module_of_ours_is_left_to_others(name: str) -> None:
    assert SourceOnly().find_spec(name, [str(ROOT / "core")]) is None


def test_every_package_is_known() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "examples", "deploy"} == PACKAGES


@pytest.mark.parametrize("value", ["1", "0"])
def test_a_program_uses_what_was_chosen(value: str) -> None:
    code = "import sys, core; print([type(finder).__name__ for finder in sys.meta_path].count('SourceOnly'), core.compiled)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={VARIABLE: value}, capture_output=True, text=True, check=True)
    finders, compiled = done.stdout.split()
    assert finders == value
    assert not (compiled == "True" and value == "1")
