"""Requests of one partition: a bounded number and amount in flight, answers by row, retries when the broker is full.

Runs inside the event loop, as one task per partition; per row it makes the answer only. Requests are sent in the order of the rows, and
answers are put into the rows' places in the order in which they come: a slow row delays no other.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from core.machine.backoff import backoff_s
from core.runtime import supervision
from mdp.errors import BadResult, Busy, DeadlineExceeded, HandlerError, TooLarge
from mdp.spark.flow.breaker import CIRCUIT_OPEN, BreakerState, Opened
from mdp.spark.flow.rate import RateLimit
from mdp.spark.flow.windows import PartsOutcome, PartsWindow, ReplayedWindow, RequestClient, RequestSender
from mdp.spark.rows.reply_columns import OK, Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mdp.client.client import Outcome
    from mdp.spark.flow.breaker import Breaker

# A full broker refuses at once without executing: wait briefly, then twice as long each time. Twenty waits are about 15 s, the time a
# broker takes to notice dead workers and to give their requests to others.
BUSY_FIRST_WAIT_S = 0.05
_BUSY_WAIT_MAX_S = 1.0
_BUSY_WAITS_MAX = 20
# Bytes of requests in flight and of replies that wait for a row before theirs, unless the caller says otherwise.
WINDOW_BYTES = 64 * 1024 * 1024
# Memory of a small row in flight or waiting, beside its bytes: frames, key, request and answer are some Python objects each.
ROW_BYTES = 512
# Errors of a request of several rows that may be caused by one of the rows, or by their number.
_DIVISIBLE = (HandlerError, BadResult, TooLarge)
# Interval of looking at connection and deadline while rows wait.
CHECK_S = 0.25
# Requests leave together: no more are sent before an eighth of the window is free.
_REFILL = 8


# Opens the requests of a partition: (client, service, on_end).
OpenRequests: TypeAlias = "Callable[[RequestClient, str, Callable[[], None]], RequestSender]"


@dataclass(slots=True)
class Flow:
    """State of an exchange for the thread of its partition; the loop writes it."""

    hungry: bool = True  # the exchange takes another chunk
    tight: bool = False  # half of the memory is used: answers should be taken before their chunk is finished
    changed: threading.Event = field(default_factory=threading.Event)  # set when one of these has changed, or a chunk has finished


# Places of answers that are missing, and of those that were taken.
NOT_YET = Answer(None, "", None, 0, 0.0)
TAKEN = Answer(None, "", None, 0, 0.0)


class Chunk:
    """Rows that enter the exchange together.

    Args:
        requests: body frames `(body, …)` of each row, None for a row that is refused.
    """

    __slots__ = ("_next", "answers", "finished", "keys", "missing", "requests")

    def __init__(self, requests: list[tuple[bytes, ...] | None], keys: list[str], refused: Mapping[int, Answer] | None = None) -> None:
        self.requests = requests
        self.keys = keys
        # one for each row, in order; complete when `finished` is, except those that were taken before
        self.answers = [NOT_YET] * len(requests)
        for number, answer in (refused or {}).items():
            self.answers[number] = answer
        self.missing = len(requests) - len(refused or {})
        self.finished: Future[None] = Future()  # resolved by the loop when every row has its answer; any thread may wait for it
        self._next = 0

    def take(self, *, ordered: bool) -> tuple[list[int], list[Answer]]:
        """Remove answers; return the numbers of their rows, and them: with `ordered` only those with no row missing before.

        Called by the thread of the partition, while the loop may add answers.
        """
        answers = self.answers
        begin = end = self._next
        if ordered:
            while end < len(answers) and answers[end] is not NOT_YET:
                end += 1
            numbers = list(range(begin, end))
        else:
            numbers = [n for n in range(begin, len(answers)) if answers[n] is not NOT_YET and answers[n] is not TAKEN]
        taken = [answers[number] for number in numbers]
        for number in numbers:
            answers[number] = TAKEN
        while self._next < len(answers) and answers[self._next] is TAKEN:
            self._next += 1
        return numbers, taken

    def split(self, number: int) -> list[int]:
        """Replace a request whose handler failed by smaller ones; return their numbers, none if it is one row."""
        return []

    def rows_of(self, number: int) -> int:
        return 1

    @property
    def empty(self) -> bool:
        return self._next == len(self.answers)


class Exchange:
    """Sender of the rows of chunks.

    Args:
        window_bytes: maximum bytes of requests in flight and of answers that were not taken; one request is always in flight. No chunk is
            asked for while there are as many with those of unsent requests.
        wait: wait for a service that has no worker at the moment.
        breaker: stops sending when no answers come; shared by the exchanges of a process.
        left_s: seconds until the job's deadline, None for none.
        route: opens the requests, None for the broker alone.
        rate: limit of the rows asked about in a second, None for none.
        replayed: ask the broker which replies it has already; a route tells by itself.
    """

    def __init__(
        self,
        client: RequestClient,
        service: str,
        window: int,
        *,
        window_bytes: int = WINDOW_BYTES,
        parts: bool = False,
        wait: bool = False,
        breaker: Breaker | None = None,
        left_s: float | None = None,
        route: OpenRequests | None = None,
        rate: RateLimit | None = None,
        replayed: bool = False,
    ) -> None:
        self.flow = Flow()
        self.client = client
        self._window = window
        self._refill_at = window - max(1, window // _REFILL)
        self._window_bytes = window_bytes
        self._more = asyncio.Event()
        self._requests: RequestSender
        if route is not None:
            self._requests = route(client, service, self._more.set)
        elif parts:
            self._requests = PartsWindow(client, service, self._more.set, wait=wait)
        else:
            self._requests = client.open_window(service, self._more.set, wait=wait)
        if replayed and route is None:
            self._requests = ReplayedWindow(client, service, self._requests)
        self._fed: list[Chunk] = []  # not finished
        self._unsent: deque[tuple[Chunk, int]] = deque()  # with the number of the row
        self._unsent_bytes = 0  # of their requests
        self._in_flight: dict[int, tuple[Chunk, int, int]] = {}  # by index: chunk, number of the row, bytes counted for it
        self._used = 0  # bytes counted: of requests in flight with the replies expected, and of answers not taken
        self._reply_bytes: float | None = None  # moving mean, None before the first
        self._refused: list[tuple[Chunk, int]] = []  # rows a full broker refused
        self._refusals = 0  # consecutive rounds with refusals
        self._fault: Exception | None = None
        self._forgets = False  # answers are not kept, because no task takes them
        self._over = asyncio.Event()  # there is nothing left to ask
        self._breaker = breaker
        self._clock = asyncio.get_running_loop().time
        self._ends_at = inf if left_s is None else self._clock() + left_s
        self._rate = RateLimit(None, self._clock()) if rate is None else rate
        self._rate_due = inf  # when the rate allows the next request, if it has held one back
        self._task = supervision.current().task("mdp dispatch exchange", self._run, restart=supervision.ONCE, failed=self._failed)

    def feed(self, chunk: Chunk) -> None:
        """Take a chunk; its rows are sent as the window allows."""
        if not chunk.missing:
            chunk.finished.set_result(None)
            self.flow.changed.set()
        elif self._task.done():
            chunk.finished.set_exception(self._fault or asyncio.CancelledError())
            self.flow.changed.set()
        else:
            self._fed.append(chunk)
            self._unsent.extend(rows := [(chunk, number) for number, frames in enumerate(chunk.requests) if frames is not None])
            self._unsent_bytes += _request_bytes(rows)
            self._more.set()

    @property
    def given_up(self) -> bool:
        """Whether nothing is sent because no answers come."""
        return self._breaker is not None and self._breaker.state is BreakerState.OPEN

    def release(self, octets: int) -> None:
        """Note that answers of so many bytes were taken."""
        self._used -= octets
        self._more.set()

    async def finish(self) -> None:
        """Ask about all rows that were taken, and forget their answers, for which no task waits any longer."""
        self._forgets = True
        self._used = sum(octets for _, _, octets in self._in_flight.values())
        self._more.set()
        self._over.clear()
        if self._fed and not self._task.done():
            await self._over.wait()

    async def close(self) -> None:
        """Give up all rows without an answer: drop waiting ones, cancel those in flight."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._withdraw()

    async def _withdraw(self) -> dict[int, tuple[Chunk, int, int]]:
        """Give up the requests in flight, and return them."""
        await self._requests.withdraw()
        in_flight, self._in_flight = self._in_flight, {}
        if in_flight and self._breaker is not None:
            self._breaker.given_up()
        return in_flight

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._more.wait()
            self._more.clear()
            for outcome in self._requests.take():
                self._record(outcome)
            await self._look()
            if self._refused and not self._in_flight:
                await self._back_off()
            # Nothing more for a full broker: first the refused rows.
            if not self._refused and self._unsent and len(self._in_flight) <= self._refill_at:
                self._send()
            self._tell()

    def _pause_s(self) -> float | None:
        """Return how long to wait for a change, None for as long as it takes."""
        if not self._fed:
            return None
        left_s = self._rate_due - self._clock()
        return min(CHECK_S, left_s) if left_s > 0 else CHECK_S

    async def _look(self) -> None:
        """Give up rows at the deadline, or when the breaker is open."""
        now = self._clock()
        if now >= self._ends_at:
            await self._give_up(Opened(DeadlineExceeded.default_code, "the job's deadline has passed"))
        elif self._breaker is not None and self._fed:
            self._breaker.look(self.client.connected, now)
            if self._breaker.state is BreakerState.OPEN and (opened := self._breaker.opened) is not None:
                await self._give_up(opened)

    async def _give_up(self, why: Opened) -> None:
        """Answer all rows that are not sent with a reason; those in flight too, unless answers may still come."""
        if why.status != CIRCUIT_OPEN and self._in_flight:
            for chunk, number, octets in (await self._withdraw()).values():
                self._used -= octets
                self._settle(chunk, number, Answer(None, why.status, why.text, 0, 0.0))
        unsent = [*self._refused, *self._unsent]
        self._refused = []
        self._unsent.clear()
        self._unsent_bytes = 0
        for chunk, number in unsent:
            self._settle(chunk, number, Answer(None, why.status, why.text, 0, 0.0))

    def _failed(self, error: Exception) -> None:
        """Report an error of this program or its arguments to the partition, which would otherwise wait for ever."""
        self._fault = error
        for chunk in self._fed:
            chunk.finished.set_exception(error)
        self.flow.changed.set()
        self._over.set()

    def _send(self) -> None:
        rows: list[tuple[Chunk, int, int]] = []
        bodies: list[tuple[bytes, ...]] = []
        free = self._window - len(self._in_flight)
        breaker = self._breaker
        now = self._clock()
        self._rate_due = inf
        while self._unsent and len(rows) < free:
            if not self._rate.allows(now):
                self._rate_due = now + self._rate.wait_s()
                break
            if breaker is not None and breaker.state is not BreakerState.CLOSED and (rows or not breaker.allows()):
                break
            chunk, number = self._unsent[0]
            body = chunk.requests[number]
            if body is not None:
                octets = size = sum(map(len, body))
                # A reply is expected to be as large as the request, until the first of them.
                octets += ROW_BYTES + int(octets if self._reply_bytes is None else self._reply_bytes)
                if self._used + octets > self._window_bytes and (self._in_flight or rows):
                    break
                self._used += octets
                self._unsent_bytes -= size
                rows.append((chunk, number, octets))
                bodies.append(body)
                self._rate.take(chunk.rows_of(number))
            self._unsent.popleft()
        if rows:
            first = self._requests.send(bodies, [chunk.keys[number] for chunk, number, _ in rows])
            self._in_flight.update(enumerate(rows, first))

    def _tell(self) -> None:
        """Tell the partition what to do: pass chunks, or take answers."""
        flow = self.flow
        tight = self._used > self._window_bytes // 2
        hungry = len(self._unsent) < self._window and self._used + self._unsent_bytes < self._window_bytes
        if (tight, hungry) != (flow.tight, flow.hungry) or tight:
            flow.tight, flow.hungry = tight, hungry
            if tight or hungry:
                flow.changed.set()

    def _record(self, outcome: Outcome) -> None:
        chunk, number, octets = self._in_flight.pop(outcome.index)
        self._used -= octets
        error = outcome.error
        if self._breaker is not None and (error is not None or self._breaker.troubled):
            self._breaker.ended(error, self._clock())
        if error is None:
            parts = outcome.parts if isinstance(outcome, PartsOutcome) else None
            answer = Answer(outcome.reply, OK, None, outcome.attempts, outcome.latency_s * 1000, parts, outcome.replayed)
            self._refusals = 0
        elif isinstance(error, Busy) and self._refusals < _BUSY_WAITS_MAX:
            self._refused.append((chunk, number))
            return
        elif isinstance(error, _DIVISIBLE) and (smaller := chunk.split(number)):
            self._send_first([(chunk, piece) for piece in smaller])
            return
        else:
            answer = Answer(None, error.code, str(error), outcome.attempts, outcome.latency_s * 1000, None, outcome.replayed)
        size = self._settle(chunk, number, answer)
        if error is None:
            self._reply_bytes = size if self._reply_bytes is None else self._reply_bytes + (size - self._reply_bytes) / _REFILL

    def _settle(self, chunk: Chunk, number: int, answer: Answer) -> int:
        """Put an answer into its place; return what it counts against `window_bytes`."""
        size = answer_bytes(answer)
        self._used += 0 if self._forgets else size
        chunk.requests[number] = None  # its bytes are not needed any longer
        chunk.answers[number] = TAKEN if self._forgets else answer
        chunk.missing -= 1
        if not chunk.missing:
            self._fed.remove(chunk)
            chunk.finished.set_result(None)
            self.flow.changed.set()
            if not self._fed:
                self._over.set()
        return size

    async def _back_off(self) -> None:
        await asyncio.sleep(backoff_s(BUSY_FIRST_WAIT_S, _BUSY_WAIT_MAX_S, self._refusals))
        self._refusals += 1
        self._send_first(self._refused)
        self._refused = []

    def _send_first(self, rows: list[tuple[Chunk, int]]) -> None:
        self._unsent.extendleft(reversed(rows))
        self._unsent_bytes += _request_bytes(rows)


def _request_bytes(rows: list[tuple[Chunk, int]]) -> int:
    return sum(len(frame) for chunk, number in rows for frame in chunk.requests[number] or ())


def answer_bytes(answer: Answer) -> int:
    """Return what an answer counts against `window_bytes`."""
    octets = ROW_BYTES
    if answer.reply is not None:
        octets += sum(map(len, answer.reply))
    if answer.parts is not None:
        octets += sum(sum(map(len, part)) for part in answer.parts)
    return octets
