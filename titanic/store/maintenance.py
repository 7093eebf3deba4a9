"""Maintenance of a store while it serves: store clock, compaction, scrubbing, checkpoints (specs/titanic.md §7, §8).

One task. It works in slices so that the event loop stays responsive, and writes through the journal like every other writer, so it needs no
lock.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from core.daemon.logs import RateLimitedLog
from core.runtime import runtime, supervision
from titanic.errors import Damaged, TitanicError
from titanic.journal.checkpoint import encode_packed, item_packer
from titanic.journal.group_commit import no_call
from titanic.journal.inspection import Problem, scan_span, segment_name
from titanic.journal.record import RECORD_HEADER_BYTES, Damage, RecordKind, seed_of
from titanic.journal.record_bodies import NO_UUID, Tick
from titanic.journal.segment_log import LACKS, SegmentLog
from titanic.store.compaction import Move, live_moves, pick_next, sealed_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from titanic.journal.group_commit import Journal
    from titanic.journal.record import Location
    from titanic.store.index.request_index import RequestIndex

log = logging.getLogger("titanic")

TICK_S: Final = 60.0  # maximum error of the store clock after a crash
CLOCK_STEP_MS: Final = 1000  # of the wall clock: it was set, and the next start takes what the two clocks differ in for a downtime
LOOK_S: Final = 1.0  # interval of the checks for a sealed segment
SLICE: Final = 200  # records between two pauses, about 0.5 ms
MOVES_MAX: Final = 1000  # records being moved at once
SCRUB_SLICE: Final = 100  # records, about 0.5 ms, then a pause ten times as long: scrubbing is not urgent
SCRUB_PAUSE_S: Final = 0.005
GOLDEN: Final = (5**0.5 - 1) / 2  # multiples of it are spread evenly between whole numbers
# Part of a segment that may be full when the last checkpoint does not begin a new one: a start reads those records, 4 MiB in about 0.1 s.
OPEN_PART_MAX: Final = 1 / 16
CHECKPOINT_SEGMENTS: Final = 8  # half a gigabyte of records, read in a few seconds, between two checkpoints


class Maintenance:
    """Maintenance task of one store."""

    def __init__(self, journal: Journal, index: RequestIndex, now_ms: Callable[[], int]) -> None:
        self.counts = dict.fromkeys(("dropped", "moved", "checkpoints", "scrubbed", "damaged"), 0)
        # The last look of the previous run at the latest, and before it what reading a segment of the smallest records takes: a segment
        # whose moment came since is read now, also one whose reading was cut off.
        longest_s = 2 * SCRUB_PAUSE_S * journal.log.options.segment_bytes / (SCRUB_SLICE * RECORD_HEADER_BYTES)
        self._looked_ms = index.clock.store_ms - int((LOOK_S + longest_s) * 1000)
        self._to_scrub: set[int] = set()
        self._journal = journal
        self._index = index
        self._now_ms = now_ms
        self._now = runtime.current().monotonic
        # What the start has read counts: a store that is killed again and again before its next checkpoint would read more at each start.
        self._checkpoint_at = journal.log.number - journal.log.octets // journal.log.options.segment_bytes
        self._noted: Tick  # the last one
        self._ticked_s: float  # when the clock was noted
        self._log = RateLimitedLog(log)
        self._task = supervision.current().task("titanic upkeep", self._run)

    async def close(self) -> None:
        """Note the clock, write a checkpoint, and end; appended before the journal's last batch."""
        self._task.cancel()
        if self._journal.log.wounded is None and self._journal.stalled is None:
            # Everything appended before is in the index when this returns, and the tick is in the new segment: the checkpoint covers all.
            least = int(OPEN_PART_MAX * self._journal.log.options.segment_bytes)
            await self._attempt(self._journal.run(SegmentLog.begin_segment, least))
            await self._tick()
            await self._attempt(self._write_checkpoint())

    async def _run(self) -> None:
        seen = 0
        await self._tick()
        while True:
            number = self._journal.log.number
            if number != seen or self._journal.log.full:
                await self._attempt(self._compact())
            if number != seen and number - self._checkpoint_at >= CHECKPOINT_SEGMENTS:
                await self._attempt(self._write_checkpoint())
            seen = number
            if self._now() - self._ticked_s >= TICK_S:
                await self._tick()
                await self._attempt(self._compact())
            elif self._clock_was_set():
                await self._tick()
            await self._attempt(self._scrub_one(self._now_ms()))
            await asyncio.sleep(LOOK_S)

    async def _attempt(self, work: Any) -> None:
        """Run one job; after a disk error it is run again later."""
        try:
            await work
        except (TitanicError, OSError) as error:
            self._log.warning(str(error), "upkeep: %s", error)  # as long as the disk fails, every second

    async def _tick(self) -> None:
        self._ticked_s = self._now()
        self._noted = tick = Tick(self._now_ms(), runtime.current().wall_ns() // 1_000_000)
        done = asyncio.get_running_loop().create_future()
        self._journal.append((RecordKind.TICK, NO_UUID, tick.encode()), (_settle, done))
        place = await done
        if place is not None:
            self._index.segments.add(place[0])
            self._index.clock = tick

    def _clock_was_set(self) -> bool:
        wall_ms = runtime.current().wall_ns() // 1_000_000
        return abs(wall_ms - self._noted.wall_ms - (self._now_ms() - self._noted.store_ms)) > CLOCK_STEP_MS

    async def _compact(self) -> None:
        """Empty segments while worthwhile; each at most once per call."""
        for _ in self._journal.log.droppable():
            chosen = pick_next(await self._journal.run(sealed_sizes), self._index, self._journal.log)
            if chosen is None:
                return
            await self._empty(chosen)

    async def _empty(self, number: int) -> None:
        """Write the live records of a segment again, wait until they are durable, and drop it."""
        journal, index = self._journal, self._index
        moves: list[Move] = []
        closing: list[bytes] = []
        try:
            data = await journal.read_segment(number)
            for seen, move in enumerate(live_moves(data, journal.log, journal.log.spans[number], index)):
                if move is not None:
                    moves.append(move)
                if seen % SLICE == 0:
                    await asyncio.sleep(0)
                if len(moves) >= MOVES_MAX:
                    closing += await self._move(moves)
                    moves = []
        except (Damaged, OSError):
            await self.scrub(number)  # names everything that is damaged, and keeps the segment
            return
        closing += await self._move(moves)
        await journal.run(no_call)  # pending CLOSEs are durable or refused now
        if any(uuid in index.entries for uuid in closing):
            return
        await journal.drop([number])
        index.dropped(number)
        self.counts["dropped"] += 1

    async def _move(self, moves: list[Move]) -> list[bytes]:
        """Write records again; return the UUIDs of requests left out because they are being closed.

        A CLOSE may have been appended since the records were read, and no record may follow it. Raises the error if they were refused.
        """
        index, closing = self._index, list[bytes]()
        written: list[Move] = []
        for move in moves:
            kind, uuid, _ = move.draft
            entry = index.entries.find(uuid)
            if kind == RecordKind.CLOSE or uuid == NO_UUID or (entry is not None and not entry.closing):
                written.append(move)
            elif entry is not None:
                closing.append(uuid)
        if not written:
            return closing
        placed = await self._journal.write_again([move.draft for move in written])
        index.segments.add(placed.segment)
        for move, offset, size in zip(written, placed.offsets, placed.sizes, strict=True):
            index.moved(move.draft, move.old, (placed.segment, offset, size))
        self.counts["moved"] += len(written)
        return closing

    async def _scrub_one(self, now_ms: int) -> None:
        """Read a segment whose moment in the interval has come, by the store clock, which goes on over restarts."""
        opened, every_ms = self._journal.log, self._journal.options.scrub_s * 1000
        since_ms, self._looked_ms = self._looked_ms, now_ms
        sealed = opened.droppable()
        if every_ms:
            self._to_scrub |= {one for one in sealed if _interval(one, now_ms, every_ms) > _interval(one, since_ms, every_ms)}
        self._to_scrub.intersection_update(sealed)
        if self._to_scrub:
            await self.scrub(self._to_scrub.pop())

    async def scrub(self, number: int) -> int:
        """Read a sealed segment and report damage; return the number of damaged ranges.

        Raises OSError if there is too little of something now: it can be read later.
        """
        opened = self._journal.log
        found: list[Problem] = []
        try:
            data = await self._journal.read_segment(number)
            for seen, item in enumerate(scan_span(data, seed_of(opened.store), opened.spans[number])):
                if seen % SCRUB_SLICE == 0:
                    await asyncio.sleep(SCRUB_PAUSE_S)
                if isinstance(item, Damage) and not opened.is_accepted(number, item):
                    found.append(Problem.of(item, number))
        except OSError as error:
            if error.errno in LACKS:
                raise
            found.append(Problem("DAMAGED", segment_name(number), f"{error.strerror or error}"))
        for problem in found:
            log.error("scrub: %s", problem)
            opened.problems.append(problem)
            opened.damaged.add(number)  # keeps the segment from compaction and further scrubs, so each damage is reported once
        self.counts["scrubbed"] += 1
        self.counts["damaged"] += len(found)
        return len(found)

    async def _write_checkpoint(self) -> None:
        """Write a checkpoint in slices; changes made meanwhile are in records that are read after it."""
        index, opened = self._index, self._journal.log
        below = max(index.segments, default=0)
        sequence = opened.durable
        pack, packed = item_packer(), list[bytes]()
        for item in index.snapshot(below):
            packed.append(pack(item))
            if item[0] in "rc" or len(packed) % SLICE == 0:  # many rows, or a pause in the snapshot
                await asyncio.sleep(0)
        await self._journal.run(_put_checkpoint, below, sequence, packed)
        self._checkpoint_at = below
        self.counts["checkpoints"] += 1


def _interval(segment: int, ms: int, every_ms: float) -> float:
    """Return the number of a segment's interval at a time; their beginnings are spread evenly."""
    return (ms / every_ms + segment * GOLDEN) // 1


def _settle(future: asyncio.Future[Location | None], place: Location | None, error: TitanicError | None) -> None:
    if not future.done():
        future.set_result(place)


def _put_checkpoint(opened: SegmentLog, segment: int, sequence: int, packed: list[bytes]) -> None:
    """Encode a checkpoint and put it in place; runs in the writer thread."""
    opened.write_checkpoint(encode_packed(opened.store, segment, sequence, packed))
