"""Registration of all installed data sources in a session."""

from __future__ import annotations

import logging
from contextlib import suppress
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from mdp.spark.dispatch_choices import SOURCES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["GROUP", "register"]

GROUP = SOURCES

log = logging.getLogger("mdp.spark")


def register(spark: SparkSession) -> list[str]:
    """Register `mdp-events` and all installed data sources of the group in a session, classic or Connect, and the SQL functions.

    The functions are `ask` and `try_ask` and, with PySpark 4.0 or later, the table function `ask_table`. Returns the names of the sources.
    What a later PySpark has is left out and logged: the source `titanic` needs 4.1.
    """
    from mdp.spark.sql.functions import register_functions
    from mdp.spark.sql.versions import SparkTooOld, has_spark

    register_functions(spark)
    if not has_spark("4.0"):
        log.info("%s", SparkTooOld("a data source or table function", "4.0"))
        return []
    from mdp.spark.sql.table_function import register_table_function

    register_table_function(spark)
    sources: dict[str, type[DataSource]] = {}
    with suppress(SparkTooOld):  # the entry point below says it
        # Ours directly: a package from `--py-files` has no entry points.
        from mdp.spark.eventlog.source import EventsSource

        sources[EventsSource.name()] = EventsSource
    for entry in sorted(entry_points(group=GROUP)):
        try:
            source = entry.load()
        except SparkTooOld as error:
            log.info("%s", error)
            continue
        sources[source.name()] = source
    for source in sources.values():
        spark.dataSource.register(source)
    return list(sources)
