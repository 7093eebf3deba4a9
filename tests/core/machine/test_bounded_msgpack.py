"""core.machine.bounded_msgpack: what a peer's msgpack may cost, whatever its headers claim (fault X2)."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.machine.bounded_msgpack import CONTAINERS_MAX, DEPTH_MAX, SMALL_BYTES, BadMsgpack, check, claimed, unpack

KIB = 1024


def claim(head: int, count: int) -> bytes:
    """Return the header of an array (0xdd) or a map (0xdf) with four octets of count."""
    return bytes([head]) + count.to_bytes(4, "big")


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


HOSTILE = {
    "arrays that claim what is not there": claim(0xDD, 60_000) * 12_000,
    "one array of 4 billion": claim(0xDD, 2**32 - 1),
    "maps that claim what is not there": claim(0xDF, 30_000) * 12_000,
    "arrays of 16 bit": b"\xdc\xff\xff" * 20_000,
    "a text of 4 GiB": b"\xdb\xff\xff\xff\xff" + bytes(100),
    "octets of 4 GiB": b"\xc6\xff\xff\xff\xff" + bytes(100),
    "deep": nested(60_000),
    "deep maps": b"\x81\xa1k" * 20_000 + b"\xc0",
    "two values": b"\x01\x02" + bytes(SMALL_BYTES),
    "nothing": b"",
    "an extension": msgpack.packb(msgpack.ExtType(5, b"abc")),
    "a moment": msgpack.packb(msgpack.Timestamp(1)),
    "text that is no UTF-8": b"\xa2\xff\xfe",
    "a key that is an array": b"\x81\x91\x01\x01",
    "a reserved octet": b"\xc1",
}


@pytest.mark.parametrize("octets", HOSTILE.values(), ids=list(HOSTILE))
def test_x2_what_claims_more_than_it_has_is_refused_and_costs_what_it_weighs(octets: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadMsgpack):
            unpack(octets, strict_map_key=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The reader's own buffer and stack; of an honest value of that size there would be some 32 bytes for each octet.
    assert peak < 4 * len(octets) + 256 * KIB


def test_x2_a_check_before_another_decoder_makes_nothing_and_refuses_the_same() -> None:
    for name in ("arrays that claim what is not there", "arrays of 16 bit", "two values"):
        with suppress(BadMsgpack):
            check(HOSTILE[name], 100)
            assert name == "two values", "its decoder finds it"
    half = b"\x90" * 100
    octets = msgpack.packb([[], [], half, "\u0712" * 50]) + b""
    check(octets, 3)
    with pytest.raises(BadMsgpack, match="too many arrays and maps"):
        check(octets, 2)
    many = claim(0xDD, 200_000) + b"\x90" * 200_000
    tracemalloc.start()
    try:
        with pytest.raises(BadMsgpack, match="too many arrays and maps"):
            check(many, 150_000)
        check(many, 200_001)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(many), "an empty array takes 56 bytes"


def test_depth_is_bounded_for_arrays_and_maps() -> None:
    assert unpack(nested(DEPTH_MAX)) is not None
    with pytest.raises(BadMsgpack, match="deeper than 32"):
        unpack(nested(DEPTH_MAX + 1))
    with pytest.raises(BadMsgpack, match="deeper than 32"):
        unpack(b"\x81\xa1k" * (DEPTH_MAX + 1) + b"\xc0")
    wide = [[[number]] for number in range(1000)]  # many containers, but not in each other
    assert unpack(msgpack.packb(wide)) == wide


MANY = {"arrays": b"\x90", "maps": b"\x80", "arrays in arrays": b"\x91\x90", "arrays in maps": b"\x81\xa1k\x90"}


@pytest.mark.parametrize("piece", MANY.values(), ids=list(MANY))
def test_arrays_and_maps_are_bounded_in_number(piece: bytes) -> None:
    each = piece.count(b"\x90") + piece.count(b"\x80") + piece.count(b"\x91") + piece.count(b"\x81")
    pieces = 120 // each
    octets = b"\xdc" + pieces.to_bytes(2, "big") + piece * pieces
    whole = 1 + each * pieces
    assert len(unpack(octets, containers_max=whole)) == pieces
    with pytest.raises(BadMsgpack, match="too many arrays and maps"):
        unpack(octets, containers_max=whole - 1)
    by_chance = msgpack.packb([b"\x90\x80\xdd" * 1000, "\u0712" * 1000])  # in octets and in text
    assert unpack(by_chance, containers_max=1)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 200, 65_535, 65_536])
def test_what_an_array_claims_is_in_its_header(count: int) -> None:
    octets = msgpack.packb([0] * count)
    assert claimed(octets) == claimed(octets[:5]) == count
    assert [claimed(other) for other in (b"", b"\xdc", msgpack.packb({1: 2}), msgpack.packb("x" * 40), b"\x01")] == [0] * 5


def test_arrays_that_weigh_an_octet_do_not_cost_sixty() -> None:
    octets = claim(0xDD, 2 * CONTAINERS_MAX) + b"\x90" * (2 * CONTAINERS_MAX)
    tracemalloc.start()
    try:
        with pytest.raises(BadMsgpack):
            unpack(octets)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(octets) + 64 * CONTAINERS_MAX + 8 * len(octets)


def test_limits_of_the_caller_hold() -> None:
    assert unpack(msgpack.packb([1, 2]), max_array_len=2) == [1, 2]
    with pytest.raises(BadMsgpack):
        unpack(msgpack.packb([1, 2, 3]), max_array_len=2)
    with pytest.raises(BadMsgpack):
        unpack(msgpack.packb({1: 2}))
    assert unpack(msgpack.packb({1: 2}), strict_map_key=False) == {1: 2}
    assert unpack(msgpack.packb(msgpack.Timestamp(1)), extensions=True) == msgpack.Timestamp(1)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=100)
    | st.binary(max_size=100),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner, max_size=20),
    max_leaves=60,
)


@given(VALUES)
def test_whatever_is_packed_comes_back(value: Any) -> None:
    assert unpack(msgpack.packb(value)) == value


@given(st.binary(max_size=400), VALUES, st.integers(0, 400))
def test_no_octets_of_a_peer_raise_anything_else(octets: bytes, value: Any, cut: int) -> None:
    for given_octets in (octets, msgpack.packb(value)[:cut], msgpack.packb(value) + octets):
        try:
            unpack(given_octets, strict_map_key=False)
        except BadMsgpack:
            pass
