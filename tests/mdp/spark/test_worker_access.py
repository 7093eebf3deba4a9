"""Access rules of the broker for `spark.sql`: a refused query never reaches Spark."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from core.security.curve_keys import key_pair
from mdp.errors import Forbidden, HandlerError, NoService
from mdp.spark import SparkWorker, ask_sql, new_session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from core.security.credentials import Secured

pytestmark = pytest.mark.spark

# The analyst may call the function, and may not write SQL.
RULES = {
    "allow": [
        {"who": ["engineer"], "call": ["spark.sql"]},
        {"who": ["engineer", "analyst"], "call": ["squares"]},
        {"who": ["pipeline"], "serve": ["spark.sql", "squares"]},
    ]
}
NAMES = ("engineer", "analyst", "pipeline", "intern")


def plain() -> tuple[Secured, Callable[[str], Secured]]:
    """Return the security of a broker with passwords, and that of each user."""
    passwords = {name: f"{name}'s" for name in NAMES}
    return core.Plain(users=passwords), lambda name: core.Plain(user=name, password=passwords[name])


def curve() -> tuple[Secured, Callable[[str], Secured]]:
    """The same with keys."""
    secrets = {name: key_pair(os.urandom)[1] for name in NAMES}
    of_broker = core.Curve(
        secret_key=key_pair(os.urandom)[1], keys={core.Curve(secret_key=key).public_key: name for name, key in secrets.items()}
    )
    return of_broker, lambda name: core.Curve(secret_key=secrets[name], server_key=of_broker.public_key)


def squares(session: SparkSession, frames: Sequence[bytes]) -> DataFrame:
    return session.range(int(frames[0])).selectExpr("id * id as square")


@pytest.mark.parametrize("made", [plain, curve])
async def test_a_query_of_a_user_without_rights_is_refused_and_does_not_run(
    spark: SparkSession, made: Callable[[], tuple[Secured, Callable[[str], Secured]]]
) -> None:
    of_broker, of = made()
    mine = new_session()
    async with mdp.Broker(security=of_broker, rules=mdp.Rules(RULES)) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with (
            SparkWorker(spark, where, functions={"squares": squares}, security=of("pipeline"), drain_s=1.0) as worker,
            mdp.Client(where, security=of("engineer"), timeout=60) as engineer,
            mdp.Client(where, security=of("analyst"), timeout=60) as analyst,
            mdp.Client(where, security=of("intern"), timeout=60) as intern,
        ):
            while not worker.connected:
                await asyncio.sleep(0.01)
            assert (await ask_sql(engineer, "select 1 as a", session=mine))["a"].to_pylist() == [1]
            for client in (analyst, intern):
                with pytest.raises(Forbidden):
                    await ask_sql(client, "create temporary view made as select 1 as a", session=mine)
            with pytest.raises(HandlerError, match="TABLE_OR_VIEW_NOT_FOUND"):
                await ask_sql(engineer, "select a from made", session=mine)
            assert (await ask_sql(analyst, "3", service="squares"))["square"].to_pylist() == [0, 1, 4]
            with pytest.raises(Forbidden):
                await ask_sql(intern, "3", service="squares")
            assert broker.counters["error_forbidden"] == 3
            # Changed rules apply to connected peers at once.
            broker.set_rules(mdp.Rules({"allow": [{"who": ["pipeline"], "serve": ["*"]}, {"who": ["intern"], "call": ["spark.sql"]}]}))
            assert (await ask_sql(intern, "select 2 as a"))["a"].to_pylist() == [2]
            with pytest.raises(Forbidden):
                await ask_sql(engineer, "select 1 as a", session=mine)


async def test_a_worker_that_may_not_serve_gets_no_query(spark: SparkSession) -> None:
    of_broker, of = plain()
    async with mdp.Broker(start_hold_ms=0, security=of_broker, rules=mdp.Rules(RULES)) as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with (
            SparkWorker(spark, where, security=of("analyst"), drain_s=1.0),
            mdp.Client(where, security=of("engineer"), timeout=60) as engineer,
        ):
            while not broker.counters["forbidden_serve"]:
                await asyncio.sleep(0.01)
            with pytest.raises(NoService):
                await ask_sql(engineer, "select 1 as a")
            assert broker.stats["workers"] == 0
