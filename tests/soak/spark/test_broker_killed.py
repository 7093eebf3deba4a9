"""Jobs whose broker is killed in the middle: no row is lost, none is executed twice."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from mdp.client.sync import SyncClient
from mdp.errors import RequestError
from mdp.spark import dispatch
from mdp.spark.demo.processes import workers_of
from tests.scenes.spark_processes import AllServices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak


@pytest.fixture
def frail(tmp_path: Path) -> Iterator[AllServices]:
    with AllServices(tmp_path / "frail") as processes:
        yield processes


@contextmanager
def killed_once(frail: AllServices) -> Iterator[None]:
    """Kill the broker while the worker has rows, start it again, and let these be answered."""
    killed = threading.Event()

    def kill() -> None:
        with SyncClient(frail.broker, timeout=1.0, attempts=1) as client:
            while not killed.is_set():
                try:
                    workers = workers_of(client, "nap")
                except RequestError:
                    continue
                if workers and workers[0]["done"] >= 200 and workers[0]["running"] >= 32:
                    frail.restart_broker()
                    (frail.gates / "nap").touch()
                    killed.set()
                time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        in_time = killed.is_set()
        killed.set()
        killer.join()
    assert in_time


def test_no_row_is_lost_and_none_is_executed_twice(spark: SparkSession, frail: AllServices) -> None:
    """The worker keeps the replies that the broker's death has cost.

    The second half of each partition is answered after the broker was started again, however late.
    """
    asked: dict[str, Any] = {"broker": frail.broker, "service": "nap", "request": "id", "schema": "n long, times int"}
    with killed_once(frail):
        answered = dispatch(spark.range(0, 4000, 1, 2), **asked, window=64, wait=True, timeout=100, client_options={"reconnect_ms": 100.0})
        rows = answered.collect()
    assert {row["_status"] for row in rows} == {"OK"}
    assert [row["n"] for row in rows] == list(range(4000))
    assert {row["times"] for row in rows} == {1}
