"""Benchmark of crowds runs: each one once, short and small. Results are not checked."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import crowds

OPTIONS = argparse.Namespace(connections=20, subscribers=6, stalled=2, seconds=0.1, cpus=(None, None))


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, without a pause."""
    monkeypatch.setattr(crowds, "ROUNDS", 1)
    monkeypatch.setattr(crowds, "SETTLE_S", 0.0)


def test_silent_connections() -> None:
    result = crowds.silent(OPTIONS)
    assert all(side["count"] >= crowds.TRIPS for side in result["round trip"])


@pytest.mark.parametrize(("role", "curve"), [("drip", False), ("flood", True)])
def test_crowds_that_do_something(role: str, curve: bool) -> None:
    result = crowds.in_turns(OPTIONS, role, 20, curve=curve)
    assert all(side["count"] >= crowds.NEWCOMERS for side in result["newcomer"])


def test_subscribers_that_do_not_read() -> None:
    result = crowds.stalled(OPTIONS)
    assert [side["count"] % 4 for side in result["receipt"]] == [0, 0]
