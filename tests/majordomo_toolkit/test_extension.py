"""A wheel is compiled where there is a C compiler; elsewhere it has the sources, and one line says so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from majordomo_toolkit import extension

ROOT = Path(__file__).resolve().parents[2]
COMPILED = "core.machine.backoff"  # small, and imported by nothing that is imported here
SAID = "installed without its compiled modules"
# Which compiled code once could not do where a slice begins behind its end.
SLICE = "\n\ndef between(octets: bytes, start: int, end: int) -> bytes:\n    return octets[start:end]\n"


@pytest.fixture
def compiler() -> None:
    """Let the test run where something can be compiled: looking takes a second, so not whenever this file is imported."""
    if why := extension.impediment():
        pytest.skip(why)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project that compiles a single module."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("majordomo_toolkit", "core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "examples" / "data").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "data" / "airports.csv", folder / "examples" / "data" / "airports.csv")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = re.sub(r"^compiled = \[.*?^\]", f'compiled = ["{COMPILED}"]', text, flags=re.M | re.S)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def build(project: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel; returns it and what the build said."""
    clean = {name: value for name, value in os.environ.items() if name not in ("CC", "MAJORDOMO_PURE")}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    done = subprocess.run(command, cwd=project, env={**clean, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (project / "dist").glob("*.whl")
    return wheel, done.stdout + done.stderr


def origin(wheel: Path, folder: Path, **environment: str) -> str:
    """Install a wheel into a folder; returns where the module comes from there."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    code = f"import {COMPILED} as module; print(module.__spec__.origin, module.backoff_s(0.1, 1.0, 3) == 0.8)"
    environment = {"PYTHONPATH": str(folder), **environment}
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, works = done.stdout.split()
    assert works == "True"
    assert Path(found).is_relative_to(folder)
    return Path(found).name


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
def test_with_a_compiler_the_wheel_is_compiled_and_its_sources_are_there_too(project: Path, tmp_path: Path) -> None:
    source = project / "core" / "machine" / "backoff.py"
    source.write_text(source.read_text(encoding="utf-8") + SLICE, encoding="utf-8")
    wheel, said = build(project)
    assert SAID not in said
    assert wheel.name.endswith(
        f"-cp{sys.version_info[0]}{sys.version_info[1]}-cp{sys.version_info[0]}{sys.version_info[1]}-{wheel.stem.split('-')[-1]}.whl"
    )
    assert "any" not in wheel.stem.split("-")[-1]
    assert origin(wheel, tmp_path / "installed").startswith("backoff.cpython-")
    assert origin(wheel, tmp_path / "installed", MAJORDOMO_PURE="1") == "backoff.py"
    code = "from core.machine.backoff import between as cut; print([cut(b'abcdef', 1, 3), cut(b'abcdef', 4, 2), cut(b'abcdef', 9, 7)])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(tmp_path / "installed")}, capture_output=True, check=True
    )
    assert done.stdout == b"[b'bc', b'', b'']\n"


@pytest.mark.parametrize(
    ("environment", "why"),
    [({"CC": "/bin/false"}, "no C compiler"), ({"CC": "/nowhere/cc"}, "no C compiler"), ({"MAJORDOMO_PURE": "1"}, "MAJORDOMO_PURE is set")],
    ids=["refuses", "absent", "not wanted"],
)
def test_without_a_compiler_the_sources_are_installed_and_one_line_says_so(
    environment: dict[str, str], why: str, project: Path, tmp_path: Path
) -> None:
    wheel, said = build(project, **environment)
    assert [why in line for line in said.splitlines() if SAID in line] == [True]
    assert wheel.name.endswith("-py3-none-any.whl")
    assert origin(wheel, tmp_path / "installed") == "backoff.py"


@pytest.mark.long
@pytest.mark.usefixtures("compiler")
def test_a_module_that_cannot_be_compiled_leaves_the_sources(project: Path, tmp_path: Path) -> None:
    source = project / "core" / "machine" / "backoff.py"
    source.write_text(source.read_text(encoding="utf-8") + "\n\nclass Queue(list[int]):\n    pass\n", encoding="utf-8")
    wheel, said = build(project)
    assert ["the compilation failed" in line for line in said.splitlines() if SAID in line] == [True]
    assert wheel.name.endswith("-py3-none-any.whl")
    assert origin(wheel, tmp_path / "installed") == "backoff.py"


def test_an_impediment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAJORDOMO_PURE", raising=False)
    monkeypatch.setenv("CC", "/bin/false")
    assert "C compiler" in extension.impediment()
    monkeypatch.setattr(extension, "_compiles", lambda: True)
    monkeypatch.setattr(extension, "find_spec", lambda name: None)
    assert "mypyc" in extension.impediment()
    assert extension.impediment(tools=False) == ""
    monkeypatch.setenv("MAJORDOMO_PURE", "1")
    assert extension.impediment(tools=False) == "MAJORDOMO_PURE is set"


def test_the_modules_are_those_of_the_list() -> None:
    names = extension.modules_of(ROOT)
    assert "core.zmtp.decoder" in names
    assert all((ROOT / (name.replace(".", "/") + ".py")).exists() for name in names)


def test_the_modules_of_a_folder_are_one_c_file(tmp_path: Path) -> None:
    names = (
        "__native_core___net___session",
        "__native_core___net___writing",
        "__native_mdp___request",
        "__native_majordomo_toolkit",
        "init",
    )
    joined = [Path(one) for one in extension._joined([str(tmp_path / f"{name}.c") for name in names])]
    assert [one.name for one in joined] == [
        "__native_core___net__folder.c",
        "__native_mdp__folder.c",
        "__native_majordomo_toolkit.c",
        "init.c",
    ]
    assert all(one.parent == tmp_path for one in joined)
    assert [one.read_text(encoding="utf-8").split() for one in joined if one.exists()] == [
        ["#include", '"__native_core___net___session.c"', "#include", '"__native_core___net___writing.c"'],
        ["#include", '"__native_mdp___request.c"'],
    ]
