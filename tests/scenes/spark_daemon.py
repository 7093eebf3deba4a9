"""Daemon of Spark's Python workers that imports what they need before it forks them.

Spark's own one imports nothing: each worker, one per task that fails, then spends more than a second of CPU time on imports.
"""

from __future__ import annotations

import importlib

from pyspark.daemon import manager

NEEDED = (
    "pandas",
    "pyarrow",
    "pyspark.worker",
    "mdp.spark.batches.table_rows",
    "mdp.spark.rows.partition",
    "mdp.spark.sql.functions",
    "mdp.spark.sql.table_function",
    "titanic.spark.stored_window",
)

if __name__ == "__main__":
    for name in NEEDED:
        importlib.import_module(name)
    manager()
