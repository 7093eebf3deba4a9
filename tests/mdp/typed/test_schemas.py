"""mdp.typed.schemas: what annotations say, there and back through msgpack."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdp.typed.schemas import SchemaRegistry, TypeMismatch, pack_by_type


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Point(NamedTuple):
    x: float
    y: float


class Extra(TypedDict):
    name: str
    note: NotRequired[str]


@dataclass
class Tree:
    name: str
    branches: list[Tree] = field(default_factory=list)
    parent: str | None = None


@dataclass(frozen=True)
class Order:
    id: UUID
    at: datetime
    price: Decimal
    tags: frozenset[str]
    colour: Colour
    where: Point
    extra: Extra


ORDER = Order(
    UUID(int=5),
    datetime(2030, 1, 2, 3, 4, 5, 6, UTC),
    Decimal("1.10"),
    frozenset({"a", "b"}),
    Colour.BLUE,
    Point(1.0, 2.0),
    {"name": "n"},
)
FITTING: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, -(2**63)),
    (int, 2**64 - 1),
    (float, 1.5),
    (str, "ü"),
    (bytes, b"\xff"),
    (list[int], [1, 2]),
    (set[int], {1, 2}),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[int, str], (1, "a")),
    (tuple[()], ()),
    (dict[int, list[bytes]], {1: [b"a"]}),
    (int | None, None),
    (int | str, "a"),
    (Literal["a", 1], 1),
    (Colour, Colour.RED),
    (Size, Size.SMALL),
    (date, date(2030, 1, 2)),
    (Point, Point(1.0, 2.0)),
    (Extra, {"name": "n", "note": "x"}),
    (Tree, Tree("a", [Tree("b", parent="a")])),
    (Order, ORDER),
    (Any, {"a": [1, None]}),
]
UNFIT: list[tuple[Any, Any, str]] = [
    (int, True, "int is wanted, bool was found"),
    (int, 1.0, "int is wanted, float was found"),
    (float, True, "float is wanted, bool was found"),
    (float, 2**1100, "float is wanted, a number beyond any float was found"),
    (bool, 1, "bool is wanted, int was found"),
    (str, b"a", "str is wanted, bytes was found"),
    (list[int], [1, "a"], "1: int is wanted, str was found"),
    (list[int], {}, "list of int is wanted, dict was found"),
    (set[Any], [[]], "set of anything is wanted, a member that cannot be in a set was found"),
    (tuple[int, str], [1], "tuple of 2 is wanted, one of 1 was found"),
    (dict[str, int], {"a": "b"}, "a: int is wanted, str was found"),
    (dict[str, int], {1: 1}, "1: str is wanted, int was found"),
    (int | None, "a", "int or None is wanted, str was found"),
    (Literal["a", "b"], "c", "'a' or 'b' is wanted, another str was found"),
    (Literal["a", 1], True, "'a' or 1 is wanted, another bool was found"),
    (Colour, "green", "Colour is wanted, another str was found"),
    (Colour, [], "Colour is wanted, another list was found"),
    (UUID, "x", "UUID is wanted, a text that is none was found"),
    (Decimal, "x", "Decimal is wanted, a text that is none was found"),
    (datetime, 1, "datetime is wanted, int was found"),
    (Tree, {}, "Tree is wanted, one without name was found"),
    (Tree, {"name": "a", "x": 1}, "Tree is wanted, one with a field too many was found"),
    (Tree, {"name": "a", 1: 1}, "Tree is wanted, one with a field too many was found"),
    (Tree, {"name": "a", "branches": [{"name": 1}]}, "branches.0.name: str is wanted, int was found"),
    (Extra, {}, "Extra is wanted, one without name was found"),
    (Point, [1.0, "a"], "y: float is wanted, str was found"),
    (list[Tree] | None, [{"name": 1}], "0.name: str is wanted, int was found"),
]


def there_and_back(annotation: Any, value: Any) -> Any:
    schema = SchemaRegistry().of(annotation)
    return schema.unpack(msgpack.unpackb(msgpack.packb(schema.pack(value)), strict_map_key=False))


@pytest.mark.parametrize(("annotation", "value"), FITTING)
def test_there_and_back(annotation: Any, value: Any) -> None:
    found = there_and_back(annotation, value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("annotation", "value", "says"), UNFIT)
def test_a_mismatch_is_named_with_its_place(annotation: Any, value: Any, says: str) -> None:
    with pytest.raises(TypeMismatch) as caught:
        SchemaRegistry().of(annotation).unpack(value)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**64),
        (list[int], (1,)),
        (Tree, {"name": "a"}),
        (Tree, Tree(name=1)),  # type: ignore[arg-type]
        (Colour, "red"),
        (datetime, date(2030, 1, 2)),
        (Point, [1.0, 2.0]),
        (set[int], {"a"}),
    ],
)
def test_results_of_a_wrong_type_are_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(TypeMismatch):
        SchemaRegistry().of(annotation).pack(value)


def test_an_int_is_accepted_for_a_float() -> None:
    assert there_and_back(float, 2) == 2.0
    assert type(there_and_back(float, 2)) is float


@pytest.mark.parametrize("annotation", [list, dict, dict[float, int], object(), SchemaRegistry, type[int], "int", Literal[1.5]])
def test_types_that_cannot_be_sent(annotation: Any) -> None:
    with pytest.raises(TypeError):
        SchemaRegistry().of(annotation)


def test_values_go_by_their_own_type() -> None:
    packed = msgpack.packb([ORDER, {1}, Tree("a")], default=pack_by_type)
    order, numbers, tree = msgpack.unpackb(packed)
    assert (order["price"], order["where"], numbers, tree["name"]) == ("1.10", [1.0, 2.0], [1], "a")
    with pytest.raises(TypeError):
        pack_by_type(object)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=10,
)


@given(value=JUNK, annotation=st.sampled_from([annotation for annotation, _ in FITTING]))
def test_any_value_matches_or_is_a_mismatch(value: Any, annotation: Any) -> None:
    schema = SchemaRegistry().of(annotation)
    try:
        found = schema.unpack(value)
    except TypeMismatch:
        return
    assert schema.unpack(schema.pack(found)) == found or found != found or "nan" in repr(found)
