"""The data sources that are installed, made known to a session by one call."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["GROUP", "register"]

# Entry points of this group name classes of `pyspark.sql.datasource.DataSource`; any package may have some.
GROUP = "mdp.spark.sources"


def register(spark: SparkSession) -> list[str]:
    """Make `mdp-events` and every installed data source of the group known to a session, classic or Connect; return their names."""
    from mdp.spark.eventlog.source import EventsSource

    # Ours without looking for it: what came by `--py-files` has no entry points.
    sources = {EventsSource.name(): EventsSource}
    for entry in sorted(entry_points(group=GROUP)):
        source = entry.load()
        sources[source.name()] = source
    for source in sources.values():
        spark.dataSource.register(source)
    return list(sources)
