"""One way on `core`: a PUSH that sends as fast as it can and a PULL that counts.

``await`` is an await per message on both ends; ``many`` uses send_many and recv_many.
"""

from __future__ import annotations

import core
from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop
from benchmarks.works.limits import chunk_for, high_water_for, largest_for


def push_await(options: Options) -> None:
    """Send until the harness ends this program."""

    async def push_all() -> None:
        async with core.Context() as context:
            push = context.socket(core.PUSH, sndhwm=high_water_for(options.size))
            push.connect(options.endpoint)
            ready()
            message = [body_of(options.size)]
            while True:
                await push.send_multipart(message)

    run_on_loop(push_all())


def push_many(options: Options) -> None:
    """Send lists of messages."""

    async def push_all() -> None:
        async with core.Context() as context:
            push = context.socket(core.PUSH, sndhwm=high_water_for(options.size))
            push.connect(options.endpoint)
            ready()
            messages = [[body_of(options.size)]] * chunk_for(options.size)
            while True:
                await push.send_many(messages)

    run_on_loop(push_all())


def pull_await(options: Options) -> None:
    """Count messages, an await per message."""

    async def pull_all() -> None:
        async with core.Context() as context:
            pull = context.socket(core.PULL, rcvhwm=high_water_for(options.size), max_message_bytes=largest_for(options.size))
            pull.bind(options.endpoint)
            ready()
            chunk = chunk_for(options.size)
            assert await pull.recv_multipart() == [body_of(options.size)]
            meter = Meter(options)
            while meter.add(chunk):
                for _ in range(chunk):
                    await pull.recv_multipart()
            report(meter.figures())

    run_on_loop(pull_all())


def pull_many(options: Options) -> None:
    """Count messages, all available ones at a time."""

    async def pull_all() -> None:
        async with core.Context() as context:
            pull = context.socket(core.PULL, rcvhwm=high_water_for(options.size), max_message_bytes=largest_for(options.size))
            pull.bind(options.endpoint)
            ready()
            assert await pull.recv_multipart() == [body_of(options.size)]
            meter = Meter(options)
            while meter.add(len(await pull.recv_many())):
                pass
            report(meter.figures())

    run_on_loop(pull_all())


if __name__ == "__main__":
    main({"push-await": push_await, "push-many": push_many, "pull-await": pull_await, "pull-many": pull_many})
