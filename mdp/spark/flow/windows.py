"""Requests in flight that `mdp.client.iterators.RequestWindow` does not have.

Those of `dispatch(…, replayed=True)`, whose outcomes say whether the broker had the reply before: it is asked about the keys of requests
that are sent together, and they are sent when it has answered (`mmi.keys`). And those whose replies come in parts, with a task for each.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final, Protocol

import msgpack

from core.runtime import supervision
from mdp.client.client import Outcome
from mdp.errors import HandlerError, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

_QUESTION: Final = "mmi.keys"
_OK: Final = b"200"
_KEPT: Final = b"k"

log = logging.getLogger("mdp.spark")


class RequestSender(Protocol):
    """Requests in flight; see `mdp.client.iterators.RequestWindow`."""

    def send(self, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> int: ...  # the index of the first

    def take(self) -> Sequence[Outcome]: ...  # what has ended since the last call

    async def withdraw(self) -> None: ...


class RequestClient(Protocol):
    """Client operations that are needed."""

    @property
    def connected(self) -> bool: ...  # whether there is a connection to a broker

    def open_window(self, service: str, on_end: Callable[[], None], *, wait: bool) -> RequestSender: ...

    def request(self, service: str, *frames: bytes, attempts: int) -> Awaitable[list[bytes]]: ...  # the reply's body frames

    def stream(self, service: str, *frames: bytes, key: str, wait: bool) -> AsyncGenerator[list[bytes], None]: ...  # parts of a reply


class ReplayedWindow:
    """Requests whose outcomes say whether they were replayed; with the methods of `RequestSender`."""

    def __init__(self, client: RequestClient, service: str, requests: RequestSender) -> None:
        self._client = client
        self._service = service
        self._requests = requests
        self._count = 0
        self._sent: dict[int, tuple[int, bool]] = {}  # by the index in `requests`: index here, whether it was replayed
        self._asking: set[asyncio.Task[None]] = set()

    def send(self, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> int:
        """Ask about the keys, then send the requests; return the index of the first."""
        first = self._count
        self._count += len(bodies)
        ask = partial(self._ask, first, bodies, keys)
        supervision.current().task(
            "mdp dispatch keys", ask, restart=supervision.ONCE, failed=partial(self._unknown, first, bodies, keys), among=self._asking
        )
        return first

    def take(self) -> Sequence[Outcome]:
        """Return the outcomes of the requests that have ended since the last call."""
        ended = []
        for outcome in self._requests.take():
            found = self._sent.pop(outcome.index, None)
            if found is not None:
                outcome.index, outcome.replayed = found
                ended.append(outcome)
        return ended

    async def withdraw(self) -> None:
        for task in [*self._asking]:
            task.cancel()
        self._sent.clear()
        await self._requests.withdraw()

    async def _ask(self, first: int, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> None:
        question = bytes(msgpack.packb([key.encode() for key in keys]))
        try:
            code, *answer = await self._client.request(_QUESTION, question, self._service.encode(), attempts=1)
        except RequestError:  # the requests will show what it is
            code, answer = b"", []
        states = answer[0] if code == _OK and answer and len(answer[0]) == len(keys) else b""
        if code not in (_OK, b""):
            _say_once(code.decode(errors="replace"))
        self._pass_on(first, bodies, keys, states)

    def _unknown(self, first: int, bodies: Sequence[Sequence[bytes]], keys: Sequence[str], error: Exception) -> None:
        self._pass_on(first, bodies, keys, b"")

    def _pass_on(self, first: int, bodies: Sequence[Sequence[bytes]], keys: Sequence[str], states: bytes) -> None:
        at = self._requests.send(bodies, keys)
        for number in range(len(bodies)):
            self._sent[at + number] = (first + number, states[number : number + 1] == _KEPT)


@cache
def _say_once(code: str) -> None:
    log.warning("the broker does not tell which replies it keeps (mmi.keys: %s): _replayed is false", code)


# A row's reply is kept in memory until its last part arrives: it becomes rows only if it is complete.
PARTS_MAX = 100_000
PARTS_BYTES_MAX = 64 * 1024 * 1024


@dataclass(slots=True)
class PartsOutcome(Outcome):
    """The end of a request; `parts` has the frames `[body…]` of each part, None when it failed."""

    parts: list[list[bytes]] | None = None


class PartsWindow:
    """Requests in flight whose outcomes are taken in the order in which they end."""

    def __init__(self, client: RequestClient, service: str, on_end: Callable[[], None], *, wait: bool) -> None:
        self._client = client
        self._service = service
        self._on_end = on_end
        self._wait = wait
        self._count = 0
        self._open: set[asyncio.Task[PartsOutcome]] = set()
        self._ended: list[asyncio.Task[PartsOutcome]] = []

    def send(self, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> int:
        first = self._count
        self._count += len(bodies)
        for index, (body, key) in enumerate(zip(bodies, keys, strict=True), first):
            task = asyncio.create_task(self._ask(index, body, key))
            self._open.add(task)
            task.add_done_callback(self._end)
        return first

    def take(self) -> list[Outcome]:
        """Return the outcomes of the requests that have ended since the last call; raises any other error."""
        ended, self._ended = self._ended, []
        return [task.result() for task in ended]

    async def withdraw(self) -> None:
        given_up = list(self._open)
        for task in given_up:
            task.remove_done_callback(self._end)
            task.cancel()
        if given_up:
            await asyncio.wait(given_up)

    def _end(self, task: asyncio.Task[PartsOutcome]) -> None:
        self._open.discard(task)
        self._ended.append(task)
        if len(self._ended) == 1:
            self._on_end()

    async def _ask(self, index: int, body: Sequence[bytes], key: str) -> PartsOutcome:
        clock = asyncio.get_running_loop().time
        began = clock()
        parts: list[list[bytes]] = []
        octets = 0
        error: RequestError | None = None
        try:
            async with aclosing(self._client.stream(self._service, *body, key=key, wait=self._wait)) as stream:
                async for part in stream:
                    parts.append(part)
                    octets += sum(map(len, part))
                    if len(parts) > PARTS_MAX or octets > PARTS_BYTES_MAX:
                        error = HandlerError(self._service, text=f"a reply of more than {PARTS_MAX} parts or {PARTS_BYTES_MAX} bytes")
                        break
        except RequestError as failed:
            error = failed
        attempts = 1 if error is None else error.attempts
        # Workers of this package end a reply in parts with one empty frame.
        complete = [] if parts == [[b""]] else parts
        return PartsOutcome(index, None, error, attempts, clock() - began, parts=complete if error is None else None)
