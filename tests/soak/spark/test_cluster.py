"""A driver and two executors as processes of their own: one of them, or a Python worker, is killed.

Nothing lost, nothing twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.mdp.spark.conftest import ROOT
from tests.soak.spark.cluster_job import ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.scenes.titanic_spark_processes import House

pytestmark = pytest.mark.soak

CLUSTER = "local-cluster[2,1,1024]"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}


def run(kind: str, house: House, place: Path, master: str, environment: Mapping[str, str], *before: str) -> dict[str, int]:
    program = str(ROOT / "tests" / "soak" / "spark" / "cluster_job.py")
    command = [*(before or (sys.executable,)), program, kind, json.dumps(house.options()), str(place / kind), master]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place, env=dict(environment), check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    counted: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
    return counted


@pytest.mark.parametrize("kind", ["none", "worker", "executor", "speculation"])
def test_a_part_of_the_cluster_is_killed(house: House, tmp_path: Path, kind: str) -> None:
    """4,000 keyed rows through Titanic: 0 lost, 0 executed twice; with speculation too, whose second copy commits nothing."""
    settings = tmp_path / "conf"
    settings.mkdir()
    lines = [f"{name} {value}" for name, value in (SPECULATION if kind == "speculation" else {}).items()]
    (settings / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": str(settings)}
    assert run(kind, house, tmp_path, CLUSTER, environment) == {"OK": ROWS}
    executed = house.executed(f"{kind}-")
    assert len(executed) == ROWS
    assert set(executed.values()) == {1}
    assert (tmp_path / kind).exists() == (kind != "none")
