"""The index against a model: any order of calls, compaction, checkpoints and restarts at any point, compared after each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scenes.titanic_index_model import LIMITS, Play

SEEDS = 24
STEPS = 400
VARIANTS = (
    LIMITS,
    replace(LIMITS, retain_ms=0),
    replace(LIMITS, retain_ms=1, keys_max=1),
    replace(LIMITS, keys_max=100, bytes_max=10**6),
)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_index_always_equals_its_records(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TSP-06, TSP-08, TSP-11, TSP-15, TSP-17, IDM-03, IDM-04, IDM-05, T1."""
    monkeypatch.setattr("titanic.store.index.loading.ROWS_MIN", (1, 2, 16)[seed % 3])  # rows in a checkpoint, few requests as there are
    play = Play(seed, VARIANTS[seed % len(VARIANTS)])
    for number in range(STEPS):
        play.step()
        play.check()
        if number % 25 == seed % 25:
            play.restart()
            play.check()
