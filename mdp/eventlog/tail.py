"""Following an event log while a broker writes it: whole blocks from a given place.

A place is a segment's number and an offset in it, and stays valid for ever: only the newest segment changes, and it only grows. So the
blocks between two places are always the same. An incomplete block at the end is waited for. A torn or damaged end of an older segment
is skipped, as by a reader of the whole log. A segment of another log in the same place is recognised by the time in its header.
"""

from __future__ import annotations

import logging
from errno import ENOENT
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mdp.eventlog.files import segment_number, segments
from mdp.eventlog.format import BLOCK_BYTES_MAX, HEADER_BYTES, NotAnEventLog, decode_header, whole_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdp.eventlog.format import Clock

# Bytes of one read: the first block that begins in it is completely in it.
_LOOK_BYTES = 2 * BLOCK_BYTES_MAX

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Position in a log: byte offset in a segment; segment 0 is before any other."""

    segment: int
    octet: int
    made_us: int = 0  # wall clock in the segment's header; 0 if unknown


class Run(NamedTuple):
    """Whole blocks of a segment, as bytes."""

    path: Path
    segment: int
    start: int
    end: int
    made_us: int

    @property
    def after(self) -> Place:
        return Place(self.segment, self.end, self.made_us)


class LogRemoved(ValueError):
    """A segment was removed before it was read: a broker keeps `events_max_bytes` only."""

    def __init__(self, directory: str, wanted: int, there: int) -> None:
        super().__init__(directory, wanted, there)
        self.directory = directory
        self.wanted = wanted
        self.there = there  # number of the oldest later segment; 0 if it is another log

    def __str__(self) -> str:
        there = f"it continues with {self.there:016x}" if self.there else "it is another log"
        return f"{self.directory} no longer has segment {self.wanted:016x}: {there}"


def runs(directory: str, at: Place, stop: Place | None = None, most: int | None = None, *, skip_lost: bool = False) -> Iterator[Run]:
    """Yield the whole blocks of a log from a place to `stop`, or to its end, in order.

    There are about `most` bytes: the last block is whole, and there is at least one. When segments were removed, continue at the next one
    with `skip_lost`; otherwise raise LogRemoved.
    """
    left = most
    expected = at.segment
    paths = {number: path for path in segments(directory) if (number := segment_number(path)) >= at.segment}
    if at.segment and not paths and segments(directory):
        raise LogRemoved(directory, at.segment, 0)
    newest = max(paths, default=0)
    for number, path in paths.items():
        if stop is not None and number > stop.segment:
            return
        if expected and number != expected:
            _lost(directory, expected, number, skip_lost)
        expected = number + 1
        octet = at.octet if number == at.segment else HEADER_BYTES
        while True:
            looked = _whole(path, octet, stop.octet if stop is not None and number == stop.segment else None, left)
            if looked is None:
                _lost(directory, number, number + 1, skip_lost)
                break
            end, reason, made_us = looked
            if made_us and any(place.segment == number and place.made_us not in (0, made_us) for place in (at, stop or at)):
                raise LogRemoved(directory, number, 0)
            if end == octet:
                if reason and number != newest:
                    log.error("segment %s ends at byte %d: %s", path, octet, reason)
                break
            yield Run(path, number, octet, end, made_us)
            if left is not None:
                left -= end - octet
                if left <= 0:
                    return
            octet = end


def end_of_log(directory: str, at: Place, stop: Place | None = None, most: int | None = None, *, skip_lost: bool = False) -> Place:
    """Return the end of the last of the `runs`, to continue from there; `at` if there is nothing more."""
    newest = newest_segment(directory).segment if stop is None else min(newest_segment(directory).segment, stop.segment)
    found, octets = at, 0
    for run in runs(directory, at, stop, most, skip_lost=skip_lost):
        found = run.after
        octets += run.end - run.start
    # A segment that was not the newest before it was read gets nothing more; it may be removed any time.
    if found.segment < newest and (most is None or octets < most):
        return Place(newest, HEADER_BYTES)
    return found


def newest_segment(directory: str) -> Place:
    """Return the start of the newest segment, or of the first one to come."""
    paths = segments(directory)
    return Place(segment_number(paths[-1]) if paths else 0, HEADER_BYTES)


def _lost(directory: str, wanted: int, there: int, skip: bool) -> None:
    error = LogRemoved(directory, wanted, there)
    if not skip:
        raise error
    log.error("%s", error)


def read_run(path: str | Path, start: int, end: int, made_us: int) -> tuple[Clock, bytes]:
    """Return the clock of a segment and the bytes of a run.

    Raises FileNotFoundError if the segment was removed, also where one of another log took its place.
    """
    with Path(path).open("rb") as file:
        clock = decode_header(file.read(HEADER_BYTES))
        if clock.wall_us != made_us:
            raise FileNotFoundError(ENOENT, "the segment of another log took its place", str(path))
        file.seek(start)
        return clock, file.read(end - start)


def _whole(path: Path, octet: int, cap: int | None, most: int | None) -> tuple[int, str, int] | None:
    """Return (end of the whole blocks from an offset, reason if damaged, `made_us`) for one read; None without the segment."""
    try:
        with path.open("rb") as file:
            made_us = decode_header(file.read(HEADER_BYTES)).wall_us
            file.seek(octet)
            octets = file.read(_LOOK_BYTES if cap is None else min(_LOOK_BYTES, max(cap - octet, 0)))
    except FileNotFoundError:
        return None
    except NotAnEventLog as error:
        return octet, str(error), 0
    end, damage = whole_blocks(octets, octet, most)
    return end, "" if damage is None or damage.torn else damage.reason, made_us
