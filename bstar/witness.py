"""The witness: a tiny process that grants one lease at a time (BEY-12). It serves nobody and knows nothing of the service.

    async with bstar.Witness("tcp://*:5010", heartbeat_ms=1000, store="witness.ballot") as witness:
        await witness.serve_forever()

What it decides is `ballot.LeaseBook`. With a file it remembers the highest ballot over a restart; who holds the lease it always
forgets, and waits one lease before it grants anything new.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Self

import core
from bstar.ballot import NO_BALLOT, Ballot, LeaseBook, Owner, Record
from bstar.clock import boot_clock
from bstar.errors import MalformedMessage
from bstar.member import EXPIRY_HEARTBEATS
from bstar.store import BallotStore
from bstar.wire import QuestionKind, WitnessAnswer, WitnessAnswerKind, decode_question, encode_answer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from bstar.ballot import Answer
    from bstar.wire import Question
    from core.secured import Secured

__all__ = ["Witness"]

log = logging.getLogger(__name__)

# Two servers ask four times a heartbeat each; more than this waiting for the disk means somebody floods us.
WAITING_MAX: Final = 256


class Witness:
    """Third process of a pair; one witness serves one pair.

    Args:
        endpoint: to bind a ROUTER to.
        heartbeat_ms: that of the pair; no lease is longer than two of them.
        store: file for the highest ballot granted; without one a restarted witness learns it from who asks.
        context: to make the socket in; its own when left out.
        security: of its own context: `core.Curve` or `core.Plain`, for what is bound and what is connected.
        socket_options: of the socket, e.g. CURVE keys.
        clock: monotonic seconds.

    Attributes:
        book: who holds the lease.
        counters: what was granted, refused, dropped, by name.

    Raises:
        StoreDamaged, StoreLocked, OSError: on entering the block, the file.
        core.ZMQError: on entering the block, the endpoint.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        heartbeat_ms: int = 1000,
        store: str | os.PathLike[str] | None = None,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.book = LeaseBook()
        self._endpoint = endpoint
        self._lease_s = EXPIRY_HEARTBEATS * heartbeat_ms / 1000
        self._store_path = store
        self._store: BallotStore | None = None
        self._record = Record(Owner.WITNESS, 0, 1, 0)
        self._own_context = context is None
        self._context = core.context_for(context, security)
        self._options = dict(socket_options or {})
        self._clock = clock
        self._stack = AsyncExitStack()
        self._socket: core.Socket | None = None
        self._waiting: deque[tuple[list[bytes], Question]] = deque()
        self._saving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            if self._own_context:
                await self._stack.enter_async_context(self._context)
            await self._open_store()
            # Whatever an earlier life granted has run out by then.
            self.book = LeaseBook(highest=Ballot(self._record.counter, self._record.node), closed_until=self._clock() + self._lease_s)
            self._socket = self._context.socket(core.ROUTER, linger=0, **self._options)
            self._socket.bind(self._endpoint)
            self._socket.set_receiver(self._receive)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stop()

    async def serve_forever(self) -> None:
        """Run until the task is cancelled.

        Raises:
            OSError: the file could not be written; nothing is granted any more.
        """
        await asyncio.shield(self._ended)

    @property
    def endpoint(self) -> str:
        """What is bound, with its port."""
        if self._socket is None:
            raise RuntimeError("the witness runs within its block")
        return self._socket.last_endpoint

    async def _open_store(self) -> None:
        if self._store_path is None:
            return
        self._store = await asyncio.to_thread(BallotStore, self._store_path, Owner.WITNESS)
        old = await asyncio.to_thread(self._store.load)
        if old is not None:
            self._record = old._replace(incarnation=old.incarnation + 1)
        await asyncio.to_thread(self._store.save, self._record)

    async def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            await self._socket.wait_closed()
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        await self._stack.aclose()
        if self._store is not None:
            self._store.close()
        if self._ended.done():
            self._ended.exception()

    def _receive(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            try:
                if len(frames) != 2:
                    raise MalformedMessage(f"question of {len(frames) - 1} frames")
                question = decode_question(frames[1])
            except MalformedMessage:
                self.counters["malformed"] += 1
                continue
            if len(self._waiting) >= WAITING_MAX:
                self.counters["waiting_overflow"] += 1
                self._waiting.popleft()  # the oldest is the one whose asker has asked again
            self._waiting.append((frames[:1], question))
        self._work()

    def _work(self) -> None:
        """Answer what waits, in order; a new highest ballot is written down before its grant leaves."""
        while self._waiting and self._saving is None and not self._ended.done():
            envelope, question = self._waiting.popleft()
            now = self._clock()
            if question.kind is QuestionKind.RELEASE:
                self.book = self.book.release(question.ballot, now)
                self.counters["released"] += 1
            elif question.kind is QuestionKind.LOOK:
                self._send(envelope, question, WitnessAnswerKind.STATUS, self._holder(now), self.book.until - now)
            else:
                self._ask(envelope, question, now)

    def _holder(self, now: float) -> Ballot:
        return self.book.holder if now < self.book.until else NO_BALLOT

    def _ask(self, envelope: list[bytes], question: Question, now: float) -> None:
        lease_s = min(question.lease_ms / 1000, self._lease_s)
        holding = question.kind is QuestionKind.KEEP
        before = self.book.highest
        self.book, answer = self.book.ask(question.ballot, holding=holding, lease_s=lease_s, now=now)
        if answer.granted and answer.highest != before:
            log.info("granted", extra={"ballot": str(answer.ballot)})
            if self._store is not None:
                self._saving = asyncio.get_running_loop().create_task(self._save(envelope, question, answer))
                self._saving.add_done_callback(self._saved)
                return
        self._reply(envelope, question, answer)

    async def _save(self, envelope: list[bytes], question: Question, answer: Answer) -> None:
        assert self._store is not None
        self._record = self._record._replace(counter=answer.highest.counter, node=answer.highest.node)
        await asyncio.to_thread(self._store.save, self._record)
        self._reply(envelope, question, answer)

    def _saved(self, task: asyncio.Task[None]) -> None:
        self._saving = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)
            return
        self._work()

    def _reply(self, envelope: list[bytes], question: Question, answer: Answer) -> None:
        kind = WitnessAnswerKind.GRANTED if answer.granted else WitnessAnswerKind.REFUSED
        self.counters[kind.name.lower()] += 1
        self._send(envelope, question, kind, answer.ballot, answer.wait_s)

    def _send(self, envelope: list[bytes], question: Question, kind: WitnessAnswerKind, holder: Ballot, wait_s: float) -> None:
        assert self._socket is not None
        wait_ms = max(0, int(wait_s * 1000))
        answer = WitnessAnswer(kind, question.nonce, holder, self.book.highest, wait_ms)
        self._socket.send_multipart([*envelope, encode_answer(answer)])
