"""Values of arrays, maps and structs as msgpack takes them, for requests. Pure.

A map is a map (an array of pairs if its keys are arrays, maps or structs), a struct is a map by the names of its fields. Decimals,
dates and times, for which msgpack has no portable type, are the text they are in a frame of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from datetime import datetime
    from decimal import Decimal

Plain: TypeAlias = Callable[[Any], Any]


def plain_values(column: pa.Array) -> list[Any]:
    plain = _plain_of(column.type)
    return [None if value is None else plain(value) for value in column.to_pylist()]


def decimal_text(value: Decimal) -> str:
    """Return a decimal with all its places and no exponent."""
    return format(value, "f")


def _plain_of(kind: pa.DataType) -> Plain:
    types = pa.types
    if types.is_map(kind):
        return _map_plain(kind)
    if types.is_struct(kind):
        fields = [(kind.field(number).name, _or_none(kind.field(number).type)) for number in range(kind.num_fields)]
        return lambda value: {name: plain(value[name]) for name, plain in fields}
    if types.is_nested(kind):
        item = _or_none(kind.value_type)
        return lambda value: [item(one) for one in value]
    if types.is_decimal(kind):
        return decimal_text
    if types.is_timestamp(kind):
        return _moment_text if kind.tz is None else _instant_text
    if types.is_temporal(kind):
        return str
    return lambda value: value


def _or_none(kind: pa.DataType) -> Plain:
    plain = _plain_of(kind)
    return lambda value: None if value is None else plain(value)


def _map_plain(kind: pa.DataType) -> Plain:
    key_of, value_of = _or_none(kind.key_type), _or_none(kind.item_type)
    if pa.types.is_nested(kind.key_type):
        return lambda pairs: [[key_of(key), value_of(value)] for key, value in pairs]
    return lambda pairs: {key_of(key): value_of(value) for key, value in pairs}


def _moment_text(value: datetime) -> str:
    return value.isoformat(sep=" ", timespec="microseconds")


def _instant_text(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds") + "Z"
