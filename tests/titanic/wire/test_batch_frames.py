"""titanic.wire.batch_frames: chunks and lists of stages, their limits."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest

from titanic.errors import BadRequest
from titanic.wire.batch_frames import (
    CHUNK_ROWS_MAX,
    FREE_ELEMENTS,
    BatchChunk,
    decode_stages,
    encode_rows,
    name_of_chunk,
    parse_count,
    parse_name,
    rows_max,
)

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


def test_a_chunk_has_as_many_rows_as_are_allowed_and_not_one_more() -> None:
    for octets, most in ((0, 256), (31, 256), (32, 257), (10**9, CHUNK_ROWS_MAX)):
        assert rows_max(octets) == most
    assert len(decode_stages(msgpack.packb([(b"s", 1)] * FREE_ELEMENTS))) == FREE_ELEMENTS
    rows = encode_rows([(b"k" * 26, [b""])] * 10_000)  # of 32 bytes each
    assert len(decode_chunk(rows)) == 10_000
    with pytest.raises(BadRequest, match="10001 elements in 320035 bytes, at most 10000"):
        decode_chunk(encode_rows([(b"k" * 26, [b""])] * 10_001))


@pytest.mark.parametrize("service", [b"titanic.request", b"mmi.x", b"", b"a\nb"])
def test_tsp_19_a_chunk_is_for_a_service_whose_requests_can_be_stored(service: bytes) -> None:
    with pytest.raises(BadRequest):
        BatchChunk.decode(service, encode_rows([SHORT_ROW]))
    assert BatchChunk.decode(b"echo", encode_rows([SHORT_ROW])).service == b"echo"


def test_x2_a_body_that_promises_more_frames_than_it_brings_takes_no_memory() -> None:
    hostile = b"\x91\x92\xc4\x01k\xdd\x01\x00\x00\x00" + b"\xc4\x00" * 50
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match="not the expected msgpack"):
            decode_chunk(hostile)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_name_has_1_to_200_bytes_without_nul() -> None:
    assert parse_name(b"n") == b"n"
    assert parse_name(b"n" * 200) == b"n" * 200
    for name in (b"", b"n" * 201, b"a\0b", b"\0"):
        with pytest.raises(BadRequest, match="a name is 1 to 200 bytes without NUL"):
            parse_name(name)


def test_a_number_is_decimal_and_limited() -> None:
    assert [parse_count(frame) for frame in (b"0", b"17", b"%d" % 10**17)] == [0, 17, 2**53]
    assert parse_count(b"17", 5) == 5
    for frame in (b"", b"-1", b"x", b"1.0", b"9" * 30):
        with pytest.raises(BadRequest, match="decimal digits"):
            parse_count(frame)


def test_the_key_of_a_chunk_has_its_name_and_number() -> None:
    assert name_of_chunk(b"mark\0batch\0stage\x0017") == (b"stage", 17)
