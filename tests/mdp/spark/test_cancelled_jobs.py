"""A cancelled job: what no worker has begun is withdrawn, at once and not when Spark ends its Python processes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from mdp.client.sync import SyncClient
from mdp.spark import dispatch
from mdp.spark.demo.processes import workers_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.scenes.spark_processes import AllServices

pytestmark = pytest.mark.spark

PATIENCE_S = 90.0  # below the time after which Spark would end the processes in these tests
CONCURRENCY = 8
WINDOW = 32


def wait_for(condition: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def test_a_cancelled_job_executes_what_was_in_flight_and_no_more(spark: SparkSession, key_service: AllServices) -> None:
    with SyncClient(key_service.broker, timeout=100) as client:

        def running() -> int:
            return int(workers_of(client, "held")[0]["running"])

        ended: list[str] = []

        def run() -> None:
            spark.sparkContext.setJobGroup("held", "rows that are held")
            answered = dispatch(
                spark.range(0, 4000, 1, 2), broker=key_service.broker, service="held", request="id", schema="n long", timeout=300
            )
            try:
                answered.write.format("noop").mode("overwrite").save()
            except Exception as error:
                ended.append(str(error))

        job = threading.Thread(target=run)
        job.start()
        try:
            wait_for(lambda: running() > CONCURRENCY)  # others wait at the worker
        finally:
            spark.sparkContext.cancelJobGroup("held")
        job.join(PATIENCE_S)
        assert len(ended) == 1
        assert "cancelled" in ended[0]
        wait_for(lambda: running() <= CONCURRENCY)
        (key_service.gates / "held").touch()
        wait_for(lambda: not running())
        # While requests are cancelled, workers begin others that are cancelled a moment later.
        assert CONCURRENCY <= int(client.request("held", b"?")[0]) <= 2 * WINDOW
