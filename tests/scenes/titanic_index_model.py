"""An index on a journal of lists, next to a model that recomputes everything from its own notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import pytest

from core.zmtp.frames import encode_message
from titanic.errors import KeyConflict, StoreFull
from titanic.journal.manifest import OPEN
from titanic.journal.record import HEADER_BYTES, Record, RecordKind, record_size
from titanic.journal.record_bodies import NO_UUID, Close, Dead, Tick, encode_attempts, encode_reply, encode_request
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.index.stored_request import ClosedKey, Entry, State
from titanic.wire.tsp import NO_OPTIONS, Options, Submission, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from titanic.journal.record import Draft, Location

__all__ = ["LIMITS", "Play"]

SEGMENT_BYTES = 1200
LIMITS = Limits(requests_max=12, bytes_max=1600, service_requests_max=6, keys_max=4, key_age_ms=400, retain_ms=300)
SERVICES = (b"echo", b"resize", b"mail")
OWNERS = (b"", b"", b"ann", b"bob")
KEYS = (b"", b"", b"one", b"two", b"three", b"four", b"five", b"six")


@dataclass
class Sheet:
    """A request in the model.

    `told` holds the times at which it was reported as due, `held` the segments of its records.
    """

    uuid: bytes
    owner: bytes
    asked: Submission
    accepted_ms: int
    state: State = State.STORING
    ended_ms: int = 0
    attempts: int = 0
    request: Location | None = None
    reply: Location | None = None
    held: list[int] = field(default_factory=list)
    told: set[int] = field(default_factory=set)

    @property
    def scope(self) -> tuple[bytes, bytes]:
        return self.owner, self.asked.options.key

    @property
    def not_before_ms(self) -> int:
        return self.accepted_ms + self.asked.options.delay_ms if self.asked.options.delay_ms else 0

    @property
    def expires_ms(self) -> int:
        return self.accepted_ms + self.asked.options.ttl_ms if self.asked.options.ttl_ms else 0

    @property
    def body(self) -> bytes:
        options = self.asked.options
        times = (self.accepted_ms, self.not_before_ms, self.expires_ms)
        return encode_request(*times, options.attempts, options.key, self.asked.frames, self.owner)

    @property
    def size(self) -> int:
        return record_size(len(self.body)) + (self.reply[2] if self.reply else 0)

    def end_of_time(self, limits: Limits) -> int:
        """Return when it is due, 0 for never."""
        if self.state == State.WAITING:
            return self.expires_ms
        return self.ended_ms + limits.retain_ms if self.state >= State.ANSWERED and limits.retain_ms else 0


class Closed(NamedTuple):
    """A closed request with a key, in the model."""

    uuid: bytes
    digest: bytes
    closed_ms: int
    close: Location


class Checkpoint(NamedTuple):
    """Items as they are found again, and the segment to read on from."""

    items: list[Any]
    below: int


class Play:
    """One index under a random load."""

    def __init__(self, seed: int, limits: Limits = LIMITS) -> None:
        self.random = Random(seed)
        self.limits = limits
        self.index = RequestIndex(limits)
        self.journal: dict[int, list[Record]] = {1: []}
        self.index.segments.add(1)
        self.sheets: dict[bytes, Sheet] = {}
        self.closed: dict[tuple[bytes, bytes], Closed] = {}
        self.gone: set[bytes] = set()
        self.clock = Tick(0, 0)
        self.latest_ms = 0
        self.now_ms = 1000
        self.count = 0
        self.timers: set[int] = set()  # all there ever were
        self.checkpoint = Checkpoint([], 0)
        self.snapshot: Iterator[list[Any]] | None = None
        self.items: list[Any] = []
        self.below = 0

    # ---- the journal

    def append(self, draft: Draft) -> Location:
        kind, uuid, body = draft
        number = max(self.journal)
        size = record_size(len(body))
        records = self.journal[number]
        at = records[-1].offset + records[-1].size if records else HEADER_BYTES
        if at + size > SEGMENT_BYTES:
            number, at = number + 1, HEADER_BYTES
            self.journal[number] = []
        self.count += 1
        self.journal[number].append(Record(kind, uuid, body, self.count, 0, at, size))
        return number, at, size

    def written(self, draft: Draft) -> Location:
        place = self.append(draft)
        self.index.segments.add(place[0])
        return place

    # ---- what may happen

    def step(self) -> None:
        self.now_ms += self.random.choice((1, 1, 5, 40))
        steps = (
            [self.submit] * 6
            + [self.store] * 6
            + [self.end] * 4
            + [self.close] * 4
            + [self.attempt] * 3
            + [self.tick, self.due, self.abandon]
        )
        steps += [self.compact] * 2 + [self.write_down] * 3
        self.random.choice(steps)()

    def some(self, *states: State) -> Sheet | None:
        fitting = [sheet for sheet in self.sheets.values() if sheet.state in states]
        return self.random.choice(fitting) if fitting else None

    def submission(self) -> Submission:
        choose = self.random.choice
        frames = encode_message([service := choose(SERVICES), body := self.random.randbytes(self.random.randrange(40))])
        if self.random.random() < 0.3:
            return Submission(service, frames, NO_OPTIONS, b"", [body])
        key = choose(KEYS)
        options = Options(key, choose((0, 30)), choose((0, 100, 900)), choose((0, 3, 3)))
        return Submission(service, frames, options, digest_of(frames) if key else b"", [body])

    def submit(self) -> None:
        asked, owner, uuid = self.submission(), self.random.choice(OWNERS), self.random.randbytes(16)
        sheet = Sheet(uuid, owner, asked, self.now_ms)
        if asked.options.key and self._known(sheet):
            return
        size = record_size(len(sheet.body))
        of_service = [other for other in self.sheets.values() if other.asked.service == asked.service]
        used = sum(other.size for other in self.sheets.values())
        full = None
        if len(self.sheets) >= self.limits.requests_max:
            full = ("requests_max", len(self.sheets), self.limits.requests_max)
        elif used + size > self.limits.bytes_max:
            full = ("bytes_max", used, self.limits.bytes_max)
        elif len(of_service) >= self.limits.service_requests_max:
            full = ("service_requests_max", len(of_service), self.limits.service_requests_max)
        if full is not None:
            with pytest.raises(StoreFull) as refused:
                self.index.accept(uuid, asked, self.now_ms, owner)
            assert (refused.value.limit, refused.value.used, refused.value.most) == full
            return
        entry, fresh = self.index.accept(uuid, asked, self.now_ms, owner)
        assert fresh
        assert isinstance(entry, Entry)
        self.sheets[uuid] = sheet

    def _known(self, sheet: Sheet) -> bool:
        """Tell whether a key is known, and see that it is answered so."""
        lives = [other for other in self.sheets.values() if other.scope == sheet.scope]
        known = lives[0] if lives else self.closed.get(sheet.scope)
        if known is None:
            return False
        digest = known.asked.digest if isinstance(known, Sheet) else known.digest
        asked = sheet.asked
        same, other = (Submission(asked.service, asked.frames, asked.options, one, asked.body) for one in (digest, digest + b"!"))
        found, fresh = self.index.accept(sheet.uuid, same, self.now_ms, sheet.owner)
        assert not fresh
        assert found is self.index.entries[known.uuid] if isinstance(known, Sheet) else found == ClosedKey(*known)
        with pytest.raises(KeyConflict) as conflict:
            self.index.accept(sheet.uuid, other, self.now_ms, sheet.owner)
        assert conflict.value.uuid == known.uuid
        return True

    def store(self) -> None:
        if (sheet := self.some(State.STORING)) is None:
            return
        sheet.request = self.written((RecordKind.REQUEST, sheet.uuid, sheet.body))
        sheet.state = State.WAITING
        sheet.held.append(sheet.request[0])
        self.index.stored(self.index.entries[sheet.uuid], sheet.request)
        self._set_timer(sheet)

    def abandon(self) -> None:
        if (sheet := self.some(State.STORING)) is None:
            return
        entry = self.index.entries[sheet.uuid]
        self.index.abandon(entry)
        del self.sheets[sheet.uuid]
        self.index.abandon(entry)  # once more: nothing happens

    def end(self) -> None:
        if (sheet := self.some(State.WAITING)) is None:
            return
        if self.random.random() < 0.7:
            state, end = State.ANSWERED, self.index.answered
            draft = (RecordKind.REPLY, sheet.uuid, encode_reply(self.now_ms, self.random.randbytes(self.random.randrange(30))))
        else:
            state, end = State.DEAD, self.index.dead_lettered
            draft = (RecordKind.DEAD, sheet.uuid, Dead(self.now_ms, sheet.attempts, "no").encode())
        place = self.written(draft)
        entry = self.index.entries[sheet.uuid]
        assert end(sheet.uuid, place, self.now_ms) is entry
        sheet.state, sheet.reply, sheet.ended_ms = state, place, self.now_ms
        sheet.held.append(place[0])
        self._set_timer(sheet)
        assert self.index.answered(sheet.uuid, (99, 0, 8), self.now_ms) is None  # it has its end
        assert self.index.dead_lettered(sheet.uuid, (99, 0, 8), self.now_ms) is None

    def close(self) -> None:
        if (sheet := self.some(State.WAITING, State.ANSWERED, State.DEAD)) is None:
            return
        entry = self.index.entries[sheet.uuid]
        draft = (RecordKind.CLOSE, sheet.uuid, self.index.closing(entry, self.now_ms))
        there = [number for number, records in self.journal.items() if any(record.uuid == sheet.uuid for record in records)]
        close = Close.decode(draft[2])
        assert close.lowest <= min(there)
        assert close[2:] == (OPEN, sheet.asked.options.key, sheet.asked.digest, sheet.owner)
        place = self.written(draft)
        assert self.index.closed(sheet.uuid, place, self.now_ms) is entry
        del self.sheets[sheet.uuid]
        self.gone.add(sheet.uuid)
        if sheet.asked.options.key:
            self.closed.pop(sheet.scope, None)
            self.closed[sheet.scope] = Closed(sheet.uuid, sheet.asked.digest, self.now_ms, place)
            self._forget_keys()
        assert self.index.closed(sheet.uuid, place, self.now_ms) is None  # it is closed
        assert self.index.answered(sheet.uuid, place, self.now_ms) is None

    def _forget_keys(self) -> None:
        """Keep the youngest."""
        young = sorted(self.closed.items(), key=lambda one: one[1].closed_ms)
        self.closed = dict(young[max(0, len(young) - self.limits.keys_max) :])

    def attempt(self) -> None:
        if (sheet := self.some(State.WAITING)) is None or not sheet.asked.options.attempts:
            return
        sheet.attempts += 1
        self.index.entries[sheet.uuid].attempts += 1
        self.written((RecordKind.TICK, sheet.uuid, encode_attempts(sheet.attempts)))

    def tick(self) -> None:
        self.clock = self.index.clock = Tick(self.now_ms, 500_000 + self.now_ms)
        self.written((RecordKind.TICK, NO_UUID, self.clock.encode()))

    def due(self) -> None:
        """A request that is due is reported once, or once more if it stayed and was due again."""
        late = {uuid: at for uuid, sheet in self.sheets.items() if 0 < (at := sheet.end_of_time(self.limits)) <= self.now_ms}
        found = [entry.uuid for entry in self.index.due(self.now_ms)]
        assert len(found) == len(set(found))
        assert {uuid for uuid, at in late.items() if at not in self.sheets[uuid].told} <= set(found) <= set(late)
        again = [self.sheets[uuid] for uuid in found if late[uuid] in self.sheets[uuid].told]
        assert all(sheet.state >= State.ANSWERED and 0 < sheet.expires_ms for sheet in again)
        for uuid, at in late.items():
            self.sheets[uuid].told.add(at)
        assert (self.index.deadline_ms() or self.now_ms + 1) > self.now_ms
        self.closed = {scope: one for scope, one in self.closed.items() if self.now_ms - one.closed_ms < self.limits.key_age_ms}

    def _set_timer(self, sheet: Sheet) -> None:
        at = sheet.end_of_time(self.limits)
        if at:
            self.timers.add(at)

    # ---- compaction, checkpoints, restarts

    def compact(self) -> None:
        """Empty a segment; sometimes it cannot be dropped, or the process dies first and records are written again."""
        sealed = sorted(self.journal)[:-1]
        if not sealed:
            return
        number = self.random.choice(sealed)
        moves = []
        for record in self.journal[number]:
            draft = self.index.live_draft(record, number)
            assert (draft is not None) == self._lives(record, number), record
            if draft is not None:
                assert draft[:2] == record[:2]
                assert draft[2] == record.body or record.kind == RecordKind.CLOSE
                moves.append((draft, (number, record.offset, record.size)))
        stays = self.random.random() < 0.2
        dies = stays and self.random.random() < 0.7
        for draft, old in moves:
            if dies and self.random.random() < 0.2:
                break
            new = self.written(draft)
            self.index.moved(draft, old, new)
            self._moved(draft[1], old, new)
        else:
            if not stays:
                del self.journal[number]
                self.index.dropped(number)
        if dies:
            self.restart()

    def _moved(self, uuid: bytes, old: Location, new: Location) -> None:
        for scope, one in self.closed.items():
            if one.close == old:
                self.closed[scope] = one._replace(close=new)
        if (sheet := self.sheets.get(uuid)) is not None and old in (sheet.request, sheet.reply):
            if sheet.request == old:
                sheet.request = new
            else:
                sheet.reply = new
            sheet.held.append(new[0])

    def _lives(self, record: Record, number: int) -> bool:
        """Tell whether a record must outlive its segment."""
        place = (number, record.offset, record.size)
        if record.kind == RecordKind.CLOSE:
            return self._holds(record, number) or any(one.close == place for one in self.closed.values())
        if record.uuid == NO_UUID:
            return Tick.decode(record.body) == self.clock
        sheet = self.sheets.get(record.uuid)
        if sheet is None:
            return False
        if record.kind == RecordKind.TICK:
            return sheet.state == State.WAITING and record.body == encode_attempts(sheet.attempts)
        return place in (sheet.request, sheet.reply)

    def _holds(self, record: Record, number: int) -> bool:
        """Tell whether a CLOSE is needed still: another segment may hold a record of its request."""
        close = Close.decode(record.body)
        high = number if close.highest == OPEN else close.highest
        return any(close.lowest <= other <= high for other in self.journal if other != number)

    def write_down(self) -> None:
        """Write a checkpoint, a few items at a time; what happens meanwhile is in records behind its beginning."""
        if self.snapshot is None:
            self.below = max(self.index.segments)
            self.snapshot, self.items = self.index.snapshot(self.below), []
        for _ in range(self.random.choice((1, 10, 1000))):
            item = next(self.snapshot, None)
            if item is None:
                self.snapshot, self.checkpoint = None, Checkpoint(self.items, self.below)
                return
            self.items.append(msgpack.unpackb(msgpack.packb(item)))

    def restart(self) -> None:
        """Read everything again; what was being stored was never there. With a checkpoint, without, or with a spoilt one."""
        self.snapshot = None
        items, begin = self.random.choice((Checkpoint([], 0), self.checkpoint))
        self.index = RequestIndex(self.limits)
        self.closed = {}
        spoilt = self.random.randrange(len(items)) if items and self.random.random() < 0.3 else -1
        for place, item in enumerate(items):
            if place == spoilt:
                begin = 0  # everything is read then
                with pytest.raises(ValueError, match="checkpoint"):
                    self.index.restore(self.random.choice(([], ["?"], ["c", 1], [*item, 1, 2])))
                break
            self.index.restore(item)
            if item[0] == "k":
                self._remember((item[8] if len(item) > 8 else b"", item[1]), Closed(item[2], item[3], item[4], (item[5], item[6], item[7])))
        for number in sorted(self.journal):
            for record in self.journal[number] if number >= begin else ():
                self.index.apply(record, number)
        number = max(self.journal) + 1
        self.journal[number] = []
        self.index.settle(set(self.journal))
        self.sheets = {uuid: sheet for uuid, sheet in self.sheets.items() if sheet.state != State.STORING}
        for sheet in self.sheets.values():
            sheet.told = set()
            sheet.held = [at for at, records in self.journal.items() if any(_is_of(record, sheet.uuid) for record in records)]
        self._read_keys_again(begin)
        self._resume(items, begin)

    def _resume(self, items: list[Any], begin: int) -> None:
        """Check that the clock continues from the latest record, by at most the wall time since the last TICK."""
        of_clock = {RecordKind.REQUEST, RecordKind.REPLY, RecordKind.DEAD, RecordKind.CLOSE}
        read = [record for number, records in self.journal.items() for record in records if number >= begin]
        times = [int.from_bytes(record.body[:8], "big") for record in read if record.kind in of_clock]
        times += [max(sheet.accepted_ms, sheet.ended_ms) for sheet in self.sheets.values()]
        wall_ms = self.clock.wall_ms + self.random.choice((-1000, -1, 0, 1, 1000))
        now_ms = max([0, *times, self.clock.store_ms + (max(0, wall_ms - self.clock.wall_ms) if self.clock.wall_ms else 0)])
        resumed = self.index.resume_clock(wall_ms)
        assert now_ms <= resumed <= self.now_ms + 1000 if items else now_ms == resumed
        self.now_ms = max(self.now_ms, resumed)

    def _read_keys_again(self, begin: int) -> None:
        """Forgotten keys whose CLOSE still exists may be known again, within the limit."""
        for number, records in sorted(self.journal.items()):
            for record in records if number >= begin else ():
                if record.kind == RecordKind.CLOSE and (close := Close.decode(record.body)).key:
                    place = (number, record.offset, record.size)
                    self._remember((close.owner, close.key), Closed(record.uuid, close.digest, close.closed_ms, place))
        self.closed = {scope: one for scope, one in self.closed.items() if one.close[0] in self.journal}
        self._forget_keys()

    def _remember(self, scope: tuple[bytes, bytes], one: Closed) -> None:
        known = self.closed.get(scope)
        if known is None or known.closed_ms <= one.closed_ms:
            self.closed[scope] = one

    # ---- looking

    def check(self) -> None:
        """Compare everything that can be seen with what follows from the sheets and the journal."""
        index = self.index
        assert {uuid: _shown(entry) for uuid, entry in index.entries.items()} == {
            uuid: self._wanted(sheet) for uuid, sheet in self.sheets.items()
        }
        owned: dict[bytes, dict[bytes, Entry]] = {}
        services: dict[bytes, int] = {}
        for sheet in self.sheets.values():
            services[sheet.asked.service] = services.get(sheet.asked.service, 0) + 1
            if sheet.owner:
                owned.setdefault(sheet.owner, {})[sheet.uuid] = index.entries[sheet.uuid]
        assert (index.owned, index.services) == (owned, services)
        assert index.bytes_used == sum(sheet.size for sheet in self.sheets.values())
        assert index.segments == set(self.journal) or index.segments == set(self.journal) - {max(self.journal)}
        assert set(index.live) <= set(self.journal)
        assert {number: index.live_bytes(number) for number in range(max(self.journal) + 2)} == self._live()
        assert index.keys_of_closed == len(self.closed)
        assert index.clock == self.clock
        waiting = [at for sheet in self.sheets.values() if (at := sheet.end_of_time(self.limits)) and at not in sheet.told]
        deadline = index.deadline_ms()
        ages = [one.closed_ms + self.limits.key_age_ms for one in self.closed.values()]
        assert deadline is None or deadline in self.timers or deadline in ages
        assert not (waiting or ages) or (deadline is not None and deadline <= min(waiting + ages))
        assert not self.gone & set(index.entries)

    def _wanted(self, sheet: Sheet) -> dict[str, Any]:
        options = sheet.asked.options
        return {
            "uuid": sheet.uuid,
            "owner": sheet.owner,
            "service": sheet.asked.service,
            "state": sheet.state,
            "accepted_ms": sheet.accepted_ms,
            "not_before_ms": sheet.not_before_ms,
            "expires_ms": sheet.expires_ms,
            "ended_ms": sheet.ended_ms,
            "attempts": 0 if sheet.state == State.ANSWERED else sheet.attempts,
            "attempts_max": options.attempts,
            "key": options.key,
            "digest": sheet.asked.digest,
            "request": sheet.request,
            "reply": sheet.reply,
            "size": sheet.size,
        }

    def _live(self) -> dict[int, int]:
        """Return the live bytes of each segment; a CLOSE that is needed twice counts twice."""
        live = dict.fromkeys(range(max(self.journal) + 2), 0)
        for sheet in self.sheets.values():
            for place in (sheet.request, sheet.reply):
                if place is not None:
                    live[place[0]] += place[2]
        for one in self.closed.values():
            live[one.close[0]] += one.close[2]
        for number, records in self.journal.items():
            live[number] += sum(record.size for record in records if record.kind == RecordKind.CLOSE and self._holds(record, number))
        return live


def _is_of(record: Record, uuid: bytes) -> bool:
    return record.uuid == uuid and record.kind in (RecordKind.REQUEST, RecordKind.REPLY, RecordKind.DEAD)


def _shown(entry: Entry) -> dict[str, Any]:
    unseen = {"closing", "ending", "kept", "kept_bytes", "lowest"}
    shown = {name: getattr(entry, name) for name in dir(entry) if not name.startswith("_") and name not in unseen}
    return shown | {"attempts": 0} if entry.state == State.ANSWERED else shown  # which count no more, and need not be kept
