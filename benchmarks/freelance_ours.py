"""Freelance on `core`: echo servers in one process, and a client with `window` requests in flight.

The endpoints of all servers are one text, separated by commas; if `count` is 1 the client gets one more without a listener.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING

import freelance
from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop

if TYPE_CHECKING:
    from typing import Literal

    Model = Literal[1, 2, 3]

__all__ = ["DEAD", "endpoints_of"]

DEAD = "tcp://127.0.0.1:9"
"""Discard port, where nothing listens: the first server of a client is dead."""


def endpoints_of(options: Options) -> list[str]:
    """Return the endpoints of the servers."""
    return options.endpoint.split(",")


def serve(options: Options, model: Model) -> None:
    """Serve with a handler that returns its body."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            for endpoint in endpoints_of(options):
                await stack.enter_async_context(freelance.Server(endpoint, lambda body: body, model=model))
            ready()
            await asyncio.get_running_loop().create_future()  # until the harness ends this program

    run_on_loop(run())


def ask(options: Options, model: Model) -> None:
    """Keep `window` requests in flight, each in a task of its own, as a program would that serves others."""

    async def run() -> None:
        servers = [DEAD] * (options.count == 1) + endpoints_of(options)
        async with freelance.Client(servers, model=model, timeout=30.0, try_timeout=10.0) as client:
            body = body_of(options.size)
            ready()
            await client.request(body)
            meter = Meter(options)

            async def one_after_another() -> None:
                going = True
                while going:
                    before = perf_counter()
                    await client.request(body)
                    if meter.measuring:
                        meter.trips.append(perf_counter() - before)
                    going = meter.add(1)

            async with asyncio.TaskGroup() as group:
                for _ in range(options.window):
                    group.create_task(one_after_another())
            report(meter.figures())

    run_on_loop(run())


if __name__ == "__main__":
    main(
        {
            "serve-2": lambda options: serve(options, 2),
            "serve-3": lambda options: serve(options, 3),
            "ask-2": lambda options: ask(options, 2),
            "ask-3": lambda options: ask(options, 3),
        }
    )
