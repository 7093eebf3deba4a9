"""Hostile msgpack of 64 KiB for typed services, beside honest messages of that size (fault X2).

The honest message is a list of records with four fields, for a service that takes `Any`: what a program without annotated records
sends. Honest sets, dicts and decimals take longer than that, so a service that takes one of these has an honest message of
its own kind in `OF_THEIR_KIND`: numbers and UUIDs at random, prices below a thousand. The limits are set so that no hostile message costs
more than 3 times the dearer of its two honest ones: `python -m benchmarks.hostile_messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import msgpack
import msgspec

from tests.scenes.meeting_hashes import meeting

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "HONEST", "HOSTILE", "NAMES", "OF_THEIR_KIND", "SIZE",
    "Code", "Dot", "Item", "Loose", "Order", "Place", "Record", "filled", "named", "padded",
]  # fmt: skip

SIZE = 64 * 1024
NAMES = SIZE // 20
P = 2**61 - 1  # CPython's hash of a number is its remainder
HONEST = msgpack.packb([{"id": 7919 * row, "name": f"item {row:05}", "price": 1.37 * row, "active": row % 3 == 0} for row in range(1_360)])


def filled(head: int, count: int, pieces: bytes) -> bytes:
    """Return an array (0xdd) of some pieces, filled up with numbers."""
    numbers = SIZE - 5 - len(pieces)
    return bytes([head]) + (count + numbers).to_bytes(4, "big") + pieces + b"\x01" * numbers


def named(count: int, value: bytes, first: int = 0) -> bytes:
    """Return a map of so many short names that are all different."""
    return b"\xdf" + count.to_bytes(4, "big") + b"".join(b"\xa4%04x" % number + value for number in range(first, first + count))


def padded(octets: bytes) -> bytes:
    """Return an array of a value and of as many bytes as the size wants."""
    filling = SIZE - 4 - len(octets)
    return b"\x92" + octets + b"\xc5" + filling.to_bytes(2, "big") + bytes(filling)


def packed(value: Any) -> bytes:
    octets: bytes = msgpack.packb(value)
    return octets


def of_one_hash(hashed: int) -> list[float | int]:
    """Return different numbers with one hash: a remainder of 2**61 - 1, to which 2**61 is 1."""
    return [*(hashed + P * times for times in range(7)), *(float(hashed) * 2.0 ** (61 * times) for times in range(-16, 16))]


def going_again() -> bytes:
    """Return a map in which a number that goes a long way comes again and again."""
    way = meeting(12, 2_700)
    keys = [*way[:1_350], *way[-1:] * 5_250]
    return b"\xdf" + len(keys).to_bytes(4, "big") + b"".join(packed(key) + b"\x01" for key in keys)


@dataclass
class Item:
    id: int = 0
    name: str = ""
    price: float = 0.0
    active: bool = False


@dataclass
class Order:
    id: int = 0
    name: str = ""
    price: float = 0.0
    active: bool = False
    tags: list[str] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)


class Record(msgspec.Struct):
    id: int = 0
    name: str = ""
    tags: list[str] = msgspec.field(default_factory=list)


class Loose(TypedDict, total=False):
    id: int
    name: str


class Place(NamedTuple):
    x: int
    y: int


class Dot(msgspec.Struct):
    x: int
    y: int


class Colour(Enum):
    RED = 1
    BLUE = 2


Code = Annotated[str, msgspec.Meta(pattern="^[A-Z]*$")]


def repeated(element: Any) -> bytes:
    """Return an array of one element again and again."""
    piece = packed(element)
    count = (SIZE - 5) // len(piece)
    return b"\xdd" + count.to_bytes(4, "big") + piece * count


def honest(make: Callable[[], Any]) -> bytes:
    """Return an array of as many values as the size has, or a map of as many pairs."""
    made, pieces, size = make(), list[bytes](), 5
    first = b"\xdf" if isinstance(made, tuple) else b"\xdd"
    while size < SIZE - 64:
        made = make()
        pieces.append(b"".join(map(packed, made)) if isinstance(made, tuple) else packed(made))
        size += len(pieces[-1])
    return first + len(pieces).to_bytes(4, "big") + b"".join(pieces)


DRAW = Random(7)


def price() -> str:
    return f"{DRAW.randrange(1_000)}.{DRAW.randrange(100):02}"


def any_uuid() -> str:
    return str(UUID(int=DRAW.getrandbits(128)))


OF_THEIR_KIND: dict[Any, Callable[[], bytes]] = {
    set[int]: lambda: honest(lambda: DRAW.getrandbits(63)),
    set[float]: lambda: honest(lambda: DRAW.random()),
    set[UUID]: lambda: honest(any_uuid),
    set[Decimal]: lambda: honest(price),
    set[timedelta]: lambda: honest(lambda: f"PT{DRAW.randrange(100_000)}S"),
    set[tuple[int, int]]: lambda: honest(lambda: [DRAW.getrandbits(31), DRAW.getrandbits(31)]),
    set[frozenset[int]]: lambda: honest(lambda: [DRAW.getrandbits(31) for _ in range(4)]),
    list[Decimal]: lambda: honest(price),
    list[tuple[str, Decimal]]: lambda: honest(lambda: [f"item {DRAW.randrange(10_000)}", price()]),
    list[set[int]]: lambda: honest(lambda: [DRAW.getrandbits(31) for _ in range(4)]),
    list[dict[int, int]]: lambda: honest(lambda: {DRAW.getrandbits(31): DRAW.getrandbits(31) for _ in range(4)}),
    list[dict[str, set[int]]]: lambda: honest(lambda: {"seen": [DRAW.getrandbits(31) for _ in range(4)]}),
    dict[int, int]: lambda: honest(lambda: (DRAW.getrandbits(63), DRAW.getrandbits(20))),
    dict[UUID, int]: lambda: honest(lambda: (any_uuid(), DRAW.getrandbits(20))),
    dict[str, Decimal]: lambda: honest(lambda: (f"item {DRAW.randrange(10_000)}", price())),
    list[memoryview]: lambda: honest(lambda: DRAW.randbytes(16)),
    list[Code]: lambda: honest(lambda: "".join(DRAW.choices("ABCDEFGH", k=4))),
    dict[Code, int]: lambda: honest(lambda: ("".join(DRAW.choices("ABCDEFGHIJKLMNOPQRST", k=3)), DRAW.getrandbits(20))),
}

# Made when they are asked for: some take a tenth of a second.
HOSTILE: dict[str, tuple[Any, Callable[[], bytes]]] = {
    "arrays, refused": (Any, lambda: filled(0xDD, 60_000, b"\x90" * 60_000)),
    "arrays, refused, typed": (list[list[int] | int], lambda: filled(0xDD, 60_000, b"\x90" * 60_000)),
    "arrays, just allowed": (Any, lambda: filled(0xDD, 6_455, b"\x90" * 6_455)),
    "arrays, just allowed, typed": (list[list[int] | int], lambda: filled(0xDD, 22_000, b"\x90" * 22_000)),
    "maps, just allowed": (Any, lambda: filled(0xDD, 6_455, b"\x81\xa1k\x01" * 6_455)),
    "one map, refused": (dict[str, Any], lambda: named(10_900, b"\x90")),
    "one map, just allowed": (Any, lambda: padded(named(NAMES, b"\x90"))),
    "two maps of other names, refused": (Any, lambda: padded(b"\x92" + named(NAMES, b"\x90") + named(NAMES, b"\x90", NAMES))),
    "six maps of other names, refused": (Any, lambda: padded(b"\x96" + b"".join(named(1_800, b"\x01", 1_800 * one) for one in range(6)))),
    "maps of one name, each another": (
        Any,
        lambda: padded(b"\xdd" + (6_455).to_bytes(4, "big") + b"".join(b"\x81\xa4%04x\x01" % one for one in range(6_455))),
    ),
    "names and maps together": (
        Any,
        lambda: filled(0xDD, 5_000, b"".join(b"\x81\xa2" + bytes([number % 100, number % 25]) + b"\x01" for number in range(5_000))),
    ),
    "dataclasses with one field of four": (list[Item], lambda: b"\xdd" + (12_000).to_bytes(4, "big") + b"\x81\xa2id\x01" * 12_000),
    "dataclasses without their fields": (list[Order], lambda: filled(0xDD, 22_000, b"\x80" * 22_000)),
    "structs without their fields": (list[Record], lambda: filled(0xDD, 22_000, b"\x80" * 22_000)),
    "arrays in place of structs": (list[Record], lambda: b"\xdd" + (60_000).to_bytes(4, "big") + b"\x90" * 60_000),
    "a set of texts": (
        set[str],
        lambda: b"\xdd" + (13_000).to_bytes(4, "big") + b"".join(b"\xa4%04x" % number for number in range(13_000)),
    ),
    "UUIDs of one hash": (set[UUID], lambda: packed([str(UUID(int=number * P + 5)) for number in range(1, 1_720)])),
    "UUIDs of one hash as keys": (dict[UUID, int], lambda: packed({str(UUID(int=number * P + 5)): 1 for number in range(1, 1_660)})),
    "decimals of one digit, refused": (list[Decimal], lambda: repeated("1")),
    "integers as decimals, refused": (list[Decimal], lambda: repeated(1)),
    "integers as decimals, just allowed": (
        list[Decimal],
        lambda: b"\xdd" + (25_800).to_bytes(4, "big") + b"\xce\x01\x00\x00\x00" * 9_900 + b"\x01" * 15_900,
    ),
    "integers as decimals in tuples, refused": (list[tuple[str, Decimal]], lambda: repeated(["", 1])),
    "integers as decimals of short names": (dict[str, Decimal], lambda: named(10_900, b"\x01")),
    "decimals of long exponents in a set": (set[Decimal], lambda: repeated("1E999999")),
    "one integer again and again": (set[int], lambda: repeated(1)),
    "one integer again and again, for floats": (set[float], lambda: repeated(1)),
    "one duration again and again": (set[timedelta], lambda: repeated("P1D")),
    "members of an enumeration in a set, refused": (set[Colour], lambda: repeated(1)),
    "short tuples in a set": (set[tuple[int, int]], lambda: repeated([1, 2])),
    "short sets": (list[set[int]], lambda: repeated([*range(9)])),
    "sets in a set, refused": (set[frozenset[int]], lambda: repeated([1])),
    "decimals of one hash": (set[Decimal], lambda: packed([str(number * P + 5) for number in range(1, 2_850)])),
    "numbers of a few hashes": (set[Any], lambda: packed([value for hashed in range(1, 185) for value in of_one_hash(hashed)])),
    "numbers whose ways meet": (dict[int, int], lambda: packed(dict.fromkeys(meeting(13, 5_400), 1))),
    "a number that comes again and goes a long way": (dict[int, int], going_again),
    "numbers whose ways meet, for anything": (list[Any], lambda: padded(packed(dict.fromkeys(meeting(12, 2_700), 1)))),
    "multiples of 2**40": (set[int], lambda: packed([number << 40 for number in range(1, 7_200)])),
    "floats that are multiples of 2**48": (set[float], lambda: packed([float(number << 48) for number in range(1, 7_200)])),
    "multiples of 2**48 as keys": (dict[int, int], lambda: packed({number << 48: 1 for number in range(1, 6_500)})),
    "a set of anything": (
        set[Any],
        lambda: b"\xdd" + (13_000).to_bytes(4, "big") + b"".join(b"\xa4%04x" % number for number in range(13_000)),
    ),
    "short maps of integers": (list[dict[int, int]], lambda: repeated({1: 0})),
    "short memory views, refused": (list[memoryview], lambda: repeated(b"")),
    "short memory views, just allowed": (
        list[memoryview],
        lambda: b"\xdd" + (7_025).to_bytes(4, "big") + b"\xc4\x00" * 7_024 + b"\xc5\xc8\x00" + bytes(51_200),
    ),
    "short texts with a pattern, refused": (list[Code], lambda: repeated("")),
    "short texts with a pattern, just allowed": (
        list[Code],
        lambda: b"\xdd" + (25_800).to_bytes(4, "big") + b"\xa0" * 15_900 + b"\xa4ABCD" * 9_900,
    ),
    "short keys with a pattern": (
        dict[Code, int],
        lambda: b"\xdf" + (25_800).to_bytes(4, "big") + b"\xa0\x01" * 25_799 + b"\xda\x36\xb0" + b"A" * 14_000 + b"\x01",
    ),
    "maps of empty sets": (list[dict[str, set[int]]], lambda: repeated({"": []})),
}
