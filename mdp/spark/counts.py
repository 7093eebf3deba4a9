"""How many rows a dispatch has answered, as its tasks end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mdp.spark.reply import OK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark import Accumulator
    from pyspark.sql import SparkSession

    from mdp.spark.reply import Answer

__all__ = ["Counts"]


class Counts:
    """Rows asked, answered, failed and sent again, summed over the tasks that ended well.

    Accumulators, because they leave out what a failed task counted before it was run again. They belong to a classic session; a
    Spark Connect session has none: count the columns of the result there.

    Args:
        spark: the session of the DataFrame.
    """

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        self._answered: Accumulator[int] = context.accumulator(0)
        self._failed: Accumulator[int] = context.accumulator(0)
        self._sent_again: Accumulator[int] = context.accumulator(0)

    @property
    def answered(self) -> int:
        """Rows with a reply."""
        return self._answered.value

    @property
    def failed(self) -> int:
        """Rows without."""
        return self._failed.value

    @property
    def sent_again(self) -> int:
        """Requests the clients sent beyond the first of each row."""
        return self._sent_again.value

    def add(self, answers: Iterable[Answer]) -> None:
        """Count the answers of some rows; called in the tasks."""
        answered = failed = sent = 0
        for answer in answers:
            answered += answer.status == OK
            failed += answer.status != OK
            sent += max(answer.attempts - 1, 0)
        self._answered.add(answered)
        self._failed.add(failed)
        self._sent_again.add(sent)
