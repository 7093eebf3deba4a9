"""Index rebuilt from a checkpoint and records, and written as a checkpoint. Pure.

Records are merged by UUID in any order, because compaction writes records again behind newer ones; only a CLOSE is always the last record
of its UUID. States of the index at a start, with the method on each edge:

    EMPTY --restore (each item)--> RESTORED --apply (each record)--> MERGED --settle--> COMPLETE --resume_clock--> serving
    EMPTY --apply--> MERGED                      (no checkpoint, or a damaged one: `restore` raises, and every record is read)
    RESTORED, MERGED --clear--> EMPTY            (the disk is full: the store is read again with the space of the reserve)

    RESTORED    entries as of the checkpoint; their segments may have been dropped since. Most are rows of chunks, and stay so until they
                are needed (`titanic.store.index.packed_requests`)
    MERGED      entries may be stubs that have a reply, a dead letter or attempts, and no request yet (`_begun`)
    COMPLETE    entries without a record in an existing segment were closed, and are removed; live bytes are exact

A checkpoint (`snapshot`) is consistent although the index changes while it is written: every change since its first item is in a record
that is read after it.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Final

from titanic.journal.manifest import OPEN
from titanic.journal.record import RecordKind
from titanic.journal.record_bodies import NO_UUID, Close, Dead, Tick, decode_attempts, read_request
from titanic.store.index.packed_requests import ROWS_MAX, Group, Owned, Rows, RowsBuilder, fits
from titanic.store.index.reservations import ReservedIndex
from titanic.store.index.stored_request import ANSWERED, DEAD, STORING, WAITING, ClosedKey, Entry, State, scope_of
from titanic.wire.tsp import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from titanic.journal.record import Location, Record

ROWS_MIN = 16  # of a chunk; fewer are items of their own; not final, as tests replace it
UNFINISHED_ROWS_MAX: Final = 65_536  # in all chunks of a checkpoint that are not full yet
TICK_AGE_MS: Final = 120_000  # at most, of the newest TICK that a mirror has when it hears of its store; one is written every minute
PAUSE_ROWS: Final = 200  # looked at between two items of a checkpoint at most
KEYS_SLACK: Final = 1024  # keys above twice the limit before the oldest are forgotten; at start keys come in the order of their records
# Looked up once: a member of an enumeration costs as much as a call.
REQUEST, REPLY, CLOSE = int(RecordKind.REQUEST), int(RecordKind.REPLY), int(RecordKind.CLOSE)


class LoadedIndex(ReservedIndex):
    """Tables that are loaded from records and checkpoints, and written as a checkpoint."""

    def clear(self) -> None:
        """Forget everything, before the store is read again."""
        # In place: compiled, a second `__init__` would not free what the first one has stored.
        self.entries.clear()
        for table in (self.owned, self.live, self.services, self._keys, self._closed_keys, self._tombstones, self.lost, self._names):
            table.clear()
        self.segments.clear()
        self._timers.clear()
        self.clock = Tick(0, 0)
        self.latest_ms = self.bytes_used = 0

    def apply(self, record: Record, segment: int) -> None:
        """Apply a record read at start; raises ValueError when its body cannot be decoded."""
        # Hot path of a start: once per record.
        place = (segment, record.offset, record.size)
        kind, uuid = record.kind, record.uuid
        if kind == REQUEST:
            self._apply_request(uuid, record.body, place)
        elif kind == REPLY:
            self._apply_end(uuid, ANSWERED, int.from_bytes(record.body[:8], "big"), place)
        elif kind == CLOSE:
            self._apply_close(uuid, Close.decode(record.body), place)
        elif kind == RecordKind.DEAD:
            dead = Dead.decode(record.body)
            self._apply_end(uuid, DEAD, dead.at_ms, place)
            self._count_attempts(uuid, dead.attempts)
        elif uuid == NO_UUID:
            self.clock = max(self.clock, Tick.decode(record.body))
        else:
            self._count_attempts(uuid, decode_attempts(record.body))

    def _count_attempts(self, uuid: bytes, attempts: int) -> None:
        entry = self._begun(uuid)
        entry.attempts = max(entry.attempts, attempts)

    def _begun(self, uuid: bytes) -> Entry:
        """Return the entry of a request, a stub if its REQUEST has not been read yet."""
        entry = self.entries.find(uuid)
        if entry is None:
            entry = Entry(uuid)
            self._add(entry)
        return entry

    def _seen(self, ms: int) -> None:
        self.latest_ms = max(self.latest_ms, ms)

    def _apply_request(self, uuid: bytes, body: bytes, place: Location) -> None:
        accepted_ms, not_before_ms, expires_ms, attempts_max, key, service, frames_at, owner = read_request(body)
        if accepted_ms > self.latest_ms:
            self.latest_ms = accepted_ms
        entry = self.entries.find(uuid)
        if entry is None:
            entry = Entry(uuid)
        elif entry.request is not None:
            entry.request = self._settle_place(entry, entry.request, place)
            return
        else:
            self._remove_stub(entry)
        entry.service = self._names.setdefault(service, service)
        entry.accepted_ms = accepted_ms
        entry.not_before_ms = not_before_ms
        entry.expires_ms = expires_ms
        entry.attempts_max = attempts_max
        entry.owner = self._names.setdefault(owner, owner)
        if key:
            entry.key = key
            entry.digest = digest_of(body[frames_at:])
        if entry.state == STORING:
            entry.state = WAITING
        entry.size += place[2]
        self._add(entry)
        entry.request = self._settle_place(entry, None, place)
        if expires_ms and entry.state == WAITING:
            self._set_timer(expires_ms, uuid)

    def _remove_stub(self, entry: Entry) -> None:
        """Remove a stub, to add it again with the fields of its REQUEST."""
        reply, entry.reply = entry.reply, None
        self._remove(entry)
        entry.reply = reply

    def _apply_end(self, uuid: bytes, state: State, at_ms: int, place: Location) -> None:
        self._seen(at_ms)
        entry = self._begun(uuid)
        if entry.reply is None:
            self._grow(entry, place[2])
        entry.state = state
        entry.ended_ms = at_ms
        entry.reply = self._settle_place(entry, entry.reply, place)
        if self.limits.retain_ms:
            self._set_timer(at_ms + self.limits.retain_ms, uuid)

    def _apply_close(self, uuid: bytes, close: Close, place: Location) -> None:
        self._seen(close.closed_ms)
        entry = self.entries.find(uuid)
        if entry is not None:
            self._remove(entry)
        self._add_tombstone(place, close.lowest, place[0] if close.highest == OPEN else close.highest)
        if close.key:
            self._remember(scope_of(close.owner, close.key), ClosedKey(uuid, close.digest, close.closed_ms, place))
            if len(self._closed_keys) > 2 * self.limits.keys_max + KEYS_SLACK:
                self._order_keys()

    def settle(self, segments: set[int]) -> None:
        """End loading: remove what a checkpoint placed in dropped segments and no later record moved; it was closed."""
        self.segments = set(segments)
        self._names = {}
        self.entries.unpack_in(self.entries.segments - segments)
        for entry in self.entries.unpacked():
            if entry.request is not None and entry.request[0] not in segments:
                self._grow(entry, -entry.request[2])
                entry.request = None
            if entry.reply is not None and entry.reply[0] not in segments:
                self._grow(entry, -entry.reply[2])
                entry.reply = None
            if entry.request is None and entry.reply is None:
                self._remove(entry)
        for key in [key for key, closed in self._closed_keys.items() if closed.close[0] not in segments]:
            self._forget_key(key)  # forgotten before, or compaction would have moved its CLOSE
        self._order_keys()
        for number in [number for number in {*self.live, *self._tombstones} if number not in segments]:
            self.dropped(number)

    def lose(self, damaged: Mapping[bytes, int]) -> None:
        """Note requests with damaged records, and the first segment of such; they are lost until they are closed."""
        for uuid, segment in damaged.items():
            if any(uuid):  # it is that of a request
                stub = self.lost[uuid] = Entry(uuid)
                stub.lowest = segment
                if (entry := self.entries.find(uuid)) is not None:
                    entry.lowest = min(entry.lowest, segment)

    def resume_clock(self, wall_ms: int, heard_ms: int = -1) -> int:
        """Return the store clock at start: advanced by the wall time since the last TICK, never set back.

        With `heard_ms`, how long ago a mirror heard of its store, this is believed: the other machine has a wall clock of its own.
        """
        store_ms, then_ms = self.clock
        if then_ms:
            passed_ms = max(0, wall_ms - then_ms)
            store_ms += passed_ms if heard_ms < 0 else min(max(passed_ms, heard_ms), heard_ms + TICK_AGE_MS)
        self._seen(store_ms)
        return self.latest_ms

    def snapshot(self, below: int) -> Iterator[list[Any]]:
        """Yield the items of a checkpoint after which segments below `below` need not be read; the index may change meanwhile."""
        clock = ["c", *self.clock, self.latest_ms]
        yield clock
        for segment, tombstones in list(self._tombstones.items()):
            if segment < below:
                for (low, high), size in list(tombstones.items()):
                    yield ["t", segment, low, high, size]
        for key, closed in list(self._closed_keys.items()):
            owner, key = key if isinstance(key, tuple) else (b"", key)
            yield ["k", key, closed.uuid, closed.digest, closed.closed_ms, *closed.close, *((owner,) if owner else ())]
        chunks: dict[Group, RowsBuilder] = {}
        since = rows = 0  # requests since the last item, rows in `chunks`
        for uuid in list(self.entries):
            since += 1
            if since >= PAUSE_ROWS:
                since = 0
                yield clock  # known already: the writer of the checkpoint can pause here
            entry = self.entries.row(uuid)
            if entry is None:
                continue  # closed meanwhile
            if isinstance(entry, tuple):
                group = entry[0].group
            elif fits(entry):
                group = Group(entry.service, entry.owner, entry.key != b"")
            else:
                if entry.state != STORING:
                    since = 0
                    yield _item_of(entry)
                continue
            chunk = chunks.get(group)
            if chunk is None:
                chunk = chunks[group] = RowsBuilder(group)
            if isinstance(entry, tuple):
                chunk.copy(uuid, *entry)
            else:
                chunk.add(entry)
            rows += 1
            if len(chunk.uuids) == ROWS_MAX:
                del chunks[group]
                since, rows = 0, rows - ROWS_MAX
                yield chunk.build().item()
            elif rows >= UNFINISHED_ROWS_MAX:
                yield from _items_of(chunks)
                since = rows = 0
        yield from _items_of(chunks)

    def restore(self, item: Any) -> None:
        """Load one item of a checkpoint; raises ValueError when it cannot be decoded."""
        try:
            match item[0]:
                case "e":
                    self._restore_entry(*item[1:])
                case "r":
                    self._restore_rows(Rows.load(item))
                case "k":
                    _, key, uuid, digest, at_ms, segment, offset, size, *owner = item
                    self._remember(scope_of(_owner_of(owner), key), ClosedKey(uuid, digest, at_ms, _place_of((segment, offset, size))))
                case "t":
                    _, segment, low, high, size = item
                    self._tombstones.setdefault(segment, {})[low, high] = index(size)
                case "c":
                    _, store_ms, wall_ms, latest_ms = item
                    self.clock = max(self.clock, Tick(index(store_ms), index(wall_ms)))
                    self._seen(index(latest_ms))
                case _:
                    raise ValueError("unknown item of the checkpoint")
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            self._tombstones.clear()  # every record is read now, and tombstones would be counted twice
            raise ValueError("malformed item of the checkpoint") from error

    def _restore_entry(
        self, uuid: bytes, service: bytes, key: bytes, digest: bytes, request: Any, reply: Any, state: int, *numbers: Any
    ) -> None:
        entry = Entry(uuid)
        entry.service, entry.key, entry.digest = service, key, digest
        entry.state = State(state)
        entry.accepted_ms, entry.not_before_ms, entry.expires_ms, entry.ended_ms, *counts = numbers
        entry.attempts, entry.attempts_max, entry.size, lowest, _, *owner = counts
        entry.owner = _owner_of(owner)
        self._seen(max(entry.accepted_ms, entry.ended_ms))
        self._add(entry)
        if request is not None:
            entry.request = self._settle_place(entry, None, _place_of(request))
        if reply is not None:
            entry.reply = self._settle_place(entry, None, _place_of(reply))
        entry.lowest = lowest
        if entry.state == WAITING and entry.expires_ms:
            self._set_timer(entry.expires_ms, uuid)
        elif self.limits.retain_ms and entry.state >= ANSWERED:
            self._set_timer(entry.ended_ms + self.limits.retain_ms, uuid)

    def _restore_rows(self, chunk: Rows) -> None:
        fresh = self.entries.add_rows(chunk)
        service, owner, keyed = chunk.group
        size = sum(chunk.live.values())
        for segment, live in chunk.live.items():
            self.live[segment] = self.live.get(segment, 0) + live
        self.bytes_used += size
        self.services[service] = self.services.get(service, 0) + len(fresh)
        self._seen(chunk.last_ms)
        if keyed:
            self._keys.update(zip(((owner, key) for key in chunk.keys) if owner else chunk.keys, fresh, strict=True))
        if owner:
            mine = self.owned.get(owner)
            if mine is None:
                mine = self.owned[owner] = Owned(self.entries)
            mine.update(fresh)
            mine.octets += size


def _item_of(entry: Entry) -> list[Any]:
    numbers = (entry.state, entry.accepted_ms, entry.not_before_ms, entry.expires_ms, entry.ended_ms)
    counts = (entry.attempts, entry.attempts_max, entry.size, entry.lowest, OPEN)  # the last is for older programs
    whose = (entry.owner,) if entry.owner else ()
    return ["e", entry.uuid, entry.service, entry.key, entry.digest, entry.request, entry.reply, *numbers, *counts, *whose]


def _items_of(chunks: dict[Group, RowsBuilder]) -> Iterator[list[Any]]:
    """Yield the items of unfinished chunks, and take them."""
    for group in list(chunks):
        rows = chunks.pop(group).build()
        if len(rows.names()) >= ROWS_MIN:
            yield rows.item()
        else:
            for at, uuid in enumerate(rows.names()):
                yield _item_of(rows.entry(uuid, at))


def _owner_of(last: list[Any]) -> bytes:
    """Return the owner at the end of an item of a checkpoint; items without an owner end before it."""
    if not last:
        return b""
    (owner,) = last
    if not isinstance(owner, bytes):
        raise TypeError("an owner is bytes")
    return owner


def _place_of(numbers: Any) -> Location:
    segment, offset, size = numbers
    return segment, offset, size
