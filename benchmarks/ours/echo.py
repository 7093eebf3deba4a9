"""Echo on `core`: a ROUTER that echoes, and DEALER clients with `window` messages in flight.

``await`` is the first version most people write; ``batch`` is the hot path of a broker: a callback per batch, no awaits.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

import core
from benchmarks.ours.secured import client_security, server_security
from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop

CHUNK = 100
"""Messages between two looks at the clock."""


def serve_await(options: Options) -> None:
    """An await per message."""

    async def serve() -> None:
        async with core.Context(security=server_security(options)) as context:
            router = context.socket(core.ROUTER)
            router.bind(options.endpoint)
            ready()
            while True:
                await router.send_multipart(await router.recv_multipart())

    run_on_loop(serve())


def serve_batch(options: Options) -> None:
    """A whole batch per call."""

    async def serve() -> None:
        async with core.Context(security=server_security(options)) as context:
            router = context.socket(core.ROUTER)
            router.bind(options.endpoint)

            def on_batch(messages: list[list[bytes]]) -> None:
                router.send_many(messages)

            router.set_receiver(on_batch)
            ready()
            await asyncio.get_running_loop().create_future()  # until the harness ends this program

    run_on_loop(serve())


def flood_await(options: Options) -> None:
    """Keep `window` messages in flight and count the replies, an await per message."""

    async def flood() -> None:
        async with core.Context(security=client_security(options)) as context:
            dealer = context.socket(core.DEALER)
            dealer.connect(options.endpoint)
            message = [body_of(options.size)]
            ready()
            await dealer.send_multipart(message)
            assert await dealer.recv_multipart() == message
            for _ in range(options.window):
                await dealer.send_multipart(message)
            meter = Meter(options)
            while meter.add(CHUNK):
                for _ in range(CHUNK):
                    await dealer.recv_multipart()
                    await dealer.send_multipart(message)
            report(meter.figures())

    run_on_loop(flood())


def flood_batch(options: Options) -> None:
    """Keep `window` messages in flight, a whole batch per call: each reply goes out as the next message."""

    async def flood() -> None:
        async with core.Context(security=client_security(options)) as context:
            dealer = context.socket(core.DEALER)
            dealer.connect(options.endpoint)
            message = [body_of(options.size)]
            ready()
            await dealer.send_multipart(message)
            assert await dealer.recv_multipart() == message
            meter = Meter(options)
            done = asyncio.get_running_loop().create_future()

            def on_batch(messages: list[list[bytes]]) -> None:
                dealer.send_many(messages)
                if not meter.add(len(messages)) and not done.done():
                    done.set_result(None)

            dealer.set_receiver(on_batch)
            await dealer.send_many([message] * options.window)
            await done
            report(meter.figures())

    run_on_loop(flood())


def trip_await(options: Options) -> None:
    """Send one message at a time: the time of a round trip."""

    async def trip() -> None:
        async with core.Context(security=client_security(options)) as context:
            dealer = context.socket(core.DEALER)
            dealer.connect(options.endpoint)
            message = [body_of(options.size)]
            ready()
            meter = Meter(options)
            while meter.add(1):
                before = perf_counter()
                await dealer.send_multipart(message)
                await dealer.recv_multipart()
                if meter.measuring:
                    meter.trips.append(perf_counter() - before)
            report(meter.figures())

    run_on_loop(trip())


def trip_batch(options: Options) -> None:
    """Send one message at a time by batch receiver: the next message leaves inside the callback."""

    async def trip() -> None:
        async with core.Context(security=client_security(options)) as context:
            dealer = context.socket(core.DEALER)
            dealer.connect(options.endpoint)
            message = [body_of(options.size)]
            ready()
            meter = Meter(options)
            done = asyncio.get_running_loop().create_future()
            before = perf_counter()

            def on_batch(messages: list[list[bytes]]) -> None:
                nonlocal before
                now = perf_counter()
                if meter.measuring:
                    meter.trips.append(now - before)
                if not meter.add(len(messages)):
                    done.set_result(None)
                    return
                before = perf_counter()
                dealer.send_multipart(message)

            dealer.set_receiver(on_batch)
            await dealer.send_multipart(message)
            await done
            report(meter.figures())

    run_on_loop(trip())


if __name__ == "__main__":
    main(
        {
            "serve-await": serve_await,
            "serve-batch": serve_batch,
            "flood-await": flood_await,
            "flood-batch": flood_batch,
            "trip-await": trip_await,
            "trip-batch": trip_batch,
        }
    )
