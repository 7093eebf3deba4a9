"""Unions that end the process with msgspec 0.22.0: they are refused before a decoder is made of them.

It counts the details of a type in one order and frees them in another, so a decoder of such a union frees what is no object. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

_FATAL = "in one union end the process (a fault of msgspec): give one of them a field of its own"


def refuse_fatal_unions(annotation: Any) -> None:
    """Raise TypeError if there is such a union in an annotation, or in a field of a class in it."""
    _look_at(annotation, set())


def _look_at(annotation: Any, seen: set[Any]) -> None:
    annotation = getattr(annotation, "__value__", annotation)  # of a type alias
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if annotation not in seen:
            seen.add(annotation)
            for field in _fields(annotation):
                _look_at(field, seen)
        return
    if get_origin(annotation) in (Union, UnionType):
        _judge(annotation, ())
    elif get_origin(annotation) is Annotated:
        _judge(*_without_details(annotation))
    for part in get_args(annotation):
        _look_at(part, seen)


def _fields(kind: type) -> list[Any]:
    if not (is_dataclass(kind) or is_typeddict(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields")):
        return []
    try:
        return [*get_type_hints(kind, include_extras=True).values()]
    except (NameError, TypeError, AttributeError):  # of names that are not defined: msgspec says it
        return []


def _without_details(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    return (annotation.__origin__, annotation.__metadata__) if get_origin(annotation) is Annotated else (annotation, ())


def _judge(union: Any, above: tuple[Any, ...]) -> None:
    patterns = lengths = many = fixed = False
    for member in get_args(union):
        kind, own = _without_details(getattr(member, "__value__", member))
        details = [one for one in (*above, *own) if isinstance(one, msgspec.Meta)]
        origin = get_origin(kind) or kind
        is_collection = isinstance(origin, type) and issubclass(origin, Collection) and origin not in (str, bytes)
        is_fixed = origin is tuple and ... not in get_args(kind)
        fixed |= is_fixed
        many |= is_collection and not is_fixed
        patterns |= kind is str and any(one.pattern is not None for one in details)
        lengths |= any(one.min_length is not None or one.max_length is not None for one in details)
    if patterns and many:
        raise TypeError(f"a text with a pattern and an array or a map {_FATAL}")
    if lengths and fixed:
        raise TypeError(f"a tuple and a value with a shortest or longest length {_FATAL}")
