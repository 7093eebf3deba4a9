"""Titanic end to end: requests accepted/s, and whole cycles request -> reply -> close/s, against one fdatasync per append.

    python -m benchmarks.titanic_service [--requests 50000] [--cycles 20000] [--size 256] [--window 1000] [--rounds 3] [--directory DIR]

Broker, Titanic, an echo worker and the client are four processes over loopback tcp; each 200 is sent after its fdatasync. The reference
runs on the same disk in the same run. At least 10 for accepts and 3 for cycles (performance.md). Estimate: a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

import mdp
from benchmarks.titanic_journal import one_sync_per_append

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


@contextlib.contextmanager
def daemons(directory: Path, endpoint: str) -> Iterator[None]:
    """Run broker, store and worker while the block lasts."""
    commands = (
        ("mdp", "broker", "--bind", endpoint),
        ("titanic", "serve", "--broker", endpoint, "--store", str(directory / "store")),
        ("mdp", "worker", "--broker", endpoint, "--service", "echo"),
    )
    with (directory / "log").open("wb") as log:
        running = [subprocess.Popen([sys.executable, "-m", *command], stderr=log, stdout=log) for command in commands]
        try:
            yield
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()


async def windowed(count: int, window: int, one: Callable[[int], Awaitable[None]]) -> float:
    """Do something `count` times, `window` at once; return the rate per second."""
    numbers = iter(range(count))

    async def lane() -> None:
        for number in numbers:
            await one(number)

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(window)))
    return count / (time.perf_counter() - began)


async def measure(endpoint: str, options: argparse.Namespace) -> tuple[float, float]:
    """Return (accepts/s, cycles/s)."""
    body = b"x" * options.size
    async with mdp.Client(endpoint, timeout=30, window=2 * options.window) as client:
        for service in ("titanic.request", "titanic.wait", "titanic.close", "echo"):
            while await client.mmi("service", service) != "200":
                await asyncio.sleep(0.05)

        async def accept(count: int) -> float:
            began = time.perf_counter()
            async for outcome in client.map("titanic.request", repeat([b"nobody", body], count), window=options.window):
                assert outcome.reply is not None
                assert outcome.reply[0] == b"200"
            return count / (time.perf_counter() - began)

        async def cycle(_: int) -> None:
            uuid = (await client.request("titanic.request", b"echo", body))[1]
            assert await client.request("titanic.wait", uuid, b"20000") == [b"200", body]
            assert await client.request("titanic.close", uuid) == [b"200"]

        await accept(options.requests // 10)
        accepts = await accept(options.requests)
        await windowed(options.cycles // 10, options.window, cycle)
        return accepts, await windowed(options.cycles, options.window, cycle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--cycles", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    plain, accepts, cycles = [], [], []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.directory) as name:
            plain.append(one_sync_per_append(Path(name), options.size, 2000))
            endpoint = f"tcp://127.0.0.1:{15_700 + number}"
            with daemons(Path(name), endpoint):
                accepted, cycled = uvloop.run(measure(endpoint, options))
            accepts.append(accepted)
            cycles.append(cycled)
    result = {
        "append and fdatasync, per s": round(statistics.median(plain)),
        "accepted, per s": round(statistics.median(accepts)),
        "accepted, ratio": round(statistics.median(a / b for a, b in zip(accepts, plain, strict=True)), 1),
        "cycles, per s": round(statistics.median(cycles)),
        "cycles, ratio": round(statistics.median(a / b for a, b in zip(cycles, plain, strict=True)), 1),
    }
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:30} {value:>12,}")


if __name__ == "__main__":
    main()
