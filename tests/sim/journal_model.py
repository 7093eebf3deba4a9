"""A journal on a simulated disk, compared with a model of its guarantees, also after a crash.

The promise (specs/titanic.md §1, policy `always`): after a crash at any point every acknowledged request is there with its body,
every acknowledged reply too, nothing whose close was acknowledged has come back, and what was never acknowledged is there whole or not
at all. No crash looks like damage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from core.zmtp.frames import decode_frames, encode_message
from tests.sim.disk import SimDisk, Snapshot
from titanic.errors import StoreFull, Wounded
from titanic.journal.inspection import read_file, segment_name
from titanic.journal.record import Record, RecordKind, decode_one, seed_of
from titanic.journal.record_bodies import NO_UUID, Dead, Request, Tick, encode_reply, encode_request, reply_frames
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.store.compaction import checkpoint_of, compact, compact_segment
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.index.stored_request import State
from titanic.wire.tsp import Options, Submission, digest_of

if TYPE_CHECKING:
    from tests.sim.disk import Image
    from titanic.journal.record import Draft

STORE = bytes(range(16))
OPTIONS = LogOptions(segment_bytes=1024, reserve_bytes=256)
LIMITS = Limits(keys_max=4)


class Known(NamedTuple):
    """The model's knowledge of a request; states of unfinished calls are in `Promise.open`."""

    body: bytes
    key: bytes
    reply: bytes | None = None
    dead: bool = False
    owner: bytes = b""


class Promise(NamedTuple):
    """Everything acknowledged at some moment, and the requests of unfinished calls."""

    kept: dict[bytes, Known]
    closed: frozenset[bytes]
    open: dict[bytes, Known | None]


class Moment(NamedTuple):
    """The disk before one of its calls, and what had been promised."""

    disk: Snapshot
    promise: Promise


def submission(body: bytes, key: bytes) -> Submission:
    frames = encode_message([b"echo", body])
    return Submission(b"echo", frames, Options(key), digest_of(frames) if key else b"", [body])


OWNERS = (b"", b"ann", b"bob")


@dataclass
class Play:
    """One journal under a random load; every disk call is a moment to crash at."""

    seed: int
    disk: SimDisk = field(default_factory=SimDisk)
    options: LogOptions = OPTIONS

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.kept: dict[bytes, Known] = {}
        self.closed: set[bytes] = set()
        self.open: dict[bytes, Known | None] = {}
        self.doubt: dict[bytes, Known | None] = {}  # calls that failed: not acknowledged, and nobody knows what is on the disk
        self.errors: list[Exception] = []
        self.moments: list[Moment] = []
        self.index = RequestIndex(LIMITS)
        self.count = 0
        self.disk.before = self.watch

    def watch(self, call: str) -> None:
        self.moments.append(Moment(self.disk.snapshot(), self.promise()))

    def promise(self) -> Promise:
        return Promise(dict(self.kept), frozenset(self.closed), self.doubt | self.open)

    def start(self) -> None:
        self.index = RequestIndex(LIMITS)
        self.log = SegmentLog.open(self.disk, self.options, self.index, store=STORE)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """Do one of: a batch of submits, replies and closes (mostly), compaction, a checkpoint, a restart."""
        choice = self.random.random()
        if choice < 0.8:
            self.batch()
        elif choice < 0.88:
            compact(self.log, self.index)
        elif choice < 0.92 and (numbers := self.log.droppable()):
            compact_segment(self.log, self.index, self.random.choice(numbers))
        elif choice < 0.96:
            if self.random.random() < 0.3:
                self.log.begin_segment()  # as a store that is closed
            self.log.write_checkpoint(checkpoint_of(self.log, self.index))
        else:
            self.log.close()
            self.start()

    def try_step(self) -> None:
        """As `step`, on a disk that may fail: unfinished calls are in doubt from then on."""
        try:
            self.step()
        except (OSError, StoreFull, Wounded) as error:
            self.errors.append(error)
            for uuid in self.open:
                entry = self.index.entries.get(uuid)
                if entry is not None and entry.state == State.STORING:
                    self.index.abandon(entry)
            self.doubt.update(self.open)
            self.open.clear()

    def batch(self) -> None:
        self.commit([self._draft() for _ in range(self.random.randrange(1, 6))])

    def commit(self, drafts: list[Draft], essential: bool = False) -> None:
        placed = self.log.commit(drafts, essential=essential)
        self.index.segments.add(placed.segment)
        for draft, offset, size in zip(drafts, placed.offsets, placed.sizes, strict=True):
            self._acknowledge(draft, (placed.segment, offset, size))
        self.open.clear()

    def _draft(self) -> Draft:
        choice = self.random.random()
        waiting = [uuid for uuid, known in self.kept.items() if known.reply is None and not self._busy(uuid)]
        if choice < 0.25 and waiting:
            uuid = self.random.choice(waiting)
            reply = self.random.randbytes(self.random.randrange(40))
            dead = self.random.random() < 0.2
            self.open[uuid] = self.kept[uuid]._replace(reply=reply, dead=dead)
            if dead:
                return (RecordKind.DEAD, uuid, Dead(2, 3, reply.hex()).encode())
            return (RecordKind.REPLY, uuid, encode_reply(2, encode_message([reply])))
        closable = [uuid for uuid in self.kept if not self._busy(uuid)]
        if choice < 0.55 and closable:
            return self.close_draft(self.random.choice(closable))
        if choice < 0.6:
            return (RecordKind.TICK, NO_UUID, Tick(self.count, 1000 + self.count).encode())
        return self.request_draft(self.random.randrange(60))

    def _busy(self, uuid: bytes) -> bool:
        return uuid in self.open or uuid in self.doubt

    def close_draft(self, uuid: bytes) -> Draft:
        self.open[uuid] = None
        return (RecordKind.CLOSE, uuid, self.index.closing(self.index.entries[uuid], 3))

    def request_draft(self, size: int) -> Draft:
        self.count += 1
        uuid = self.random.randbytes(16)
        body = self.random.randbytes(size)
        owner = OWNERS[self.count % len(OWNERS)]
        key = b"key-%d" % (self.count // len(OWNERS)) if self.random.random() < 0.3 else b""  # the same of different owners
        asked = submission(body, key)
        assert self.index.accept(uuid, asked, 1, owner)[1]
        self.open[uuid] = Known(body, key, owner=owner)
        return (RecordKind.REQUEST, uuid, encode_request(1, 0, 0, 0, key, asked.frames, owner))

    def _acknowledge(self, draft: Draft, place: tuple[int, int, int]) -> None:
        kind, uuid, _ = draft
        if kind == RecordKind.REQUEST:
            self.index.stored(self.index.entries[uuid], place)
        elif kind == RecordKind.REPLY:
            self.index.answered(uuid, place, 2)
        elif kind == RecordKind.DEAD:
            self.index.dead_lettered(uuid, place, 2)
        elif kind == RecordKind.CLOSE:
            self.index.closed(uuid, place, 3)
            del self.kept[uuid]
            self.closed.add(uuid)
            return
        if kind != RecordKind.TICK:
            known = self.open[uuid]
            assert known is not None
            self.kept[uuid] = known


def recover(image: Image, disk: SimDisk | None = None) -> tuple[SimDisk, SegmentLog, RequestIndex]:
    """Start a journal on what a crash left."""
    disk = disk or SimDisk(image)
    index = RequestIndex(LIMITS)
    return disk, SegmentLog.open(disk, OPTIONS, index, store=STORE), index


def contents(disk: SimDisk, index: RequestIndex) -> dict[bytes, Known]:
    """Read every request of a ledger back from the disk."""
    files: dict[int, bytes] = {}
    found = {}
    for uuid, entry in index.entries.items():
        assert entry.request is not None, "a request without its record"
        request = _record(disk, files, entry.request)
        decoded = Request.decode(request.body)
        body = decode_frames(request.body[decoded.frames_at :])[1]
        assert entry.owner == decoded.owner
        assert not entry.owner or index.owned[entry.owner][uuid] is entry
        known = Known(body, decoded.key, owner=entry.owner)
        if entry.state == State.ANSWERED:
            assert entry.reply is not None
            known = known._replace(reply=decode_frames(reply_frames(_record(disk, files, entry.reply).body))[0])
        elif entry.state == State.DEAD:
            assert entry.reply is not None
            reason = Dead.decode(_record(disk, files, entry.reply).body).reason
            known = known._replace(reply=bytes.fromhex(reason), dead=True)
        found[uuid] = known
    return found


def _record(disk: SimDisk, files: dict[int, bytes], place: tuple[int, ...]) -> Record:
    segment, offset, size = place
    if segment not in files:
        files[segment] = read_file(disk, segment_name(segment))
    record = decode_one(files[segment][offset : offset + size], seed_of(STORE))
    assert record is not None
    return record


def check(disk: SimDisk, log: SegmentLog, index: RequestIndex, promise: Promise) -> None:
    """Compare a recovered journal with what was promised before the crash."""
    damage = [problem for problem in log.problems if problem.code != "TORN"]
    assert damage == [], "a crash looks like damage"
    found = contents(disk, index)
    for uuid, known in promise.kept.items():
        if uuid in promise.open:
            # A reply or a close was unfinished: what was there before it, or what it makes.
            after = promise.open[uuid]
            assert found.get(uuid) in (known, after)
        else:
            assert found.get(uuid) == known, "acknowledged and lost or changed"
    for uuid, known in found.items():
        assert uuid not in promise.closed, "closed and reborn"
        assert uuid in promise.kept or promise.open.get(uuid) == known, "not acknowledged and not whole"
    for uuid, known in found.items():
        if known.key:
            again, fresh = index.accept(bytes(16), submission(known.body, known.key), 5, known.owner)
            assert (again.uuid, fresh) == (uuid, False)
    assert sum(map(len, index.owned.values())) == sum(entry.owner != b"" for entry in index.entries.values())
    assert index.bytes_used == sum(entry.size for entry in index.entries.values())
    check_live(index)


def check_live(index: RequestIndex) -> None:
    """Compare the count of live octets by segment with the entries."""
    live: dict[int, int] = {}
    for entry in index.entries.values():
        for place in (entry.request, entry.reply):
            if place is not None:
                live[place[0]] = live.get(place[0], 0) + place[2]
    for closed in index._closed_keys.values():
        live[closed.close[0]] = live.get(closed.close[0], 0) + closed.close[2]
    assert {number: size for number, size in index.live.items() if size} == live
