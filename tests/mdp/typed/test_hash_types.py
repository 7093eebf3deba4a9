"""Wherever an annotation has a set or a dict, one that a peer has made slow is refused (fault X2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgpack
import msgspec
import pytest

from mdp.typed.schemas import Schema, TypeMismatch
from tests.scenes.meeting_hashes import meeting

P = 2**61 - 1
ALIKE = [str(UUID(int=5 + P * times)) for times in range(1, 40)]
OTHERS = [str(UUID(int=times)) for times in range(1, 40)]
DECIMALS = [str(5 + P * times) for times in range(1, 40)]
POWERS = [2.0 ** (61 * times) for times in range(16)]  # of one hash
WAYS = meeting(12, 2_700)  # several times what is quick, on a fast processor too


@dataclass(frozen=True)
class Point:
    x: UUID
    y: int = 0


class Place(NamedTuple):
    x: UUID
    y: int


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Box:
    names: list[str] = field(default_factory=list)
    ids: set[UUID] = field(default_factory=set)
    inner: list[Box] = field(default_factory=list)


@dataclass
class Tray:
    counts: dict[int, int]
    ids: list[set[UUID]] = field(default_factory=list)


class Shelf(msgspec.Struct):
    boxes: dict[str, frozenset[UUID]] = {}
    owners: dict[UUID, str] = {}


SLOW: list[tuple[Any, Any]] = [
    (set[UUID], ALIKE),
    (frozenset[UUID], ALIKE),
    (set[UUID | int], ALIKE),
    (set[tuple[UUID, int]], [[one, 1] for one in ALIKE]),
    (set[tuple[UUID, ...]], [[one] for one in ALIKE]),
    (set[frozenset[UUID]], [ALIKE]),
    (set[frozenset[UUID]], [[one] for one in ALIKE]),
    (set[Point], [{"x": one, "y": 1} for one in ALIKE]),
    (set[Place], [[one, 1] for one in ALIKE]),
    (set[Decimal], DECIMALS),
    (set[Decimal | None], DECIMALS),
    (list[list[set[UUID]]], [[[], OTHERS], [ALIKE]]),
    (dict[UUID, int], dict.fromkeys(ALIKE, 1)),
    (dict[str, dict[UUID, int]], {"a": dict.fromkeys(ALIKE, 1)}),
    (dict[int, str], dict.fromkeys(WAYS, "")),
    (dict[str, dict[int, list[int]]], {"a": {key: [1] for key in WAYS}}),
    (dict[Any, Any], dict.fromkeys(POWERS, 1)),
    (Any, dict.fromkeys(POWERS, 1)),
    (object, [dict.fromkeys(POWERS, 1)]),
    (set[Any], [*POWERS, 2]),
    (set[float], POWERS),
    (Box, {"ids": ALIKE}),
    (Tray, {"counts": dict.fromkeys(WAYS, 1)}),
    (Box, {"inner": [{}, {"inner": [{"ids": ALIKE}]}]}),
    (Shelf, {"boxes": {"a": ALIKE}}),
    (Shelf, {"owners": dict.fromkeys(ALIKE, "")}),
]


@pytest.mark.parametrize(("annotation", "value"), SLOW, ids=[f"{number}-{str(one[0])[:40]}" for number, one in enumerate(SLOW)])
def test_x2_a_set_or_dict_of_values_that_meet_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(TypeMismatch, match="chosen to be slow"):
        Schema(annotation).unpack(msgpack.packb(value))


@dataclass
class Everything:
    ids: set[UUID]
    owners: dict[UUID, str]
    counts: dict[int, set[int]]
    when: set[datetime]
    days: set[date]
    lengths: frozenset[timedelta]
    points: set[Point]
    colours: set[Colour]
    words: set[Literal["a", "b"]]
    mixed: set[int | str | None]
    pairs: set[tuple[str, int]]
    prices: set[Decimal]
    anything: set[Any]
    records: list[dict[str, Any]]


def test_whatever_sets_and_dicts_a_program_has_come_back() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [UUID(int=number**7) for number in range(1, 300)]
    value = Everything(
        ids=set(ids),
        owners=dict.fromkeys(ids, "x"),
        counts={number * 1000: {number, -number} for number in range(300)},
        when={begin + timedelta(minutes=number) for number in range(300)},
        days={begin.date() + timedelta(days=number) for number in range(300)},
        lengths=frozenset(timedelta(seconds=number) for number in range(300)),
        points={Point(one, 7) for one in ids},
        colours=set(Colour),
        words={"a", "b"},
        mixed={*range(200), *map(str, range(200)), None},
        pairs={(str(number), number) for number in range(300)},
        prices={Decimal(number) / 8 for number in range(300)},
        anything={*range(200), *map(str, range(200)), None, 0.5},
        records=[{"id": 1, "tags": ["a"] * 20, "data": list(range(100))}] * 20,
    )
    schema = Schema(Everything)
    assert schema.unpack(schema.pack(value)) == value


def test_the_keys_of_a_dict_keep_their_order_and_the_last_of_equal_ones_counts() -> None:
    numbers = [*(1 << number for number in range(60)), *range(250, 130, -1)]
    assert list(Schema(dict[int, str]).unpack(msgpack.packb(dict.fromkeys(numbers, "abc")))) == numbers
    keys = [b"\xcd" + number.to_bytes(2, "big") for number in range(300, 400)]
    twice = b"\xde\x00\xc8" + b"\xa1a".join(keys) + b"\xa1a" + b"\xa1b".join(keys) + b"\xa1b"
    for annotation in (dict[int, str], Any):
        assert Schema(annotation).unpack(twice) == dict.fromkeys(range(300, 400), "b")


@pytest.mark.parametrize("annotation", [dict[int, int], Any, set[Any], dict[UUID, int]])
def test_x2_a_map_that_claims_what_is_not_there_is_refused_before_its_pairs_are_made(annotation: Any) -> None:
    for head in (b"\xdf\x00\x00\x75\x30", b"\xde\x75\x30"):
        with pytest.raises(TypeMismatch):
            Schema(annotation).unpack(b"\x81\x01" + head * 12_000)
