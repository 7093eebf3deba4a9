"""mdp.typed.schemas: hostile msgpack of 64 KiB is refused, or is not much work (fault X2).

What each message costs, compared with an honest one, is measured by `python -m benchmarks.hostile_messages`.
"""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from inspect import isfunction
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from mdp.typed.schemas import Schema, TypeMismatch
from tests.scenes.hostile_messages import (
    HONEST,
    HOSTILE,
    NAMES,
    OF_THEIR_KIND,
    SIZE,
    Code,
    Dot,
    Item,
    Loose,
    Order,
    Place,
    Record,
    named,
    padded,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MANY, KEYS, SLOW, ELEMENTS = "too many arrays and maps", "too many different keys", "chosen to be slow", "too many elements"
REFUSED = {
    "arrays, refused": MANY,
    "arrays, refused, typed": MANY,
    "one map, refused": "max_map_len",
    "two maps of other names, refused": MANY,
    "six maps of other names, refused": KEYS,
    "maps of one name, each another": KEYS,
    "dataclasses with one field of four": MANY,
    "dataclasses without their fields": MANY,
    "structs without their fields": MANY,
    "arrays in place of structs": MANY,
    "decimals of one digit, refused": ELEMENTS,
    "integers as decimals, refused": ELEMENTS,
    "integers as decimals in tuples, refused": ELEMENTS,
    "members of an enumeration in a set, refused": ELEMENTS,
    "short memory views, refused": ELEMENTS,
    "short texts with a pattern, refused": ELEMENTS,
    "sets in a set, refused": MANY,
    "short maps of integers": MANY,
    "maps of empty sets": MANY,
    "UUIDs of one hash": SLOW,
    "UUIDs of one hash as keys": SLOW,
    "decimals of one hash": SLOW,
    "numbers of a few hashes": SLOW,
    "numbers whose ways meet": SLOW,
    "numbers whose ways meet, for anything": SLOW,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_x2_hostile_64_kib_are_refused_or_within_the_limits(name: str) -> None:
    annotation, make = HOSTILE[name]
    octets = make()
    assert len(octets) <= SIZE + 512
    schema = Schema(annotation)
    if name == "a number that comes again and goes a long way":  # three times what is always quick: a faster machine may take it
        with suppress(TypeMismatch):
            assert schema.unpack(octets)
    elif name in REFUSED:
        with pytest.raises(TypeMismatch, match=REFUSED[name]):
            schema.unpack(octets)
    else:
        assert schema.unpack(octets)


def test_x2_the_honest_message_is_taken() -> None:
    assert 0.9 * SIZE < len(HONEST) <= SIZE
    assert len(Schema(Any).unpack(HONEST)) == 1_360


@pytest.mark.parametrize("annotation", OF_THEIR_KIND, ids=str)
def test_x2_honest_messages_of_each_kind_are_taken(annotation: Any) -> None:
    octets = OF_THEIR_KIND[annotation]()
    assert 0.9 * SIZE < len(octets) <= SIZE
    assert len(Schema(annotation).unpack(octets)) > 1_000


def test_x2_maps_have_as_many_different_names_as_their_bytes_pay_for() -> None:
    for annotation in (Any, list[Any]):
        schema = Schema(annotation)
        half = NAMES // 2
        one, other = named(half, b"\x01"), named(NAMES - half, b"\x01", half)
        assert len(schema.unpack(padded(named(NAMES, b"\x01")))[0]) == NAMES
        with pytest.raises(TypeMismatch, match="max_map_len"):
            schema.unpack(padded(named(NAMES + 1, b"\x01")))
        assert len(schema.unpack(padded(b"\x92" + one + other))[0]) == 2
        assert len(schema.unpack(padded(b"\x95" + one * 5))[0]) == 5, "the same names again cost little"
        with pytest.raises(TypeMismatch, match="too many different keys"):
            schema.unpack(padded(b"\x93" + one + other + b"\x81\xa1z\x01"))
    few = {f"{number:04x}": 1 for number in range(1_000)}
    assert Schema(Any).unpack(msgpack.packb(few)) == few
    with pytest.raises(TypeMismatch, match="within the limits"):
        Schema(Any).unpack(msgpack.packb({**few, "one more": 1}))
    typed = msgpack.packb({f"{number:04x}": 1 for number in range(9_000)})
    assert len(Schema(dict[str, int]).unpack(typed)) == 9_000, "where the annotation says what is made, the bytes are enough"


def test_x2_names_and_arrays_are_counted_together() -> None:
    octets = padded(b"\xdd" + (9_300).to_bytes(4, "big") + b"\x81\xa1k\x01" * 9_300)
    with pytest.raises(TypeMismatch, match="too many arrays and maps"):
        Schema(Any).unpack(octets)


@pytest.mark.parametrize("element", [[1], {"a": 1}, [], {}])
def test_an_array_or_a_map_in_a_set_is_a_mismatch(element: Any) -> None:
    for annotation in (set[Any], frozenset[Any], dict[str, set[Any]]):
        value = {"k": [element]} if annotation == dict[str, set[Any]] else [element]
        with pytest.raises(TypeMismatch, match="elements of a set"):
            Schema(annotation).unpack(msgpack.packb(value))


@pytest.mark.parametrize(
    ("annotation", "each"),
    [
        (list[Item], 16),
        (list[Record | int], 11),
        (list[Order], 12),
        (dict[str, Loose], 7),
        (list[dict[str, int]], 3),
        (list[Dot], 4),
        (list[tuple[Item, Item]], 16),
    ],
)
def test_x2_records_need_two_thirds_of_the_bytes_of_their_names(annotation: Any, each: int) -> None:
    schema = Schema(annotation)
    for size in (4_000, SIZE):
        most = 500 + size // each
        for count in (min(most, size - 8), most + 1):
            # Behind the maps comes what is no record: the number of maps is judged first.
            text = size - count - 8
            octets = b"\xdd" + (count + 1).to_bytes(4, "big") + b"\x80" * count + b"\xda" + text.to_bytes(2, "big") + b"a" * text
            with pytest.raises(TypeMismatch) as error:
                schema.unpack(octets)
            assert ("too many arrays and maps" in str(error.value)) == (count > most), (size, count, str(error.value))


def test_x2_honest_records_of_64_kib_are_not_refused() -> None:
    dots = [{"x": 1, "y": 2}] * (SIZE // 7)
    assert len(Schema(list[Dot]).unpack(msgpack.packb(dots))) == len(dots)
    places = [(1, 2)] * (SIZE // 3)
    assert len(Schema(list[Place]).unpack(msgpack.packb(places))) == len(places)
    texts = {f"{number}": [number, number] for number in range(SIZE // 9)}
    assert len(Schema(dict[str, list[int]]).unpack(msgpack.packb(texts))) == len(texts)
    orders = [{"id": 1, "name": "", "price": 1.0, "active": True, "tags": [], "more": {}}] * (SIZE // 46)
    assert len(Schema(list[Order]).unpack(msgpack.packb(orders))) == len(orders)
    few = b"\xdc\x01\xf4" + b"\x80" * 500
    assert len(Schema(list[Item]).unpack(few)) == 500
    by_chance = [{"name": "\u4e00\u0712\u0780" * 8_000, "id": 1}]  # bytes in texts that look like maps
    assert Schema(list[Item]).unpack(msgpack.packb(by_chance))[0].id == 1


def test_x2_names_and_maps_are_counted_together() -> None:
    most = 1_000 + SIZE // 12 + 1_000
    names = NAMES - 100
    assert len(Schema(Any).unpack(padded(b"\x92" + named(names, b"\x01") + b"\x90"))[0]) == 2
    for maps, refused in ((most - 2 * 1_500 - 1, False), (most - 2 * 1_500 + 100, True)):
        pieces = [b"\x81\xa4%04x\x01" % (number % 1_500) for number in range(maps)]
        octets = padded(b"\xdd" + maps.to_bytes(4, "big") + b"".join(pieces))
        if refused:
            with pytest.raises(TypeMismatch, match="too many different keys"):
                Schema(Any).unpack(octets)
        else:
            assert len(Schema(Any).unpack(octets)[0]) == maps


@pytest.mark.parametrize("annotation", [list[int], tuple[int, ...], set[int], list[list[int]], dict[str, list[str]], tuple[list[int], int]])
@pytest.mark.parametrize("count", [1_000, 2**32 - 1])
def test_x2_msgspec_believes_no_claim_of_elements_that_are_not_there(annotation: Any, count: int) -> None:
    claim = b"\xdd" + count.to_bytes(4, "big")
    head = {dict[str, list[str]]: b"\x81\xa1k", tuple[list[int], int]: b"\x92"}.get(annotation, b"")
    for octets in (head + claim, head + claim * 2, head + claim + b"\x01" * 900):
        schema = Schema(annotation)
        tracemalloc.start()
        with pytest.raises(TypeMismatch):
            schema.unpack(octets)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 100_000


class Size(Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Invoice:
    prices: list[Decimal]
    more: Decimal = Decimal(0)


@dataclass
class Article:
    id: int
    price: Decimal
    tags: list[int]


@pytest.mark.parametrize(
    ("annotation", "make"),
    [
        (list[Decimal], lambda count: [1] * count),
        (tuple[Decimal | None, ...], lambda count: [1] * count),
        (set[Decimal], lambda count: [1] * count),
        (frozenset[Size], lambda count: [1] * count),
        (dict[str, Decimal], lambda count: {f"{number:05}": 1 for number in range(count)}),
        (dict[str, list[Decimal]], lambda count: {"a": [1] * (count - 1)}),
        (Invoice, lambda count: {"prices": [1] * (count - 2), "more": 1}),
        (list[Article], lambda count: [{"id": 1, "price": 2, "tags": [7] * (count - 4)}]),
        (list[tuple[Decimal, int]], lambda count: [[1, 2]] * (count // 3)),
    ],
    ids=lambda given: None if isfunction(given) else str(given),
)
def test_x2_elements_that_take_long_need_their_bytes(annotation: Any, make: Callable[[int], Any]) -> None:
    schema = Schema(annotation)
    assert schema.unpack(msgpack.packb(make(3_999))) is not None
    for count in (9_000, 36_000):
        octets = msgpack.packb(make(count))
        if count > 4_000 + len(octets) // 3:
            with pytest.raises(TypeMismatch, match="too many elements"):
                schema.unpack(octets)
        else:
            assert schema.unpack(octets) is not None


def test_x2_a_row_of_decimals_has_as_many_as_its_bytes_pay_for() -> None:
    schema = Schema(list[Decimal])
    for count, refused in ((25_845, False), (25_846, True)):
        digits = SIZE - 7 - count
        octets = b"\xdd" + count.to_bytes(4, "big") + b"\x01" * (count - 1) + b"\xda" + digits.to_bytes(2, "big") + b"5" * digits
        assert len(octets) == SIZE
        if refused:
            with pytest.raises(TypeMismatch, match="too many elements"):
                schema.unpack(octets)
        else:
            assert len(schema.unpack(octets)) == count


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Decimal, "1.5"),
        (tuple[Decimal, list[int]], ["1.5", [1] * 60_000]),
        (tuple[Size, Decimal, list[int]], [1, "1.5", [1] * 60_000]),
        (list[Size], [1] * 60_000),
        (dict[str, int], {f"{number:x}": 1 for number in range(13_000)}),
    ],
    ids=str,
)
def test_x2_elements_that_take_no_longer_than_others_are_not_counted(annotation: Any, value: Any) -> None:
    assert Schema(annotation).unpack(msgpack.packb(value)) is not None


@dataclass
class Plain:
    x: int = 0


@dataclass
class Nested:
    many: list[Plain]


@pytest.mark.parametrize(
    ("annotation", "octets"),
    [
        (list[Nested], b"\x91\x81\xa4many\xdd" + (9_000).to_bytes(4, "big") + b"\x80" * 9_000),
        (list[list[Plain]], b"\x91\xdd" + (9_000).to_bytes(4, "big") + b"\x80" * 9_000),
        (list[Plain], b"\xdd" + (9_000).to_bytes(4, "big") + b"\x80" * 9_000),
        (tuple[Plain, ...], b"\xdd" + (9_000).to_bytes(4, "big") + b"\x80" * 9_000),
    ],
)
def test_x2_what_an_array_claims_is_enough_only_if_its_elements_have_no_maps(annotation: Any, octets: bytes) -> None:
    with pytest.raises(TypeMismatch, match="too many arrays and maps"):
        Schema(annotation).unpack(octets)


def test_x2_maps_of_one_pair_of_integers_are_taken() -> None:
    pairs = [{2**30 + number: 2**30 + number} for number in range(5_950)]
    octets = msgpack.packb(pairs)
    assert 0.9 * SIZE < len(octets) <= SIZE
    assert Schema(list[dict[int, int]]).unpack(octets) == pairs


@pytest.mark.parametrize(
    ("annotation", "short", "long", "free", "each"),
    [
        (list[memoryview], b"\xc4\x00", b"\xc5", 500, 10),
        (tuple[memoryview, ...], b"\xc4\x00", b"\xc5", 500, 10),
        (list[memoryview | int], b"\xc4\x00", b"\xc5", 500, 10),
        (list[memoryview | list[int]], b"\xc4\x00", b"\xc5", 4_000, 3),
        (list[Code], b"\xa0", b"\xda", 4_000, 3),
        (list[Code | int], b"\xa0", b"\xda", 4_000, 3),
    ],
)
def test_x2_values_that_take_long_to_make_are_as_many_as_their_bytes_pay_for(
    annotation: Any, short: bytes, long: bytes, free: int, each: int
) -> None:
    schema = Schema(annotation)
    for count in (most := free + SIZE // each, most + 1):
        rest = SIZE - 5 - len(short) * (count - 1) - 3
        octets = b"\xdd" + count.to_bytes(4, "big") + short * (count - 1) + long + rest.to_bytes(2, "big") + b"A" * rest
        assert len(octets) == SIZE
        with pytest.raises(TypeMismatch, match=ELEMENTS) if count > most else nullcontext():
            assert len(schema.unpack(octets)) == count
