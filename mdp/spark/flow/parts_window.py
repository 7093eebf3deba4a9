"""Requests whose replies come in parts, with a task for each; otherwise as `mdp.client.iterators.RequestWindow`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mdp.client.client import Outcome
from mdp.errors import HandlerError, RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

# A row's reply is kept in memory until its last part arrives: it becomes rows only if it is complete.
PARTS_MAX = 100_000
PARTS_BYTES_MAX = 64 * 1024 * 1024


class StreamClient(Protocol):
    """The client operation that is needed here."""

    def stream(self, service: str, *frames: bytes, key: str, wait: bool) -> AsyncGenerator[list[bytes], None]: ...  # parts of a reply


@dataclass(slots=True)
class PartsOutcome(Outcome):
    """The end of a request; `parts` has the frames `[body…]` of each part, None when it failed."""

    parts: list[list[bytes]] | None = None


class PartsWindow:
    """Requests in flight whose outcomes are taken in the order in which they end."""

    def __init__(self, client: StreamClient, service: str, on_end: Callable[[], None], *, wait: bool) -> None:
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
