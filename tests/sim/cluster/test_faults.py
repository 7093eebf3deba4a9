"""Faults of the simulator: what one of them does to the product, and that systems answer as real ones."""

from __future__ import annotations

import pytest

from tests.sim.cluster.faults import Fault
from tests.sim.cluster.scenario import CALM_S, Result, run
from tests.sim.cluster.scenarios import ALL

pytestmark = pytest.mark.timeout(600)


def _with(name: str, *faults: Fault) -> Result:
    """Play a scenario with these faults only; everything must serve within a minute after them."""
    return run(ALL[name], 1, minutes=(max(fault.at + fault.lasts_s for fault in faults) - CALM_S) / 60, faults=faults)


@pytest.mark.parametrize(("name", "who"), [("one_store", "store"), ("store_pair", "store-0"), ("steady_broker", "worker-0")])
def test_a_connection_that_swallows_everything_is_found_by_heartbeats(name: str, who: str) -> None:
    """N2: no system says so, and the broker has never answered a heartbeat of the Titanic."""
    assert _with(name, Fault(CALM_S + 0.5, 1.0, "black hole", "broker", who)).violations == []


@pytest.mark.parametrize(("kind", "who", "other"), [("half open", "broker", "client-0"), ("power", "broker", "")])
def test_a_system_that_does_not_know_a_connection_says_so_when_bytes_come(kind: str, who: str, other: str) -> None:
    result = _with("one_broker", Fault(15.0, 3.0, kind, who, other))
    assert result.violations == []
    assert result.steps < 200_000


def test_a_machine_that_sleeps_with_a_crashed_process_costs_no_steps() -> None:
    faults = [Fault(15.0, 20.0, "sleep", "host-0"), Fault(16.0, 3.0, "crash", "worker-0")]
    result = _with("one_broker", *faults)
    assert result.violations == []
    assert result.steps < 200_000
