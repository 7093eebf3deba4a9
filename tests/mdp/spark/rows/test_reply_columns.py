"""Replies as columns: valid ones, and invalid ones, which affect their own row only."""

from __future__ import annotations

from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

import mdp.spark.rows.reply_columns as columns_module
from mdp.spark.rows.reply_columns import BAD_REPLY, OK, Answer, arrow_type, decode_frames, decode_map, decode_text, reply_columns

COLUMNS = [("iata", pa.string()), ("km", pa.float64())]


def answers(*replies: list[bytes] | None) -> list[Answer]:
    return [Answer(r, OK if r is not None else "TIMEOUT", None if r is not None else "no answer", 1, 0.5) for r in replies]


def packed(value: Any) -> list[bytes]:
    return [msgpack.packb(value)]


def test_maps_become_columns_and_what_is_missing_is_null() -> None:
    given_answers = answers(packed({"iata": "YAP", "km": 1.5, "more": 1}), packed({"km": 2}), None)
    columns = reply_columns(given_answers, COLUMNS, decode_map)
    assert [column.to_pylist() for column in columns] == [["YAP", None, None], [1.5, 2.0, None]]
    assert [answer.status for answer in given_answers] == [OK, OK, "TIMEOUT"]


def test_no_rows_give_empty_columns_of_the_right_type() -> None:
    columns = reply_columns([], COLUMNS, decode_map)
    assert [(len(column), column.type) for column in columns] == [(0, kind) for _, kind in COLUMNS]


@pytest.mark.parametrize(
    "reply",
    [
        [b""],
        [b"\xc1"],
        [b"\x81\xa1"],
        [msgpack.packb([1])],
        [msgpack.packb({1: 2})],
        [msgpack.packb({"iata": "x"}), b""],
        [msgpack.packb({"iata": 5})],
        [msgpack.packb({"km": "far"})],
        [msgpack.packb({"km": {"a": [1]}})],
        [b"\x91" * 5000],
        [b"\xdf\xff\xff\xff\xff"],
    ],
)
def test_a_reply_that_cannot_be_read_spoils_its_own_row_only(reply: list[bytes]) -> None:
    good = packed({"iata": "YAP", "km": 1.5})
    given_answers = answers(good, reply, good)
    columns = reply_columns(given_answers, COLUMNS, decode_map)
    assert [column.to_pylist() for column in columns] == [["YAP", None, "YAP"], [1.5, None, 1.5]]
    assert [answer.status for answer in given_answers] == [OK, BAD_REPLY, OK]
    assert "cannot be read" in str(given_answers[1].error)


@given(st.lists(st.lists(st.binary(max_size=40), max_size=2), min_size=1, max_size=5))
def test_no_bytes_can_raise(replies: list[list[bytes]]) -> None:
    given_answers = answers(*replies)
    columns = reply_columns(given_answers, COLUMNS, decode_map)
    assert all(len(column) == len(replies) for column in columns)
    assert all(answer.status in {OK, BAD_REPLY} for answer in given_answers)


def test_a_number_with_a_fraction_is_not_cut_to_fit_an_integer() -> None:
    given_answers = answers(packed({"n": 1.5}), packed({"n": 2.0}))
    (column,) = reply_columns(given_answers, [("n", pa.int64())], decode_map)
    assert column.to_pylist() == [None, 2]
    assert given_answers[0].status == BAD_REPLY


def test_a_decode_function_may_give_a_sequence() -> None:
    (first, second) = reply_columns(answers([b"a", b"1.5"]), COLUMNS, lambda frames: (frames[0].decode(), float(frames[1])))
    assert (first.to_pylist(), second.to_pylist()) == (["a"], [1.5])


@pytest.mark.parametrize("decoded", [("one",), "text", b"bytes", 7, None])
def test_a_decode_function_that_gives_something_else_spoils_the_row(decoded: Any) -> None:
    given_answers = answers([b"x"])
    reply_columns(given_answers, COLUMNS, lambda _: decoded)
    assert given_answers[0].status == BAD_REPLY


def test_frames_as_they_came_and_as_text() -> None:
    (column,) = reply_columns(answers([b"a", b"\xff"], None), [("reply", pa.list_(pa.binary()))], decode_frames)
    assert column.to_pylist() == [[b"a", b"\xff"], None]
    assert decode_text([b"a", b"\xff"]) == ("a\n\\xff",)


def test_spark_types_have_their_arrow_types() -> None:
    schema = types.StructType(
        [
            types.StructField("d", types.DecimalType(10, 2)),
            types.StructField("l", types.ArrayType(types.MapType(types.StringType(), types.LongType()))),
        ]
    )
    expected = pa.struct([("d", pa.decimal128(10, 2)), ("l", pa.list_(pa.map_(pa.string(), pa.int64())))])
    assert arrow_type(schema) == expected
    with pytest.raises(TypeError, match="interval"):
        arrow_type(types.DayTimeIntervalType())


def test_one_misfit_among_many_costs_a_few_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    converted = 0

    def counting(values: Any, kind: pa.DataType) -> pa.Array:
        nonlocal converted
        converted += len(values)
        return pa.array(values, type=kind)

    monkeypatch.setattr(columns_module, "fitted", counting)
    given_answers = answers(*[packed({"iata": "x", "km": 1.5})] * 1999, packed({"iata": "x", "km": "far"}))
    columns = reply_columns(given_answers, COLUMNS, decode_map)
    assert [answer.status for answer in given_answers] == [OK] * 1999 + [BAD_REPLY]
    assert columns[1].null_count == 1
    assert converted <= 8 * 2000 * len(COLUMNS)
