"""Majordomo on this toolkit: broker, workers and clients for the MDP works.

The strict works speak stock MDP/0.1 from end to end: one request outstanding per worker, no request ids. As a 0.1 client
cannot number its requests, the pipelined 0.1 client is a plain DEALER, as it is on the pyzmq side. The work with credit
uses MDP/0.3, `mdp.Client.map` and a worker with many requests in flight.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

import core
import mdp
from benchmarks.open_loop import measure
from benchmarks.ours.secured import client_security, server_security
from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

CREDIT = 1000
"""Credit of a worker."""


def broker(options: Options) -> None:
    """The broker as its daemon runs it."""

    async def serve() -> None:
        async with mdp.Broker(heartbeat_ms=options.heartbeat_ms, security=server_security(options)) as broker:
            broker.bind(options.endpoint)
            ready()
            await broker.serve_forever()

    run_on_loop(serve())


async def echo(request: mdp.Request) -> bytes:
    """Answer with the body."""
    return request.body[0]


def worker_strict(options: Options) -> None:
    """A stock MDP/0.1 worker."""

    async def serve() -> None:
        async with mdp.Worker(options.endpoint, "echo", handler=echo, dialect="0.1") as worker:
            ready()
            await worker.serve_forever()

    run_on_loop(serve())


def worker_credit(options: Options) -> None:
    """Serve with a credit of `CREDIT` requests."""

    async def serve() -> None:
        async with mdp.Worker(options.endpoint, "echo", handler=echo, concurrency=CREDIT, security=client_security(options)) as worker:
            ready()
            await worker.serve_forever()

    run_on_loop(serve())


def one_at_a_time(options: Options) -> None:
    """Await one reply after the other."""

    async def ask() -> None:
        async with mdp.Client(options.endpoint, dialect="0.1") as client:
            ready()
            body = body_of(options.size)
            meter = Meter(options)
            while meter.add(1):
                before = perf_counter()
                reply = await client.request("echo", body)
                if meter.measuring:
                    meter.trips.append(perf_counter() - before)
                assert reply == [body]
            report(meter.figures())

    run_on_loop(ask())


def pipelined(options: Options) -> None:
    """Keep `window` stock MDP/0.1 requests in flight on one DEALER."""

    async def ask() -> None:
        async with core.Context() as context:
            dealer = context.socket(core.DEALER, sndhwm=0, rcvhwm=0)
            dealer.connect(options.endpoint)
            message = [b"", b"MDPC01", b"echo", body_of(options.size)]
            ready()
            await dealer.send_multipart(message)
            assert await dealer.recv_multipart() == message  # an echo: the reply looks like the request
            meter = Meter(options)
            done = asyncio.get_running_loop().create_future()

            def on_batch(replies: list[list[bytes]]) -> None:
                dealer.send_many([message] * len(replies))
                if not meter.add(len(replies)) and not done.done():
                    done.set_result(None)

            dealer.set_receiver(on_batch)
            await dealer.send_many([message] * options.window)
            await done
            report(meter.figures())

    run_on_loop(ask())


def mapped(options: Options) -> None:
    """Keep `window` requests of MDP/0.3 in flight with `mdp.Client.map`."""

    async def ask() -> None:
        async with mdp.Client(options.endpoint, security=client_security(options)) as client:
            ready()
            body = body_of(options.size)
            assert await client.request("echo", body) == [body]
            meter = Meter(options)
            going = True

            def bodies() -> Iterator[bytes]:
                while going:
                    yield body

            pending = 0
            async for outcome in client.map("echo", bodies(), window=options.window):
                assert outcome.reply == [body]
                pending += 1
                if pending == 100:
                    pending = 0
                    going = meter.add(100)
                    if not going:
                        break
            report(meter.figures())

    run_on_loop(ask())


def open_loop(options: Options) -> None:
    """Ask in a closed loop, and at parts of the rate that this reaches."""

    async def ask() -> None:
        async with mdp.Client(options.endpoint, timeout=60, window=100_000) as client:
            body = body_of(options.size)
            assert await client.request("echo", body, wait=True) == [body]

            async def once() -> None:
                assert await client.request("echo", body) == [body]

            ready()
            report(await measure(once, options))

    run_on_loop(ask())


if __name__ == "__main__":
    main(
        {
            "open": open_loop,
            "broker": broker,
            "worker-strict": worker_strict,
            "worker-credit": worker_credit,
            "one": one_at_a_time,
            "pipelined": pipelined,
            "mapped": mapped,
        }
    )
