"""Benchmark of Freelance runs: every work once, short. Results are not checked."""

from __future__ import annotations

import pytest

from benchmarks.freelance import WORKS
from benchmarks.work import Conditions, Work, run_work

BRIEF = Conditions(cpu=None, seconds=0.02, warmup_s=0.01)


@pytest.mark.parametrize("work", WORKS[1::2], ids=[work.name for work in WORKS[1::2]])
def test_every_variant_of_every_work_runs(work: Work) -> None:
    result = run_work(work, 1, [("pinned", BRIEF)], say=lambda _: None)
    for row in work.rows:
        assert result.ratio(row, row.sides) is not None, row
