"""Columns of a reply beside those of the source, read as text."""

from __future__ import annotations

import pytest

from titanic.spark.options import BadOption
from titanic.spark.reply_ddl import HEAD, free_names, source_schema

FOUND = [
    ("text string, size int", "text string, size int"),
    ("km: double,to :string", "km double, to string"),
    ("KEY string", "`reply_KEY` string"),
    ("`status` struct<key: int, error: map<string, int> NOT NULL> not null", "`reply_status` struct<key: int, error: map<string, int>>"),
    (
        "`a,``b` decimal(10, 2), error string COMMENT 'key NOT NULL, it\\'s'",
        "`a,``b` decimal(10, 2), `reply_error` string COMMENT 'key NOT NULL, it\\'s'",
    ),
    ("reply array<binary>", "reply array<binary>"),
    ("double", "double"),  # no column: Spark says so
    ("key string, double", "key string, double"),
]


@pytest.mark.parametrize(("reply", "expected"), FOUND)
def test_only_columns_with_a_name_of_the_source_are_renamed(reply: str, expected: str) -> None:
    assert source_schema(reply) == f"{HEAD}, {expected}"


def test_decoders_can_tell_the_names_of_the_service() -> None:
    assert free_names("Uuid string, x int, `error` string") == {"Uuid": "reply_Uuid", "error": "reply_error"}


def test_a_name_that_is_not_free_is_refused() -> None:
    with pytest.raises(BadOption, match="its column key has no free name: there is reply_key too"):
        source_schema("key string, Reply_Key int")
