"""Every service of the Spark tests, for one worker process: `mdp worker --app tests.scenes.spark_services`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mdp
from mdp.spark.demo.nearest import nearest
from tests.mdp.spark.services import count_up, echoed, gathering, held, keys, logged, nap, one_in_a_hundred, scored, straggling
from tests.titanic.spark.services import count, count_table

if TYPE_CHECKING:
    from mdp import Request

__all__ = [
    "SERVICES",
    "count",
    "count_table",
    "count_up",
    "echoed",
    "gathering",
    "geo",
    "held",
    "keys",
    "logged",
    "nap",
    "one_in_a_hundred",
    "scored",
    "straggling",
]

SERVICES = (
    *("keys", "count_up", "scored", "one_in_a_hundred", "straggling", "gathering", "held"),
    *("nap", "logged", "echoed", "count", "count_table", "geo.nearest"),
)


@mdp.service("geo.nearest", concurrency=64)
async def geo(request: Request) -> bytes:
    """Answer as the service of the demo does."""
    return await nearest(request)
