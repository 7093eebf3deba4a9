"""A Redis stream as a durable queue: XADD in pipelines, each on the disk before its answer."""

from __future__ import annotations

import asyncio
from importlib import import_module
from time import perf_counter

from benchmarks.program import Meter, Options, body_of, main, ready, report, run_on_loop

LANES = 2
"""Pipelines on their way, so that the server has the next while the client reads the answers of the last."""


def add(options: Options) -> None:
    """Keep `window` entries on their way, in pipelines."""

    async def run() -> None:
        host, _, port = options.endpoint.removeprefix("tcp://").rpartition(":")
        client = import_module("redis.asyncio").Redis(host=host, port=int(port))
        assert await client.config_get("appendfsync") == {"appendfsync": "always"}
        body = body_of(options.size)
        ready()
        meter = Meter(options)
        going = True

        async def lane() -> None:
            nonlocal going
            while going:
                async with client.pipeline(transaction=False) as pipeline:
                    for _ in range(options.window // LANES):
                        pipeline.xadd("requests", {"service": "nobody", "body": body})
                    began = perf_counter()
                    ids = await pipeline.execute()
                assert all(ids)
                if meter.measuring:
                    meter.trips.append(perf_counter() - began)
                going = meter.add(len(ids)) and going

        await asyncio.gather(*(lane() for _ in range(LANES)))
        await client.aclose()
        report(meter.figures())

    run_on_loop(run())


if __name__ == "__main__":
    main({"add": add})
