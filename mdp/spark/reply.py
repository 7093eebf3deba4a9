"""What a row gets: reply frames as columns of the types the job asked for.

A reply comes from a service, so it may be anything. What cannot be read, or does not fit its column, spoils its own row and no
other: the row's status is `BAD_REPLY` and its error says why.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow as pa
from pyspark.sql import types

if TYPE_CHECKING:
    from collections.abc import Callable

    Decode = Callable[[list[bytes]], Mapping[str, Any] | Sequence[Any]]

__all__ = [
    "BAD_REPLY",
    "OK",
    "RAW_REPLY",
    "Answer",
    "arrow_type",
    "decode_frames",
    "decode_map",
    "decode_text",
    "reply_columns",
]

OK = "OK"
BAD_REPLY = "BAD_REPLY"
# The reply's only column where the job names no schema: the frames as they came.
RAW_REPLY = types.StructType([types.StructField("reply", types.ArrayType(types.BinaryType(), containsNull=False))])

# What reading a stranger's octets may raise, in msgpack, in Arrow and in a decode function that trusts its input.
_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, struct.error, msgpack.UnpackException)

_ATOMIC: dict[type[types.DataType], pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.ByteType: pa.int8(),
    types.ShortType: pa.int16(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.StringType: pa.string(),
    types.BinaryType: pa.binary(),
    types.DateType: pa.date32(),
    types.TimestampType: pa.timestamp("us", "UTC"),
    types.TimestampNTZType: pa.timestamp("us"),
}


@dataclass(slots=True)
class Answer:
    """What became of one row's request.

    Attributes:
        reply: the reply's body frames `[body…]`, None when there is none.
        status: `OK`, or the code of the error (`TIMEOUT`, `NO_SERVICE`, …).
        error: one line for people, None when there is nothing to say.
        attempts: how many times the request was sent.
        latency_ms: from the first sending to the end.
    """

    reply: list[bytes] | None
    status: str
    error: str | None
    attempts: int
    latency_ms: float


def arrow_type(kind: types.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type.

    Raises:
        TypeError: a reply cannot hold this type.
    """
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, types.ArrayType):
        return pa.list_(arrow_type(kind.elementType))
    if isinstance(kind, types.MapType):
        return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
    if isinstance(kind, types.StructType):
        return pa.struct([pa.field(field.name, arrow_type(field.dataType)) for field in kind.fields])
    found = _ATOMIC.get(type(kind))
    if found is None:
        raise TypeError(f"a reply cannot be read into a column of type {kind.simpleString()}")
    return found


def decode_map(frames: list[bytes]) -> Mapping[str, Any]:
    """Read a reply of one frame that holds a msgpack map with the column names as keys.

    Raises:
        ValueError: the reply is something else.
    """
    if len(frames) != 1:
        raise ValueError(f"a msgpack map in one frame is expected, the reply has {len(frames)} frames")
    decoded = msgpack.unpackb(frames[0])
    if not isinstance(decoded, dict):
        raise ValueError(f"a msgpack map is expected, the reply is a {type(decoded).__name__}")
    return decoded


def decode_frames(frames: list[bytes]) -> Sequence[Any]:
    """Keep a reply as it came: one column with the list of its frames."""
    return (frames,)


def decode_text(frames: list[bytes]) -> Sequence[Any]:
    """Read a reply as text for people: one column, one line per frame, octets that are not UTF-8 escaped."""
    return ("\n".join(frame.decode(errors="backslashreplace") for frame in frames),)


def reply_columns(answers: list[Answer], columns: Sequence[tuple[str, pa.DataType]], decode: Decode) -> list[pa.Array]:
    """Read the replies into the columns `(name, type)`; a row without a readable reply has null in each.

    An answer whose reply cannot be read is changed in place: its status becomes `BAD_REPLY`.
    """
    names = [name for name, _ in columns]
    kinds = [kind for _, kind in columns]
    nothing = (None,) * len(names)
    rows: list[Sequence[Any]] = []
    for answer in answers:
        values: Sequence[Any] = nothing
        if answer.reply is not None:
            try:
                values = _in_order(decode(answer.reply), names)
            except _UNREADABLE as error:
                _spoil(answer, str(error))
        rows.append(values)
    try:
        return _columns(rows, kinds)
    except _UNREADABLE:
        # Some value does not fit its column. Arrow does not say whose, so each row is tried alone; this is not the usual way.
        for number, values in enumerate(rows):
            try:
                _columns([values], kinds)
            except _UNREADABLE as error:
                _spoil(answers[number], str(error))
                rows[number] = nothing
        return _columns(rows, kinds)


def _columns(rows: list[Sequence[Any]], kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    return [_column(values, kind) for values, kind in zip(columns, kinds, strict=True)]


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(kind):
        # Arrow cuts 1.5 to 1 without a word.
        for value in values:
            if type(value) is float and not value.is_integer():
                raise ValueError(f"{value} is not an integer")
    return pa.array(values, type=kind)


def _spoil(answer: Answer, reason: str) -> None:
    answer.reply = None
    answer.status = BAD_REPLY
    answer.error = f"the reply cannot be read: {reason:.200}"


def _in_order(decoded: Any, names: Sequence[str]) -> Sequence[Any]:
    if isinstance(decoded, Mapping):
        return [decoded.get(name) for name in names]
    if isinstance(decoded, Sequence) and not isinstance(decoded, str | bytes):
        if len(decoded) != len(names):
            raise ValueError(f"{len(names)} values are expected, the reply has {len(decoded)}")
        return decoded
    raise TypeError(f"decoded to a {type(decoded).__name__}, a mapping or a sequence is expected")
