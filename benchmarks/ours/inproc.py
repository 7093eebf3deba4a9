"""One way over inproc on `core`: one task pushes, one pulls; an await per message, or lists of messages."""

from __future__ import annotations

import asyncio

import core
from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop
from benchmarks.works.limits import chunk_for

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


if __name__ == "__main__":
    main({"await": on_await, "many": on_many})
