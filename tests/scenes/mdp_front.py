"""A front, with sockets of the test in the place of its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import core
from mdp.broker.mmi import RETRY
from mdp.shards.front import Front
from mdp.wire.commands import client_heartbeat
from mdp.wire.shards import shard_of
from tests.scenes.waiting import Watch, eventually

if TYPE_CHECKING:
    from types import TracebackType

    from mdp.broker.limits import BrokerOptions

COUNT = 3
ONE, TWO = b"\0\0\0\0\0\0\0\1", b"\0\0\0\0\0\0\0\2"


class FrontScene:
    """A front, and a ROUTER of the test for each of its shards."""

    def __init__(self, endpoint: str, limits: BrokerOptions | None = None, security: core.Plain | None = None, **options: int) -> None:
        self.endpoint = endpoint
        self.front = Front(COUNT, limits, security=security, socket_options=options)
        self.context = core.Context()
        self.shards = [self.context.socket(core.ROUTER, linger=0) for _ in range(COUNT)]
        self.watches = [Watch(shard) for shard in self.shards]

    def peer(self, **options: int | bytes) -> core.Socket:
        peer = self.context.socket(core.DEALER, linger=0, **options)
        peer.connect(self.endpoint)
        return peer

    async def asked(self, shard: int) -> tuple[bytes, list[bytes]]:
        """Return the next message at a shard, and the name of the connection over which it came."""
        name, *message = await self.shards[shard].recv_multipart()
        return name, message

    async def asked_all(self, question: list[bytes]) -> list[bytes]:
        """Return the names of the connections over which a question came to all shards."""
        return [await self.asked_one(shard, question) for shard in range(COUNT)]

    async def asked_one(self, shard: int, question: list[bytes]) -> bytes:
        """Return the name of the connection of a question; behind a retry comes a HEARTBEAT."""
        name, message = await self.asked(shard)
        assert message == question
        if question[1:2] == [RETRY]:
            assert await self.asked(shard) == (name, client_heartbeat())
        return name

    async def say(self, shard: int, name: bytes, message: list[bytes]) -> None:
        await self.shards[shard].send_multipart([name, *message])

    def shown(self, *names: str) -> list[int]:
        return [self.front.stats().get(f"front_{name}", 0) for name in names]

    async def until(self, **numbers: int) -> None:
        """Wait until the front shows these numbers."""
        await eventually(lambda: self.shown(*numbers) == [*numbers.values()])

    async def begin(self, shard: int) -> None:
        """Start a shard that has ended."""
        self.shards[shard] = self.context.socket(core.ROUTER, linger=0)
        self.shards[shard].bind(f"{self.endpoint}.{shard}")

    async def end(self, shard: int) -> None:
        self.shards[shard].close(0)
        await self.shards[shard].wait_closed()

    async def __aenter__(self) -> Self:
        await self.front.__aenter__()
        self.front.bind(self.endpoint)
        for number, shard in enumerate(self.shards):
            shard.bind(f"{self.endpoint}.{number}")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.front.__aexit__(kind, error, trace)
        await self.context.aclose()


def name_of(shard: int) -> bytes:
    names = (b"service-%d" % number for number in range(1000))
    return next(name for name in names if shard_of(name, COUNT) == shard)
