"""The simulator catches broken promises: a few here, all of them by `python -m tests.sim.cluster.mutants`."""

from __future__ import annotations

import pytest

from tests.sim.cluster.mutants import MUTANTS, Mutant, caught
from tests.sim.cluster.scenarios import ALL

NAMES = ("a socket does not connect again", "an active server serves without a lease", "answers of the witness are ignored")
QUICK = [mutant for mutant in MUTANTS if mutant.what in NAMES]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.what)
def test_a_broken_promise_is_caught_and_undone(mutant: Mutant) -> None:
    right = mutant.owner.__dict__[mutant.name]
    _, seed, found = caught(mutant, 0.0, minutes=3.0)
    assert seed >= 0
    assert found
    assert mutant.owner.__dict__[mutant.name] is right


def test_every_mutant_has_its_scenario_and_breaks_something_that_exists() -> None:
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.scenario in ALL and mutant.name in mutant.owner.__dict__ for mutant in MUTANTS)
