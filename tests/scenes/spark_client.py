"""A client of the shape the Spark bridge needs, that answers by itself: no broker, no network."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING

import msgpack

from mdp.client.client import Outcome
from mdp.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence

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
    """

    def __init__(self, answer: Callable[..., list[bytes]] = echo_map) -> None:
        self._answer = answer
        self.opened: list[Destination] = []
        self.closed: list[Destination] = []
        self.keys: list[str] = []
        self.most_under_way = 0
        self.silent = False

    @asynccontextmanager
    async def connect(self, to: Destination) -> AsyncIterator[Answering]:
        if to.broker == "refused":
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

    async def map(
        self, service: str, requests: Iterable[Sequence[bytes]], *, window: int, key: Callable[[int], str], wait: bool
    ) -> AsyncIterator[Outcome]:
        source = enumerate(requests)
        while batch := [(index, frames, key(index)) for index, frames in islice(source, window)]:
            self.most_under_way = max(self.most_under_way, len(batch))
            self.keys.extend(made for _, _, made in batch)
            await asyncio.sleep(0)
            while self.silent:
                await asyncio.sleep(0.001)
            for index, frames, _ in batch:
                try:
                    yield Outcome(index, self._answer(*frames), None, 1, 0.001)
                except RequestError as error:
                    yield Outcome(index, None, error, error.attempts, 0.001)
