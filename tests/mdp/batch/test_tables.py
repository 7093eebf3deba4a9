"""Tables as bytes: what was written is read, and no bytes do harm."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdp.batch.tables import BadTable, decode_table, encode_batch, encode_table

ROWS = {"n": pa.array([1, None]), "s": pa.array(["x", "y"]), "l": pa.array([[1], []]), "m": pa.array([{"a": [1.5]}, None])}


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_a_table_is_read_as_it_was_written() -> None:
    table = pa.table(ROWS)
    (batch,) = table.to_batches()
    assert decode_table([encode_table(table)]).equals(table)
    assert decode_table([encode_batch(batch)]).equals(table)
    assert decode_table([encode_table(table.slice(0, 0))]).schema == table.schema


def test_a_slice_has_its_own_rows_only() -> None:
    (batch,) = pa.table({"n": list(range(10_000))}).to_batches()
    octets = encode_batch(batch.slice(5000, 3))
    assert len(octets) < 1000
    assert decode_table([octets])["n"].to_pylist() == [5000, 5001, 5002]


@pytest.mark.parametrize("body", [[], [b"a", b"b"], [b""], [b"garbage"], [b"\xff\xff\xff\xff\x00\x00\x00\x00"], [b"\xff" * 100]])
def test_what_is_no_table_is_said(body: list[bytes]) -> None:
    with pytest.raises(BadTable):
        decode_table(body)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("dictionary", [False, True])
def test_compressed_tables_are_refused(codec: str, dictionary: bool) -> None:
    column = pa.array(["x" * 100] * 1000)
    table = pa.table({"s": column.dictionary_encode() if dictionary else column})
    assert decode_table([stream(table)]).equals(table)
    with pytest.raises(BadTable, match="compressed"):
        decode_table([stream(table, compression=codec)])


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.null()),
        pa.list_(pa.struct([])),
        pa.list_(pa.binary(0)),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.string_view(),
        pa.binary_view(),
    ],
)
def test_types_that_could_claim_any_number_of_values_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(BadTable, match="not taken"):
        decode_table([encode_table(pa.schema([("x", kind)]).empty_table())])


def test_a_schema_has_a_size() -> None:
    wide = pa.schema([(f"c{n}", pa.int8()) for n in range(10_001)])
    deep = pa.int8()
    for _ in range(40):
        deep = pa.list_(deep)
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    for table in (wide.empty_table(), pa.schema([("x", deep)]).empty_table(), twice):
        with pytest.raises(BadTable):
            decode_table([encode_table(table)])


def test_more_rows_than_allowed_are_refused() -> None:
    octets = encode_table(pa.table({"n": pa.nulls(1001)}))
    assert decode_table([octets], rows_max=1001).num_rows == 1001
    with pytest.raises(BadTable, match="more than 1000 rows"):
        decode_table([octets], rows_max=1000)


GOOD = encode_table(pa.table(ROWS))


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
def test_damaged_bytes_are_refused_or_read_whole(at: int, octet: int, end: int) -> None:
    damaged = bytearray(GOOD)
    damaged[at] = octet
    for octets in (bytes(damaged), GOOD[:end]):
        try:
            table = decode_table([octets], rows_max=10)
        except BadTable:
            continue
        assert table.num_rows <= 10
        table.to_pylist()


@given(st.binary(max_size=300))
def test_no_bytes_can_raise_anything_else(octets: bytes) -> None:
    with pytest.raises(BadTable):
        decode_table([b"\xff\xff\xff\xff" + octets])
