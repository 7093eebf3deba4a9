"""mdp.eventlog.block_columns: what is valid in a block, and what it may cost; see `test_format.py` for whole blocks."""

from __future__ import annotations

import msgpack
import pytest

from mdp.eventlog.block_columns import decode_columns

VALID = [1, 2, 52.5, b"echo", b"w", [b"a", b"b"], bytes(16), [1, 2], [50.5, 51.0], 0.0, 20, [5, 6], "", ["OK", ""]]


def decoded(columns: object) -> list[object] | None:
    return decode_columns(memoryview(msgpack.packb(columns)), count_max=1000, id_bytes=8)


def test_valid_columns_are_returned_and_later_ones_left_out() -> None:
    assert decoded(VALID) == VALID
    assert decoded([*VALID, "of a later version", [[1], {"a": 2}]]) == VALID


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, "1"),
        (0, 1.0),
        (1, 0),
        (1, 1001),
        (2, float("nan")),
        (2, 2.0**40),
        (3, "echo"),
        (5, [b"a"]),
        (5, [b"a", "b"]),
        (5, [b"a", [b"b"]]),
        (6, bytes(8)),
        (6, [1, 2]),
        (7, [1, -1]),
        (7, [1, 2**31]),
        (7, [1, True]),
        (8, [1.0, float("inf")]),
        (8, [1.0, float("-inf")]),
        (9, -(2.0**40) - 1),
        (10, 2**63),
        (11, [1, 2, 3]),
        (12, b"text"),
        (13, {"a": 1}),
    ],
)
def test_a_column_of_another_type_length_or_size_makes_the_block_invalid(place: int, value: object) -> None:
    columns: list[object] = [*VALID]
    columns[place] = value
    assert decoded(columns) is None


@pytest.mark.parametrize("columns", [VALID[:13], [*VALID, *[0] * 51], {"a": 1}, 5, None, []], ids=repr)
def test_what_is_not_an_array_of_columns_is_invalid(columns: object) -> None:
    assert decoded(columns) is None
