"""Local Spark session for the commands; programs use their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["local_session"]


def local_session(name: str, master: str = "local[*]", *, partitions: int = 4, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark quietly with fewer `partitions` than its default, for small data; `settings` take precedence over ours."""
    # Without these Spark looks up the host's name, which often has no address, and starts any `python3` of the path.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Read when the Java process starts: later settings of the level come after its first page of output.
    quiet = Path(__file__).with_name("log4j2.properties")
    if quiet.is_file():  # not in a zip
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={quiet}")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(partitions),
        # Times in the results are those of the data, in any time zone.
        "spark.sql.session.timeZone": "UTC",
    }
    for key, value in {**ours, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
