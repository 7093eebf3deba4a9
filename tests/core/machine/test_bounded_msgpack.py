"""core.machine.bounded_msgpack: what a peer's msgpack may cost, whatever its headers claim (fault X2)."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.machine.bounded_msgpack import (
    CONTAINERS_MAX,
    DEPTH_MAX,
    LARGE_BYTES,
    SMALL_BYTES,
    BadMsgpack,
    check,
    check_counts,
    check_elements,
    claimed,
    uncollected,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    "an extension of one byte": msgpack.packb(msgpack.ExtType(5, b"a")),
    "an extension without bytes": b"\xc7\x00\x05",
    "extensions without bytes": b"\x94\xc7\x00\x05\xc8\x00\x00\x7f\xc9\x00\x00\x00\x00\x80",
    "a moment without bytes": b"\xc7\x00\xff",
    "a moment": msgpack.packb(msgpack.Timestamp(1)),
    "text that is no UTF-8": b"\xa2\xff\xfe",
    "a key that is an array": b"\x81\x91\x01\x01",
    "a reserved octet": b"\xc1",
}


@pytest.mark.parametrize("octets", HOSTILE.values(), ids=list(HOSTILE))
def test_x2_what_claims_more_than_it_has_is_refused_and_costs_what_it_weighs(octets: bytes) -> None:
    tracemalloc.start()
    try:
        for strict in (True, False):
            with pytest.raises(BadMsgpack):
                unpack(octets, strict_map_key=strict)
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
        with suppress(BadMsgpack):
            check(HOSTILE[name], -1)
            assert name == "two values", "a false claim is refused without a limit too"
    half = b"\x90" * 100
    octets = msgpack.packb([[], {1: 2}, half, "\u0712" * 50])
    check(octets, 3)
    with pytest.raises(BadMsgpack, match="too many arrays and maps"):
        check(octets, 2)
    for size in (SMALL_BYTES, SMALL_BYTES + 1):
        octets = b"\xdc" + (size - 3).to_bytes(2, "big") + b"\x90" * (size - 3)
        if size > SMALL_BYTES:
            with pytest.raises(BadMsgpack, match="too many arrays and maps"):
                check(octets, 10)
        else:
            check(octets, 10)  # too few bytes to be worth it
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


def test_a_check_of_numbers_alone_leaves_false_claims_to_the_other_decoder() -> None:
    lie = claim(0xDD, 2**32 - 1) + b"\x01" * 100
    check_counts(lie, 10)
    with pytest.raises(BadMsgpack):
        check(lie, 10)
    many = claim(0xDD, 100) + b"\x90" * 90
    check_counts(many, 100)
    with pytest.raises(BadMsgpack):  # before they are counted, claims are judged
        check_counts(many, 50)


def test_depth_is_bounded_for_arrays_and_maps() -> None:
    assert unpack(nested(DEPTH_MAX)) is not None
    with pytest.raises(BadMsgpack, match="deeper than 32"):
        unpack(nested(DEPTH_MAX + 1))
    with pytest.raises(BadMsgpack, match="deeper than 32"):
        unpack(b"\x81\xa1k" * (DEPTH_MAX + 1) + b"\xc0")
    wide = [[[number]] for number in range(1000)]  # many containers, but not in each other
    assert unpack(msgpack.packb(wide)) == wide
    assert unpack(msgpack.packb(wide), extensions=True) == wide
    for deep in (nested(DEPTH_MAX + 1), b"\x81\xa1k" * (DEPTH_MAX + 1) + b"\xc0", b"\x81\xa1k\x91" * DEPTH_MAX + b"\xc0"):
        with pytest.raises(BadMsgpack, match="deeper than 32"):
            unpack(deep, extensions=True)
    moment = msgpack.Timestamp(1)
    assert unpack(b"\x91" * DEPTH_MAX + msgpack.packb(moment), extensions=True) is not None


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
    few = b"\xdc" + (DEPTH_MAX - 3).to_bytes(2, "big") + b"\x90" * (DEPTH_MAX - 3)
    assert unpack(few, containers_max=1), "bytes that cannot nest too deep are not counted"
    by_chance = msgpack.packb([b"\x90\x80\xdd" * 1000, "\u0712" * 1000])  # in octets and in text
    assert unpack(by_chance, containers_max=1)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 200, 65_535, 65_536])
def test_what_an_array_claims_is_in_its_header(count: int) -> None:
    octets = msgpack.packb([0] * count)
    assert claimed(octets) == claimed(octets[:5]) == count
    assert [claimed(other) for other in (b"", b"\xdc", b"\x8f", b"\xa0", msgpack.packb({1: 2}), msgpack.packb("x" * 40), b"\x01")] == [
        0
    ] * 7


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


LIMITED: Callable[..., Any] = unpack  # with limits from a list
LONG = "x" * SMALL_BYTES  # beside it a few values are no longer too few to be worth a check


def test_a_check_has_a_limit_for_all_and_one_for_maps() -> None:
    octets = msgpack.packb([{}, {}, [], LONG])
    for limits in ((4,), (-1,), (4, 2), (-1, 2), (-1, len(octets))):
        check(octets, *limits)
    for limits in ((3,), (0,), (3, 2), (-1, 1), (-1, 0), (4, 1)):
        with pytest.raises(BadMsgpack, match="too many arrays and maps"):
            check(octets, *limits)
    many = claim(0xDD, 100_000) + b"\x80" * 100_000
    tracemalloc.start()
    try:
        check(many, -1, 99_999 + 1)
        with pytest.raises(BadMsgpack, match="too many arrays and maps"):
            check(many, -1, 99_999)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(many), "an empty map takes 64 bytes"


@pytest.mark.parametrize("value", [[1] * 90, dict.fromkeys(range(90), 1), [[1] * 29] * 3, [{"a": 1}] * 45, [[1, {2: [3]}]] * 18])
def test_a_check_counts_the_elements_of_all_arrays_and_maps(value: Any) -> None:
    octets = msgpack.packb(value)
    check_elements(octets, 90)
    check_elements(b"\xdd\xff\xff\xff\xff", 5)  # so few bytes cannot have more
    for most in (0, 50, 89):
        with pytest.raises(BadMsgpack, match="too many elements"):
            check_elements(octets, most)
    for claims in (b"\xdd\xff\xff\xff\xff", b"\xdf\x00\x10\x00\x00", b"\xc1"):
        with pytest.raises(BadMsgpack):
            check_elements(claims, 2 if len(claims) > 2 else 0)


def test_different_keys_of_all_maps_are_bounded() -> None:
    value = [{"a": 1}, {"b": 1}, {"c": 1}, {"a": 2}]  # three keys, four maps
    octets = msgpack.packb(value)
    together = 2 * 3 + 4
    for limits in ({"names_max": 3}, {"names_max": 3, "together_max": together}, {"names_max": len(octets) // 2, "together_max": 0}):
        assert LIMITED(octets, **limits) == value
    for limits in ({"names_max": 2}, {"names_max": 3, "together_max": together - 1}, {"names_max": 7, "together_max": 0}):
        with pytest.raises(BadMsgpack, match="too many different keys"):
            LIMITED(octets, **limits)
    assert unpack(msgpack.packb([{}]), names_max=0) == [{}]
    with pytest.raises(BadMsgpack):
        unpack(msgpack.packb([{"a": 1}]), names_max=0)
    # By default the sum is bounded by the bytes.
    crowd: list[dict[str, int]] = [{}] * 40 + [{str(number): 0} for number in range(10)]
    assert unpack(msgpack.packb(crowd), names_max=10) == crowd


def test_a_limit_of_entries_and_one_of_keys_hold_together() -> None:
    octets = msgpack.packb({"a": 1, "b": 2, "c": LONG})
    for limits in ({"max_map_len": 3, "names_max": 4}, {"max_map_len": 4, "names_max": 3}, {"names_max": 3}):
        assert len(LIMITED(octets, **limits)) == 3
    for limits in (
        {"max_map_len": 2, "names_max": 4},
        {"max_map_len": 4, "names_max": 2},
        {"names_max": 2},
        {"max_map_len": 0, "names_max": 4},
    ):
        with pytest.raises(BadMsgpack):
            LIMITED(octets, **limits)


def test_elements_of_all_arrays_and_maps_are_bounded() -> None:
    value = [[1, 2], {"a": 1}, [], LONG]  # seven elements, four arrays and maps
    octets = msgpack.packb(value)
    assert unpack(octets, entries_max=7, containers_max=4) == value
    with pytest.raises(BadMsgpack, match=r"^too many elements$"):
        unpack(octets, entries_max=6)
    assert unpack(msgpack.packb([[]]), entries_max=1) == [[]]
    for limit in (19, 11, 1):  # an element of an array takes one byte
        with pytest.raises(BadMsgpack, match="too many elements"):
            unpack(msgpack.packb([None] * 20), entries_max=limit)
    assert unpack(msgpack.packb([]), entries_max=0) == []
    with pytest.raises(BadMsgpack, match="too many elements"):
        unpack(msgpack.packb([None, None]), entries_max=0)
    for others in ({"entries_max": 7}, {"names_max": 4}):
        with pytest.raises(BadMsgpack, match="too many arrays and maps"):
            LIMITED(octets, containers_max=3, **others)
    maps = msgpack.packb([{}, {}, {}, LONG])
    with pytest.raises(BadMsgpack, match="too many arrays and maps"):
        unpack(maps, containers_max=2, names_max=4)


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """Begin a collection of garbage at almost every object; the fixture is a list of them."""
    begun: list[str] = []

    def note(phase: str, _: object) -> None:
        if phase == "start":
            begun.append(phase)

    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(10)
    try:
        yield begun
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(note)
        gc.enable()


def test_no_garbage_is_collected_while_a_large_value_is_made(collections: list[str]) -> None:
    large, small = msgpack.packb([[]] * LARGE_BYTES), msgpack.packb([])
    collections.clear()
    unpack(large)
    assert len(collections) < 10, "but afterwards"
    for octets in (small, large):
        assert unpack(octets) is not None
        assert gc.isenabled()
    gc.disable()
    for octets in (small, large):
        assert unpack(octets) is not None
        assert not gc.isenabled(), "who has disabled it enables it again"


def test_another_decoder_is_called_without_collections_if_there_are_many_bytes(collections: list[str]) -> None:
    collections.clear()
    seen = []

    def decode(octets: bytes) -> int:
        seen.append(gc.isenabled())
        return len(octets)

    for size in (LARGE_BYTES, LARGE_BYTES + 1):
        assert uncollected(decode, bytes(size)) == size
        assert gc.isenabled()
    gc.disable()
    for size in (LARGE_BYTES, LARGE_BYTES + 1):
        assert uncollected(decode, bytes(size)) == size
        assert not gc.isenabled()
    assert seen == [True, False, False, False]
    gc.enable()
    with pytest.raises(ZeroDivisionError):
        uncollected(lambda _: 1 // 0, bytes(LARGE_BYTES + 1))
    assert gc.isenabled()


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
            found = unpack(given_octets, strict_map_key=False)
        except BadMsgpack:
            continue
        assert repr(found) == repr(msgpack.unpackb(given_octets, strict_map_key=False))
