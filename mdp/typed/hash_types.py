"""Types of sets and dicts whose hashes a peer can choose, and their check before msgspec makes one.

Python mixes a secret into the hashes of text, bytes and dates; see `core.machine.hash_cost` for the others. The values are still those of
msgpack when they are checked, so each array and the keys of each map are converted to what an annotated set or dict would have in it.
What cannot be converted is another part of the message.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, Union
from uuid import UUID

import msgspec
from msgspec import inspect as shapes

from core.machine.hash_cost import check_keys, check_set

# Of enumerations, literals, bools and None there are only so many values.
_MIXED: Final = (shapes.StrType, shapes.BytesType, shapes.DateType, shapes.EnumType, shapes.LiteralType, shapes.BoolType, shapes.NoneType)
_PLAIN: Final[dict[type, Any]] = {
    shapes.StrType: str,
    shapes.BytesType: bytes,
    shapes.BoolType: bool,
    shapes.NoneType: None,
    shapes.IntType: int,
    shapes.FloatType: float,
    shapes.UUIDType: UUID,
    shapes.DecimalType: Decimal,
    shapes.DateTimeType: datetime,
    shapes.TimeType: time,
    shapes.TimeDeltaType: timedelta,
}


class HashedTypes:
    """Types of the sets and dicts of one annotation.

    Attributes:
        keys: types of the keys of dicts that are text in msgpack.
        numbers: whether some dict has numbers as keys, which `bounded_msgpack.unpack` checks.
    """

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.keys: list[Any] = []
        self.numbers = False
        self.are_whole = True

    def look_at(self, info: Any) -> None:
        match info:
            case shapes.SetType(item_type=inner) | shapes.FrozenSetType(item_type=inner) if not _is_mixed(inner):
                self.elements.append(list[_annotation(inner)])  # type: ignore[misc]
                self.are_whole &= isinstance(inner, shapes.IntType)
            case shapes.DictType(key_type=shapes.UUIDType()):
                self.keys.append(list[UUID])
                self.are_whole = False
            case shapes.DictType(key_type=shapes.IntType()):
                self.numbers = True

    def check(self, values: list[Any]) -> None:
        """Check an array, or the keys of a map; raises TooCostly: a set or dict of them would be slow."""
        for check, kinds in ((check_set, self.elements), (check_keys, self.keys)):
            for kind in kinds:
                try:
                    check(msgspec.convert(values, kind, builtin_types=(bytes,)))
                except (msgspec.ValidationError, TypeError):  # another part of the message
                    continue


def _is_mixed(info: Any) -> bool:
    """Return whether a peer cannot choose the hashes of such values, or there are few of them."""
    parts = {shapes.UnionType: "types", shapes.TupleType: "item_types"}.get(type(info))
    return all(map(_is_mixed, getattr(info, parts))) if parts else isinstance(info, _MIXED)


def _annotation(info: Any) -> Any:
    match info:
        case shapes.LiteralType(values=values):
            return Literal[values]
        case shapes.UnionType(types=types):
            return Union[tuple(map(_annotation, types))]  # noqa: UP007 - of as many as there are
        case shapes.TupleType(item_types=types):
            return tuple[tuple(map(_annotation, types))]  # type: ignore[misc]
        case shapes.VarTupleType(item_type=inner):
            return tuple[_annotation(inner), ...]  # type: ignore[misc]
        case shapes.FrozenSetType(item_type=inner):
            return frozenset[_annotation(inner)]  # type: ignore[misc]
    return _PLAIN.get(type(info)) if type(info) in _PLAIN else getattr(info, "cls", Any)
