"""The one Spark session of the tests: a second Java process would cost as much as all of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from mdp.spark.session import local_session
from mdp.spark.sql.versions import has_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SHORT_LIVED", "Kept", "run_query", "session_of_tests"]

# Java's second compiler and its parallel collector are for programs that run for long: here they cost half of all time, and gain nothing.
# To verify the code of some twenty thousand classes of Spark takes two seconds.
_UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
SHORT_LIVED = {"spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_UNVERIFIED}"}
# Code that Spark makes and compiles for each query pays for millions of rows.
SMALL_DATA = {"spark.sql.adaptive.enabled": "false", "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


LATE = "Python worker failed to connect back"  # within the ten seconds that Spark has for it, which no option of it changes


def run_query(start: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], object]) -> None:
    """Run a query until its wait is over; again if a process of its source began too late."""
    late = True
    while late:
        query = start()
        try:
            wait(query)
            late = False
        except StreamingQueryException as error:
            if LATE not in str(error):
                raise
        finally:
            query.stop()


@contextmanager
def session_of_tests(**settings: str) -> Iterator[SparkSession]:
    """Start the session; a task may fail twice before its job does, because some tests crash tasks."""
    # A killed task has to end by itself: Spark would end its Python process otherwise.
    patient = {"spark.python.task.killTimeout": "100s"}
    # What the daemon imports needs Spark 4.
    warm = {"spark.python.daemon.module": "tests.scenes.spark_daemon"} if has_spark("4.0") else {}
    session = local_session("tests", "local[2,3]", partitions=1, settings={**SMALL_DATA, **SHORT_LIVED, **patient, **warm, **settings})
    try:
        yield session
    finally:
        session.stop()


class Kept:
    """A session that is not stopped, for commands that start one of their own and stop it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Stay."""
