"""One way over inproc on `core`: one task pushes, one pulls; an await per message, or lists of messages.

``bare`` is the lowest cost of an await per message: a deque, and the results of sends and receives. No socket, no bound, no peer.
"""

from __future__ import annotations

import asyncio
from collections import deque

import core
from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop
from benchmarks.works.limits import chunk_for
from core.sockets.results.ready import DONE, Ready

ENDPOINT = "inproc://one-way"


def on_await(options: Options) -> None:
    """An await per message on both ends."""

    async def both() -> None:
        async with core.Context() as context:
            pull = context.socket(core.PULL)
            pull.bind(ENDPOINT)
            push = context.socket(core.PUSH)
            push.connect(ENDPOINT)
            message = [body_of(options.size)]

            async def push_all() -> None:
                while True:
                    await push.send_multipart(message)

            pusher = asyncio.create_task(push_all())
            ready()
            chunk = chunk_for(options.size)
            assert await pull.recv_multipart() == message
            meter = Meter(options)
            while meter.add(chunk):
                for _ in range(chunk):
                    await pull.recv_multipart()
            pusher.cancel()
            report(meter.figures())

    run_on_loop(both())


def on_many(options: Options) -> None:
    """Lists of messages on both ends."""

    async def both() -> None:
        async with core.Context() as context:
            pull = context.socket(core.PULL)
            pull.bind(ENDPOINT)
            push = context.socket(core.PUSH)
            push.connect(ENDPOINT)
            body = body_of(options.size)
            messages = [[body]] * chunk_for(options.size)

            async def push_all() -> None:
                while True:
                    await push.send_many(messages)

            pusher = asyncio.create_task(push_all())
            ready()
            assert await pull.recv_multipart() == [body]
            meter = Meter(options)
            while meter.add(len(await pull.recv_many())):
                pass
            pusher.cancel()
            report(meter.figures())

    run_on_loop(both())


class Bare:
    """Messages passed one after the other by awaitables with a future's methods."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[list[bytes]] = deque()

    def send(self, message: list[bytes]) -> Ready[None]:
        """Append a copy of the list, as required without waiting for the other end."""
        self._queue.append(message.copy())
        return DONE

    def receive(self) -> Ready[list[bytes]]:
        """Return the next message."""
        return Ready(self._queue.popleft())


def on_bare(options: Options) -> None:
    """An await per message on both ends of a deque."""

    async def both() -> None:
        bare = Bare()
        message = [body_of(options.size)]
        ready()
        chunk = chunk_for(options.size)
        meter = Meter(options)
        while meter.add(chunk):
            for _ in range(chunk):
                await bare.send(message)
            for _ in range(chunk):
                await bare.receive()
        report(meter.figures())

    run_on_loop(both())


if __name__ == "__main__":
    main({"await": on_await, "many": on_many, "bare": on_bare})
