"""A client of the shape the Spark bridge needs, that answers by itself: no broker, no network."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgpack

from mdp.client.client import Outcome
from mdp.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from mdp.spark.rows.loop_bridge import Destination

__all__ = ["Answering", "echo_map"]


def echo_map(*frames: bytes) -> list[bytes]:
    """Answer with a map that holds the first frame as text."""
    return [msgpack.packb({"answer": frames[0].decode()})]


class Answering:
    """Makes clients; each answers in the loop's next turn with what `answer` returns or raises.

    Args:
        answer: from body frames to reply frames; may raise a RequestError.

    Attributes:
        silent: while it is set nothing is answered.
        absent: while it is set there is no connection.
    """

    def __init__(self, answer: Callable[..., list[bytes]] = echo_map) -> None:
        self._answer = answer
        self.opened: list[Destination] = []
        self.closed: list[Destination] = []
        self.keys: list[str] = []
        self.most_under_way = 0
        self.questions: list[tuple[Any, ...]] = []
        self.workers = [b"404"]  # answer to every question beside the rows
        self.silent = False
        self.absent = False

    @asynccontextmanager
    async def connect(self, to: Destination) -> AsyncIterator[Answering]:
        if to.brokers == ("refused",):
            raise ConnectionError("nobody there")
        self.opened.append(to)
        yield self
        self.closed.append(to)

    async def stream(self, service: str, *frames: bytes, key: str, wait: bool) -> AsyncGenerator[list[bytes], None]:
        """Every frame of the answer is a part."""
        self.keys.append(key)
        await asyncio.sleep(0)
        for frame in self._answer(*frames):
            yield [frame]

    @property
    def connected(self) -> bool:
        return not self.absent

    async def request(self, service: str, *frames: bytes, attempts: int) -> list[bytes]:
        self.questions.append((service, *frames))
        return self.workers

    def open_window(self, service: str, on_end: Callable[[], None], *, wait: bool) -> AnsweringWindow:
        return AnsweringWindow(self, on_end)

    def outcome(self, index: int, frames: Sequence[bytes]) -> Outcome:
        try:
            return Outcome(index, self._answer(*frames), None, 1, 0.001)
        except RequestError as error:
            return Outcome(index, None, error, error.attempts, 0.001)


class AnsweringWindow:
    """Requests in flight, all of which end in the loop's next iteration, unless the client is silent."""

    def __init__(self, client: Answering, on_end: Callable[[], None]) -> None:
        self._client = client
        self._on_end = on_end
        self._count = 0
        self._open: list[tuple[int, Sequence[bytes]]] = []
        self._ended: list[tuple[int, Sequence[bytes]]] = []

    def send(self, bodies: Sequence[Sequence[bytes]], keys: Sequence[str]) -> int:
        first = self._count
        self._count += len(bodies)
        if not self._open:
            asyncio.get_running_loop().call_soon(self._end_all)
        self._open += enumerate(bodies, first)
        self._client.keys += keys
        self._client.most_under_way = max(self._client.most_under_way, len(self._open))
        return first

    def take(self) -> list[Outcome]:
        ended, self._ended = self._ended, []
        return [self._client.outcome(index, frames) for index, frames in ended]

    async def withdraw(self) -> None:
        self._open = []

    def _end_all(self) -> None:
        if self._open and self._client.silent:
            asyncio.get_running_loop().call_later(0.001, self._end_all)
            return
        ended, self._open = self._open, []
        self._ended += ended
        if ended:
            self._on_end()
