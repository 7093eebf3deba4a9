"""Spark rows answered by Majordomo workers: the only package of `mdp` that uses PySpark.

`from mdp.spark import dispatch`. PySpark is imported when `dispatch` is first looked up, so without it the command line can list its
commands, and a worker can load a handler from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from mdp.spark.eventlog.files import load_events
    from mdp.spark.eventlog.report import Report, report
    from mdp.spark.flow.discovery import NameServers
    from mdp.spark.query import ask_sql, new_session
    from mdp.spark.rows.accumulators import ClassicSessionNeeded, Counts
    from mdp.spark.rows.curve_files import CurveFiles
    from mdp.spark.rows.job import dispatch
    from mdp.spark.rows.progress import Progress
    from mdp.spark.sources import register
    from mdp.spark.sql.each_batch import each_batch
    from mdp.spark.sql.functions import service_udf
    from mdp.spark.sql.versions import SparkTooOld
    from mdp.spark.worker import SparkLimits, SparkWorker

__all__ = ["ClassicSessionNeeded", "Counts", "CurveFiles", "NameServers", "Progress", "Report", "SparkLimits", "SparkTooOld", "SparkWorker"]
__all__ += ["ask_sql", "dispatch", "each_batch", "load_events", "new_session", "register", "report", "service_udf"]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(
        __name__,
        {
            "mdp.spark.eventlog.files": ("load_events",),
            "mdp.spark.eventlog.report": ("Report", "report"),
            "mdp.spark.flow.discovery": ("NameServers",),
            "mdp.spark.query": ("ask_sql", "new_session"),
            "mdp.spark.rows.accumulators": ("ClassicSessionNeeded", "Counts"),
            "mdp.spark.rows.curve_files": ("CurveFiles",),
            "mdp.spark.rows.job": ("dispatch",),
            "mdp.spark.rows.progress": ("Progress",),
            "mdp.spark.sources": ("register",),
            "mdp.spark.sql.each_batch": ("each_batch",),
            "mdp.spark.sql.functions": ("service_udf",),
            "mdp.spark.sql.versions": ("SparkTooOld",),
            "mdp.spark.worker": ("SparkLimits", "SparkWorker"),
        },
        extra="spark",
    )
