"""Benchmark of Freelance runs: each model once, short. Results are not checked."""

from __future__ import annotations

import pytest

from benchmarks.freelance import WORKS
from benchmarks.work import Conditions, Work, run_work

BRIEF = Conditions(cpu=None, seconds=0.02, warmup_s=0.01)


CHOSEN = [work for work in WORKS if work.name in ("model-2-3-100", "model-3-3-100")]


@pytest.mark.parametrize("work", CHOSEN, ids=[work.name for work in CHOSEN])
def test_every_variant_of_every_work_runs(work: Work) -> None:
    result = run_work(work, 1, [("pinned", BRIEF)], say=lambda _: None)
    for row in work.rows:
        assert result.ratio(row, row.sides) is not None, row
