"""Brokers of ours in one process, with clients and workers on core's sockets."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

import core
from core.machine.envelope import READY
from peering import Broker
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Scene:
    """One context, brokers, workers that answer with their broker's name, and clients."""

    def __init__(self, context: core.Context, directory: Path) -> None:
        self.context = context
        self.directory = str(directory)
        self.brokers: dict[str, Broker] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for broker in [*self.brokers.values()]:
            await self.end(broker)

    async def broker(self, name: str, *peers: str, **options: Any) -> Broker:
        """Start a broker whose peers are at the usual endpoints."""
        made = Broker(name, dict.fromkeys(peers), directory=self.directory, context=self.context, **options)
        self.brokers[f"{name} {len(self.brokers)}"] = await made.__aenter__()
        return made

    async def end(self, broker: Broker) -> None:
        """End a broker without draining it."""
        for key in [key for key, other in self.brokers.items() if other is broker]:
            del self.brokers[key]
            await broker.__aexit__(None, None, None)

    async def mesh(self, *names: str, **options: Any) -> list[Broker]:
        """Start brokers that are each other's peers, and wait until they are connected."""
        made = [await self.broker(name, *(other for other in names if other != name), **options) for name in names]
        await eventually(lambda: all(peer.up for broker in made for peer in broker.machine.router))
        return made

    def worker(self, broker: Broker, *, work: asyncio.Event | None = None) -> asyncio.Task[None]:
        """Start a REQ worker that puts the broker's name before the body; with an event it waits for that first."""
        task = asyncio.get_running_loop().create_task(self._work(broker, work))
        self._tasks.append(task)
        return task

    async def _work(self, broker: Broker, work: asyncio.Event | None) -> None:
        async with self.context.socket(core.REQ, linger=0) as socket:
            socket.connect(broker.localbe)
            await socket.send(READY)
            while True:
                frames = await socket.recv_multipart()
                if work is not None:
                    await work.wait()
                end = frames.index(b"") + 1
                await socket.send_multipart([*frames[:end], broker.name.encode(), *frames[end:]])

    @contextlib.asynccontextmanager
    async def client(self, broker: Broker, **options: Any) -> AsyncIterator[core.Socket]:
        """Return a REQ client."""
        async with self.context.socket(core.REQ, linger=0, **options) as socket:
            socket.connect(broker.localfe)
            yield socket


async def ask(socket: core.Socket, *frames: bytes) -> list[bytes]:
    """Send a task and return the reply."""
    async with asyncio.timeout(100):
        await socket.send_multipart(list(frames))
        reply: list[bytes] = await socket.recv_multipart()
        return reply
