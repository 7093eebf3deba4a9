"""File of the open tickets of a client, which survives its restarts (BEY-09).

JSON lines, append only: `{"open": UUID, "service": ..., "key": ...}` and `{"closed": UUID}`. Each line is one write, so a
crash or a full disk leaves at most an incomplete line, which is ignored. Opening the file drops closed tickets.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.runtime import cold_files

if TYPE_CHECKING:
    import os

REWRITE_LINES: Final = 1000  # a shorter file is not rewritten


class TicketFile:
    """One file, used by one client at a time; created if missing. Its methods raise OSError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.open: dict[str, dict[str, Any]] = {}  # row of each open ticket by UUID, oldest first
        self._loaded = False
        self._torn = False  # the last line may be incomplete, because it could not be written
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        if not self._loaded:
            async with self._lock:
                await cold_files.off_loop(self.load_now)

    def load_now(self) -> dict[str, dict[str, Any]]:
        """Read the file, if that has not been done, and return `open`; blocks."""
        if self._loaded:
            return self.open
        lines = 0
        with suppress(FileNotFoundError), self.path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                lines += 1
                self._read(line)
        if lines > REWRITE_LINES and lines > 2 * len(self.open):
            self._rewrite()
        torn = lines > 0 and self.path.read_bytes()[-1:] != b"\n"
        cold_files.append_now(self.path, b"\n" if torn else b"")  # also creates the file
        self._loaded = True
        return self.open

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
        fresh.unlink(missing_ok=True)
        cold_files.append_now(fresh, "".join(json.dumps(row) + "\n" for row in self.open.values()).encode())
        fresh.replace(self.path)

    async def add(self, uuid: str, service: str, key: str | None) -> None:
        """Record a ticket; a repeated key gives the same ticket, which is recorded once."""
        await self.load()
        if uuid not in self.open:
            row = {"open": uuid, "service": service, "key": key}
            self.open[uuid] = row
            try:
                await self._write(row)
            except BaseException:  # cancelled, too: what is not in the file is recorded when it comes again
                self.open.pop(uuid, None)
                raise

    async def remove(self, uuid: str) -> None:
        await self.load()
        row = self.open.pop(uuid, None)
        if row is not None:
            try:
                await self._write({"closed": uuid})
            except BaseException:
                self.open[uuid] = row
                raise

    async def _write(self, row: dict[str, Any]) -> None:
        async with self._lock:
            begin, self._torn = b"\n" if self._torn else b"", True
            await cold_files.append(self.path, b"%b%b\n" % (begin, json.dumps(row).encode()))
            self._torn = False
