"""mdp.typed.schema_details: formats of times and names of members, wherever they are in a type."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest

from mdp.typed.schema_details import ENUM_NAMES
from mdp.typed.schemas import json_schemas

AT = {"type": "string", "format": "date-time"}
HOUR = {"type": "string", "format": "time"}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    HIGH = 2
    LOW = 1


class Array(msgspec.Struct, array_like=True, tag=True):
    at: datetime.datetime


class A(msgspec.Struct, tag="a"):
    at: datetime.datetime
    again: list[A] = []


class B(msgspec.Struct, tag="b", rename="camel"):
    at_hour: datetime.time


@dataclass
class Plain:
    at: datetime.datetime | None = None
    colour: Colour = Colour.RED


class Pair(NamedTuple):
    at: datetime.datetime
    number: int


class Given(TypedDict):
    at: datetime.datetime


@pytest.mark.parametrize(
    "annotation,expected",
    [
        (datetime.datetime, AT),
        (Annotated[datetime.datetime, msgspec.Meta(tz=False)], AT),
        (datetime.time, HOUR),
        (list[datetime.datetime], {"type": "array", "items": AT}),
        (dict[str, tuple[datetime.time, ...]], {"type": "object", "additionalProperties": {"type": "array", "items": HOUR}}),
        (datetime.datetime | int | None, {"anyOf": [AT, {"type": "integer"}, {"type": "null"}]}),
        (list[datetime.time] | int, {"anyOf": [{"type": "array", "items": HOUR}, {"type": "integer"}]}),
        (str | int, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        (bytes | None, {"anyOf": [{"type": "string", "contentEncoding": "base64"}, {"type": "null"}]}),
    ],
)
def test_a_time_has_its_format(annotation: Any, expected: object) -> None:
    assert json_schemas([annotation]) == ([expected], {})


def test_a_tuple_has_the_formats_of_its_members() -> None:
    ((schema,), _) = json_schemas([tuple[datetime.datetime, int, datetime.time]])
    assert schema["prefixItems"] == [AT, {"type": "integer"}, HOUR]


def test_fields_of_classes_have_them_too_also_in_unions() -> None:
    _, found = json_schemas([list[A | B | None], Plain | None, Pair, Given, Array])
    assert found["A"]["properties"]["at"] == AT
    assert found["B"]["properties"]["atHour"] == HOUR
    assert found["Plain"]["properties"]["at"] == {"anyOf": [AT, {"type": "null"}], "default": None}
    assert found["Pair"]["prefixItems"] == [AT, {"type": "integer"}]
    assert found["Given"]["properties"]["at"] == AT
    assert found["Array"]["prefixItems"][-1] == AT


def test_an_enum_has_the_names_of_its_members_in_the_order_of_the_values() -> None:
    _, found = json_schemas([Plain, dict[str, Level | None]])
    assert (found["Colour"]["enum"], found["Colour"][ENUM_NAMES]) == (["blue", "red"], ["BLUE", "RED"])
    assert (found["Level"]["enum"], found["Level"][ENUM_NAMES]) == ([1, 2], ["LOW", "HIGH"])
