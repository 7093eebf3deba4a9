"""Requests of one partition: a bounded number in flight, answers in row order, retries when the broker is full.

Runs inside the event loop, as one task per partition; per row it makes the answer only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from core.machine.backoff import backoff_s
from core.runtime import supervision
from mdp.client.client import Outcome
from mdp.errors import Busy, HandlerError, RequestError
from mdp.spark.rows.reply_columns import OK, Answer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence

__all__ = ["RequestClient", "Chunk", "Exchange"]

# A full broker refuses at once without executing: wait briefly, then twice as long each time. Twenty waits are about 15 s, the time a
# broker takes to notice dead workers and to give their requests to others.
BUSY_FIRST_WAIT_S = 0.05
_BUSY_WAIT_MAX_S = 1.0
_BUSY_WAITS_MAX = 20
# A row's reply is kept in memory until its last part arrives: it becomes rows only if it is complete.
PARTS_MAX = 100_000
PARTS_BYTES_MAX = 64 * 1024 * 1024


class RequestClient(Protocol):
    """Client operations that an exchange needs."""

    def map(
        self, service: str, requests: Iterable[Sequence[bytes]], *, window: int, key: Callable[[int], str], wait: bool
    ) -> AsyncIterator[Outcome]: ...  # the outcomes in order

    def stream(self, service: str, *frames: bytes, key: str, wait: bool) -> AsyncGenerator[list[bytes], None]: ...  # the parts of a reply


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows that enter and leave the exchange together."""

    requests: Sequence[tuple[bytes, ...]]  # body frames `(body, …)` of each row
    keys: Sequence[str]
    answers: list[Answer] = field(init=False)  # one per row, in order; complete when `finished` is
    missing: int = field(init=False)  # rows without an answer
    # Resolved by the loop when every row has its answer; any thread may wait for it.
    finished: Future[None] = field(init=False, default_factory=Future)

    def __post_init__(self) -> None:
        self.missing = len(self.requests)
        self.answers = [_NOT_YET] * self.missing


_NOT_YET = Answer(None, "", None, 0, 0.0)


class Exchange:
    """Sender of the rows of chunks, with at most `window` in flight."""

    def __init__(self, client: RequestClient, service: str, window: int, *, parts: bool = False, wait: bool = False) -> None:
        self._client = client
        self._service = service
        self._window = window
        self._parts = parts  # take replies part by part
        self._wait = wait  # wait for a service that has no worker at the moment
        self._fed: list[Chunk] = []  # not finished, a few at most
        self._unsent: deque[tuple[Chunk, Iterator[int]]] = deque()  # with the numbers of the rows to send
        self._refused: dict[Chunk, list[int]] = {}  # rows a full broker refused
        self._refusals = 0  # consecutive rounds with refusals
        self._more = asyncio.Event()
        self._fault: Exception | None = None
        self._task = supervision.current().task("mdp dispatch exchange", self._run, restart=supervision.ONCE, failed=self._failed)

    def feed(self, chunk: Chunk) -> None:
        """Take a chunk; its rows are sent as the window allows."""
        if not chunk.missing:
            chunk.finished.set_result(None)
        elif self._task.done():
            chunk.finished.set_exception(self._fault or asyncio.CancelledError())
        else:
            self._fed.append(chunk)
            self._unsent.append((chunk, iter(range(len(chunk.requests)))))
            self._more.set()

    async def close(self) -> None:
        """Give up all rows without an answer: drop waiting ones, cancel those in flight."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            if self._unsent:
                await (self._stream_fed() if self._parts else self._ask_fed())
            if self._refused:
                await self._back_off()

    def _failed(self, error: Exception) -> None:
        """Report an error of this program or its arguments to the partition, which must not wait for ever."""
        self._fault = error
        for chunk in self._fed:
            chunk.finished.set_exception(error)

    async def _ask_fed(self) -> None:
        in_flight: deque[tuple[Chunk, int]] = deque()
        keys: deque[str] = deque()

        def bodies() -> Iterator[tuple[bytes, ...]]:
            # Nothing more for a full broker: first the refused rows.
            while self._unsent and not self._refused:
                chunk, numbers = self._unsent[0]
                for number in numbers:
                    in_flight.append((chunk, number))
                    keys.append(chunk.keys[number])
                    yield chunk.requests[number]
                    if self._refused:
                        return
                self._unsent.popleft()

        outcomes = self._client.map(self._service, bodies(), window=self._window, key=lambda _: keys.popleft(), wait=self._wait)
        async with aclosing(cast("AsyncGenerator[Outcome, None]", outcomes)):
            async for outcome in outcomes:
                self._record(*in_flight.popleft(), outcome)

    async def _stream_fed(self) -> None:
        """Send rows whose replies come in parts, with a task for each request in flight."""
        in_flight: set[asyncio.Task[None]] = set()
        try:
            while self._unsent or in_flight:
                while self._unsent and not self._refused and len(in_flight) < self._window:
                    chunk, numbers = self._unsent[0]
                    number = next(numbers, None)
                    if number is None:
                        self._unsent.popleft()
                    else:
                        in_flight.add(asyncio.create_task(self._stream_one(chunk, number)))
                if not in_flight:
                    return
                done, in_flight = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in in_flight:
                task.cancel()
            if in_flight:
                await asyncio.wait(in_flight)

    async def _stream_one(self, chunk: Chunk, number: int) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        parts: list[list[bytes]] = []
        octets = 0
        error: RequestError | None = None
        try:
            asked = self._client.stream(self._service, *chunk.requests[number], key=chunk.keys[number], wait=self._wait)
            async with aclosing(asked) as stream:
                async for part in stream:
                    parts.append(part)
                    octets += sum(map(len, part))
                    if len(parts) > PARTS_MAX or octets > PARTS_BYTES_MAX:
                        error = HandlerError(self._service, text=f"a reply of more than {PARTS_MAX} parts or {PARTS_BYTES_MAX} bytes")
                        break
        except RequestError as failed:
            error = failed
        outcome = Outcome(number, None, error, 1 if error is None else error.attempts, clock() - began)
        self._record(chunk, number, outcome, None if error is not None else [] if parts == [[b""]] else parts)

    def _record(self, chunk: Chunk, number: int, outcome: Outcome, parts: list[list[bytes]] | None = None) -> None:
        error = outcome.error
        if error is None:
            answer = Answer(outcome.reply, OK, None, outcome.attempts, outcome.latency_s * 1000, parts)
            self._refusals = 0
        elif isinstance(error, Busy) and self._refusals < _BUSY_WAITS_MAX:
            self._refused.setdefault(chunk, []).append(number)
            return
        else:
            answer = Answer(None, error.code, str(error), outcome.attempts, outcome.latency_s * 1000)
        chunk.answers[number] = answer
        chunk.missing -= 1
        if not chunk.missing:
            self._fed.remove(chunk)
            chunk.finished.set_result(None)

    async def _back_off(self) -> None:
        """Wait, then put refused rows before the unsent ones."""
        await asyncio.sleep(backoff_s(BUSY_FIRST_WAIT_S, _BUSY_WAIT_MAX_S, self._refusals))
        self._refusals += 1
        self._unsent.extendleft((chunk, iter(numbers)) for chunk, numbers in reversed(self._refused.items()))
        self._refused = {}
        self._more.set()
