"""Event log on disk: a writer that never delays the broker, a reader that tolerates what a crash leaves.

Segments are `events-<16 hex digits>.mdpe` in one directory, numbered upwards; each shard of a broker has a directory `shard-<number>` in
it. Blocks go to a thread through a bounded buffer; blocks beyond it are dropped, and their number is counted and logged as an event. The
oldest segments are removed so that the directory never exceeds `max_bytes`. Nothing is synced: this is a record for operators without a
promise of durability.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Self

from core.runtime import runtime, supervision
from core.runtime.cold_files import write_whole
from mdp.eventlog.format import (
    BLOCK_BYTES_MAX,
    DROPPED,
    Block,
    Clock,
    Damage,
    NotAnEventLog,
    decode_header,
    decode_segment,
    encode_block,
    encode_header,
    events_of,
    halves,
)
from mdp.eventlog.log_options import EventLogOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import FileIO

    from mdp.eventlog.format import Event

log = logging.getLogger(__name__)

_FILE_MODE = 0o640  # readable for a group, if its directory is
_PREFIX, _SUFFIX = "events-", ".mdpe"
_SHARD = "shard-"
# Drift between the two clocks of a segment's header, by a correction of the wall clock, after which a new segment begins.
_CLOCKS_APART_US = 100_000
# Interval of retries after a disk error: the log serves operators and is no reason to stop.
_RETRY_S = 5.0


def _read_clock() -> Clock:
    system = runtime.current()
    return Clock(system.wall_ns() // 1000, system.monotonic())


class EventLogWriter:
    """Writer of the event log in one directory, created if missing; one for each directory. Raises OSError."""

    def __init__(self, directory: str | Path, options: EventLogOptions | None = None, *, clock: Callable[[], Clock] = _read_clock) -> None:
        self.options = options or EventLogOptions()
        self.dropped = 0  # events lost to a full buffer, a failing disk, or the end of the log
        self.written = 0  # events handed to the system
        self.trouble = ""  # why nothing can be written now
        self._directory = Path(directory)
        self._clock = clock  # reads both clocks; the monotonic one must be that of the events
        self._buffer: list[bytes] = []
        self._waiting_bytes = 0
        self._waiting_events = 0
        self._unreported = 0  # dropped, and not yet written to the log
        self._lock = runtime.current().lock()
        self._wake = runtime.current().event()
        self._closing = self._closed = False
        self._gave_up = False
        self._file: FileIO | None = None
        self._size = 0
        self._number = 0  # of the newest segment
        self._anchor = Clock(0, 0.0)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # it contains names of clients and services
        self._begin_segment()
        self._thread = supervision.current().thread(
            "mdp event log", self._run, restart=supervision.RESTART, failed=self._fail, pause=self._wake.wait
        )

    def append(self, block: Block) -> None:
        """Queue a block, split if it is too large; returns at once."""
        octets = encode_block(block)
        if len(octets) > BLOCK_BYTES_MAX and block.events > 1:  # a reader would take it for damage and stop there
            for half in halves(block):
                self.append(half)
            return
        with self._lock:
            if self._closed:
                self.dropped += block.events  # too late to write their number
                return
            if self._waiting_bytes + len(octets) > self.options.events_buffer_bytes:
                self.dropped += block.events
                self._unreported += block.events
                return
            self._buffer.append(octets)
            self._waiting_bytes += len(octets)
            self._waiting_events += block.events

    def close(self) -> None:
        """Write the queue and end; blocks meanwhile."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        with self._lock:
            self._closed = True
            given_up, self._waiting_events = self._waiting_events, 0
            self._buffer, self._waiting_bytes = [], 0
            self.dropped += given_up
        if given_up:
            log.error("events were given up when the log was closed", extra={"directory": str(self._directory), "events": given_up})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # In the thread.

    def _run(self) -> None:
        pause_s = self.options.events_flush_ms / 1000
        while not self._gave_up:
            closing = self._wake.wait(pause_s) or self._closing
            try:
                self._flush()
                pause_s = self.options.events_flush_ms / 1000
            except OSError as error:
                self._fail(error)
                pause_s = _RETRY_S
            if closing:
                break
        if self._file is not None:
            self._file.close()

    def _take(self) -> tuple[bytes, int, int]:
        """Return what waits: its bytes, with a gap for what was dropped before, and how many events both are."""
        with self._lock:
            blocks, events, unreported = self._buffer, self._waiting_events, self._unreported
            self._buffer, self._waiting_bytes, self._waiting_events, self._unreported = [], 0, 0, 0
        if unreported:
            blocks.append(encode_block(Block(DROPPED, 1, self._clock().monotonic_s, text=str(unreported))))
        return b"".join(blocks), events, unreported

    def _flush(self) -> None:
        octets, events, unreported = self._take()
        if not octets:
            return
        try:
            clock = self._clock()
            limit = min(self.options.events_segment_bytes, self.options.events_max_bytes // 4)
            if (
                self._file is None
                or not os.fstat(self._file.fileno()).st_nlink  # removed by another program: what is written to it is lost
                or self._size + len(octets) > limit
                or abs(self._anchor.wall(clock.monotonic_s) - clock.wall_us) > _CLOCKS_APART_US
            ):
                self._begin_segment(len(octets))
            assert self._file is not None
            write_whole(self._file, octets)
        except Exception:
            self.dropped += events
            with self._lock:
                self._unreported += events + unreported
            raise
        self._size += len(octets)
        self.written += events
        if self.trouble:
            log.info("the event log is written again", extra={"directory": str(self._directory)})
            self.trouble = ""

    def _fail(self, error: Exception) -> None:
        """Abandon the segment, whose end is unknown."""
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        if not self.trouble:
            log.error("the event log cannot be written", extra={"directory": str(self._directory), "reason": reason})
        self.trouble = reason
        self._gave_up = self._closing  # or closing would wait as long as the disk fails
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _begin_segment(self, expected: int = 0) -> None:
        """Remove old segments and open the next one; `expected` bytes are written to it at once."""
        if self._file is not None:
            self._file.close()
            self._file = None
        there = segments(self._directory)
        sizes = [path.stat().st_size for path in there]
        left = self.options.events_max_bytes - max(expected, min(self.options.events_segment_bytes, self.options.events_max_bytes // 4))
        for path in there:
            if sum(sizes) <= left:
                break
            path.unlink(missing_ok=True)
            del sizes[0]
        # Above its own number too, if another program has removed that: a reader may be behind it.
        number = max(self._number, segment_number(there[-1]) if there else 0) + 1
        self._anchor = self._clock()
        header = encode_header(self._anchor)
        path = self._directory / f"{_PREFIX}{number:016x}{_SUFFIX}"
        self._file = open(path, "xb", buffering=0, opener=lambda name, flags: os.open(name, flags, _FILE_MODE))
        try:
            write_whole(self._file, header)
        except OSError:
            path.unlink()  # or there would be another one at each attempt, for as long as the disk is full
            raise
        self._size, self._number = len(header), number


def checked_directory(directory: str) -> str:
    """Return the directory; raises FileNotFoundError if it is none."""
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"{directory} is not a directory with an event log")
    return directory


def segments(directory: str | Path) -> list[Path]:
    found = []
    for path in Path(directory).glob(f"{_PREFIX}*{_SUFFIX}"):
        digits = path.name[len(_PREFIX) : -len(_SUFFIX)]
        if len(digits) == 16 and not digits.strip("0123456789abcdef"):
            found.append(path)
    return sorted(found)


def logs_in(directory: str | Path) -> list[Path]:
    directory = Path(directory)
    shards = [path for path in directory.glob(f"{_SHARD}*") if path.name[len(_SHARD) :].isdecimal() and path.is_dir()]
    return [directory, *sorted(shards, key=lambda path: int(path.name[len(_SHARD) :]))]


def shard_log(directory: str | Path, number: int) -> Path:
    return Path(directory, f"{_SHARD}{number}")


def segment_number(path: Path) -> int:
    """Return the number in the name of a segment; numbers are consecutive (EVT-01)."""
    return int(path.name[len(_PREFIX) : -len(_SUFFIX)], 16)


def read_segment(path: str | Path, on_damage: Callable[[Path, Damage], None] | None = None) -> Iterator[Event]:
    """Return the events of one segment, up to the first damage. Raises NotAnEventLog, OSError.

    `on_damage` is called for damage; a torn tail is usual after a crash, and while a broker writes.
    """
    path = Path(path)
    octets = path.read_bytes()
    clock = decode_header(octets)
    for block in decode_segment(octets):
        if isinstance(block, Damage):
            if on_damage is not None:
                on_damage(path, block)
            return
        yield from events_of(block, clock)


def read_events(directory: str | Path, on_damage: Callable[[Path, Damage], None] | None = None) -> Iterator[Event]:
    """Return the events of a broker, oldest first, those of its shards in order of time; arguments as for `read_segment`.

    A segment that is removed meanwhile is skipped; one with an incomplete header, as after a crash, is damage.
    """
    return merge(*(_events_of_log(log, on_damage) for log in logs_in(directory)), key=attrgetter("time"))


def _events_of_log(directory: Path, on_damage: Callable[[Path, Damage], None] | None) -> Iterator[Event]:
    for path in segments(directory):
        try:
            yield from read_segment(path, on_damage)
        except FileNotFoundError:
            continue
        except NotAnEventLog as error:
            if on_damage is not None:
                on_damage(path, Damage(0, str(error), torn=False))
