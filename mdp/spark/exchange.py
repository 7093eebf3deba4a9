"""The requests of one partition: a bounded number under way, answers in the order of the rows.

Everything here runs inside the loop's turns: no task and no queue per row, one future per request, which the client makes anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mdp.errors import Busy, Cancelled, RequestError
from mdp.spark.reply import OK, Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Asking", "Chunk", "Exchange"]

# A broker that is full executed nothing and says so at once: ask again soon, then twice as late each time, not more often than
# once a second. Twenty waits are about 15 s, as long as a broker takes to lose its dead workers and drain.
_BUSY_FIRST_WAIT_S = 0.05
_BUSY_WAIT_MAX_S = 1.0
_BUSY_WAITS_MAX = 20


class Asking(Protocol):
    """What an exchange needs of a client."""

    def request(self, service: str, *frames: bytes, key: str | None = None) -> asyncio.Future[list[bytes]]:
        """Send a request now and return the future of its reply frames `[body…]`."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows that are handed over together and come back together.

    Attributes:
        requests: body frames `(body, …)` of each row.
        keys: idempotency key of each row.
        answers: one per row, in order; all there when `finished` is.
        missing: rows without an answer.
        finished: resolved by the loop when every row has its answer; any thread may wait for it.
    """

    requests: Sequence[tuple[bytes, ...]]
    keys: Sequence[str]
    answers: list[Answer] = field(init=False, default_factory=list)
    missing: int = field(init=False)
    finished: Future[None] = field(init=False, default_factory=Future)

    def __post_init__(self) -> None:
        self.missing = len(self.requests)
        self.answers = [Answer(None, "", None, 0, 0.0) for _ in self.requests]


@dataclass(slots=True)
class _Row:
    """One row under way."""

    chunk: Chunk
    number: int
    started_at: float
    waits: int = 0


class Exchange:
    """Sends the rows of the chunks it is fed, at most `window` under way at any time; lives inside one event loop.

    Args:
        client: sends the requests.
        service: whom to ask.
        window: requests under way at most.
    """

    def __init__(self, client: Asking, service: str, window: int) -> None:
        self._client = client
        self._service = service
        self._window = window
        self._loop = asyncio.get_running_loop()
        # Chunks that are not finished, at most a few.
        self._fed: list[Chunk] = []
        # Chunks with rows that are yet to be sent, and the next row of the first of them.
        self._unsent: deque[Chunk] = deque()
        self._next_number = 0
        self._running: dict[asyncio.Future[list[bytes]], _Row] = {}
        # Rows a busy broker refused, with the timer that sends each again; they keep their place in the window.
        self._refused: dict[int, asyncio.TimerHandle] = {}

    def feed(self, chunk: Chunk) -> None:
        """Take a chunk; its rows are sent as soon as the window has room."""
        if not chunk.missing:
            chunk.finished.set_result(None)
            return
        self._fed.append(chunk)
        self._unsent.append(chunk)
        self._fill()

    def close(self) -> None:
        """Give up every row that has no answer: what waits is dropped, what is under way is cancelled."""
        self._unsent.clear()
        for timer in self._refused.values():
            timer.cancel()
        self._refused.clear()
        running = list(self._running)
        self._running.clear()
        for future in running:
            future.cancel()

    def _fill(self) -> None:
        while self._unsent and len(self._running) + len(self._refused) < self._window:
            chunk, number = self._unsent[0], self._next_number
            self._next_number += 1
            if self._next_number == len(chunk.requests):
                self._unsent.popleft()
                self._next_number = 0
            self._send(_Row(chunk, number, self._loop.time()))

    def _send(self, row: _Row) -> None:
        try:
            future = self._client.request(self._service, *row.chunk.requests[row.number], key=row.chunk.keys[row.number])
        except BaseException as error:
            if isinstance(error, RequestError):
                self._failed(row, error)
                return
            self._break(error)
            raise
        self._running[future] = row
        future.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[list[bytes]]) -> None:
        row = self._running.pop(future, None)
        if row is None:  # given up by `close`
            return
        if future.cancelled():
            self._failed(row, Cancelled(self._service))
        elif (error := future.exception()) is None:
            self._settle(row, future.result(), OK, None, 1)
        elif isinstance(error, RequestError):
            self._failed(row, error)
        else:
            self._break(error)
        self._fill()

    def _failed(self, row: _Row, error: RequestError) -> None:
        if isinstance(error, Busy) and row.waits < _BUSY_WAITS_MAX:
            wait_s = min(_BUSY_FIRST_WAIT_S * 2**row.waits, _BUSY_WAIT_MAX_S)
            row.waits += 1
            self._refused[id(row)] = self._loop.call_later(wait_s, self._send_again, row)
            return
        self._settle(row, None, error.code, str(error), error.attempts)

    def _send_again(self, row: _Row) -> None:
        del self._refused[id(row)]
        self._send(row)
        self._fill()

    def _settle(self, row: _Row, reply: list[bytes] | None, status: str, error: str | None, attempts: int) -> None:
        chunk = row.chunk
        latency_ms = (self._loop.time() - row.started_at) * 1000
        chunk.answers[row.number] = Answer(reply, status, error, attempts + row.waits, latency_ms)
        chunk.missing -= 1
        if not chunk.missing:
            self._fed.remove(chunk)
            chunk.finished.set_result(None)

    def _break(self, error: BaseException) -> None:
        # Not a failure of a request but of this program or its arguments: the task must hear of it and not wait for ever.
        self.close()
        for chunk in self._fed:
            chunk.finished.set_exception(error)
        self._fed.clear()
