"""titanic.wire.batch_frames: chunks and lists of stages, their limits."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from titanic.errors import BadRequest
from titanic.wire.batch_frames import FREE_ELEMENTS, BatchChunk, decode_stages, encode_rows

SHORT_ROW = (b"k", [b""])


def decode_chunk(octets: bytes) -> Any:
    return BatchChunk.decode(b"echo", octets).rows


def test_a_chunk_has_as_many_short_rows_as_its_bytes_pay_for() -> None:
    assert len(decode_chunk(encode_rows([SHORT_ROW] * FREE_ELEMENTS))) == FREE_ELEMENTS
    with pytest.raises(BadRequest, match="3000 elements in 21003 bytes, at most 912"):
        decode_chunk(encode_rows([SHORT_ROW] * 3_000))
    with pytest.raises(BadRequest, match="9000 elements in 45003 bytes, at most 5881"):
        decode_stages(msgpack.packb([(b"s", 1)] * 9_000))


def test_rows_and_stages_come_back() -> None:
    rows = [(b"a", [b"", b"x" * 300]), (b"k" * 255, [b"y"])]
    assert decode_chunk(encode_rows(rows)) == rows
    stages = [(b"job/0/1", 0), (b"s" * 200, 100_000)]
    assert decode_stages(msgpack.packb(stages)) == stages


@pytest.mark.parametrize(
    "value",
    [
        {},
        [1],
        [[b"s"]],
        [[b"s", 1, 1]],
        [["s", 1]],
        [[b"", 1]],
        [[b"s" * 201, 1]],
        [[b"s", -1]],
        [[b"s", 100_001]],
        [[b"s", 1.0]],
        [[b"a\0b", 1]],
        [[b"s", True]],
    ],
)
def test_what_is_no_list_of_stages_is_refused(value: Any) -> None:
    with pytest.raises(BadRequest):
        decode_stages(msgpack.packb(value))


@pytest.mark.parametrize(
    "value", [{}, [1], [[b"k"]], [["k", [b"x"]]], [[b"", [b"x"]]], [[b"k" * 256, [b"x"]]], [[b"k", []]], [[b"k", b"x"]], [[b"k", [1]]]]
)
def test_what_is_no_chunk_is_refused(value: Any) -> None:
    with pytest.raises(BadRequest):
        decode_chunk(msgpack.packb(value))


def test_x2_a_map_in_place_of_rows_is_not_looked_into() -> None:
    hostile = msgpack.packb({number << 45: 1 for number in range(5_000)})
    for decode in (lambda octets: BatchChunk.decode(b"s", octets), decode_stages):
        with pytest.raises(BadRequest, match="no array"):
            decode(hostile)
        with pytest.raises(BadRequest):
            decode(b"")
    assert BatchChunk.decode(b"s", msgpack.packb([])).rows == []
    assert decode_stages(b"\xdc\x00\x00") == []
