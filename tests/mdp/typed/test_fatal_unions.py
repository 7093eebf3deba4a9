"""Unions that end the process with msgspec are refused where a service is defined; those beside them are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, NewType, TypedDict

import msgspec
import pytest

from mdp.typed.schemas import Schema

Code = Annotated[str, msgspec.Meta(pattern="^[A-Z]*$")]
Short = Annotated[str, msgspec.Meta(max_length=9)]
OF_CODE, OF_LENGTH = "a text with a pattern and an array or a map", "a tuple and a value with a shortest or longest length"


@dataclass
class Dated:
    names: Code | list[Code]


class Packed(msgspec.Struct):
    names: list[Code | set[str]]
    rest: Packed | None = None


class Typed(TypedDict):
    names: Code | dict[str, int]


class Row(NamedTuple):
    names: Short | tuple[int, str]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Code | list[int], OF_CODE),
        (Code | Annotated[list[int], msgspec.Meta(max_length=3)], OF_CODE),
        (Code | set[int] | None, OF_CODE),
        (Code | frozenset[int], OF_CODE),
        (Code | tuple[int, ...], OF_CODE),
        (dict[str, int] | Code, OF_CODE),
        (list[dict[str, Code | list[int]]], OF_CODE),
        (Annotated[str | list[int], msgspec.Meta(pattern="a")], OF_CODE),
        (Dated, OF_CODE),
        (Packed, OF_CODE),
        (list[Typed], OF_CODE),
        (Short | tuple[int, str], OF_LENGTH),
        (Annotated[bytes, msgspec.Meta(min_length=1)] | tuple[int, str], OF_LENGTH),
        (Annotated[dict[str, int], msgspec.Meta(max_length=3)] | tuple[int, str], OF_LENGTH),
        (tuple[Row, int], OF_LENGTH),
    ],
    ids=str,
)
def test_a_union_that_ends_the_process_is_refused(annotation: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Schema(annotation)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Code | int, "AB"),
        (Code | None, None),
        (Code | tuple[int, str], [1, "x"]),
        (list[Code] | int, ["AB"]),
        (Short | list[int], "x"),
        (Short | dict[str, int], {"a": 1}),
        (tuple[Short, Short] | int, ["x", "y"]),
        (str | list[int], [1]),
        (NewType("Name", str) | list[int], "x"),
    ],
    ids=str,
)
def test_unions_beside_those_are_taken(annotation: Any, value: Any) -> None:
    for _ in range(20):
        assert msgspec.to_builtins(Schema(annotation).unpack(msgspec.msgpack.encode(value))) in (value, tuple(value or ()))
