"""Segment log: append records to the open segment, sync, rotate, drop segments.

Blocking; used by one thread; a crash at any call is recovered from.

States of the log, with the function on each edge:

    open -> CLEAN --_commit, write--> WRITTEN --sync--> CLEAN
    CLEAN, WRITTEN --OSError in write or sync--> DEAD SEGMENT --_commit: _rotate--> CLEAN in a new segment
    any --ENOSPC, EMFILE and the like (`LACKS`): _note_error--> FULL (reserve released) --resume--> CLEAN
    CLEAN, WRITTEN --begin_segment: _rotate--> CLEAN in a new segment
    DEAD SEGMENT --_rotate or the second write fails--> WOUNDED (until the next start)
    any --ESTALE: _note_error--> WOUNDED (another program has removed the segment, and all that was acknowledged in it)

    CLEAN           `durable == next - 1`: every record was synced
    WRITTEN         records above `durable` are with the operating system; they survive the process, not a power failure
    DEAD SEGMENT    `_alive` is False: bytes behind `_at` are unknown, the file is never written, synced or truncated again
    FULL            only essential records (replies, closes) are taken, out of the reserve
    WOUNDED         nothing is taken; what was acknowledged before is still on the disk

Invariants:

    a file that failed a write, sync or truncate is never touched again      (no retry of fsync on the same descriptor)
    a segment has its name only when it is whole, and the directory synced   (`prepare_segment`)
    sequences are consecutive; a segment ends where the next one begins
    a segment is unlinked only after a manifest without it is on the disk
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from core.machine.value_copies import reduced
from titanic.errors import MirrorAway, StoreFull, Wounded
from titanic.journal.checkpoint import CHECKPOINT_NAME
from titanic.journal.inspection import MANIFEST_NAME, is_accepted, segment_name, size_of
from titanic.journal.manifest import OPEN, Accepted, Manifest, Span
from titanic.journal.ownership import check_is_store
from titanic.journal.record import HEADER_BYTES, SPARE_BYTES, Draft, SegmentHeader, encode_pieces, seed_of
from titanic.journal.recovery import Consumer, Recovered, Start, prepare_segment, publish_segment, recover, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from titanic.journal.disk import Disk
    from titanic.journal.record import Damage

RESERVE_NAME: Final = "reserve"
JOINED_BYTES_MAX: Final = 1024 * 1024  # of a batch that is written as one buffer
# Errors that say what there is too little of now, and not that the disk fails: the same call may succeed later.
LACKS: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "disk"),
    errno.EROFS: "disk is read-only",  # mounted so, or by the system after an error
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "open files"),
    errno.ENOMEM: "memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Limits of a log.

    Attributes:
        segment_bytes: size of a segment; 64 MiB as in etcd: rotation (4 syncs) is rare, and a segment is read in 0.1 s. It is allocated
            when the segment is created: a sync then writes no metadata, a full disk shows at rotation instead of within a batch, and a
            segment that was cut off is recognised.
        reserve_bytes: disk space kept back for closes and replies on a full disk (about 40,000 closes); 0 for none.
    """

    segment_bytes: int = 64 * 1024 * 1024
    reserve_bytes: int = 4 * 1024 * 1024

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


class Placement(NamedTuple):
    """Places of the records of a batch: the segment, and offset and size of each record."""

    segment: int
    offsets: list[int]
    sizes: list[int]


class SegmentLog:
    """An open store."""

    def __init__(self, disk: Disk, options: LogOptions, recovered: Recovered, created_ms: int) -> None:
        self.disk = disk
        self.options = options
        self.store = recovered.store
        self.problems = recovered.problems  # problems, spans: as recovery found them, kept up to date
        self.records = recovered.records
        self.octets = recovered.octets
        self.damaged = recovered.damaged
        self.lost = recovered.lost
        self.spans = recovered.spans
        self.number = max(recovered.spans)  # the open segment
        self.durable = recovered.next - 1  # the last sequence known to be synced
        self.lacks = ""  # what there is too little of; until `resume` only essential records are taken
        self.wounded: str | None = None
        self.failures = 0  # number of files given up after an error
        self._accepted: tuple[Accepted, ...] = recovered.accepted
        self._handle = recovered.handle
        self._at = recovered.at
        self._next = recovered.next
        self._capacity = recovered.size
        self._created_ms = created_ms
        self._seed = seed_of(recovered.store)
        self._alive = True  # the open segment has had no error
        self._restore_reserve()

    @classmethod
    def open(
        cls,
        disk: Disk,
        options: LogOptions,
        consumer: Consumer,
        *,
        store: bytes,
        created_ms: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> SegmentLog:
        """Lock the directory and recover the store; `store` is the id for a new one. Raises as `recover`, and StoreLocked."""
        disk.lock()
        try:
            check_is_store(disk)
            start = Start(store, options.segment_bytes, created_ms, progress)
            try:
                recovered = recover(disk, consumer, start)
            except OSError as error:
                if LACKS.get(error.errno or 0) != "disk" or not options.reserve_bytes:
                    raise
                # A full disk must not prevent a start: release the reserve and use a small segment. Without one it was released before.
                size = options.reserve_bytes // (2 if RESERVE_NAME in disk.names() else 4)
                disk.unlink(RESERVE_NAME)
                disk.sync_directory()
                consumer.clear()
                recovered = recover(disk, consumer, start._replace(segment_bytes=min(options.segment_bytes, size)))
            return cls(disk, options, recovered, created_ms)
        except BaseException:
            disk.unlock()
            raise

    @property
    def next(self) -> int:
        return self._next

    @property
    def full(self) -> bool:
        return bool(self.lacks)

    def commit(self, drafts: list[Draft], *, sync: bool = True, essential: bool = False) -> Placement:
        """Write a batch to one segment; return when it is synced (with `sync`) or passed to the operating system (without).

        Batches of closes and replies are `essential` and still taken when the disk is full.

        Raises:
            StoreFull: no disk space, open file or memory; nothing of the batch counts. The same call may succeed later.
            Wounded: the disk failed twice; nothing of the batch counts, and later calls raise it too.
        """
        if self.wounded is not None:
            raise Wounded(self.wounded)
        if self.full and not essential:
            raise StoreFull(self.lacks)
        try:
            return self._commit(drafts, sync)
        except OSError as error:
            self._note_error(error)
            if error.errno in LACKS and not essential:
                raise StoreFull(self.lacks) from error
            if error.errno == errno.ESTALE:  # not asked of `wounded`: compiled, that counts as None here, as it did above
                raise self._wound(error) from error
        try:
            return self._commit(drafts, sync)
        except OSError as error:
            self._note_error(error)
            if error.errno in LACKS:
                raise StoreFull(self.lacks) from error
            raise self._wound(error) from error

    def _wound(self, error: OSError) -> Wounded:
        self.wounded = f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, '?')})"
        return Wounded(self.wounded)

    def _commit(self, drafts: list[Draft], sync: bool) -> Placement:
        pieces, sizes = encode_pieces(drafts, self._next, self.durable, self._seed)
        total = sum(sizes)
        wanted = self._at + total + SPARE_BYTES
        if not self._alive or (wanted > self._capacity and self._at > HEADER_BYTES):
            self._rotate(total)
        elif wanted > self._capacity:
            self._lengthen(wanted)
        offsets = []
        at = self._at
        for size in sizes:
            offsets.append(at)
            at += size
        # A copy of many small records costs less than the system takes for each buffer.
        buffers = [b"".join(pieces)] if total <= JOINED_BYTES_MAX else pieces
        self._alive = False
        self.disk.write(self._handle, buffers, self._at)
        if sync:
            self.disk.sync(self._handle)
        self._alive = True
        self._at = at
        self._next += len(drafts)
        if sync:
            self.durable = self._next - 1
        return Placement(self.number, offsets, sizes)

    def _lengthen(self, size: int) -> None:
        """Enlarge an empty segment, and sync that before anything is written there; else its end could be missing."""
        self._alive = False
        self.disk.preallocate(self._handle, size)
        self.disk.sync(self._handle)

    def _note_error(self, error: OSError) -> None:
        """Note an error: a segment within a write or sync is dead; on a full disk release the reserve."""
        if not self._alive:
            self.failures += 1
        if error.errno == errno.ESTALE:
            self._wound(error)
        if error.errno in LACKS and not self.full:
            self.lacks = LACKS[error.errno]
            self._release_reserve()

    def sync(self) -> None:
        """Sync everything written.

        Raises Wounded if the sync failed. Writing continues in a new segment, but what was acknowledged since the last sync may be
        lost; the sequences are in `problems` of the next start.
        """
        if self.durable == self._next - 1 or not self._alive:
            return
        try:
            self._alive = False
            self.disk.sync(self._handle)
            self._alive = True
        except OSError as error:
            self._note_error(error)
            raise Wounded(f"sync failed, sequences {self.durable + 1}-{self._next - 1} may be lost: {error}") from error
        self.durable = self._next - 1

    def begin_segment(self, least: int = 0) -> None:
        """Begin a new segment if more than `least` bytes are in the open one; raises OSError without a new one."""
        if self.wounded is not None or self.full or self._at <= HEADER_BYTES + least:
            return
        try:
            self._rotate()
        except OSError as error:
            self._note_error(error)
            raise

    def _rotate(self, wanted: int = 0, *, whole: bool = False) -> None:
        """Seal the open segment and begin the next one, `whole` on a full disk too; raises OSError without one."""
        if self._alive and self.durable < self._next - 1:
            self._alive = False
            self.disk.sync(self._handle)
            self._alive = True
            self.durable = self._next - 1
        # On a full disk use only part of the released reserve: the manifest that frees segments needs the rest.
        capacity = self.options.reserve_bytes // 4 if self.full and not whole else self.options.segment_bytes
        capacity = max(capacity, HEADER_BYTES + wanted + SPARE_BYTES)
        header = SegmentHeader(self.store, self.number + 1, self._next, self._created_ms)
        handle = prepare_segment(self.disk, header, (), capacity)
        old, at, alive = self._handle, self._at, self._alive
        self._alive = False  # once the new segment may have its name, the old one must not grow
        publish_segment(self.disk, header, handle)
        self.spans[self.number] = self.spans[self.number]._replace(last=self._next - 1)
        self.number += 1
        self.spans[self.number] = Span(self.number, self._next, OPEN)
        self._handle, self._at, self._capacity, self._alive = handle, HEADER_BYTES, capacity, True
        try:
            try:
                if alive:
                    self.disk.truncate(old, at)
            finally:
                self.disk.close(old)
            self._write_manifest()
        except OSError:
            self.failures += 1  # the new segment ends the old one; trimming and listing it can wait for the next rotation

    def _write_manifest(self) -> None:
        self._accepted = tuple(one for one in self._accepted if one.segment in self.spans)
        manifest = Manifest(self.store, tuple(self.spans.values()), self._accepted)
        replace_file(self.disk, MANIFEST_NAME, manifest.encode())
        self.disk.sync_directory()

    def droppable(self) -> list[int]:
        """Return the sealed segments that may be emptied: those without unaccepted damage."""
        return [number for number in self.spans if number != self.number and number not in self.damaged]

    def is_accepted(self, number: int, damage: Damage) -> bool:
        return is_accepted(self._accepted, number, damage)

    def size_of(self, number: int) -> int:
        return size_of(self.disk, segment_name(number))

    def drop(self, numbers: list[int]) -> None:
        """Remove sealed segments whose live records were all written again.

        Raises Wounded if what was appended could not be synced: nothing was removed. After OSError, dropping them again is safe.
        """
        self.sync()
        if self.durable != self._next - 1:
            raise Wounded("the open segment failed")
        spans = dict(self.spans)
        self.spans = {number: span for number, span in spans.items() if number not in numbers}
        try:
            self._write_manifest()
        except OSError:
            self.spans = spans
            raise
        for number in numbers:
            self.disk.unlink(segment_name(number))

    def resume(self) -> bool:
        """Try to leave the full state, which needs space for the reserve and a whole segment; return whether it worked."""
        if not self.full or self.wounded is not None:
            return not self.full
        try:
            self._take_reserve()
            if not self._alive or self._capacity - self._at < self.options.segment_bytes // 2:
                self._rotate(whole=True)
        except (OSError, MirrorAway) as error:  # the latter when the store is closed while it waits for its mirror
            if isinstance(error, OSError):
                self.lacks = LACKS.get(error.errno or 0, self.lacks)
            self._release_reserve()
            return False
        self.lacks = ""  # not before: the status is read by others meanwhile
        return True

    def _restore_reserve(self) -> None:
        try:
            self._take_reserve()
        except OSError as error:
            if error.errno not in LACKS:
                raise
            self.lacks = LACKS[error.errno]

    def _take_reserve(self) -> None:
        if not self.options.reserve_bytes or RESERVE_NAME in self.disk.names():
            return
        handle = self.disk.create(RESERVE_NAME)
        try:
            self.disk.preallocate(handle, self.options.reserve_bytes)
        except (OSError, MirrorAway):
            self.disk.close(handle)
            self.disk.unlink(RESERVE_NAME)
            raise
        self.disk.close(handle)

    def _release_reserve(self) -> None:
        try:
            self.disk.unlink(RESERVE_NAME)
            self.disk.sync_directory()
        except (OSError, MirrorAway):
            self.failures += 1  # a directory that cannot be changed frees no space

    def write_checkpoint(self, octets: bytes) -> None:
        """Put a checkpoint in place; raises OSError, then the old one is still there."""
        replace_file(self.disk, CHECKPOINT_NAME, octets)
        self.disk.sync_directory()

    def close(self) -> None:
        """Sync, release the unused space of the open segment, and the directory."""
        try:
            try:
                if self.wounded is None:
                    self.sync()
                    if self._alive:
                        self.disk.truncate(self._handle, self._at + SPARE_BYTES)
                        self.disk.sync(self._handle)
            finally:
                self.disk.close(self._handle)
        finally:
            self.disk.unlock()
