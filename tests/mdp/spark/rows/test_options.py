"""Bounds of a job: one set of names, checked before anything runs."""

from __future__ import annotations

from dataclasses import fields

import pytest

from mdp.spark.rows.options import Bounds, DispatchOptions


def test_what_type_checkers_know_is_what_there_is() -> None:
    assert [*DispatchOptions.__annotations__] == [field.name for field in fields(Bounds)]


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"window": 0}, "window is 1 to 65535"),
        ({"window": 70_000}, "window is 1 to 65535"),
        ({"window_bytes": 0}, "window_bytes is 1 or more"),
        ({"timeout": 0}, "timeout is"),
        ({"attempts": 0}, "attempts is"),
        ({"batch": -1}, "batch is 0 to"),
        ({"batch_bytes": 0}, "batch_bytes is"),
        ({"batch_ms": -1}, "batch_ms is"),
        ({"max_failures": -1}, "max_failures is"),
        ({"deadline": 0}, "deadline is"),
        ({"key_scope": "world"}, "key_scope is one of"),
        ({"brokers": "random"}, "brokers is one of"),
        ({"rate": 0}, "rate is a number of rows"),
        ({"rate_tasks": 0}, "rate_tasks is 1 or more"),
    ],
)
def test_what_is_out_of_range_is_refused(options: DispatchOptions, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Bounds(**options)
