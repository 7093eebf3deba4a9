"""Values of replies as values of columns: a value that does not fit is refused, never truncated. Pure.

    column                  values that fit, null beside them
    boolean                 true, false
    byte, short, int, long  whole numbers in range: 3, 3.0
    float, double           numbers; a float must not become infinite, a whole number must be exact
    decimal                 whole numbers, decimals, text such as 1.50, floats by their shortest text; no more places than the type has
    string                  text, bytes in UTF-8
    binary                  bytes, text as UTF-8
    date                    a date, text such as 2024-01-31
    timestamp               a time, msgpack's timestamp, text such as 2024-01-31 10:00:00.000001Z; without a zone it is UTC
    timestamp_ntz           a time without a zone, text such as 2024-01-31 10:00:00.000001
    array                   an array
    map                     a map, or an array of pairs; each key once
    struct                  a map by the names of the fields, or an array in their order

The text forms are those of requests (`row_frames`), so that a service can return what it gets.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeAlias

import msgpack
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

Fit: TypeAlias = Callable[[Any], Any]

_NOTHING = type(None)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FLOAT_MAX = 3.4028234663852886e38
# Digits beyond the microsecond, which are refused unless they are zeros.
_FINER = re.compile(r"[.,]\d{6}\d*[1-9]")


class Misfit(ValueError):
    """A value does not fit its column."""


def fitted(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array; raises Misfit, or an error of Arrow, if one of them does not fit."""
    exact, fit = _fit_of(kind)
    if not exact.issuperset(map(type, values)):
        values = [value if type(value) in exact else fit(value) for value in values]
    return pa.array(values, type=kind)


def _fit_of(kind: pa.DataType) -> tuple[frozenset[type], Fit]:
    """Return the Python types that Arrow converts without loss, and the function that converts other values."""
    types = pa.types
    if types.is_list(kind):
        return _NULL, _list_fit(kind)
    if types.is_map(kind):
        return _NULL, _map_fit(kind)
    if types.is_struct(kind):
        return _NULL, _struct_fit(kind)
    if types.is_timestamp(kind):
        return _NULL, _moment if kind.tz is None else _instant
    return next((exact, fit) for matches, exact, fit in _ATOMIC if matches(kind))


def _inner(kind: pa.DataType) -> Fit:
    exact, fit = _fit_of(kind)
    return lambda value: value if type(value) in exact else fit(value)


def _refuse(value: Any, what: str) -> Misfit:
    return Misfit(f"{value!r:.60} is not {what}")


def _whole(value: Any) -> int:
    if isinstance(value, float | Decimal):
        if math.isfinite(value) and value == int(value):
            return int(value)
    elif not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise _refuse(value, "an integer")


def _number(value: Any) -> float:
    if isinstance(value, bool | str | bytes | bytearray):
        raise _refuse(value, "a number")
    if isinstance(value, int):
        return _exact_float(value)
    try:
        return float(value)
    except TypeError:
        raise _refuse(value, "a number") from None


def _exact_float(value: int) -> float:
    found = float(value)
    if int(found) != value:
        raise _refuse(value, "exact as a double")
    return found


def _short_number(value: Any) -> float:
    found = _number(value)
    if math.isfinite(found) and abs(found) > _FLOAT_MAX:
        raise _refuse(value, "a float")
    return found


def _flag(value: Any) -> bool:
    found = value.item() if hasattr(value, "item") else None  # of numpy
    if isinstance(found, bool):
        return found
    raise _refuse(value, "true or false")


def _decimal(value: Any) -> Decimal:
    try:
        if isinstance(value, float):
            return Decimal(repr(float(value)))
        if isinstance(value, str):
            return Decimal(value)
    except InvalidOperation:
        pass
    raise _refuse(value, "a decimal")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return value.decode()  # a decoding error is a ValueError too
    raise _refuse(value, "text")


def _octets(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _refuse(value, "bytes")


def _date(value: Any) -> date:
    if isinstance(value, datetime):
        if value.time() == time.min and value.tzinfo is None:
            return value.date()
    elif isinstance(value, date):
        return value
    elif isinstance(value, str):
        return date.fromisoformat(value)
    raise _refuse(value, "a date")


def _moment(value: Any) -> datetime:
    found = _time_of(value)
    if found.tzinfo is not None:
        raise _refuse(value, "a time without a zone")
    return found


def _instant(value: Any) -> datetime:
    found = _time_of(value)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _time_of(value: Any) -> datetime:
    if isinstance(value, datetime):
        if getattr(value, "nanosecond", 0):  # of pandas
            raise _refuse(value, "a time in microseconds")
        return value
    if isinstance(value, msgpack.Timestamp):
        if value.nanoseconds % 1000:
            raise _refuse(value, "a time in microseconds")
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanoseconds // 1000)
    if isinstance(value, str):
        if _FINER.search(value):
            raise _refuse(value, "a time in microseconds")
        return datetime.fromisoformat(value)
    raise _refuse(value, "a time")


def _list_fit(kind: pa.DataType) -> Fit:
    fit = _inner(kind.value_type)
    return lambda value: [fit(item) for item in _items(value)]


def _map_fit(kind: pa.DataType) -> Fit:
    fit_key, fit_value = _inner(kind.key_type), _inner(kind.item_type)

    def fit(value: Any) -> list[tuple[Any, Any]]:
        pairs = list(value.items()) if isinstance(value, Mapping) else [tuple(_items(pair)) for pair in _items(value)]
        if any(len(pair) != 2 or pair[0] is None for pair in pairs):
            raise _refuse(value, "a map")
        found = [(fit_key(key), fit_value(item)) for key, item in pairs]
        if len({repr(key) for key, _ in found}) != len(found):
            raise _refuse(value, "a map with each key once")
        return found

    return fit


def _struct_fit(kind: pa.DataType) -> Fit:
    fits = {kind.field(number).name: _inner(kind.field(number).type) for number in range(kind.num_fields)}

    def fit(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            items = _items(value)
            if len(items) != len(fits):
                raise _refuse(value, f"a struct of {len(fits)} fields")
            value = dict(zip(fits, items, strict=True))
        return {name: fit_field(value.get(name)) for name, fit_field in fits.items()}

    return fit


def _items(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    if hasattr(value, "tolist"):  # of numpy
        found = value.tolist()
        if isinstance(found, list):
            return found
    raise _refuse(value, "an array")


_NULL = frozenset({_NOTHING})
# Test of a type, Python types that need no change, and the function that converts others.
_ATOMIC: tuple[tuple[Callable[[pa.DataType], bool], frozenset[type], Fit], ...] = (
    (pa.types.is_boolean, frozenset({bool, _NOTHING}), _flag),
    (pa.types.is_integer, frozenset({int, _NOTHING}), _whole),
    (pa.types.is_float32, _NULL, _short_number),
    (pa.types.is_floating, frozenset({float, _NOTHING}), _number),
    (pa.types.is_decimal, frozenset({int, Decimal, _NOTHING}), _decimal),
    (pa.types.is_string, frozenset({str, _NOTHING}), _text),
    (pa.types.is_binary, frozenset({bytes, _NOTHING}), _octets),
    (pa.types.is_date, frozenset({date, _NOTHING}), _date),
)
