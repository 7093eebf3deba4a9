"""Store: index and journal together. Every operation is acknowledged when its record is durable.

    submit ---------> index.accept -> journal.append(REQUEST) ....> index.stored   -> [200][uuid], and on_waiting
    answer ---------> journal.append(REPLY) ......................> index.answered -> can be fetched
    close_request --> journal.append(CLOSE) ......................> index.closed   -> [200]

It knows no broker: `titanic.store.service` puts it on the wire; tests and benchmarks use it directly.
"""

from __future__ import annotations

import asyncio
import gc
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Self

from core.runtime import runtime, supervision
from core.zmtp.frames import encode_message
from titanic.errors import BadRequest, Unavailable
from titanic.journal.group_commit import Journal, JournalOptions
from titanic.journal.memory_journal import MemoryJournal
from titanic.journal.record import RecordKind
from titanic.journal.record_bodies import Dead, encode_attempts, encode_reply, encode_request, plain_head
from titanic.mirror.replica_link import MirrorAttachment
from titanic.store.bodies import Bodies
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.index.stored_request import ANSWERED, STORING, WAITING, ClosedKey, Entry
from titanic.store.maintenance import Maintenance
from titanic.store.waiters import Waiters
from titanic.wire.tsp import BAD, FAILED, NO_OPTIONS, OK, PENDING, format_uuid, pack_headers, parse_request, parse_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from titanic.journal.disk import Disk
    from titanic.journal.inspection import Problem
    from titanic.journal.record import Location
    from titanic.mirror.replica_link import MirrorLine
    from titanic.wire.tsp import Done, Name, Submission

__all__ = ["Store"]

# Looked up once: a member of an enumeration costs as much as a call.
REQUEST: Final = int(RecordKind.REQUEST)
REPLY: Final = int(RecordKind.REPLY)
DEAD: Final = int(RecordKind.DEAD)
CLOSE: Final = int(RecordKind.CLOSE)
UUIDS_AT_ONCE: Final = 256  # drawn from the system at once
_UUIDS: Final = Struct("16s" * UUIDS_AT_ONCE)
_UUID_TEXTS: Final = Struct("32s" * UUIDS_AT_ONCE)
RETRY_S: Final = 1.0  # before a reply or dead letter that could not be stored is tried again
AGAIN_MS: Final = 1000  # before a request whose time is up, and that is still there, is ended again
COUNTERS: Final = "accepted repeated refused forbidden unavailable answered late dead closed damaged batches_refused".split()


class Store:
    """All requests of one directory (or of memory), used from one event loop.

    Args:
        disk: of the store; None keeps everything in memory.
        options: of the journal.
        limits: of the index.
        hyphens: accept UUIDs of 36 characters too (DIS-47).
        mirror: connection to a second Titanic that must hold every record before it is acknowledged.
        go_on: acknowledge without the mirror while it is away.

    Attributes:
        index: all requests.
        journal: of the store, from `open` on.
        problems: found by recovery.
        heard_ms: set before `open`: how long ago the mirror that this was heard of its store; -1 if it was none.
        on_waiting: called with each entry that is ready for delivery.
        on_backlog: called by `start_dispatch` with each backlog of `RequestIndex.to_deliver`; without it, `on_waiting` gets its requests.
        on_closed: called with the UUID of a waiting request that was closed or dead-lettered.
        on_answered: called with each entry that was answered or dead-lettered and can be fetched; in the order of `ended_ms`.
    """

    def __init__(
        self,
        disk: Disk | None,
        options: JournalOptions | None = None,
        limits: Limits | None = None,
        *,
        hyphens: bool = False,
        mirror: MirrorLine | None = None,
        go_on: bool = False,
    ) -> None:
        self.mirror = mirror
        self.index = RequestIndex(limits or Limits())
        self.problems: list[Problem] = []
        self.heard_ms = -1
        self.on_waiting: Callable[[Entry], None] = _ignore
        self.on_backlog: Callable[[bytes, Iterator[bytes], int], None] | None = None
        self.on_closed: Callable[[bytes], None] = _ignore
        self.on_answered: Callable[[Entry], None] = _ignore
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._accepted = 0  # of the counters; apart, because an item of a dictionary costs 660 instructions a request
        self.maintenance_counts: dict[str, int] = {}
        self._disk = disk
        self._mirror: MirrorAttachment | None = None
        if mirror is not None and disk is not None:
            self._mirror = MirrorAttachment(mirror, disk, go_on)
            self._disk = self._mirror.disk
        self._options = options
        self.hyphens = hyphens
        self.journal: Journal | MemoryJournal
        self.bodies: Bodies
        self._maintenance: Maintenance | None = None
        self._ended = False  # no more retries
        self._unwritten: set[bytes] = set()  # requests whose end was refused, and is written again
        self._clock_offset_ms = 0
        self._now = runtime.current().monotonic
        self._uuids: list[tuple[bytes, ...]] = []  # drawn and not used yet, each with its text
        self._names: dict[bytes, Name] = {}
        self._waiters = Waiters()
        self._supervisor = supervision.current()
        self._storing: dict[bytes, list[Done]] = {}
        # Hundreds of requests are accepted in a millisecond, and packing five numbers costs as much as the rest of a record's body.
        self._head_ms, self._head = -1, b""
        self._when_stored: Any = self._stored  # bound once, not for each request
        self._expiry_clock = self._supervisor.timer("titanic expiry clock", self._expire)

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Recover; raises as `SegmentLog.open`, and is to be closed then too."""
        wall_ms = runtime.current().wall_ns() // 1_000_000
        if self._disk is None:
            self.journal = memory = MemoryJournal()
            self.bodies = Bodies(self.index, memory, self.counters)
            self._clock_offset_ms = -self.now_ms()
            return
        self.journal = journal = Journal(self._disk, self._options or JournalOptions())
        self.bodies = Bodies(self.index, journal, self.counters)
        collecting = gc.isenabled()
        gc.disable()  # collecting among a million new objects costs a third of the start
        try:
            opened = await journal.open(self.index, store=runtime.current().random_bytes(16), created_ms=wall_ms, progress=progress)
        finally:
            if collecting:
                gc.enable()
        self.problems = opened.problems
        self.index.lose(opened.lost)
        self._clock_offset_ms = self.index.resume_clock(wall_ms, self.heard_ms) - self.now_ms()
        if self._mirror is not None:
            await self._mirror.start(journal)
        self._maintenance = Maintenance(journal, self.index, self.now_ms)
        self.maintenance_counts = self._maintenance.counts
        self._set_timer()

    @property
    def counters(self) -> dict[str, int]:
        """Events by name."""
        self._counters["accepted"] = self._accepted
        return self._counters

    @property
    def stalled(self) -> str | None:
        """Reason why nothing can be acknowledged now; None in normal operation."""
        return self.journal.stalled

    @property
    def takes_replies(self) -> bool:
        """Whether the reply to a request that is delivered now could be stored, as far as is known."""
        return not self._unwritten and self.journal.stalled is None and self.wounded is None

    @property
    def wounded(self) -> str | None:
        """Reason why nothing can be written until a restart; None otherwise."""
        return self.journal.log.wounded if isinstance(self.journal, Journal) else None

    async def until_failed(self) -> None:
        """Wait until the writer thread ends with an unexpected error, and raise `Wounded`. Cancel-safe."""
        await asyncio.shield(self.journal.failed)

    async def wait_for_mirror(self) -> None:
        """Wait until the mirror is in step, unless the store may serve without it. Cancel-safe."""
        if self._mirror is not None:
            await self._mirror.wait()

    def start_dispatch(self) -> None:
        """Call `on_waiting` and `on_backlog` with what waits; call it once after a start."""
        waiting, backlogs = self.index.to_deliver(apart=self.on_backlog is not None)
        for entry in waiting:
            self.on_waiting(entry)
        for backlog in backlogs:
            self.on_backlog(*backlog)  # type: ignore[misc]

    @supervision.to_the_end
    async def close(self) -> None:
        """Write what is in flight, and close; a cancellation is raised at the end."""
        self._ended = True
        self._expiry_clock.cancel()
        self.end_waits()
        if self.mirror is not None:
            self.mirror.end()
        if self._maintenance is not None:
            await self._maintenance.close()
        await self.journal.close()
        if self.mirror is not None:
            await self.mirror.close()

    def now_ms(self) -> int:
        """Return the store clock in ms."""
        return int(self._now() * 1000) + self._clock_offset_ms

    @property
    def status(self) -> dict[str, Any]:
        """State and counters for operators."""
        journal = self.journal
        opened = journal.log if isinstance(journal, Journal) else None
        state, limit = "serving", self.index.limit_reached
        if self.wounded is not None:
            state = "wounded"
        elif journal.stalled is not None:
            state = "stalled"
        elif limit or (opened is not None and opened.full):
            state = "full"
        elif self.counters["damaged"] or any(problem.code != "TORN" for problem in self.problems):
            state = "degraded"
        return {
            "state": state,
            "requests": len(self.index.entries),
            "bytes": self.index.bytes_used,
            "segments": len(opened.spans) if opened is not None else 0,
            "trouble": (limit if state == "full" else "") or journal.trouble,
            "problems": len(self.problems),
            "mirror": self.mirror.state if self.mirror is not None else None,
            **self.counters,
            "over_share": self.index.over_share,
        }

    def submit(
        self, frames: Sequence[bytes], done: Done, parse: Callable[[Sequence[bytes]], Submission] | None = None, owner: bytes = b""
    ) -> None:
        """Store `[service][body...]` of a user; `done` gets `[200][uuid]`, `[400][reason]` or `[500][reason]` (TSP-06, TSP-07)."""
        # Hot path: once per request, no future and no task.
        journal = self.journal
        try:
            asked = parse_request(frames, self._names) if parse is None else parse(frames)
            if (refusal := journal.refusal) is not None:
                raise Unavailable(refusal)
            now_ms = self.now_ms()
            drawn = self._uuids.pop() if self._uuids else self._new_uuid()
            uuid = drawn[0]
            entry, fresh = self.index.accept(uuid, asked, now_ms, owner)
        except (BadRequest, Unavailable) as error:
            counter, code = ("refused", BAD) if isinstance(error, BadRequest) else ("unavailable", FAILED)
            self.counters[counter] += 1
            done([code, str(error).encode()])
            return
        if not fresh:
            self._answer_repeated(entry, done)
            return
        assert isinstance(entry, Entry)
        headers: Mapping[str, str] | None = None
        if asked.options is NO_OPTIONS and not owner:
            if now_ms != self._head_ms:
                self._head_ms, self._head = now_ms, plain_head(now_ms)
            body = self._head + asked.frames
        else:
            headers = asked.options.headers
            times = now_ms, entry.not_before_ms, entry.expires_ms
            packed = pack_headers(headers) if headers else b""
            body = encode_request(*times, entry.attempts_max, entry.key, asked.frames, owner, packed)
        # The body is kept for the worker; with headers both are read from the journal.
        journal.append((REQUEST, uuid, body), (self._when_stored, (entry, done, None if headers else asked.body, drawn[1])))

    def _new_uuid(self) -> tuple[bytes, ...]:
        drawn = runtime.current().random_bytes(16 * UUIDS_AT_ONCE)
        self._uuids = list(zip(_UUIDS.unpack(drawn), _UUID_TEXTS.unpack(format_uuid(drawn)), strict=True))
        return self._uuids.pop()

    def _answer_repeated(self, entry: Entry | ClosedKey, done: Done) -> None:
        """Answer a repeated key as the first request, and not before it (IDM-03)."""
        self.counters["repeated"] += 1
        if isinstance(entry, Entry) and entry.state == STORING:
            self._storing.setdefault(entry.uuid, []).append(done)
        else:
            done([OK, format_uuid(entry.uuid)])

    def _stored(self, argument: tuple[Any, ...], place: Location | None, error: Unavailable | None) -> None:
        # Hot path: once per accepted request; compiled, the attributes of an entry of a known class are read at once.
        entry: Entry = argument[0]
        done, frames, text = argument[1], argument[2], argument[3]
        if place is None:
            self.index.abandon(entry)
            self.counters["unavailable"] += 1
            reply = [FAILED, str(error).encode()]
        else:
            self.index.segments.add(place[0])
            self.index.stored(entry, place)
            self._accepted += 1
            if frames is not None:
                self.bodies.keep(entry, frames, place[2])
            reply = [OK, text]
            if entry.expires_ms:
                self._set_timer()
            self.on_waiting(entry)  # before the answer: what may have been acknowledged is delivered, whatever fails
        done(reply)
        if entry.key and entry.uuid in self._storing:
            for other in self._storing.pop(entry.uuid):
                other(reply)

    # ---- titanic.reply

    def fetch(self, frames: Sequence[bytes], done: Done) -> None:
        """Look up a request; `done` gets `[200][body...]`, `[300]`, `[400]` or `[500][reason]` (TSP-08, TSP-09)."""
        entry = self._known(frames)
        if entry is None:
            done([FAILED, b"DAMAGED"] if self._uuid_of(frames) in self.index.lost else [BAD])
        elif entry.reply is None:
            done([PENDING])
        else:
            self.bodies.reply_of(entry, done)

    def find(self, frames: Sequence[bytes]) -> Entry | None:
        """Return the request named by `[uuid]`, in any state."""
        uuid = self._uuid_of(frames)
        return None if uuid is None else self.index.entries.find(uuid)

    def _uuid_of(self, frames: Sequence[bytes]) -> bytes | None:
        return parse_uuid(frames[0], self.hyphens) if len(frames) == 1 else None

    def _known(self, frames: Sequence[bytes]) -> Entry | None:
        """Return the request named by `[uuid]`, None if clients cannot know one."""
        entry = self.find(frames)
        return None if entry is None or entry.state == STORING else entry

    def wait(self, frames: Sequence[bytes], timeout_s: float, done: Done) -> None:
        """As `fetch`, but wait up to `timeout_s` for a request that has not ended."""
        entry = self._known(frames)
        if entry is None or entry.reply is not None:
            self.fetch(frames, done)
        else:
            self._waiters.add(entry.uuid, timeout_s, done)

    def end_waits(self) -> None:
        """Answer 300 to all waiting clients."""
        self._waiters.end()

    # ---- titanic.close

    def close_request(self, frames: Sequence[bytes], done: Done) -> None:
        """Forget a request and its reply; `done` gets `[200]` or `[500][reason]` (TSP-10, TSP-11)."""
        entry = self._known(frames) or self.index.lost.get(self._uuid_of(frames) or b"")
        if entry is None:
            done([OK])
        else:
            self._close(entry, done)

    def withdraw(self, entry: Entry, done: Done) -> None:
        """Close a request and forget its key too, so that the same request may be stored again."""
        self._close(entry, done, remember=False)

    def _close(self, entry: Entry, done: Done, *, remember: bool = True) -> None:
        draft = (CLOSE, entry.uuid, self.index.closing(entry, self.now_ms(), remember=remember))
        entry.closing += 1
        self.journal.append(draft, (self._closed, (entry, done, remember)))

    def _closed(self, argument: Any, place: Location | None, error: Unavailable | None) -> None:
        entry, done, remember = argument
        entry.closing -= 1
        reply = [OK]
        if place is None:
            self.counters["unavailable"] += 1
            reply = [FAILED, str(error).encode()]
            if entry.state == WAITING and not (entry.closing or entry.ending):
                self.on_waiting(entry)  # a reply may have been discarded meanwhile
        else:
            self.index.segments.add(place[0])
            # Hot path: only keys need the time, and an answered request has released its request body before.
            now_ms = self.now_ms() if entry.key else 0
            if self.index.closed(entry.uuid, place, now_ms, remember=remember) is not None:
                if entry.key and self._expiry_clock.when is None:
                    self._set_timer()  # for the age of the key
                self.counters["closed"] += 1
                self.bodies.forget(entry, entry.request if entry.reply is None else entry.reply)
                if entry.uuid in self._waiters:
                    self._waiters.answer_all(entry.uuid, [BAD])
                if entry.state == WAITING:
                    self.on_closed(entry.uuid)
        done(reply)

    def after(self, token: Any) -> None:
        """Call a token `(handler, argument)` when everything given to the journal so far is durable, or refused."""
        self.journal.after(token)

    # ---- ends

    def answer(self, uuid: bytes, frames: Sequence[bytes]) -> None:
        """Store the reply of a worker, unless the request was closed meanwhile (TSP-11) or has ended already."""
        entry = self.index.entries.find(uuid)
        if entry is None or entry.ending or entry.closing or entry.state >= ANSWERED:
            self.counters["late"] += 1
        else:
            self._write_end(entry, frames, "")

    def dead_letter(self, entry: Entry, reason: str) -> None:
        """Dead-letter a request: it is answered 500 with a reason until it is closed."""
        if not entry.ending and entry.state == WAITING and self._may_write(entry):
            self._write_end(entry, None, reason)

    def attempted(self, entry: Entry) -> None:
        """Count an attempt, also on disk if the request has a limit."""
        entry.attempts += 1
        if entry.attempts_max and self._may_write(entry):
            self.journal.append((RecordKind.TICK, entry.uuid, encode_attempts(entry.attempts)), (_attempt_counted, self.index))

    def _may_write(self, entry: Entry) -> bool:
        """Tell whether a record of a request may be written: one behind its CLOSE would undo that."""
        return not entry.closing and self.index.entries.find(entry.uuid) is entry

    def _write_end(self, entry: Entry, frames: Sequence[bytes] | None, reason: str) -> None:
        """Write the REPLY of a request, or without frames its DEAD."""
        now_ms = self.now_ms()
        if frames is not None:
            kind, body = REPLY, encode_reply(now_ms, encode_message(frames))
        else:
            kind, body = DEAD, Dead(now_ms, entry.attempts, reason).encode()
        entry.ending = True
        self.journal.append((kind, entry.uuid, body), (self._end_written, (entry, frames, reason, now_ms)))

    def _end_written(self, argument: Any, place: Location | None, error: Unavailable | None) -> None:
        entry, frames, reason, now_ms = argument
        if place is None:  # the request is ending until it is written again: no other end takes its place
            self.counters["unavailable"] += 1
            self._unwritten.add(entry.uuid)
            self._end_later(entry, frames, reason)
            return
        if self._unwritten:
            self._unwritten.discard(entry.uuid)
        self.index.segments.add(place[0])
        if frames is not None:
            self.index.answered(entry.uuid, place, now_ms)
            self.counters["answered"] += 1
            reply = [OK, *frames]
        else:
            self.index.dead_lettered(entry.uuid, place, now_ms)
            self.counters["dead"] += 1
            reply = [FAILED, reason.encode(errors="backslashreplace")]
        self.bodies.forget(entry, entry.request)
        self.bodies.keep(entry, reply, place[2])
        self.on_answered(entry)
        if self.index.limits.retain_ms:
            self._set_timer()
        if frames is None:
            self.on_closed(entry.uuid)
        if entry.uuid in self._waiters:
            self._waiters.answer_all(entry.uuid, reply)

    def _end_later(self, *end: Any) -> None:
        self._supervisor.later("titanic retry", RETRY_S, self._end_again, *end, failed=lambda _: self._end_later(*end))

    def _end_again(self, entry: Entry, frames: Sequence[bytes] | None, reason: str) -> None:
        if self._ended:
            return
        if self._may_write(entry):
            self._write_end(entry, frames, reason)
        elif entry.closing:
            self._end_later(entry, frames, reason)  # the disk may refuse its CLOSE too
        else:
            self._unwritten.discard(entry.uuid)

    # ---- time to live

    def _set_timer(self) -> None:
        due_ms = self.index.deadline_ms()
        if due_ms is not None and not self._ended:
            self._expiry_clock.after(min(max(due_ms - self.now_ms(), 10), 3_600_000) / 1000)

    def _expire(self) -> None:
        now_ms = self.now_ms()
        for entry in self.index.due(now_ms):
            self.index.look_again(entry, now_ms + AGAIN_MS)  # the disk may refuse its end, or the CLOSE that it has already
            if entry.state == WAITING:
                self.dead_letter(entry, "EXPIRED")
            elif not entry.closing:
                self._close(entry, _ignore)
        self._set_timer()


def _ignore(_: Any) -> None: ...


def _attempt_counted(index: RequestIndex, place: Location | None, error: Unavailable | None) -> None:
    """Note the segment of a counted attempt; one that could not be stored is not counted after a restart."""
    if place is not None:
        index.segments.add(place[0])
