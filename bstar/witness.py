"""Witness: a small process that grants one lease at a time (BEY-12), independent of the service.

    async with bstar.Witness("tcp://*:5010", heartbeat_ms=1000, store="witness.ballot") as witness:
        await witness.serve_forever()

`ballot.LeaseTable` decides. With a file the highest ballot survives a restart; the holder of the lease does not, so a restarted witness
waits one lease before it grants anything new.

It refuses, with a reason, what would do permanent harm: a ballot far above any that can have been drawn (`Ceiling`), a ballot that it
cannot write to its file, and with a pair key any question that is not signed with it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import core
from bstar.errors import MalformedMessage
from bstar.machine.ballot import NO_BALLOT, WITNESS_JUMP_MAX, Ballot, Ceiling, LeaseTable, Record, RecordRole
from bstar.machine.member_values import EXPIRY_HEARTBEATS, check_heartbeat
from bstar.machine.signing import TakenNonces
from bstar.machine.wire import QuestionKind, WitnessAnswer, WitnessAnswerKind, decode_question, encode_answer, signed_by
from bstar.net.ballot_writer import BallotWriter
from bstar.net.boot_clock import boot_clock
from bstar.pair_key import trust_of
from core.daemon.logs import RateLimitedLog
from core.rpc.service import Service
from core.runtime import supervision

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable, Coroutine, Mapping

    from bstar.machine.ballot import Answer
    from bstar.machine.wire import Question
    from core.security.credentials import Secured

__all__ = ["Witness"]

log = logging.getLogger(__name__)

# Two servers ask four times a heartbeat each; more questions waiting for the disk are a flood.
WAITING_MAX: Final = 256


class PendingQuestion(NamedTuple):
    """A question to answer, with its routing frames."""

    envelope: list[bytes]
    question: Question
    signed: bool


class Witness(Service):
    """Witness of one pair.

    Args:
        endpoint: to bind a ROUTER to.
        heartbeat_ms: of the pair; no lease is longer than two heartbeats.
        store: file for the highest granted ballot; without one a restarted witness learns it from questions.
        pair_key: 32 bytes that both servers have too; questions not signed with it are refused. By default one is derived from our CURVE
            key, and demanded after the first message signed with it.
        context: for the socket; by default a new one.
        security: of the new context: `core.Curve` or `core.Plain`.
        socket_options: of the socket, e.g. CURVE keys.
        clock: monotonic seconds.

    Attributes:
        lease: its state.
        counters: events by name.
        trouble: why nothing new is granted at present, "" for nothing.

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
        pair_key: bytes | None = None,
        context: core.Context | None = None,
        security: Secured | None = None,
        socket_options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        check_heartbeat(heartbeat_ms)
        super().__init__(context, security, socket_options)
        self.counters: Counter[str] = Counter()
        self.lease = LeaseTable()
        self._endpoint = endpoint
        self._lease_s = EXPIRY_HEARTBEATS * heartbeat_ms / 1000
        self._writer = BallotWriter(store, Record(RecordRole.WITNESS, 0, 1, 0), counters=self.counters, clock=clock)
        self._trust = trust_of(pair_key, security, None)
        self._taken = TakenNonces()
        self._log = RateLimitedLog(log)
        self._clock = clock
        self._waiting: deque[PendingQuestion] = deque()
        self._saving: asyncio.Task[None] | None = None

    async def _start(self) -> None:
        record = await self._writer.open()
        # Leases granted before the restart have ended by then.
        now = self._clock()
        self.lease = LeaseTable(highest=Ballot(record.counter, record.node), closed_until=now + self._lease_s)
        self._ceiling = Ceiling(record.counter, WITNESS_JUMP_MAX, now)
        self._socket = self._bound(core.ROUTER, self._endpoint, linger_ms=0, **self._options)
        self._socket.set_receiver(self._receive)

    @property
    def endpoint(self) -> str:
        """Bound endpoint, with its port."""
        if not self._sockets:
            raise RuntimeError("the witness runs within its block")
        return self._socket.last_endpoint

    @property
    def trouble(self) -> str:
        """Reason why nothing new is granted at present, "" for none."""
        return f"the ballot file cannot be written: {self._writer.trouble}" if self._writer.trouble else ""

    async def _stop(self) -> None:
        try:
            if self._saving is not None:
                await supervision.cancel_all([self._saving])
        finally:
            self._writer.close()

    def _receive(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            try:
                if len(frames) != 2:
                    raise MalformedMessage(f"question of {len(frames) - 1} frames")
                question = decode_question(frames[1])
            except MalformedMessage:
                self.counters["malformed"] += 1
                continue
            signed = signed_by(self._trust.key, frames[1])
            if question.kind is not QuestionKind.LOOK and not self._trust.admits(signed=signed):
                self.counters["not_signed"] += 1
                self._log.warning(
                    "not signed", "a question that is not signed with the pair key is refused", asker=f"{question.ballot.node:016x}"
                )
                self._send(PendingQuestion(frames[:1], question, False), WitnessAnswerKind.NOT_SIGNED, NO_BALLOT, self._lease_s)
                continue
            if signed and not self._taken.take(question.ballot.node, question.nonce):
                self.counters["repeated"] += 1
                self._log.warning("repeated", "a signed question that came before is not taken again", asker=f"{question.ballot.node:016x}")
                continue
            if len(self._waiting) >= WAITING_MAX:
                self._turn_away(self._waiting.popleft())  # the oldest has probably been sent again
            self._waiting.append(PendingQuestion(frames[:1], question, signed))
            self._work()

    def _turn_away(self, pending: PendingQuestion) -> None:
        """Refuse a question for which the disk is too slow; a lease that is not released ends by itself."""
        self.counters["waiting_overflow"] += 1
        if pending.question.kind is not QuestionKind.RELEASE:
            self._send(pending, WitnessAnswerKind.NOT_WRITTEN, NO_BALLOT, self._lease_s)

    def _work(self) -> None:
        """Answer questions in order; a new highest ballot is written to disk before its grant leaves."""
        while self._waiting and self._saving is None and not self._ended.done():
            pending = self._waiting.popleft()
            question, now = pending.question, self._clock()
            if question.kind is QuestionKind.RELEASE:
                self.lease = self.lease.release(question.ballot, now)
                self.counters["released"] += 1
            elif question.kind is QuestionKind.LOOK:
                kind = WitnessAnswerKind.NOT_WRITTEN if self._writer.trouble else WitnessAnswerKind.STATUS
                self._send(pending, kind, self._holder(now), self.lease.until - now)
            else:
                self._ask(pending, now)

    def _holder(self, now: float) -> Ballot:
        return self.lease.holder if now < self.lease.until else NO_BALLOT

    def _ask(self, pending: PendingQuestion, now: float) -> None:
        question = pending.question
        most = self._ceiling.at(now)
        if question.ballot.counter > most:
            self.counters["too_far"] += 1
            self._log.warning("too far", "a ballot nobody can have drawn is refused", ballot=str(question.ballot), highest_believed=most)
            self._send(pending, WitnessAnswerKind.TOO_FAR, self._holder(now), self._lease_s)
            return
        lease_s = min(question.lease_ms / 1000, self._lease_s)
        holding = question.kind is QuestionKind.KEEP
        before = self.lease
        self.lease, answer = before.ask(question.ballot, holding=holding, lease_s=lease_s, now=now)
        if not answer.granted or answer.highest == before.highest:
            self._reply(pending, answer)
            if self._writer.due():
                self._write(self._writer.try_again)
        elif not self._writer.may_try(now):
            self.lease = before
            self._not_written(pending)
        else:
            self._write(partial(self._save, pending, before, answer))

    def _write(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Write, then answer questions that arrived meanwhile; an unexpected error ends the witness."""

        async def writing() -> None:
            await write()
            self._saving = None
            self._work()

        self._saving = supervision.current().task("bstar witness ballot", writing, restart=supervision.ONCE, failed=self._failed)

    async def _save(self, pending: PendingQuestion, before: LeaseTable, answer: Answer) -> None:
        """Write a new highest ballot to disk, then grant it; without the write it is not granted."""
        if await self._writer.save(*answer.highest):
            log.info("granted", extra={"ballot": str(answer.ballot)})
            self._reply(pending, answer)
        else:
            self.lease = before
            self._not_written(pending)

    def _not_written(self, pending: PendingQuestion) -> None:
        self.counters["not_written"] += 1
        now = self._clock()
        self._send(pending, WitnessAnswerKind.NOT_WRITTEN, self._holder(now), self._writer.retry_after(now))

    def _reply(self, pending: PendingQuestion, answer: Answer) -> None:
        kind = WitnessAnswerKind.GRANTED if answer.granted else WitnessAnswerKind.REFUSED
        self.counters[kind.name.lower()] += 1
        self._send(pending, kind, answer.ballot, answer.wait_s)

    def _send(self, pending: PendingQuestion, kind: WitnessAnswerKind, holder: Ballot, wait_s: float) -> None:
        answer = WitnessAnswer(kind, pending.question.nonce, holder, self.lease.highest, max(0, int(wait_s * 1000)))
        key = self._trust.key if pending.signed else None
        self._socket.send_multipart([*pending.envelope, encode_answer(answer, key)])
