"""Types of sets and dicts whose hashes a peer can choose, and their check before msgspec makes one.

Python mixes a secret into the hashes of text, bytes and dates; see `core.machine.hash_cost` for the others. The values are still those of
msgpack when they are checked, so each array and the keys of each map are converted to what an annotated set or dict would have in it.
What cannot be converted is another part of the message.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Union
from uuid import UUID

import msgspec
from msgspec import inspect as shapes

from core.machine.hash_cost import FEW, FEW_HASHES, check_integers, check_keys, check_set

if TYPE_CHECKING:
    from collections.abc import Callable

# Of enumerations, literals, bools and None there are only so many values.
_MIXED: Final = (shapes.StrType, shapes.BytesType, shapes.DateType, shapes.EnumType, shapes.LiteralType, shapes.BoolType, shapes.NoneType)
# Two values are compared without a function in Python: as quickly as numbers, or nearly so.
_COMPARED_IN_C: Final = (
    *_MIXED,
    shapes.IntType,
    shapes.FloatType,
    shapes.DecimalType,
    shapes.DateTimeType,
    shapes.TimeType,
    shapes.TimeDeltaType,
)
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
    """Types of the sets and dicts of one annotation."""

    def __init__(self) -> None:
        self._checks: list[tuple[Any, Callable[[list[Any]], None]]] = []  # of arrays, and of keys that are text in msgpack
        self.numbers = False  # whether some dict has numbers as keys, which `bounded_msgpack.unpack` checks
        self.are_whole = True  # whether all that is hashed are integers
        self.are_nested = False  # whether there are sets of sets, which take the time of two
        self._take_integers = False

    @property
    def check_above(self) -> int:
        """So many elements and keys need no check: of integers few in 64 bits have one hash."""
        return FEW_HASHES if self.are_whole else FEW

    def __bool__(self) -> bool:
        """Whether there is something to check."""
        return bool(self._checks)

    def look_at(self, info: Any) -> None:
        match info:
            case shapes.SetType(item_type=inner) | shapes.FrozenSetType(item_type=inner) if not _consists_of(inner, _MIXED):
                kind: Any = list[_annotation(inner)]  # type: ignore[misc]
                self._checks.append((kind, partial(check_set, are_compared_in_c=_consists_of(inner, _COMPARED_IN_C))))
                self.are_whole &= isinstance(inner, shapes.IntType)
                self.are_nested |= isinstance(inner, shapes.FrozenSetType)
                self._take_integers |= _takes_integers(kind)
            case shapes.DictType(key_type=shapes.UUIDType()):
                self._checks.append((list[UUID], check_keys))
                self.are_whole = False
            case shapes.DictType(key_type=shapes.IntType()):
                self.numbers = True

    def check(self, values: list[Any]) -> None:
        """Check an array, or the keys of a map; raises TooCostly: a set or dict of them would be slow."""
        if self._take_integers and type(values[0]) is int and _are_integers(values):
            check_integers(values)  # a float or decimal has the hash of its integer
            return
        for kind, check in self._checks:
            try:
                check(_converted(values, kind))
            except (msgspec.ValidationError, TypeError):  # another part of the message
                continue


def _converted(values: list[Any], kind: Any) -> list[Any]:
    """Return values of msgpack as those of an annotation; raises ValidationError or TypeError."""
    return msgspec.convert(values, kind, builtin_types=(bytes,))  # type: ignore[no-any-return]


def _are_integers(values: list[Any]) -> bool:
    """Return whether all values are integers or bools, in a third of the time of looking at their types."""
    try:
        return type(sum(values)) is int
    except TypeError:
        return False


def _takes_integers(kind: Any) -> bool:
    try:
        _converted([1], kind)
    except (msgspec.ValidationError, TypeError):
        return False
    return True


def _consists_of(info: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether a type, and each that it is made of, is one of some kinds."""
    match info:
        case shapes.UnionType(types=parts) | shapes.TupleType(item_types=parts):
            return all(_consists_of(one, kinds) for one in parts)
    return isinstance(info, kinds)


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
