"""Client of an open loop: the capacity in a closed loop, then latencies at parts of it.

A system is given as a coroutine function that asks once and checks the reply; each request is a task of its own, as in a program that
serves many users. The programs of all systems use this module, so their requests come and are measured in the same way.
"""

from __future__ import annotations

import asyncio
import random
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from benchmarks.program import Options, quantile
from mdp.commands.bench import poisson_times, send_at

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import TypeAlias

    Ask: TypeAlias = Callable[[Callable[[], None]], None]
    """Send one request, and call the function when its reply is there."""

__all__ = ["QUANTILES", "SHARES", "measure"]

SHARES = (25, 50, 75, 90)
"""Percent of the capacity."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
COUNT_MIN = 20
"""Requests of the shortest smoke run."""


async def closed(ask: Ask, window: int, seconds: float) -> tuple[float, int]:
    """Keep `window` requests open; return (replies per second, replies)."""
    replies = 0
    open_ = window
    began = perf_counter()
    ended = asyncio.get_running_loop().create_future()

    def done() -> None:
        nonlocal replies, open_
        replies += 1
        if perf_counter() - began < seconds:
            ask(done)
        else:
            open_ -= 1
            if not open_ and not ended.done():
                ended.set_result(perf_counter() - began)

    for _ in range(window):
        ask(done)
    elapsed: float = await ended
    return replies / elapsed, replies


async def at_rate(ask: Ask, rate: float, seconds: float) -> tuple[list[float], float]:
    """Ask at a rate; return the latencies in seconds, and the replies per second."""
    count = max(COUNT_MIN, int(rate * seconds))
    latencies: list[float] = []
    ended = asyncio.get_running_loop().create_future()

    def send(due: float) -> None:
        def done() -> None:
            latencies.append(perf_counter() - due)
            if len(latencies) == count:
                ended.set_result(None)

        ask(done)

    began = await send_at(poisson_times(rate, count, random.random), send)
    await ended
    return latencies, count / (perf_counter() - began)


async def measure(once: Callable[[], Coroutine[Any, Any, None]], options: Options) -> dict[str, float]:
    """Return the figures: `rate` is the capacity; `p50_25` the median in ms at 25 percent, `rate_25` what was reached."""
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[None] = loop.create_future()
    tasks: set[asyncio.Task[None]] = set()

    async def one(done: Callable[[], None]) -> None:
        try:
            await once()
        except Exception as error:
            if not failed.done():
                failed.set_exception(error)
            raise
        done()

    def ask(done: Callable[[], None]) -> None:
        task = loop.create_task(one(done))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    measuring = asyncio.ensure_future(_measure(ask, options))
    either: list[asyncio.Future[Any]] = [measuring, failed]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        failed.result()
    return await measuring


async def _measure(ask: Ask, options: Options) -> dict[str, float]:
    await closed(ask, options.window, options.warmup_s)
    cpu = process_time()
    rate, total = await closed(ask, options.window, options.seconds)
    figures = {"rate": rate, "cpu_us": (process_time() - cpu) / total * 1e6}
    for share in SHARES:
        latencies, reached = await at_rate(ask, rate * share / 100, options.seconds)
        total += len(latencies)
        figures[f"rate_{share}"] = reached
        figures |= {f"{name}_{share}": quantile(latencies, part) * 1e3 for name, part in QUANTILES.items()}
    return {**figures, "total": total}
