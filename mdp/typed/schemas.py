"""Schemas of type annotations: check values and convert them to and from the types of msgpack. Pure.

    None bool int float str bytes     unchanged; an int is accepted for a float, a bool is not a number
    list[T] set[T] frozenset[T] tuple[T, ...] tuple[A, B]   an array
    dict[K, V]                        a map; K is str, int or bytes
    dataclass, TypedDict              a map by field; a field with a default may be missing, unknown fields are errors
    NamedTuple                        an array
    Enum                              its value
    Literal[…]                        one of these
    A | B                             the first that matches, in this order
    datetime date UUID Decimal        text (ISO 8601 …)
    Any                               any value of msgpack

Data of a peer is never called, imported or instantiated by name, as pickle does. A value that does not match raises `TypeMismatch` with
the place, the wanted type and the found type, but not the value.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin
from uuid import UUID

__all__ = ["Schema", "SchemaRegistry", "TypeMismatch", "pack_by_type"]

INT_MIN: Final = -(2**63)  # range of msgpack
INT_MAX: Final = 2**64 - 1


class TypeMismatch(ValueError):
    """A value does not match its schema."""

    def __init__(self, wanted: str, found: str) -> None:
        super().__init__(wanted, found)
        self.wanted = wanted  # title of the schema
        self.found = found  # description of the value
        self.path: list[str] = []  # place in the value, outermost first

    def within(self, step: object) -> TypeMismatch:
        self.path.insert(0, str(step))
        return self

    def __str__(self) -> str:
        where = f"{'.'.join(self.path)}: " if self.path else ""
        return f"{where}{self.wanted} is wanted, {self.found} was found"


class Schema(NamedTuple):
    """The schema of one annotation."""

    title: str  # for errors
    pack: Callable[[Any], Any]  # converts a value to types of msgpack; raises TypeMismatch
    unpack: Callable[[Any], Any]  # converts it back; raises TypeMismatch


def _found(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _plain(kind: type, title: str) -> Schema:
    def same(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeMismatch(title, _found(value))
        return value

    return Schema(title, same, same)


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeMismatch("int", _found(value))
    if not INT_MIN <= value <= INT_MAX:
        raise TypeMismatch("int", "a number of more than 64 bits")
    return value


def _float(value: Any) -> float:
    if type(value) not in (float, int):
        raise TypeMismatch("float", _found(value))
    try:
        return float(value)
    except OverflowError:
        raise TypeMismatch("float", "a number beyond any float") from None


def _whatever(value: Any) -> Any:
    return value


def _as_text(kind: type, write: Callable[[Any], str], read: Callable[[str], Any]) -> Schema:
    title = kind.__name__

    def pack(value: Any) -> str:
        if type(value) is not kind:
            raise TypeMismatch(title, _found(value))
        return write(value)

    def unpack(value: Any) -> Any:
        if type(value) is not str:
            raise TypeMismatch(title, _found(value))
        try:
            return read(value)
        except (ValueError, InvalidOperation):
            raise TypeMismatch(title, "a text that is none") from None

    return Schema(title, pack, unpack)


_FIXED: Final[dict[Any, Schema]] = {
    Any: Schema("anything", _whatever, _whatever),
    object: Schema("anything", _whatever, _whatever),
    None: _plain(type(None), "None"),
    type(None): _plain(type(None), "None"),
    bool: _plain(bool, "bool"),
    int: Schema("int", _integer, _integer),
    float: Schema("float", _float, _float),
    str: _plain(str, "str"),
    bytes: _plain(bytes, "bytes"),
    datetime: _as_text(datetime, datetime.isoformat, datetime.fromisoformat),
    date: _as_text(date, date.isoformat, date.fromisoformat),
    UUID: _as_text(UUID, str, UUID),
    Decimal: _as_text(Decimal, str, Decimal),
}
_SEQUENCES: Final[dict[Any, type]] = {list: list, set: set, frozenset: frozenset, Sequence: list}


def pack_by_type(value: Any) -> Any:
    """Convert a value to types of msgpack by its own type: for arguments, whose annotations the caller does not have.

    Raises TypeError: values of this type cannot be sent; TypeMismatch: a part of it does not match its annotation.
    """
    if isinstance(value, set | frozenset):
        return [*value]
    return SchemaRegistry().of(type(value)).pack(value)


def _required(kind: Any) -> set[str]:
    """Return the required keys of a TypedDict; `__required_keys__` is wrong when annotations are strings."""
    hints = typing.get_type_hints(kind, include_extras=True)
    without = {typing.NotRequired} if kind.__total__ else {typing.NotRequired, None}
    return {name for name, hint in hints.items() if get_origin(hint) is typing.Required or get_origin(hint) not in without}


class SchemaRegistry:
    """Makes the schemas of annotations and keeps those of classes, which may contain themselves."""

    def __init__(self) -> None:
        self._made: dict[Any, Schema] = {}

    def of(self, annotation: Any) -> Schema:
        """Return the schema of an annotation; raises TypeError if values of this type cannot be sent."""
        if annotation in _FIXED:
            return _FIXED[annotation]
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin in (Union, types.UnionType):
            return self._union([self.of(one) for one in inner])
        if origin is Literal:
            return self._one_of(" or ".join(map(repr, inner)), {(type(value), value): value for value in inner})
        if origin is typing.Annotated or origin in (typing.Required, typing.NotRequired):
            return self.of(inner[0])
        if origin is tuple and not (len(inner) == 2 and inner[1] is ...):
            return self._row("tuple", [(str(number), self.of(one)) for number, one in enumerate(inner)], lambda row: tuple(row))
        if origin is tuple or origin in _SEQUENCES:
            return self._sequence(_SEQUENCES.get(origin, tuple), self.of(inner[0]))
        if origin in (dict, Mapping):
            return self._map(inner[0], self.of(inner[1]))
        if isinstance(annotation, type):
            return self._class(annotation)
        raise TypeError(f"values of {annotation!r} cannot be sent; see mdp.typed.schemas for those that can")

    def _class(self, kind: type) -> Schema:
        if kind in (list, tuple, dict, set, frozenset):
            raise TypeError(f"{kind.__name__} has no item type: write {kind.__name__}[…]")
        if kind in self._made:
            return self._made[kind]
        if issubclass(kind, Enum):
            return self._one_of(kind.__name__, {(type(member.value), member.value): member for member in kind})
        if typing.is_typeddict(kind):
            return self._record(kind, dict, _required(kind))
        if is_dataclass(kind):
            needed = {one.name for one in fields(kind) if one.init and one.default is MISSING and one.default_factory is MISSING}
            return self._record(kind, kind, needed)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            hints = typing.get_type_hints(kind)
            return self._row(kind.__name__, [(name, self.of(hints[name])) for name in kind._fields], lambda row: kind(*row))
        raise TypeError(f"values of {kind.__name__} cannot be sent; see mdp.typed.schemas for those that can")

    def _record(self, kind: type, build: Callable[..., Any], needed: set[str] | frozenset[str]) -> Schema:
        title, parts = kind.__name__, dict[str, Schema]()

        def pack(value: Any) -> dict[str, Any]:
            if type(value) is not build:
                raise TypeMismatch(title, _found(value))
            entries = value if build is dict else {name: getattr(value, name) for name in parts}
            return checked(entries, True)

        def checked(entries: Mapping[Any, Any], packing: bool) -> dict[str, Any]:
            for name in needed:
                if name not in entries:
                    raise TypeMismatch(title, f"one without {name}")
            result = {}
            for name, part in entries.items():
                schema = parts.get(name) if type(name) is str else None
                if schema is None:
                    raise TypeMismatch(title, "one with a field too many")
                try:
                    result[name] = schema.pack(part) if packing else schema.unpack(part)
                except TypeMismatch as error:
                    raise error.within(name) from None
            return result

        def unpack(value: Any) -> Any:
            if type(value) is not dict:
                raise TypeMismatch(title, _found(value))
            return build(**checked(value, False))

        made = self._made[kind] = Schema(title, pack, unpack)
        hints = typing.get_type_hints(kind)
        names = [one.name for one in fields(kind) if one.init] if is_dataclass(kind) else list(hints)
        parts.update({name: self.of(hints[name]) for name in names})
        return made

    @staticmethod
    def _sequence(kind: type, item: Schema) -> Schema:
        title = f"{kind.__name__} of {item.title}"

        def walk(value: Any, each: Callable[[Any], Any]) -> list[Any]:
            result = []
            for number, one in enumerate(value):
                try:
                    result.append(each(one))
                except TypeMismatch as error:
                    raise error.within(number) from None
            return result

        def pack(value: Any) -> list[Any]:
            if type(value) is not kind:
                raise TypeMismatch(title, _found(value))
            return walk(value, item.pack)

        def unpack(value: Any) -> Any:
            if type(value) is not list:
                raise TypeMismatch(title, _found(value))
            try:
                return kind(walk(value, item.unpack))
            except TypeError:
                raise TypeMismatch(title, "a member that cannot be in a set") from None

        return Schema(title, pack, unpack)

    @staticmethod
    def _row(title: str, parts: list[tuple[str, Schema]], build: Callable[[list[Any]], Any]) -> Schema:
        def walk(value: Any, packing: bool) -> list[Any]:
            if len(value) != len(parts):
                raise TypeMismatch(f"{title} of {len(parts)}", f"one of {len(value)}")
            result = []
            for (name, schema), one in zip(parts, value, strict=True):
                try:
                    result.append(schema.pack(one) if packing else schema.unpack(one))
                except TypeMismatch as error:
                    raise error.within(name) from None
            return result

        def pack(value: Any) -> list[Any]:
            if not isinstance(value, tuple):
                raise TypeMismatch(title, _found(value))
            return walk(value, True)

        def unpack(value: Any) -> Any:
            if type(value) is not list:
                raise TypeMismatch(title, _found(value))
            return build(walk(value, False))

        return Schema(title, pack, unpack)

    @staticmethod
    def _map(key: Any, item: Schema) -> Schema:
        if key not in (str, int, bytes):
            raise TypeError(f"keys of a dict are str, int or bytes, not {key!r}")
        keys = _FIXED[key]
        title = f"dict of {item.title} by {keys.title}"

        def walk(value: Any, each: Callable[[Any], Any]) -> dict[Any, Any]:
            if type(value) is not dict:
                raise TypeMismatch(title, _found(value))
            result = {}
            for name, one in value.items():
                try:
                    result[keys.pack(name)] = each(one)
                except TypeMismatch as error:
                    raise error.within(name if type(name) in (str, int) else "key") from None
            return result

        return Schema(title, lambda value: walk(value, item.pack), lambda value: walk(value, item.unpack))

    @staticmethod
    def _one_of(title: str, members: dict[tuple[type, Any], Any]) -> Schema:
        for kind, _ in members:
            if kind not in (str, int, bytes, bool, type(None)):
                raise TypeError(f"{title}: members are str, int, bytes, bool or None")
        values = {(type(member), member): value for (_, value), member in members.items()}

        def pack(value: Any) -> Any:
            try:
                return values[type(value), value]
            except (KeyError, TypeError):
                raise TypeMismatch(title, _found(value)) from None

        def unpack(value: Any) -> Any:
            try:
                return members[type(value), value]
            except (KeyError, TypeError):
                raise TypeMismatch(title, f"another {_found(value)}") from None

        return Schema(title, pack, unpack)

    @staticmethod
    def _union(choices: list[Schema]) -> Schema:
        title = " or ".join(choice.title for choice in choices)

        def walk(value: Any, packing: bool) -> Any:
            deepest: TypeMismatch | None = None
            for choice in choices:
                try:
                    return choice.pack(value) if packing else choice.unpack(value)
                except TypeMismatch as error:
                    if error.path and (deepest is None or len(error.path) > len(deepest.path)):
                        deepest = error
            raise deepest if deepest is not None else TypeMismatch(title, _found(value))

        return Schema(title, lambda value: walk(value, True), lambda value: walk(value, False))
