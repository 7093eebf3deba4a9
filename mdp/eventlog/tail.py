"""Following an event log while a broker writes it: which octets are whole blocks, from a place on.

A place is a segment's number and an octet in it, and means the same for ever: a segment that is not the newest does not change, and the
newest only grows. So what is between two places is the same blocks whenever it is looked at. A block that is not written to its end is
waited for. What is torn or damaged at the end of a segment that is not the newest is passed over, as a reader of the whole log does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from mdp.eventlog.files import segment_number, segments
from mdp.eventlog.format import BLOCK_BYTES_MAX, HEADER_BYTES, NotAnEventLog, decode_header, whole_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LogRemoved", "Place", "Run", "end_of_log", "newest_segment", "runs"]

# Octets of one look: whatever block begins in it first is whole in it, if it is whole at all.
_LOOK_BYTES = 2 * BLOCK_BYTES_MAX

log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where in a log: before the octet of a segment; segment 0 is before all that there ever will be."""

    segment: int
    octet: int


class Run(NamedTuple):
    """Octets of a segment that are whole blocks."""

    path: Path
    segment: int
    start: int
    end: int


class LogRemoved(ValueError):
    """A segment that was not read yet is gone: a broker keeps `events_max_bytes` and no more.

    Args:
        directory: of the log.
        wanted: number of the segment.
        there: number of the oldest one there is behind it; 0 when all there are were begun before it.
    """

    def __init__(self, directory: str, wanted: int, there: int) -> None:
        super().__init__(directory, wanted, there)
        self.directory = directory
        self.wanted = wanted
        self.there = there

    def __str__(self) -> str:
        there = f"it goes on with {self.there:016x}" if self.there else "all there are have smaller numbers, so it is another log"
        return f"{self.directory} has no segment {self.wanted:016x} any more: {there}"


def runs(directory: str, at: Place, stop: Place | None = None, most: int | None = None, *, skip_lost: bool = False) -> Iterator[Run]:
    """Yield what is whole in a log from a place on, in order.

    Args:
        directory: of the log.
        at: where to begin.
        stop: where to end, None for the end of the log.
        most: octets, more or less: the last block is whole and there is always one.
        skip_lost: go on where the log goes on when segments are gone.

    Raises:
        LogRemoved: segments are gone.
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
            end, reason = looked
            if end == octet:
                if reason and number != newest:
                    log.error("segment %s ends at octet %d: %s", path, octet, reason)
                break
            yield Run(path, number, octet, end)
            if left is not None:
                left -= end - octet
                if left <= 0:
                    return
            octet = end


def end_of_log(directory: str, at: Place, stop: Place | None = None, most: int | None = None, *, skip_lost: bool = False) -> Place:
    """Return where the last of the `runs` ends: a place at which the log goes on, and `at` when there is nothing behind it."""
    newest = newest_segment(directory).segment if stop is None else min(newest_segment(directory).segment, stop.segment)
    found, octets = at, 0
    for run in runs(directory, at, stop, most, skip_lost=skip_lost):
        found = Place(run.segment, run.end)
        octets += run.end - run.start
    # Nothing more will come in a segment that was not the newest before it was read; it may be removed any time.
    if found.segment < newest and (most is None or octets < most):
        return Place(newest, HEADER_BYTES)
    return found


def newest_segment(directory: str) -> Place:
    """Return where the newest segment begins; where the first will, when there is none."""
    paths = segments(directory)
    return Place(segment_number(paths[-1]) if paths else 0, HEADER_BYTES)


def _lost(directory: str, wanted: int, there: int, skip: bool) -> None:
    error = LogRemoved(directory, wanted, there)
    if not skip:
        raise error
    log.error("%s", error)


def _whole(path: Path, octet: int, cap: int | None, most: int | None) -> tuple[int, str] | None:
    """Return where the whole blocks end that begin at an octet, as far as one look goes, and why if it is damage; None for no segment."""
    try:
        with path.open("rb") as file:
            decode_header(file.read(HEADER_BYTES))
            file.seek(octet)
            octets = file.read(_LOOK_BYTES if cap is None else min(_LOOK_BYTES, max(cap - octet, 0)))
    except FileNotFoundError:
        return None
    except NotAnEventLog as error:
        return octet, str(error)
    end, damage = whole_blocks(octets, octet, most)
    return end, "" if damage is None or damage.torn else damage.reason
