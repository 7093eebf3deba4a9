"""File of the open tickets of a client, which survives its restarts (BEY-09).

JSON lines, append only: `{"open": UUID, "service": ..., "key": ...}` and `{"closed": UUID}`. Each line is one write, so a
crash leaves at most an incomplete last line, which is ignored. Opening the file drops closed tickets.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

__all__ = ["TicketFile"]

REWRITE_LINES: Final = 1000  # a shorter file is not rewritten


class TicketFile:
    """One file, used by one client at a time and created if it does not exist. Raises OSError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.open: dict[str, dict[str, Any]] = {}  # row of each open ticket by UUID, oldest first
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
            return  # incomplete line of a crash
        if isinstance(row, dict) and isinstance(row.get("open"), str):
            self.open[row["open"]] = row
        elif isinstance(row, dict) and isinstance(row.get("closed"), str):
            self.open.pop(row["closed"], None)

    def _rewrite(self) -> None:
        fresh = self.path.with_name(self.path.name + ".tmp")
        fresh.write_text("".join(json.dumps(row) + "\n" for row in self.open.values()), encoding="utf-8")
        fresh.replace(self.path)

    def add(self, uuid: str, service: str, key: str | None) -> None:
        """Record a ticket; a repeated key gives the same ticket, which is recorded once."""
        if uuid not in self.open:
            row = {"open": uuid, "service": service, "key": key}
            self.open[uuid] = row
            self._write(row)

    def remove(self, uuid: str) -> None:
        if self.open.pop(uuid, None) is not None:
            self._write({"closed": uuid})

    def _write(self, row: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(row).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)
