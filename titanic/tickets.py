"""A client's book of tickets: which requests it stored and has not closed yet, over its own restarts (BEY-09).

A file of JSON lines, only ever appended to: `{"open": UUID, "service": ..., "key": ...}` and `{"closed": UUID}`. Each line is one
write, so a crash leaves at most half a last line, which is ignored. When it is opened, what was closed is left out.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

__all__ = ["Book"]

REWRITE_LINES: Final = 1000  # a shorter book is not worth rewriting


class Book:
    """One file, of one client at a time.

    Args:
        path: made if it does not exist.

    Attributes:
        open: what is noted of each request that is not closed, by UUID, oldest first.

    Raises:
        OSError: it cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.open: dict[str, dict[str, Any]] = {}
        lines = 0
        with suppress(FileNotFoundError), self.path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                lines += 1
                self._read(line)
        if lines > REWRITE_LINES and lines > 2 * len(self.open):
            self._rewrite()
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if lines and self.path.read_bytes()[-1:] != b"\n":
            os.write(self._file, b"\n")

    def _read(self, line: str) -> None:
        try:
            row = json.loads(line)
        except ValueError:
            return  # the half line of a crash
        if isinstance(row, dict) and isinstance(row.get("open"), str):
            self.open[row["open"]] = row
        elif isinstance(row, dict) and isinstance(row.get("closed"), str):
            self.open.pop(row["closed"], None)

    def _rewrite(self) -> None:
        fresh = self.path.with_name(self.path.name + ".tmp")
        fresh.write_text("".join(json.dumps(row) + "\n" for row in self.open.values()), encoding="utf-8")
        fresh.replace(self.path)

    def note(self, uuid: str, service: str, key: str | None) -> None:
        """Write a ticket down; a key repeated gives the same ticket, which is written once."""
        if uuid not in self.open:
            row = {"open": uuid, "service": service, "key": key}
            self.open[uuid] = row
            self._write(row)

    def strike(self, uuid: str) -> None:
        """Write down that a ticket was closed."""
        if self.open.pop(uuid, None) is not None:
            self._write({"closed": uuid})

    def _write(self, row: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(row).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
