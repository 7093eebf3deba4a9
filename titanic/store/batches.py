"""Batches: many requests stored all or none, and queries for what was answered since a time (specs/spark.md §2).

`titanic.wire.batch_frames` has the frames of each verb, and the answers.

There is no record kind for it: a staged chunk and a commit are stored as requests to internal services, which clients cannot call. A commit
that was interrupted by a crash is found at the next start as a waiting request and is executed again; its rows have keys, so none is stored
twice. Staged chunks that are never committed expire. Positions are times of the store clock and not numbers of records, because compaction
writes records again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgpack

from core.machine.bounded_msgpack import unpack
from core.runtime import supervision
from core.runtime.supervision import ONCE
from core.zmtp.frames import encode_message
from titanic.errors import BadRequest, StoreFull
from titanic.store.index.answered_times import AnsweredTimes
from titanic.store.index.reservations import Need, never_fits
from titanic.store.index.stored_request import State
from titanic.store.waiters import answer_of, in_slices
from titanic.wire import batch_frames
from titanic.wire.batch_frames import NO_REQUEST, BadChunk, BatchChunk, decode_stages, name_of_chunk, parse_count, parse_name, portions
from titanic.wire.tsp import BAD, FAILED, OK, PENDING, WAIT_MS_MAX, Options, Submission, digest_of, encode_options, format_uuid, parse_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from titanic.store.index.stored_request import Entry
    from titanic.store.store import Store
    from titanic.wire.tsp import Done

# Batch or stage: (owner, b"" for none; name given by the owner).
Name: TypeAlias = tuple[bytes, bytes]
Row: TypeAlias = tuple[bytes, list[bytes]]  # key, body

STAGED: Final = b"titanic.staged"
COMMIT: Final = b"titanic.commit"
INTERNAL: Final = frozenset({STAGED, COMMIT})
# Maximum time a commit waits for its rows before it answers 300.
COMMIT_S: Final = 2.0
# A commit may use a stage that expired while the store was down; after a start it has this long to do so.
GRACE_S: Final = 1.0
RETRY_S: Final = 0.2  # after the store was full or busy
REFUSED_MAX: Final = 1000  # refused batches whose reason was not fetched yet
HELD_BYTES_MAX: Final = 64 * 1024 * 1024  # of chunks kept after the check that all are readable; further ones are read again
ROWS_AT_ONCE: Final = 1000  # appended to the journal per loop iteration
PAGE_MAX: Final = 16_384  # requests in one answer: 256 KiB of UUIDs and 4 MiB of the longest keys
TTL_MS_MAX: Final = 7 * 86_400_000
LISTS_MAX: Final = 4  # lists of answered requests of which a reader has had a page; 16 bytes for each request
log = logging.getLogger("titanic")


class TooManyRows(BadRequest):
    """A batch exceeds a limit of the store or the share of its user, so it could never be stored."""


class ExpiredChunk(BadChunk):
    """A staged chunk has expired, so a commit cannot store its rows."""


class Batches:
    """Service `titanic.batch` of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store  # open when `start` is called
        self._staged: dict[Name, dict[int, Entry]] = {}
        self._reserved: set[Name] = set()  # stages reserved by a commit
        self._refused: dict[Name, str] = {}  # batches that could not be committed, with the reason, until it is fetched
        self._working: dict[Name, asyncio.Task[None]] = {}
        self._begun: set[Name] = set()  # commits of which rows may be stored
        self._unread: dict[Name, asyncio.Future[None]] = {}  # commits that have not reserved their stages yet
        self._verbs: set[asyncio.Task[None]] = set()
        self._answered: AnsweredTimes | None = None
        self._preparing = asyncio.Lock()
        self._lists: dict[tuple[bytes, bytes, int, int], bytes] = {}  # UUIDs of an interval of which a reader has not had the last page
        self._ended = asyncio.Event()
        self._over = False  # nothing waits for it any longer
        self._expiries: dict[bytes, asyncio.TimerHandle] = {}  # of staged chunks, by UUID
        self._supervisor = supervision.current()

    def start(self) -> None:
        """Find staged chunks and commits of earlier runs; call it after the store is open and before delivery starts."""
        for entry in self._store.index.entries.of_services(INTERNAL):
            if entry.service != COMMIT:
                self.waiting(entry)
            elif entry.state < State.ANSWERED:
                self._begun.add((entry.owner, name_of_chunk(entry.key)[0]))
                self.waiting(entry)

    def waiting(self, entry: Entry) -> None:
        """Register a staged chunk or commit, when it is stored and again at every start."""
        octets, number = name_of_chunk(entry.key)
        name = entry.owner, octets
        if entry.service == COMMIT:
            if name not in self._working:
                self._unread[name] = asyncio.get_running_loop().create_future()
                self._working[name] = self._supervisor.task("titanic commit", partial(self._work, name, entry))
            return
        chunks = self._staged.setdefault(name, {})
        if number not in chunks or not self._lives(chunks[number]):
            chunks[number] = entry
            left_ms = max(0, entry.expires_ms - self._store.now_ms())  # none without a time: it is dropped soon
            self._expire_later(left_ms / 1000 + GRACE_S, name, number, entry)

    def _expire_later(self, delay_s: float, name: Name, number: int, entry: Entry) -> None:
        again = partial(self._expire_later, RETRY_S, name, number, entry)
        if not self._over:
            later = self._supervisor.later("titanic stage expiry", delay_s, self._expire, name, number, entry, failed=lambda _: again())
            self._expiries[entry.uuid] = later

    def _expire(self, name: Name, number: int, entry: Entry) -> None:
        self._expiries.pop(entry.uuid, None)
        if self._staged.get(name, {}).get(number) is not entry:
            return  # dropped, and perhaps staged again
        if name in self._reserved:
            self._expire_later(GRACE_S, name, number, entry)  # the commit drops it, or releases it
        else:
            self._drop(name, number)

    def end_waits(self) -> None:
        """Answer each `mark` that waits, and those that come from now on."""
        self._over = True
        self._ended.set()

    async def close(self) -> None:
        """Cancel running work; commits continue at the next start."""
        self._over = True
        while self._expiries:
            self._expiries.popitem()[1].cancel()
        await supervision.cancel_all([*self._working.values(), *self._verbs])

    def take(self, frames: Sequence[bytes], done: Done, owner: bytes = b"") -> None:
        """Answer one request to `titanic.batch`, now or later; names are those of its owner."""
        verbs: dict[bytes, tuple[int, Callable[..., Coroutine[Any, Any, list[bytes]]]]] = {
            b"stage": (5, self._stage),
            b"commit": (2, self._commit),
            b"abort": (1, self._abort),
            b"rows": (3, self._rows),
            b"close": (1, self._close_batch),
            b"mark": (4, self._mark),
            b"ends": (5, self._list_ends),
        }
        name, *arguments = frames
        known = verbs.get(bytes(name))
        if known is None:
            done([BAD, b"titanic.batch knows stage, commit, abort, rows, close, mark and ends"])
            return
        count, verb = known
        if len(arguments) != count:
            done([BAD, b"%b takes %d frames" % (name, count)])
        else:
            talk = partial(self._run_verb, partial(verb, owner, *arguments), done)
            self._supervisor.task("titanic batch", talk, restart=ONCE, failed=partial(_fault, done), among=self._verbs)

    async def _run_verb(self, verb: Callable[[], Coroutine[Any, Any, list[bytes]]], done: Done) -> None:
        try:
            done(await verb())
        except BadRequest as error:
            done([BAD, str(error).encode()])
        except asyncio.CancelledError:
            done([FAILED, b"the store is being closed"])
            raise

    # ---- staging

    async def _stage(self, owner: bytes, name: bytes, number: bytes, ttl_ms: bytes, service: bytes, rows: bytes) -> list[bytes]:
        ttl = parse_count(ttl_ms, TTL_MS_MAX)
        chunk = BatchChunk.decode(service, rows)  # checked now, so that a commit finds no malformed chunk
        key = batch_frames.key_of_chunk(b"staged", parse_name(name), parse_count(number))
        body = [chunk.service, rows]
        for _ in range(2):
            reply = await self._submit_own(STAGED, body, Options(key, ttl_ms=ttl), owner)
            if reply[0] != OK:
                return [BAD, b"this chunk was staged before with other rows"] if reply[0] == BAD else reply
            entry = self._staged.get((owner, name), {}).get(int(number))
            if entry is not None and self._lives(entry) and not entry.closing:
                return [OK]
            await self._written()  # it was staged before, and is being dropped: behind that it is stored anew
        return [FAILED, b"this chunk was staged before, and closed"]

    def _submit_own(self, service: bytes, body: list[bytes], options: Options, owner: bytes) -> asyncio.Future[list[bytes]]:
        """Store a request to a service of `INTERNAL`, which clients cannot name."""
        encoded = encode_message([service, *body])
        asked = Submission(service, encoded, options, digest_of(encoded), body)
        return answer_of(lambda done: self._store.submit([service], done, lambda _: asked, owner))

    def _submit(self, frames: Sequence[bytes], owner: bytes) -> asyncio.Future[list[bytes]]:
        return answer_of(lambda done: self._store.submit(frames, done, None, owner))

    async def _written(self) -> None:
        """Wait until all that was given to the journal is durable, or refused."""
        await answer_of(lambda done: self._store.after((lambda *_: done([]), None)))

    def _drop(self, name: Name, number: int) -> None:
        chunks = self._staged.get(name, {})
        entry = chunks.pop(number, None)
        if not chunks:
            self._staged.pop(name, None)
        if entry is None:
            return
        if (expiry := self._expiries.pop(entry.uuid, None)) is not None:
            expiry.cancel()
        if not entry.closing and self._lives(entry):
            # A job that is run again stages the same rows under the same name. If the CLOSE is refused it is dropped later.
            self._store.withdraw(entry, lambda reply: self.waiting(entry) if reply[0] != OK else None)

    def _lives(self, entry: Entry) -> bool:
        return self._store.index.entries.find(entry.uuid) is entry

    async def _abort(self, owner: bytes, prefix: bytes) -> list[bytes]:
        wanted = parse_name(prefix) + b"/"
        dropped = 0
        # After a restart the stages of a commit that was cut short are in its body, and some of its rows may be stored already.
        if unread := [read for name, read in self._unread.items() if name[0] == owner]:
            await asyncio.wait(unread)
        for name in [name for name in self._staged if name[0] == owner and name[1].startswith(wanted) and name not in self._reserved]:
            for number in list(self._staged.get(name, ())):
                self._drop(name, number)
                dropped += 1
        return [OK, b"%d" % dropped]

    # ---- committing

    async def _commit(self, owner: bytes, called: bytes, stages: bytes) -> list[bytes]:
        batch = owner, parse_name(called)
        wanted = _stages_of(owner, stages)
        again = self._committed(batch) is not None
        stage_names = {name for name, _ in wanted}
        if not again and batch not in self._refused:
            for name, count in wanted:
                chunks = self._staged.get(name, {})
                if any(number not in chunks or not self._lives(chunks[number]) for number in range(count)):
                    return [BAD, b"not staged any more: " + name[1]]
            self._reserved |= stage_names
            submit = partial(self._submit_own, COMMIT, [stages], Options(batch_frames.key_of_chunk(b"commit", batch[1], 0)), owner)
            reply = await submit()
            if reply[0] == BAD and self._committed(batch) is None:
                await self._written()  # one with other stages is perhaps being stored
                reply = await submit()
            again = reply[0] == BAD
            if reply[0] == FAILED:
                self._reserved -= stage_names
                return reply
            if self._committed(batch) is None:  # the key is known and its request is not: committed before, and closed since
                self._give_up(wanted)
                return [OK, msgpack.packb({"rows": 0, "refused": 0, "again": True, "closed": True})]
        if (work := self._working.get(batch)) is not None:
            await asyncio.wait([work], timeout=COMMIT_S)
        if batch in self._refused:  # the reason is answered once: the next commit tries it again
            self._reserved -= stage_names
            return [FAILED, self._refused.pop(batch).encode()]
        if (entry := self._committed(batch)) is None:
            return [PENDING]
        reply = await self._fetch(entry)
        if reply[0] == PENDING:
            return reply
        self._give_up(wanted)
        if reply[0] != OK:
            return reply
        return [OK, msgpack.packb({**unpack(reply[1]), "again": again, "closed": False})]

    def _committed(self, batch: Name) -> Entry | None:
        """Return the durable commit of a batch, None if there is none or it was closed."""
        entry = self._store.index.with_key(batch[0], batch_frames.key_of_chunk(b"commit", batch[1], 0))
        return None if entry is None or entry.state == State.STORING else entry

    def _give_up(self, stages: list[tuple[Name, int]]) -> None:
        """Drop chunks of a batch that has been committed, also those staged for it again."""
        self._reserved.difference_update(name for name, _ in stages)
        for name, _ in stages:
            for number in list(self._staged.get(name, ())):
                self._drop(name, number)

    async def _work(self, batch: Name, entry: Entry) -> None:
        """Store all rows of a commit as requests, record their UUIDs, and drop the staged chunks."""
        reserved: set[Name] = set()
        uuids: list[bytes] = []
        index, space = self._store.index, deque[Need]()  # what is held for rows that are not submitted yet
        try:
            try:
                (stages,) = await self._body(entry, "the commit", 1)
                wanted = _stages_of(entry.owner, stages)
                reserved = {name for name, _ in wanted}
                self._reserved |= reserved
            finally:
                if (unread := self._unread.pop(batch, None)) is not None:
                    unread.set_result(None)
            chunks = [(name, number) for name, count in wanted for number in range(count)]
            held, octets, counts = {}, 0, Counter[bytes]()
            needs: list[Need] = []
            for place in chunks:  # all are read before the first row is stored: all or none
                rows = await self._rows_in(*place)
                octets += self._staged[place[0]][place[1]].size
                counts[rows[0]] += len(rows[1])
                needs += [self._needed_by(entry.owner, rows[0], portion) for portion in portions(rows[1], ROWS_AT_ONCE)]
                if octets <= HELD_BYTES_MAX:
                    held[place] = rows
            begun = batch in self._begun and sum(need.requests for need in needs) < counts.total()  # before a restart
            if not begun and (reason := never_fits(index.limits, entry.owner, counts, len(chunks), octets)):
                raise TooManyRows(reason)
            if not begun:
                index.check_space(needs)
            self._begun.add(batch)
            for need in needs:
                index.hold(need)
                space.append(need)
            for place in chunks:
                uuids += await self._release(entry.owner, space, *(held.pop(place, None) or await self._rows_in(*place)))
            digest = batch_frames.digest_in(name for (_, name), _ in wanted)
            summary = msgpack.packb({"rows": len(uuids), "refused": uuids.count(NO_REQUEST), **digest})
            self._store.answer(entry.uuid, [summary, b"".join(uuids)])
            while entry.reply is None and self._lives(entry):
                await answer_of(partial(self._store.wait, [format_uuid(entry.uuid)], WAIT_MS_MAX / 1000))
            self._give_up(wanted)
        except BadRequest as error:
            if self._lives(entry):
                code = {TooManyRows: "TOO_LARGE", ExpiredChunk: "EXPIRED"}.get(type(error), "DAMAGED")
                await self._refuse(batch, entry, f"{code}: {error}; {len(uuids)} of its rows were stored before that was found")
        except StoreFull as error:
            await self._refuse(batch, entry, str(error))
        finally:
            for need in space:
                index.give_back(need)
        # Not after a fault: the commit is repeated and needs its chunks.
        self._reserved -= reserved
        self._begun.discard(batch)
        self._working.pop(batch, None)

    async def _refuse(self, batch: Name, entry: Entry, reason: str) -> None:
        """End a commit that cannot succeed; its client gets the reason, and may commit again, with damaged chunks staged anew."""
        log.error("batch %s is refused: %s", batch[1].decode(errors="backslashreplace"), reason)
        self._store.counters["batches_refused"] += 1
        self._refused[batch] = reason
        while len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        while self._lives(entry):
            if (await answer_of(partial(self._store.withdraw, entry)))[0] != OK:
                await asyncio.sleep(RETRY_S)

    async def _rows_in(self, name: Name, number: int) -> tuple[bytes, list[Row]]:
        """Return (service, rows) of a staged chunk; raises ExpiredChunk, or BadChunk if it is missing or unreadable."""
        what = f"chunk {number} of stage {name[1].decode(errors='backslashreplace')}"
        chunk = self._staged.get(name, {}).get(number)
        if chunk is None or not self._lives(chunk):
            raise BadChunk(f"{what} is not there any more")
        try:
            service, rows = await self._body(chunk, what, 2)
        except BadChunk:
            if chunk.state != State.DEAD:
                raise
            raise ExpiredChunk(f"{what} has expired") from None  # a store in memory forgets its rows at once
        return service, BatchChunk.decode(service, rows).rows

    def _needed_by(self, owner: bytes, service: bytes, rows: list[Row]) -> Need:
        return self._store.index.needed_by(owner, service, [(key, len(encode_message([service, *frames]))) for key, frames in rows])

    async def _release(self, owner: bytes, space: deque[Need], service: bytes, rows: list[Row]) -> list[bytes]:
        """Store the rows of a staged chunk as requests; return their UUIDs, NO_REQUEST for a refused one."""
        uuids = [NO_REQUEST] * len(rows)
        index = self._store.index
        for start, portion in zip(range(0, len(rows), ROWS_AT_ONCE), portions(rows, ROWS_AT_ONCE), strict=True):
            left = list(range(len(portion)))
            while left:
                index.give_back(space.popleft())  # to these rows, which take it before anything else is accepted
                asked = [(*encode_options(Options(portion[number][0])), service, *portion[number][1]) for number in left]
                replies = await asyncio.gather(*(self._submit(frames, owner) for frames in asked))
                for number, reply in zip(left, replies, strict=True):
                    if reply[0] == OK:
                        uuids[start + number] = parse_uuid(reply[1]) or NO_REQUEST
                left = [number for number, reply in zip(left, replies, strict=True) if reply[0] == FAILED]
                if left:
                    again = self._needed_by(owner, service, [portion[number] for number in left])
                    index.hold(again)
                    space.appendleft(again)
                    await asyncio.sleep(RETRY_S)
        return uuids

    async def _body(self, entry: Entry, what: str, frames: int) -> list[bytes]:
        """Return the body frames of a staged chunk or commit; raises BadChunk if they are unreadable."""
        body = await answer_of(lambda done: self._store.bodies.request_of(entry, lambda _, body, __: done(body or [])))
        if len(body) != frames:
            raise BadChunk(f"{what} cannot be read any more")
        return body

    async def _fetch(self, entry: Entry) -> list[bytes]:
        return await answer_of(partial(self._store.fetch, [format_uuid(entry.uuid)]))

    # ---- reading

    async def _rows(self, owner: bytes, batch: bytes, start: bytes, count: bytes) -> list[bytes]:
        first, number = parse_count(start), parse_count(count, PAGE_MAX)
        if (entry := self._committed((owner, parse_name(batch)))) is None:
            return [BAD, b"no such batch"]
        reply = await self._fetch(entry)
        if reply[0] != OK:
            return reply
        return self._page(reply[2], first, number)

    def _page(self, uuids: bytes, first: int, number: int) -> list[bytes]:
        """Return a page of a list of UUIDs with the keys of these requests, empty if closed."""
        entries = self._store.index.entries
        page = uuids[16 * first : 16 * (first + number)]
        found = [entries.find(page[at : at + 16]) for at in range(0, len(page), 16)]
        return [OK, b"%d" % (len(uuids) // 16), page, msgpack.packb([entry.key if entry is not None else b"" for entry in found])]

    async def _close_batch(self, owner: bytes, called: bytes) -> list[bytes]:
        if (entry := self._committed((owner, parse_name(called)))) is None:
            return [OK]
        if entry.reply is None:
            return [PENDING]
        reply = await self._fetch(entry)
        uuids = reply[2] if reply[0] == OK else b""
        answers: dict[bytes, list[bytes]] = {}  # one of each status
        for at in range(0, len(uuids), 16):
            self._store.close_request([format_uuid(uuids[at : at + 16])], lambda reply: answers.update({reply[0]: reply}))
            if at % (16 * ROWS_AT_ONCE) == 0:
                await asyncio.sleep(0)
        await self._written()
        if FAILED in answers:
            return answers[FAILED]  # the batch stays, so that its close may be repeated
        return await answer_of(partial(self._store.close_request, [format_uuid(entry.uuid)]))

    # ---- what was answered since a time

    async def _times(self) -> AnsweredTimes:
        """Return the times of all ends; the first call makes their list."""
        async with self._preparing:
            if self._answered is None:
                self._answered = AnsweredTimes(self._store.index.entries, INTERNAL)
                self._store.on_answered = self._note_end
            for _ in self._answered.prepare():
                await asyncio.sleep(0)
        return self._answered

    def _note_end(self, entry: Entry) -> None:
        if self._answered is not None:
            self._answered.note(entry)
            self._ended.set()

    async def _mark(self, owner: bytes, service: bytes, after_ms: bytes, limit: bytes, wait_ms: bytes) -> list[bytes]:
        after, most = parse_count(after_ms), parse_count(limit)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + parse_count(wait_ms, WAIT_MS_MAX) / 1000
        searched = after  # none of this service ended in between
        while True:
            self._ended.clear()
            times = await self._times()
            # Ends of the present millisecond may still be in the journal; after this, none of the earlier ones is.
            whole = self._store.now_ms() - 1
            await self._written()
            found = await in_slices(times.between(owner, service, searched, whole, most))
            if found:
                return [OK, b"%d" % found[-1].ms]
            searched = max(searched, whole)
            left = 0.0 if self._over else ends_at - loop.time()
            if left <= 0:
                return [OK, b"%d" % after]
            try:
                await asyncio.wait_for(self._ended.wait(), min(left, 1.0))
            except TimeoutError:
                continue
            await asyncio.sleep(0.002)  # let the present millisecond pass

    async def _list_ends(self, owner: bytes, service: bytes, after_ms: bytes, end_ms: bytes, start: bytes, count: bytes) -> list[bytes]:
        first, number = parse_count(start), parse_count(count, PAGE_MAX)
        asked = owner, service, parse_count(after_ms), parse_count(end_ms)
        uuids = self._lists.pop(asked, None) if first else None  # a reader begins with the first page
        if uuids is None:
            uuids = b"".join([ended.uuid for ended in await in_slices((await self._times()).between(*asked))])
        if 16 * (first + number) < len(uuids):
            self._lists[asked] = uuids
            while len(self._lists) > LISTS_MAX:
                del self._lists[next(iter(self._lists))]
        return self._page(uuids, first, number)


def _stages_of(owner: bytes, octets: bytes) -> list[tuple[Name, int]]:
    return [((owner, name), count) for name, count in decode_stages(octets)]


def _fault(done: Done, error: Exception) -> None:
    done([FAILED, f"internal fault: {type(error).__name__}".encode()])
