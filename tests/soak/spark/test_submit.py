"""`spark-submit` from a clean virtual environment: with the package installed by pip, and with `--py-files` where only the rest is."""

from __future__ import annotations

import os
import subprocess
import tomllib
import venv
from typing import TYPE_CHECKING

import pytest

from tests.mdp.spark.conftest import ROOT
from tests.mdp.spark.test_py_files import zip_as_documented
from tests.soak.spark.cluster_job import ROWS
from tests.soak.spark.test_cluster import run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.titanic_spark_processes import House

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with everything the package needs, and without the package."""
    place = tmp_path_factory.mktemp("clean")
    venv.create(place, with_pip=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install(place, *project["dependencies"], *project["optional-dependencies"]["spark"])
    return place


def install(place: Path, *what: str) -> None:
    subprocess.run([str(place / "bin" / "python"), "-m", "pip", "install", "-q", *what], check=True, cwd=place, env=apart(place))


def apart(clean: Path) -> dict[str, str]:
    """Return an environment that leads to nothing of this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "VIRTUAL_ENV"))}
    path = f"{clean / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYSPARK_PYTHON": str(clean / "bin" / "python"), "SPARK_LOCAL_IP": "127.0.0.1"}


def in_python(clean: Path, place: Path, code: str) -> subprocess.CompletedProcess[str]:
    python = str(clean / "bin" / "python")
    return subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=place, env=apart(clean), check=False)


def submitted(clean: Path, house: House, place: Path, kind: str, *options: str) -> dict[str, int]:
    # With three attempts for a task: alone, `local[2]` gives up at the first failure.
    master = "local[2,3]"
    submit = str(clean / "bin" / "spark-submit")
    return run(kind, house, place, master, apart(clean), submit, "--master", master, *options)


def test_with_py_files(clean: Path, house: House, tmp_path: Path) -> None:
    archive = tmp_path / "packages.zip"
    zip_as_documented(archive)
    missing = subprocess.run(
        [str(clean / "bin" / "python"), "-c", "import mdp"], capture_output=True, cwd=tmp_path, env=apart(clean), check=False
    )
    assert missing.returncode == 1
    assert submitted(clean, house, tmp_path, "files", "--py-files", str(archive)) == {"OK": ROWS}


def test_with_the_package_installed(clean: Path, house: House, tmp_path: Path) -> None:
    install(clean, "--no-deps", str(ROOT))
    assert submitted(clean, house, tmp_path, "worker") == {"OK": ROWS}
    executed = house.executed("worker-")
    assert len(executed) == ROWS
    assert set(executed.values()) == {1}
    named = "from importlib.metadata import entry_points as e; print([x.name for x in e(group='mdp.spark.sources')])"
    shown = in_python(clean, tmp_path, named)
    assert shown.stdout.strip() == "['mdp-events', 'titanic']"
