"""Bounds of a job: one set of names, checked before anything runs."""

from __future__ import annotations

from dataclasses import fields
from math import nan
from typing import Any

import numpy as np
import pytest

from mdp.spark.rows.options import Bounds, DispatchOptions, bounds_of


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
        ({"max_failures": nan}, "max_failures is 0 or more"),
        ({"batch_ms": nan}, "batch_ms is 0 or more"),
    ],
)
def test_what_is_out_of_range_is_refused(options: DispatchOptions, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Bounds(**options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": "12"}, "window is a whole number, not '12'"),
        ({"batch": True}, "batch is a whole number, not True"),
        ({"batch": 2.5}, "batch is a whole number, not 2.5"),
        ({"batch": None}, "batch is a whole number, not None"),
        ({"timeout": "30"}, "timeout is a number, not '30'"),
        ({"ordered": "no"}, "ordered is True or False, not 'no'"),
        ({"key_scope": 1}, "key_scope is text, not 1"),
        ({"windw": 3, "batch": 7}, "dispatch has no argument windw"),
    ],
)
def test_what_is_of_another_type_or_unknown_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        bounds_of(options)


def test_numbers_of_numpy_are_numbers() -> None:
    assert bounds_of({"window": np.int64(9), "timeout": np.float32(2.5), "deadline": 60, "rate": None}).requests == 9
