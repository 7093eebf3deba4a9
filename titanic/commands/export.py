"""Export of the requests of a store: JSON lines, msgpack, or Parquet (which needs pyarrow)."""

from __future__ import annotations

import base64
import json
from typing import IO, TYPE_CHECKING, Any, Final

import msgpack

from core.daemon.terminal import json_frame
from core.zmtp.frames import decode_frames
from titanic.errors import JournalError
from titanic.journal.record_bodies import Dead, Request, reply_frames
from titanic.store.index.stored_request import State
from titanic.store.repair import body_at, read_store
from titanic.store.status import entry_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from titanic.journal.disk import Disk

FORMATS: Final = ("jsonl", "msgpack", "parquet")


def export_rows(disk: Disk, wall_ms: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each open request, oldest first; the caller has locked the store. Raises as `read_store`.

    `uuid state service age_s attempts key owner`, `request` and `reply` as lists of bytes (None if absent or damaged) and `reason`
    (why there will be no reply).
    """
    found, index = read_store(disk)
    now_ms = index.resume_clock(wall_ms)
    for entry in sorted(index.entries.values(), key=lambda entry: entry.accepted_ms):
        row = {**entry_row(entry, now_ms), "request": None, "reply": None, "reason": None}
        row["key"] = entry.key or None
        try:
            if entry.request is not None:
                body = body_at(disk, found.store, entry.request)
                row["request"] = decode_frames(body[Request.decode(body).frames_at :])[1:]
            if entry.reply is not None:
                body = body_at(disk, found.store, entry.reply)
                if entry.state == State.ANSWERED:
                    row["reply"] = decode_frames(reply_frames(body))
                else:
                    row["reason"] = Dead.decode(body).reason
        except JournalError as error:
            row["reason"] = str(error)
        yield row


def write_rows(rows: Iterator[dict[str, Any]], form: str, file: IO[bytes]) -> None:
    """Write rows in one of `FORMATS`; raises ImportError without pyarrow, and OSError."""
    if form == "parquet":
        from titanic.spark.parquet import write_parquet

        write_parquet(rows, file)
    elif form == "msgpack":
        packer = msgpack.Packer()
        for row in rows:
            file.write(packer.pack(row))
    else:
        for row in rows:
            file.write(json.dumps(_plain(row)).encode() + b"\n")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for JSON: bodies in base64, absent values left out."""
    return {name: json_frame(value) if name == "key" else _coded(value) for name, value in row.items() if value is not None}


def _coded(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return [_coded(one) for one in value] if isinstance(value, list) else value
