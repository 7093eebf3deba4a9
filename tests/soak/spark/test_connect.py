"""Spark Connect: supported features work on a session of it; others raise a clear error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mdp.eventlog.format import encode_block, encode_header
from tests.mdp.spark.conftest import ROOT
from tests.mdp.spark.eventlog.test_source import CLOCK, answered

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.titanic_spark_processes import House

pytestmark = pytest.mark.soak
ROWS = 300


def test_dispatch_sources_report_and_worker_under_spark_connect(house: House, tmp_path: Path) -> None:
    """SPK-11."""
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / f"events-{1:016x}.mdpe").write_bytes(encode_header(CLOCK) + encode_block(answered(1001.0, 90)))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lines.txt").write_text("".join(f"line-{n}\n" for n in range(50)))
    program = [sys.executable, "-m", "tests.soak.spark.connect_program", house.broker]
    done = subprocess.run(
        [*program, str(tmp_path / "events"), str(tmp_path / "in"), str(tmp_path / "stream")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "sources": found["sources"],
        "asked": [f"sql-{n}" for n in range(10)],
        "table": [len("sql-table")],
        "answered": ROWS,
        "stored": ROWS,
        "latency": [90],
        "streamed": 50,
        "served": [42, 0, 1, 4],
        "counts": "Counts needs a classic session, and this one is of Spark Connect: count the rows of the result by _status",
    }
    assert {"mdp-events", "titanic"} <= set(found["sources"])
    # Under both, one key: the rows `dispatch` had asked about were stored as what they were and executed once more at most.
    assert set(house.executed("connect-")) == {f"connect-{n}" for n in range(ROWS)}
