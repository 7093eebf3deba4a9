"""Registration of all installed data sources in a session."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["GROUP", "register"]

# Entry points of this group name classes of `pyspark.sql.datasource.DataSource`, in any package.
GROUP = "mdp.spark.sources"


def register(spark: SparkSession) -> list[str]:
    """Register `mdp-events` and all installed data sources of the group in a session, classic or Connect; return their names."""
    from mdp.spark.eventlog.source import EventsSource

    # Ours directly: a package from `--py-files` has no entry points.
    sources = {EventsSource.name(): EventsSource}
    for entry in sorted(entry_points(group=GROUP)):
        source = entry.load()
        sources[source.name()] = source
    for source in sources.values():
        spark.dataSource.register(source)
    return list(sources)
