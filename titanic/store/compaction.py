"""Compaction and checkpoints: choice of the segment to empty, and the steps to do it (specs/titanic.md §7, §8).

The daemon takes the steps between two batches of its own work; `titanic compact` takes them one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from titanic.errors import Damaged
from titanic.journal.checkpoint import Checkpoint
from titanic.journal.inspection import read_file, scan_span, segment_name
from titanic.journal.record import Damage, Draft, seed_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from titanic.journal.manifest import Span
    from titanic.journal.record import Location
    from titanic.journal.segment_log import SegmentLog
    from titanic.store.index.request_index import RequestIndex

GARBAGE_MIN: Final = 0.5  # an emptied segment frees at least as much as is copied: write amplification below 2
SMALL: Final = 0.25  # of a segment; every start creates one, so restarts leave many
SMALL_SEGMENTS_MAX: Final = 8
BATCH_RECORDS: Final = 1000
FULL_PART_MAX: Final = 1 / 4  # of the reserve: on a full disk the live bytes of a segment to be emptied; the rest is for replies and closes


class Move(NamedTuple):
    """A live record that must be written again, and its present place."""

    draft: Draft
    old: Location


def pick_segment(sizes: dict[int, int], index: RequestIndex, merge_below: int) -> int | None:
    """Return the segment to empty next while there is space.

    When there are many smaller than `merge_below`, these are merged.
    """
    if not sizes:
        return None
    live = {number: index.live_bytes(number) for number in sizes}
    emptiest = min(sizes, key=lambda number: (live[number], number))
    if live[emptiest] == 0:
        return emptiest
    used = sum(sizes.values())
    if used - sum(live.values()) > GARBAGE_MIN * used:
        return min(sizes, key=lambda number: (live[number] / sizes[number], number))  # at least as much garbage as all together
    small = [number for number, size in sizes.items() if size < merge_below]
    if len(small) > SMALL_SEGMENTS_MAX:
        return min(small, key=lambda number: (live[number], number))
    return None


def pick_on_full_disk(sizes: dict[int, int], index: RequestIndex, copied_max: float) -> int | None:
    """Return the segment with the fewest live bytes, if emptying it frees more than is copied."""
    live = {number: index.live_bytes(number) for number in sizes}
    worthwhile = [number for number in sizes if live[number] <= copied_max and live[number] <= GARBAGE_MIN * sizes[number]]
    return min(worthwhile, key=lambda number: (live[number], number), default=None)


def pick_next(sizes: dict[int, int], index: RequestIndex, log: SegmentLog) -> int | None:
    """Return the segment to empty next out of the sealed ones, given with their sizes in bytes, or None."""
    if log.full:
        return pick_on_full_disk(sizes, index, FULL_PART_MAX * log.options.reserve_bytes)
    return pick_segment(sizes, index, int(SMALL * log.options.segment_bytes))


def live_moves(data: bytes, log: SegmentLog, span: Span, index: RequestIndex) -> Iterator[Move | None]:
    """Yield the live records of a segment, and None for others, so that the caller can pause in between.

    Raises Damaged: a segment with unaccepted damage must not be dropped.
    """
    for item in scan_span(data, seed_of(log.store), span):
        if isinstance(item, Damage):
            if log.is_accepted(span.number, item):
                continue
            raise Damaged(segment_name(span.number), item.offset, item.length, item.uuid)
        draft = index.live_draft(item, span.number)
        yield None if draft is None else Move(draft, (span.number, item.offset, item.size))


def compact_segment(log: SegmentLog, index: RequestIndex, number: int) -> int:
    """Empty and drop one segment; return the number of records written again.

    After StoreFull, Wounded or OSError the segment is still there and nothing is lost.
    """
    name = segment_name(number)
    try:
        found = live_moves(read_file(log.disk, name), log, log.spans[number], index)
        moves = [move for move in found if move is not None]
    except Damaged:
        log.damaged.add(number)
        return 0
    for start in range(0, len(moves), BATCH_RECORDS):
        some = moves[start : start + BATCH_RECORDS]
        placed = log.commit([move.draft for move in some], essential=True)
        index.segments.add(placed.segment)
        for move, offset, size in zip(some, placed.offsets, placed.sizes, strict=True):
            index.moved(move.draft, move.old, (placed.segment, offset, size))
    log.drop([number])
    index.dropped(number)
    return len(moves)


def sealed_sizes(log: SegmentLog) -> dict[int, int]:
    return {number: log.size_of(number) for number in log.droppable()}


def compact(log: SegmentLog, index: RequestIndex) -> tuple[int, int]:
    """Empty segments while worthwhile: (segments dropped, records written again)."""
    dropped = moved = 0
    # Records written again may make another segment worth emptying: not in this call, or it might not end.
    for _ in log.droppable():
        chosen = pick_next(sealed_sizes(log), index, log)
        if chosen is None:
            break
        moved += compact_segment(log, index, chosen)
        dropped += chosen not in log.spans
    return dropped, moved


def checkpoint_of(log: SegmentLog, index: RequestIndex) -> bytes:
    """Return a checkpoint of the index; every record written so far must have been applied to it."""
    return Checkpoint(log.store, log.number, log.durable, list(index.snapshot(log.number))).encode()
