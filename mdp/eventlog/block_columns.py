"""Decodes the columns of a block of the event log at a cost that its bytes bound. Pure.

A block is first divided into its columns, which makes no objects and believes no claim of elements that are not there. Then each column
becomes what it may be, and nothing else.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

import msgspec

from core.machine.bounded_msgpack import claimed

_IDS: Final = 6  # index of the column whose values are concatenated
# Largest time in seconds, 35,000 years: any clock's value in microseconds fits 64 bits.
_MOMENT_MAX_S: Final = 2.0**40
# Index, type, smallest and largest value of every other column behind the first three; 0 for no limit.
_COLUMN_TYPES: Final[tuple[tuple[int, type, float, float], ...]] = (
    *((place, bytes, 0, 0) for place in (3, 4, 5)),
    (7, int, 0, 2**31 - 1),
    *((place, float, -_MOMENT_MAX_S, _MOMENT_MAX_S) for place in (8, 9)),
    *((place, int, 0, 2**63 - 1) for place in (10, 11)),
    *((place, str, 0, 0) for place in (12, 13)),
)
_FIELDS: Final = 14
_FIELDS_MAX: Final = 64  # a later version may append columns
_HEADER_BYTES_MAX: Final = 5  # of an array

_COLUMNS: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_NUMBER: Final = msgspec.msgpack.Decoder(int)
_TIME: Final = msgspec.msgpack.Decoder(float)
_BYTES: Final = msgspec.msgpack.Decoder(bytes)
_ONE_OR_ALL: Final[dict[type, msgspec.msgpack.Decoder[Any]]] = {
    bytes: msgspec.msgpack.Decoder(bytes | list[bytes]),
    int: msgspec.msgpack.Decoder(int | list[int]),
    float: msgspec.msgpack.Decoder(float | list[float]),
    str: msgspec.msgpack.Decoder(str | list[str]),
}


def decode_columns(body: bytes | memoryview[int], *, count_max: int, id_bytes: int) -> list[Any] | None:
    """Return kind, count, time and columns, each one value or a list; None if the bytes are not valid."""
    if not _FIELDS <= claimed(bytes(body[:_HEADER_BYTES_MAX])) <= _FIELDS_MAX:
        return None
    try:
        columns: list[Any] = _COLUMNS.decode(body)[:_FIELDS]
        columns[:3] = _, count, time = _NUMBER.decode(columns[0]), _NUMBER.decode(columns[1]), _TIME.decode(columns[2])
        columns[_IDS] = ids = _BYTES.decode(columns[_IDS])
        for place, kind, _, _ in _COLUMN_TYPES:
            columns[place] = _ONE_OR_ALL[kind].decode(columns[place])
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not 0 < count <= count_max or not -_MOMENT_MAX_S < time < _MOMENT_MAX_S or len(ids) not in (0, id_bytes * count):
        return None
    return columns if all(_fits(columns[place], count, least, most) for place, _, least, most in _COLUMN_TYPES) else None


def _fits(column: Any, count: int, least: float, most: float) -> bool:
    """Return whether a column has as many values as there are events, all within the limits."""
    if type(column) is not list:
        return not most or least <= column <= most
    # A log has millions of values: no Python loop over a column. The sum is not finite if an item is not; then smallest and largest mean
    # nothing.
    return len(column) == count and (not most or (isfinite(sum(column)) and least <= min(column) and max(column) <= most))
