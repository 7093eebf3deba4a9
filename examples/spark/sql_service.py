"""Table in Spark, queried by programs without Spark.

mdp broker &
spark-submit examples/spark/sql_service.py examples/data/airports.csv [BROKER] &
python -c "import asyncio, mdp; from examples.spark.sql_service import northernmost; print(asyncio.run(northernmost('tcp://127.0.0.1:5555')))"
"""

# pyarrow has no types of its own, which pyright tells in strict mode.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

import mdp
from mdp.spark import SparkLimits, SparkWorker, ask_sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


def airports_of(session: SparkSession, frames: Sequence[bytes]) -> DataFrame:
    """Answer `[state]` with its airports: a service that takes no SQL from its clients."""
    return session.sql("select * from global_temp.airports where state = :state", args={"state": frames[0].decode()})


async def serve(spark: SparkSession, table: str, broker: str) -> None:
    """Serve `spark.sql` and `airports.of` until the program is ended."""
    # Global: every client has its own session, and all see this view.
    spark.read.csv(table, header=True, inferSchema=True).cache().createOrReplaceGlobalTempView("airports")
    limits = SparkLimits(rows_max=100_000, run_s=60.0)
    async with SparkWorker(spark, broker, functions={"airports.of": airports_of}, limits=limits) as worker:
        await worker.serve_forever()


async def northernmost(broker: str, count: int = 3) -> list[str]:
    """Ask as a client for the names of the northernmost airports."""
    async with mdp.Client(broker, timeout=60.0) as client:
        query = f"select name from global_temp.airports order by latitude desc limit {count}"
        names: list[str] = (await ask_sql(client, query, wait=True))["name"].to_pylist()
        return names


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "tcp://127.0.0.1:5555"]
    asyncio.run(serve(SparkSession.builder.appName("sql service").getOrCreate(), *arguments[:2]))
