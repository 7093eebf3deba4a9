"""Values of dispatch options, for the command line, which shows its help without PySpark."""

from __future__ import annotations

from typing import Final

__all__ = ["BROKERS", "INPUT_FORMATS", "KEY_SCOPES", "NAMES", "ON_ERROR", "SOURCES", "SPARKS_OWN", "WINDOW_MAX"]

INPUT_FORMATS: Final = ("csv", "json", "parquet", "text", "titanic")
# Choices for a row without a reply.
ON_ERROR: Final = ("column", "fail", "drop")
# Jobs in which a key of a row names the same request.
KEY_SCOPES: Final = ("job", "service")
# Which of several brokers is asked.
BROKERS: Final = ("failover", "hash")
# Requests in flight of one partition: a client can number no more attempts of a connection at once.
WINDOW_MAX: Final = 65_535
# Entry points of this group name classes of `pyspark.sql.datasource.DataSource`, in any package.
SOURCES: Final = "mdp.spark.sources"
# The entry point of this group is a client of name servers with a method `resolve`, which `core.Context` takes.
NAMES: Final = "mdp.spark.names"
# Options of a data source that Spark adds.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
