"""Counts of the rows of a dispatch, as its tasks end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkAttributeError

from mdp.spark.flow.live_counts import LiveCounts, Reporter
from mdp.spark.rows.reply_columns import OK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import Accumulator
    from pyspark.sql import SparkSession

    from mdp.spark.flow.live_counts import TaskReport
    from mdp.spark.rows.reply_columns import Answer


class ClassicSessionNeeded(TypeError):
    """A Spark Connect session was given to a function that needs the SparkContext of a classic one.

    Args:
        what: name of that function.
        instead: alternative.
    """

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what, instead)
        self.what = what
        self.instead = instead

    def __str__(self) -> str:
        return f"{self.what} needs a classic session, and this one is of Spark Connect: {self.instead}"


class Counts:
    """Rows asked, answered, failed and sent again, summed over the tasks that succeeded.

    Accumulators, because they exclude the counts of failed tasks. They need a classic session; with Spark Connect, count the columns of
    the result instead.

    Args:
        spark: the session of the DataFrame.
        live: let tasks that run tell the driver their numbers, four times a second, in datagrams to a port that it opens.

    Raises:
        ClassicSessionNeeded: a Spark Connect session.
        OSError: `spark.driver.bindAddress` is not an address of this machine.
    """

    def __init__(self, spark: SparkSession, *, live: bool = False) -> None:
        try:
            context = spark.sparkContext
        except PySparkAttributeError:
            raise ClassicSessionNeeded("Counts", "count the rows of the result by _status") from None
        self._answered: Accumulator[int] = context.accumulator(0)
        self._failed: Accumulator[int] = context.accumulator(0)
        self._sent_again: Accumulator[int] = context.accumulator(0)
        self._latency_ms: Accumulator[float] = context.accumulator(0.0)
        self._statuses: Accumulator[dict[str, int]] = context.accumulator({}, _Tally())
        host = context.getConf().get("spark.driver.host") or "127.0.0.1"
        self._live = LiveCounts(host, context.getConf().get("spark.driver.bindAddress") or host) if live else None
        self._report = None if self._live is None else self._live.report
        self._reporter: Reporter | None = None  # of the task

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None, "_reporter": None}

    @property
    def answered(self) -> int:
        """Rows with a reply."""
        return self._answered.value

    @property
    def failed(self) -> int:
        """Rows without a reply."""
        return self._failed.value

    @property
    def sent_again(self) -> int:
        """Requests sent beyond the first of each row."""
        return self._sent_again.value

    @property
    def rows(self) -> int:
        """Rows whose tasks have ended."""
        return self.answered + self.failed

    def seen(self) -> tuple[int, int]:
        """Return the rows, and those of them without a reply: of tasks that run too, if `live`."""
        found = None if self._live is None else self._live.take()
        if found is None or found.rows <= self.rows:
            return self.rows, self.failed
        return found.rows, found.failed

    @property
    def strange(self) -> int:
        """Datagrams that came to the port of live counts and were not of this job; dropped."""
        return 0 if self._live is None else self._live.strange

    @property
    def mean_latency_ms(self) -> float:
        """Mean over all rows."""
        return self._latency_ms.value / max(self.rows, 1)

    @property
    def statuses(self) -> dict[str, int]:
        """Rows by `_status`."""
        return dict(self._statuses.value)

    def add(self, answers: Iterable[Answer]) -> None:
        """Count the answers of some rows; called in the tasks."""
        sent = 0
        latency_ms = 0.0
        statuses: dict[str, int] = {}
        for answer in answers:
            status = answer.status
            sent += max(answer.attempts - 1, 0)
            latency_ms += answer.latency_ms
            statuses[status] = statuses.get(status, 0) + 1
        self.add_totals(statuses, sent, latency_ms)

    def add_totals(self, statuses: dict[str, int], sent: int, latency_ms: float) -> None:
        """Count rows by status, requests sent again, and the sum of the latencies; called in the tasks."""
        answered = statuses.get(OK, 0)
        failed = sum(statuses.values()) - answered
        self._answered.add(answered)
        self._failed.add(failed)
        self._sent_again.add(sent)
        self._latency_ms.add(latency_ms)
        self._statuses.add(statuses)
        if self._report is not None:
            self._tell(self._report, answered + failed, failed)

    def _tell(self, report: TaskReport, rows: int, failed: int) -> None:
        context = TaskContext.get()
        if self._reporter is None and context is not None:
            self._reporter = Reporter(report, context.stageId(), context.partitionId(), context.attemptNumber())
        if self._reporter is not None:
            self._reporter.add(rows, failed)

    def task_ends(self) -> None:
        """Send the last numbers of this task; called in it."""
        if self._reporter is not None:
            self._reporter.close()
            self._reporter = None


class _Tally(AccumulatorParam[dict[str, int]]):
    """Sum of counts by name."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:
        for name, count in value2.items():
            value1[name] = value1.get(name, 0) + count
        return value1
