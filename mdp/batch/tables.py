"""Tables as bytes and back: one frame, an Arrow stream (IPC); nothing that a peer claims is believed.

A table that was read is whole: its buffers have the lengths they claim, text is UTF-8, offsets stay inside. What a few bytes could claim to
be gigabytes is refused: compressed buffers, runs, views, and nested types whose values have no bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FORMAT = "arrow"
# Columns with a meaning: of a reply, why a row was refused, and the code of that; of a request, the keys of its rows.
ERROR = "_error"
STATUS = "_status"
KEY = "_key"
# In the metadata of a request's schema, for a sender that does not wait: the reply has the keys of its rows, and a row fails alone.
APART = b"mdp:apart"
# Rows of one message. A handler that wants more at once would have the memory of a process in one request.
ROWS_MAX = 1_000_000
# Columns of a table, nested fields counted: the schema of a wide feature table, not one made to cost time.
COLUMNS_MAX = 10_000
_DEPTH_MAX = 32
_NAME_CHARACTERS_MAX = 1000
_FIXED_SIZE_MAX = 65_536
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
# Fields of the flatbuffers tables `Message` and `RecordBatch` (format/Message.fbs).
_MESSAGE_HEADER = 2
_BATCH_COMPRESSION = 3
_DICTIONARY_DATA = 1
_PLAIN_MESSAGES = 2  # a schema and a record batch


class BadTable(ValueError):
    """A body is no table that may be read; the text says why."""


def encode_batch(batch: pa.RecordBatch) -> bytes:
    return b"".join((batch.schema.serialize().to_pybytes(), batch.serialize().to_pybytes(), _END_OF_STREAM))


def encode_table(table: pa.Table | pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets


def decode_table(body: Sequence[bytes], *, rows_max: int = ROWS_MAX) -> pa.Table:
    """Return the table of a body of one frame; raises BadTable."""
    if len(body) != 1:
        raise BadTable(f"an Arrow stream in one frame is expected, the body has {len(body)} frames")
    try:
        table = _read(body[0], rows_max)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError, struct.error, OverflowError) as error:
        raise error if isinstance(error, BadTable) else BadTable(f"no Arrow stream: {error!s:.200}") from None
    return table


def _read(octets: bytes, rows_max: int) -> pa.Table:
    messages = list(pa.ipc.MessageReader.open_stream(octets))
    if any(message.type != "schema" and _is_compressed(bytes(message.metadata), message.type) for message in messages):
        raise BadTable("compressed tables are not taken")
    if not messages:
        raise BadTable("no Arrow stream: it is empty")
    schema = pa.ipc.read_schema(messages[0])
    _check_schema(schema)
    found: Iterable[pa.RecordBatch] = pa.ipc.open_stream(octets)
    if len(messages) == _PLAIN_MESSAGES:  # without dictionaries: not read a second time
        found = [pa.ipc.read_record_batch(messages[1], schema)]
    batches: list[pa.RecordBatch] = []
    rows = 0
    for batch in found:
        rows += batch.num_rows
        if rows > rows_max:
            raise BadTable(f"more than {rows_max} rows")
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)


def _is_compressed(metadata: bytes, kind: str) -> bool:
    """Return whether the flatbuffers of a message name a compression; raises struct.error for what is no flatbuffer."""
    header = _table_at(metadata, _field(metadata, _root(metadata), _MESSAGE_HEADER))
    if kind == "dictionary":
        header = _table_at(metadata, _field(metadata, header, _DICTIONARY_DATA))
    return _field(metadata, header, _BATCH_COMPRESSION) != 0


def _root(octets: bytes) -> int:
    return int(struct.unpack_from("<I", octets, 0)[0])


def _field(octets: bytes, table: int, number: int) -> int:
    """Return the place of a field of a flatbuffers table, 0 if it is not there."""
    vtable = table - struct.unpack_from("<i", octets, table)[0]
    if vtable < 0:
        raise BadTable("no Arrow stream: its metadata are damaged")
    size = struct.unpack_from("<H", octets, vtable)[0]
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", octets, vtable + entry)[0] if entry + 2 <= size else 0
    return table + offset if offset else 0


def _table_at(octets: bytes, place: int) -> int:
    if not place:
        raise BadTable("no Arrow stream: its metadata are damaged")
    return place + int(struct.unpack_from("<I", octets, place)[0])


def _check_schema(schema: pa.Schema) -> None:
    if len(set(schema.names)) != len(schema.names):
        raise BadTable("two columns have the same name")
    left = COLUMNS_MAX
    for field in schema:
        left = _check_type(field.type, 0, left)


def _check_type(kind: pa.DataType, depth: int, left: int) -> int:
    """Check a type and those in it; return how many more columns the schema may have."""
    if left <= 0 or depth > _DEPTH_MAX:
        raise BadTable(f"a schema of more than {COLUMNS_MAX} columns, or nested more than {_DEPTH_MAX} deep")
    types = pa.types
    # Values without bytes inside a list could be any number.
    empty = (
        types.is_null(kind) or (types.is_fixed_size_binary(kind) and not kind.byte_width) or (types.is_struct(kind) and not kind.num_fields)
    )
    fixed = types.is_fixed_size_list(kind) and not 0 < kind.list_size <= _FIXED_SIZE_MAX
    if (empty and depth) or fixed or not _is_taken(kind):
        raise BadTable(f"columns of type {kind!s:.100} are not taken")
    left -= 1
    if types.is_dictionary(kind):
        return _check_type(kind.value_type, depth + 1, left)
    for number in range(kind.num_fields):
        field = kind.field(number)
        # Reading a name that is not UTF-8 raises, here and not where the values are needed.
        left = _check_type(field.type, depth + 1, left - len(field.name) // _NAME_CHARACTERS_MAX)
    return left


def _is_taken(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_null(kind)
        or types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_temporal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_map(kind)
        or types.is_struct(kind)
        or types.is_dictionary(kind)
    )
