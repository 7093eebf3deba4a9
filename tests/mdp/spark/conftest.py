"""One Spark session and one broker for all tests that need them, because starting them takes long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mdp.spark.demo.processes import free_port
from mdp.spark.session import local_session
from mdp.spark.sql.versions import has_spark
from tests.scenes.spark_processes import ServiceProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
# Java's second compiler and its parallel collector are for programs that run for long: here they cost half of all time, and gain nothing.
SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # A task may fail twice before its job does: some tests crash tasks.
    # It is a server of Spark Connect too, so that a client of that needs no Java process of its own.
    connect = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(free_port()),
    }
    # Before 4.0 the server of Spark Connect is not in the distribution of PySpark.
    connect = connect if has_spark("4.0") else {}
    # A killed task has to end by itself: Spark would end its Python process otherwise.
    patient = {"spark.python.task.killTimeout": "100s"}
    # What the daemon imports needs Spark 4.
    warm = {"spark.python.daemon.module": "tests.scenes.spark_daemon"} if has_spark("4.0") else {}
    session = local_session("tests", "local[2,3]", partitions=2, settings={**connect, **SHORT_LIVED, **patient, **warm})
    yield session
    session.stop()


@pytest.fixture(scope="session")
def key_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcesses]:
    """Service that returns the request's key, and how often it was asked with it."""
    logs = tmp_path_factory.mktemp("key-service")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with ServiceProcesses(
        "keys", "tests.mdp.spark.services:keys", workers=1, concurrency=64, environment=environment, logs=logs
    ) as processes:
        processes.offer("count_up", "tests.mdp.spark.services:count_up")
        processes.offer("scored", "tests.mdp.spark.services:scored")
        yield processes
