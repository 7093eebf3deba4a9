"""Scenarios; each module has those of one part of the product, and the bodies of its processes."""

from __future__ import annotations

from tests.sim.cluster.scenario import SCENARIOS
from tests.sim.cluster.scenarios import chapters, daemons, hostile, majordomo, programs, redundancy, restarts, shards, stock, titanic_stores

__all__ = ["ALL", "chapters", "daemons", "hostile", "majordomo", "programs", "redundancy", "restarts", "shards", "stock", "titanic_stores"]

ALL = SCENARIOS
