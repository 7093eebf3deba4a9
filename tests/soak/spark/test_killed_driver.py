"""A driver is killed between the commit of the sink and Spark's log; `make test` removes Spark's note instead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mdp.spark.session import local_session
from tests.mdp.spark.conftest import ROOT
from tests.scenes.spark_session import SHORT_LIVED
from tests.titanic.spark.test_stream import put, wait_answered, write
from titanic.spark import register
from titanic.spark.source import TitanicSource
from titanic.spark.writers import StreamWriter

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from tests.scenes.titanic_spark_processes import House

pytestmark = pytest.mark.soak


class KilledAfterCommit(StreamWriter):
    """Kills the driver's process when the store has committed and Spark does not know yet."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit, and take the driver down."""
        super().commit(messages, batchId)
        if batchId == 1:
            os.kill(int(os.environ["DRIVER"]), signal.SIGKILL)


class Killing(TitanicSource):
    """The source, with a writer that kills."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer."""
        writer = super().streamWriter(schema, overwrite)
        return KilledAfterCommit(writer.settings, schema)


def killed_driver(options: dict[str, str], source: str, checkpoint: str) -> None:
    """Run a query until it kills the process; the main function of a process of its own."""
    os.environ["DRIVER"] = str(os.getpid())
    session = local_session("killed", "local[1]", settings=SHORT_LIVED)
    session.dataSource.register(Killing)
    lines = session.readStream.option("maxFilesPerTrigger", 1).text(source).withColumnRenamed("value", "x")
    stream = lines.writeStream.format("killing").options(**options).option("checkpointLocation", checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()


def test_the_driver_is_killed_between_the_commit_of_the_sink_and_sparks_log(spark: SparkSession, house: House, tmp_path: Path) -> None:
    """0 duplicates, 0 losses: the micro-batch is written again and the store recognises it."""
    register(spark)
    for name in ("a", "b", "c"):
        put(tmp_path / "in", f"{name}.txt", f"driver-{name}", 1000)
    options = house.options(service="count", request="x")
    arguments = json.dumps([options, str(tmp_path / "in"), str(tmp_path / "sink")])
    code = f"import json; from tests.soak.spark.test_killed_driver import killed_driver; killed_driver(*json.loads({arguments!r}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    commits = {path.name for path in (tmp_path / "sink" / "commits").iterdir() if path.name.isdigit()}
    assert commits == {"0"}
    query = write(spark, house, tmp_path / "in", tmp_path / "sink")
    query.awaitTermination()
    for number in range(3):
        wait_answered(spark, house, query.id, number, 1000)
    executed = house.executed("driver-")
    assert len(executed) == 3000
    assert set(executed.values()) == {1}
