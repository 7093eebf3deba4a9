"""A package called `core` that is not ours: every command and every import says which one is in the way."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import majordomo_toolkit

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.fixture(params=["package", "module"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with a `core` of somebody else."""
    if request.param == "package":
        place = tmp_path / "core" / "__init__.py"
        place.parent.mkdir()
    else:
        place = tmp_path / "core.py"
    place.write_text('"""Settings of another program."""\n')
    return place


@pytest.mark.parametrize("command", majordomo_toolkit.COMMANDS)
def test_a_command_names_what_is_in_the_way_and_ends_with_78(foreign: Path, command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPTS / command, "--help"], env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 78
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{command}: another package named core is in the way of majordomo-toolkit's: {foreign}; fix: ")


@pytest.mark.parametrize("package", ["mdp", "titanic", "bstar", "freelance", "pirate", "peering"])
def test_an_import_names_what_is_in_the_way(foreign: Path, package: str, tmp_path: Path) -> None:
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; sys.path.append({str(ROOT)!r}); import {package}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: another package named core is in the way")
    assert str(foreign) in last
