"""The core of `make pipeline`: a replayed micro-batch, a killed store and worker, each order priced once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.pipeline import job
from examples.pipeline.orders import HANDLER, SERVICE, drop_file, files_of_orders
from examples.pipeline.page import write_page
from mdp.spark import register
from mdp.spark.demo.processes import POLL_S, READY_WITHIN_S
from tests.mdp.spark.conftest import ROOT
from tests.scenes.spark_checkpoint import forget_last_commit
from tests.scenes.spark_processes import AllServices
from tests.scenes.titanic_spark_processes import House

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.soak

ROWS = 100


@contextmanager
def scaler(broker: str, log: Path) -> Iterator[None]:
    """Run the scaler of the pipeline."""
    numbers = ("--concurrency", "4", "--workers-max", "3", "--log", str(log))
    command = [sys.executable, "-m", "examples.pipeline.scaler", "--broker", broker, "--service", SERVICE, "--handler", HANDLER, *numbers]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT), "PIPELINE_SERVICE_MS": "20"}, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(READY_WITHIN_S) == 0


def looks(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def wait_until(true: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + READY_WITHIN_S
    while not true():
        assert time.monotonic() < give_up_at
        time.sleep(POLL_S)


def ingest_once(spark: SparkSession, lake: str, broker: str) -> StreamingQuery:
    """Store what has arrived, and forget that the last micro-batch was done, as a killed driver does."""
    query: StreamingQuery = page_functions()["ingest"](spark, lake, broker)
    query.processAllAvailable()
    query.stop()
    forget_last_commit(Path(lake, "checkpoints", "ingest"))
    return job.ingest(spark, lake, broker)


def page_functions() -> dict[str, Any]:
    """Return the functions that docs/pipeline.md shows."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def test_every_order_is_in_the_result_once(spark: SparkSession, tmp_path: Path) -> None:
    lake, log = tmp_path / "lake", tmp_path / "scaler.jsonl"
    files = list(files_of_orders(4, ROWS))
    register(spark)
    with (
        AllServices(tmp_path / "services") as services,
        House(services, tmp_path / "house", "--max-attempts", "2", "--retry-s", "0.05") as house,
        scaler(house.broker, log),
    ):
        for number in range(2):
            drop_file(lake / "arrivals", f"{number}.csv", files[number])
        queries = [ingest_once(spark, str(lake), house.broker), page_functions()["collect"](spark, str(lake), house.broker)]
        # More workers come, and one of them dies with requests.
        wait_until(lambda: looks(log) and len(looks(log)[-1]["workers"]) > 1)
        first = looks(log)[-1]["workers"][0]
        os.kill(first, signal.SIGKILL)
        for number in range(2, 4):
            drop_file(lake / "arrivals", f"{number}.csv", files[number])
        house.kill_store()
        house.start_store()
        verdict = job.finish(spark, str(lake), house.broker, queries)
        for query in queries:
            query.stop()
    assert verdict == job.Verdict(arrived=400, priced=400, twice=0, lost=0, wrong=0, dead=4)
    assert verdict.good
    dead = spark.read.parquet(str(lake / "dead_letters")).collect()
    assert {row["quantity"][-1] for row in dead} == {"x"}
    assert all(row["error"].startswith("DEAD_LETTER after 2 attempts") for row in dead)
    assert any(first not in look["workers"] and len(look["workers"]) > 1 for look in looks(log))
    write_page(tmp_path / "index.html", {"arrived": verdict.arrived}, looks(log), [{"time": time.time(), "kill": "store"}])
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<td>arrived</td><td>400</td>" in page
    assert "data:image/png;base64," in page
