"""Progress bar of a dispatch in the terminal; with live counts it moves within tasks too."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Self, TextIO

from core.runtime import supervision

if TYPE_CHECKING:
    from mdp.spark.rows.accumulators import Counts

_EVERY_S = 0.25
_BAR_CHARACTERS = 24


class Progress:
    """Progress bar while a block runs; shows nothing without a terminal.

    If the terminal cannot be written to, the bar ends but not the block: only the bar's thread writes.

    Args:
        counts: of the dispatch.
        total: number of rows, None if unknown.
        stream: where to show it.
    """

    def __init__(self, counts: Counts, total: int | None = None, stream: TextIO | None = None) -> None:
        self._counts = counts
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._stream.isatty():
            self._thread = supervision.current().thread("mdp progress", self._run)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._over.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._show()
        self._show("\n")

    def _show(self, end: str = "") -> None:
        line = line_of(*self._counts.seen(), self._total, time.monotonic() - self._began)
        self._stream.write(f"\r{line}\x1b[K{end}")
        self._stream.flush()


def line_of(rows: int, failed: int, total: int | None, seconds: float) -> str:
    speed = f"{rows / seconds:,.0f} rows/s" if seconds > 0 else ""
    trouble = f", {failed:,} failed" if failed else ""
    if not total:
        return f"{rows:,} rows{trouble}  {speed}"
    filled = min(_BAR_CHARACTERS, _BAR_CHARACTERS * rows // total)
    return f"[{'#' * filled}{'.' * (_BAR_CHARACTERS - filled)}] {rows:,} of {total:,} rows{trouble}  {speed}"
