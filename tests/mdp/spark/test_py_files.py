"""Zip for `--py-files`, made as documented: a job finds everything it needs in it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.mdp.spark.conftest import ROOT

PROGRAM = """
import sys
archive, *others = sys.argv[1:]
# Nothing of this project but the archive: an editable installation is a hook that does not run here.
sys.path[:] = [archive, *others, *[path for path in sys.path if path.startswith((sys.base_prefix, sys.prefix))]]
import mdp.spark
from mdp.spark import dispatch, register, report, CurveFiles
import mdp.spark.rows.partition, mdp.spark.rows.loop_bridge, mdp.spark.eventlog.source
import titanic.spark
found = [module for name, module in sys.modules.items() if name.partition(".")[0] in {"core", "bstar", "peering", "mdp", "titanic"}]
assert len(found) > 50
strange = [module.__name__ for module in found if not module.__file__.startswith(archive)]
assert not strange, strange
import pyarrow, uuid
from mdp.spark.rows.loop_bridge import Destination
from mdp.spark.rows.job import OUTCOME
from mdp.spark.rows.options import Bounds
from mdp.spark.rows.partition import Plan, answer_partition
from mdp.spark.rows.reply_columns import decoder
plan = Plan(Destination(("tcp://127.0.0.1:9",), 0.2, 1), "s", ("x",), (("y", pyarrow.string()),), ("x", "y", *OUTCOME.names),
            decoder("msgpack"), None, "job", Bounds(window=4), "column", None)
# One batch, or two on a busy machine.
rows = pyarrow.Table.from_batches(answer_partition(plan, [pyarrow.RecordBatch.from_pydict({"x": ["1", "2"]})]))
assert rows.column("_status").to_pylist() == ["UNREACHABLE"] * 2, rows
"""


def zip_as_documented(archive: Path) -> None:
    """Make the archive with the command of `docs/spark.md`."""
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python (-m zipfile -c packages\.zip .*)$", page, re.MULTILINE)
    arguments = [str(archive) if word == "packages.zip" else word for word in command.split()]
    subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT)


def test_what_a_job_needs_is_in_the_zip(tmp_path: Path) -> None:
    archive = tmp_path / "packages.zip"
    zip_as_documented(archive)
    # Where third parties are: in the environment of the compiled copy they are those of another one.
    libraries = {
        str(Path(found.origin).parents[1]) for found in map(find_spec, ("pyspark", "pyarrow", "msgspec")) if found and found.origin
    }
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, str(archive), *libraries], capture_output=True, text=True, cwd=tmp_path, env={}, check=False
    )
    assert done.returncode == 0, done.stderr
