"""Option maps of MDP/0.3 (fault X2): accepted and refused ones, and bounds for all that a peer sends."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest

from mdp.wire.options import (
    CREDIT_MAX,
    DEADLINE_MS_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    OPTIONS_BYTES_MAX,
    BadOptions,
    ReadyOptions,
    RequestOptions,
    amend_options,
    decode_heartbeat_options,
    decode_ready_options,
    decode_request_options,
    encode_options,
    is_key_alone,
)


def packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value))


def test_nothing_special_is_the_empty_frame() -> None:
    assert encode_options({}) == b""
    assert encode_options({"once": False, "key": None}) == b""
    assert decode_request_options(b"") == RequestOptions()
    assert decode_ready_options(b"") == ReadyOptions()


def test_request_options_survive_the_wire() -> None:
    wish = {"deadline_ms": 2500, "key": b"order-17", "once": True, "wait": True, "delivery": 3, "trace": {"traceparent": "00-a"}}
    assert decode_request_options(encode_options(wish)) == RequestOptions(2500, b"order-17", True, True, 3, {"traceparent": "00-a"})


def test_headers_survive_the_wire_and_the_broker() -> None:
    """HDR-01."""
    headers = {"a": "x" * (HEADERS_BYTES_MAX - 1)}
    octets = encode_options({"headers": headers, "key": b"order-17"})
    assert decode_request_options(octets).headers == headers
    assert decode_request_options(amend_options(octets, deadline_ms=5, delivery=2, user="ada")).headers == headers


def test_ready_options_survive_the_wire() -> None:
    octets = encode_options({"credit": 256, "version": "1.2", "metadata": {"host": "a"}, "heartbeat_ms": 1000})
    assert decode_ready_options(octets) == ReadyOptions(256, "1.2", {"host": "a"}, 1000)


@pytest.mark.parametrize("decode", [decode_request_options, decode_ready_options])
def test_maps_and_arrays_in_options_are_few(decode: Any) -> None:
    decode(packed({"metadata" if decode is decode_ready_options else "trace": {str(n): [n] for n in range(60)}}))
    with pytest.raises(BadOptions):
        decode(packed({"colour": [[[] for _ in range(60)] for _ in range(60)]}))


@pytest.mark.parametrize("decode", [decode_request_options, decode_ready_options, decode_heartbeat_options])
def test_x2_maps_and_arrays_in_options_have_few_elements_together(decode: Any) -> None:
    decode(packed({"a": {str(number): 1 for number in range(60)}, "b": {str(number): 1 for number in range(60)}, "via": [b"a"] * 64}))
    for hostile in (
        {f"k{outer}": {f"{inner:02x}": 1 for inner in range(64)} for outer in range(24)},  # the same names again and again
        {f"k{outer}": {f"{outer}{inner:02x}": 1 for inner in range(64)} for outer in range(20)},
        {f"k{outer}": [1] * 60 for outer in range(60)},
    ):
        assert len(packed(hostile)) <= 8192
        with pytest.raises(BadOptions, match="within the limits"):
            decode(packed(hostile))


def test_unknown_entries_are_skipped() -> None:
    assert decode_request_options(packed({"colour": "blue"})) == RequestOptions()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deadline_ms", -1),
        ("deadline_ms", DEADLINE_MS_MAX + 1),
        ("deadline_ms", 1.5),
        ("deadline_ms", True),
        ("deadline_ms", "1"),
        ("key", b""),
        ("key", "text"),
        ("key", b"x" * 256),
        ("once", 1),
        ("wait", "yes"),
        ("delivery", 0),
        ("trace", []),
        ("headers", []),
        ("headers", {"a": b"b"}),
        ("headers", {"": "b"}),
        ("headers", {str(n): "" for n in range(HEADERS_MAX + 1)}),
        ("headers", {"a": "x" * HEADERS_BYTES_MAX}),
    ],
)
def test_wrong_request_options_name_the_entry(field: str, value: Any) -> None:
    with pytest.raises(BadOptions) as caught:
        decode_request_options(packed({field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("credit", 0),
        ("credit", CREDIT_MAX + 1),
        ("credit", "1"),
        ("version", 3),
        ("version", "v" * 65),
        ("metadata", 1),
        ("heartbeat_ms", 0),
    ],
)
def test_wrong_ready_options_name_the_entry(field: str, value: Any) -> None:
    with pytest.raises(BadOptions) as caught:
        decode_ready_options(packed({field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "octets",
    [
        packed([1, 2]),
        packed(None),
        packed({1: 2}),
        packed({"a": 1}) + b"\x00",
        b"\xdf\xff\xff\xff\xff",  # a map of 2^32-1 entries
        b"\xdd\xff\xff\xff\xff",
        b"\x81\xa1a\xc6\xff\xff\xff\xff",  # binary of 4 GiB
        b"\x91" * 5000,
        b"\x81\xa1a" * 1000,
        packed({"a": msgpack.ExtType(5, b"x")}),
        packed({"a": msgpack.Timestamp(1)}),
        b"\x81\xa1\xff\x01",
        b"\xc1",
        packed({"a": "x" * OPTIONS_BYTES_MAX}),
        packed({str(i): i for i in range(65)}),
    ],
)
def test_fault_x2_maps_that_are_none(octets: bytes) -> None:
    for decode in (decode_request_options, decode_ready_options):
        with pytest.raises(BadOptions):
            decode(octets)


def test_fault_x2_random_octets_raise_nothing_else() -> None:
    source = random.Random(20)
    refused = 0
    for _ in range(20_000):
        octets = source.randbytes(source.randrange(1, 24))
        if source.random() < 0.5:
            octets = bytes([0x80 | source.randrange(16)]) + octets
        try:
            decode_request_options(octets)
            decode_ready_options(octets)
        except BadOptions:
            refused += 1
    assert refused > 10_000


def test_a_version_is_made_safe_to_show() -> None:
    assert decode_ready_options(packed({"version": "1\n2"})).version == "310a32"


def test_amending_keeps_what_it_does_not_know() -> None:
    octets = amend_options(packed({"colour": "blue", "deadline_ms": 9}), deadline_ms=4, delivery=2)
    assert msgpack.unpackb(octets) == {"colour": "blue", "deadline_ms": 4, "delivery": 2}
    assert amend_options(b"", deadline_ms=None, delivery=1) == b""


@pytest.mark.parametrize("size", [1, 7, 248, 255])
def test_a_key_alone_is_recognized_by_its_bytes(size: int) -> None:
    key = b"k" * size
    octets = encode_options({"key": key})
    assert is_key_alone(octets)
    assert decode_request_options(octets) == RequestOptions(key=key)
    changed = [octets[:-1], octets + b"x", octets[:5], octets[:7], packed({"key": key, "once": True}), packed({"kex": key})]
    assert not any(map(is_key_alone, [b"", packed({"key": b""}), packed({"key": b"k" * 256}), packed({"key": "k"}), *changed]))


def test_options_recognized_as_a_key_alone_decode_to_a_key_alone() -> None:
    source = random.Random(21)
    known = 0
    for _ in range(20_000):
        octets = bytearray(encode_options({"key": source.randbytes(source.randrange(1, 9))}))
        if source.random() < 0.8:
            octets[source.randrange(len(octets))] = source.randrange(256)
        if is_key_alone(bytes(octets)):
            known += 1
            assert decode_request_options(bytes(octets)) == RequestOptions(key=bytes(octets[7:]))
    assert known > 4_000
