"""Replies to stored tables as rows, and requests that have none."""

from __future__ import annotations

import pyarrow as pa

from mdp.batch.tables import encode_table
from mdp.spark.rows.reply_columns import Answer
from titanic.spark.readers import table_rows

NAMES = ["uuid", "key", "status", "error", "n"]
COLUMNS = [("n", pa.int64())]


def rows(*answers: Answer) -> list[tuple[object, ...]]:
    uuids = [bytes([number]) * 16 for number in range(len(answers))]
    found = table_rows(uuids, [b"request-%d" % number for number in range(len(answers))], answers, COLUMNS, NAMES)
    assert found.schema.names == NAMES
    return [(row["uuid"][:2], row["key"], row["status"], row["error"], row["n"]) for row in found.to_pylist()]


def replied(table: pa.Table) -> Answer:
    return Answer([encode_table(table)], "OK", None, 1, 0.0)


def test_each_row_has_its_key_and_its_outcome() -> None:
    both = pa.table({"n": [1, None], "_key": ["a", "b"], "_error": [None, "no"], "_status": [None, "TOO_OLD"]})
    assert rows(replied(both), replied(pa.table({"n": [3]}))) == [
        ("00", "a", "OK", None, 1),
        ("00", "b", "TOO_OLD", "no", None),
        ("01", "request-1", "OK", None, 3),  # of a worker that gives no keys back
    ]


def test_a_request_without_a_table_is_one_row() -> None:
    found = rows(
        Answer(None, "PENDING", None, 1, 0.0), Answer([b"no table"], "OK", None, 1, 0.0), Answer(None, "DEAD_LETTER", "why", 2, 0.0)
    )
    assert [row[1:3] for row in found] == [("request-0", "PENDING"), ("request-1", "BAD_REPLY"), ("request-2", "DEAD_LETTER")]
    assert rows() == []
