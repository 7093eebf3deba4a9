"""Reply frames as columns of the job's types.

A service may reply anything. A reply that cannot be read, or does not fit its column, affects its own row only: the row's status is
`BAD_REPLY` and its error gives the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgpack
import pyarrow as pa
from pyspark.sql import types

from core.machine.bounded_msgpack import unpack
from core.machine.peer_text import read_json
from mdp.spark.rows.user_functions import UserFunctionFailed, guarded
from mdp.spark.values.fitting import fitted

Decode: TypeAlias = Callable[[list[bytes]], Mapping[str, Any] | Sequence[Any]]

OK = "OK"
BAD_REPLY = "BAD_REPLY"
# Prefix of a reply's column if there is another column of that name.
CLASH_PREFIX = "reply_"
# Column of the reply without a schema: the unchanged frames.
RAW_REPLY = types.StructType([types.StructField("reply", types.ArrayType(types.BinaryType(), containsNull=False))])

# Errors of reading untrusted bytes, in msgpack and in Arrow; a function of the user is guarded, whatever it raises.
UNREADABLE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, struct.error),
    *(msgpack.UnpackException, pa.ArrowException),
)

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
    """Outcome of one row's request."""

    reply: list[bytes] | None  # the reply's body frames `[body…]`, None without a reply
    status: str  # `OK`, or the code of the error (`TIMEOUT`, `NO_SERVICE`, …)
    error: str | None  # one line for people, None without an error
    attempts: int  # number of times the request was sent
    latency_ms: float  # from the first attempt to the end
    parts: list[list[bytes]] | None = None  # the frames `[body…]` of each part, if replies come in parts; `reply` is None then
    replayed: bool = False  # the reply was there before this task asked for it


def arrow_type(kind: types.DataType) -> pa.DataType:
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


def _only(frames: list[bytes], what: str) -> bytes:
    if len(frames) != 1:
        raise ValueError(f"{what} in one frame is expected, the reply has {len(frames)} frames")
    return frames[0]


def decode_map(frames: list[bytes]) -> Mapping[str, Any]:
    """Decode a reply of one frame with a msgpack map, whose keys are column names; raises ValueError."""
    decoded = unpack(_only(frames, "a msgpack map"), extensions=True)
    if not isinstance(decoded, dict):
        raise ValueError(f"a msgpack map is expected, the reply is a {type(decoded).__name__}")
    return decoded


def decode_frames(frames: list[bytes]) -> Sequence[Any]:
    return (frames,)


def decode_text(frames: list[bytes]) -> Sequence[Any]:
    """Decode a reply as text: one column, one line per frame, invalid UTF-8 escaped."""
    return ("\n".join(frame.decode(errors="backslashreplace") for frame in frames),)


def decode_json(frames: list[bytes]) -> Mapping[str, Any] | Sequence[Any]:
    """Decode a reply of one JSON frame: an object by column names, or an array in schema order; raises ValueError."""
    decoded = read_json(_only(frames, "JSON"))
    if not isinstance(decoded, dict | list):
        raise ValueError(f"a JSON object or array is expected, the reply is a {type(decoded).__name__}")
    return decoded


def decode_arrow(frames: list[bytes]) -> Mapping[str, Any]:
    """Decode a reply of one frame with an Arrow stream (IPC) of one row; raises ValueError."""
    rows = arrow_rows(frames)
    if len(rows) != 1:
        raise ValueError(f"one row is expected, the reply has {len(rows)}")
    return rows[0]


def arrow_rows(frames: list[bytes]) -> list[Mapping[str, Any]]:
    """Decode a reply of one frame with an Arrow stream (IPC) and return its rows; raises ValueError."""
    try:
        rows: list[Mapping[str, Any]] = pa.ipc.open_stream(_only(frames, "an Arrow stream")).read_all().to_pylist()
    except OSError as error:  # Arrow's error for truncated data
        raise ValueError(str(error)) from None
    return rows


DECODERS: dict[str, Decode] = {
    "msgpack": decode_map,
    "json": decode_json,
    "arrow": decode_arrow,
    "text": decode_text,
    "raw": decode_frames,
}


def decoder(decode: Decode | str | None, *, has_schema: bool = True) -> Decode:
    """Return the function that decodes replies; None is "msgpack" with a schema and "raw" without one."""
    if not isinstance(decode, str | None):
        return decode
    found = DECODERS.get(decode or ("msgpack" if has_schema else "raw"))
    if found is None:
        raise ValueError(f"decode is a function or one of {', '.join(DECODERS)}, not {decode!r}")
    return found


def reply_columns(answers: list[Answer], columns: Sequence[tuple[str, pa.DataType]], decode: Decode) -> list[pa.Array]:
    """Convert replies to the columns `(name, type)`; a row without a readable reply has null in each.

    An answer with an unreadable reply is changed in place: its status becomes `BAD_REPLY`.
    """
    names = [name for name, _ in columns]
    kinds = [kind for _, kind in columns]
    nothing = (None,) * len(names)
    rows: list[Sequence[Any]] = []
    read = guarded(partial(_read, decode, names))
    for answer in answers:
        values: Sequence[Any] = nothing
        if answer.reply is not None:
            try:
                values = read(answer.reply)
            except UserFunctionFailed as error:
                _set_bad_reply(answer, str(error))
        rows.append(values)
    try:
        return _columns(rows, kinds)
    except UNREADABLE:
        for number, reason in misfits(lambda start, end: _columns(rows[start:end], kinds), 0, len(rows)):
            _set_bad_reply(answers[number], reason)
            rows[number] = nothing
        return _columns(rows, kinds)


def misfits(convert: Callable[[int, int], object], start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield the numbers of the values that cannot be converted, with the reason.

    Arrow does not tell which, so they are halved; `convert` takes a start and an end.
    """
    try:
        convert(start, end)
    except UNREADABLE as error:
        if end - start == 1:
            yield start, str(error)
            return
        middle = (start + end) // 2
        yield from misfits(convert, start, middle)
        yield from misfits(convert, middle, end)


def part_columns(
    answers: list[Answer], columns: Sequence[tuple[str, pa.DataType]], decode: Decode
) -> tuple[list[pa.Array], list[int], list[int | None]]:
    """Convert replies in parts to the columns `(name, type)`, a row for each part; an Arrow part may have several.

    Return the columns, the number of the answer each row belongs to, and the number of the row in its reply. A reply that has no part,
    failed or cannot be read has one row of nulls.
    """
    names = [name for name, _ in columns]
    kinds = [kind for _, kind in columns]
    of: list[int] = []
    numbers: list[int | None] = []
    rows: list[Sequence[Any]] = []
    read = guarded(partial(_read_part, decode, names))
    for index, answer in enumerate(answers):
        found: list[Sequence[Any]] = []
        try:
            for part in answer.parts or ():
                found += read(part)
            _columns(found, kinds)
        except UNREADABLE as error:
            _set_bad_reply(answer, str(error))
            found = []
        rows += found or [(None,) * len(names)]
        numbers += range(len(found)) if found else [None]
        of += [index] * max(len(found), 1)
    return _columns(rows, kinds), of, numbers


def _read(decode: Decode, names: Sequence[str], frames: list[bytes]) -> Sequence[Any]:
    return _in_order(decode(frames), names)


def _read_part(decode: Decode, names: Sequence[str], frames: list[bytes]) -> list[Sequence[Any]]:
    return [_in_order(row, names) for row in (arrow_rows(frames) if decode is decode_arrow else [decode(frames)])]


def _columns(rows: list[Sequence[Any]], kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    return [fitted(values, kind) for values, kind in zip(columns, kinds, strict=True)]


def _set_bad_reply(answer: Answer, reason: str) -> None:
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
