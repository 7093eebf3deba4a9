"""`mdp bench`: rate and latency of one client, with a fixed window or at a fixed rate."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import repeat
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import click

from core.daemon.command import Command
from core.daemon.exit_codes import RequestFailed
from core.daemon.logs import printable
from core.daemon.option_fields import FiniteRange, WholeRange
from core.daemon.run import settle_memory
from core.daemon.terminal import write_json
from core.runtime import runtime
from mdp.commands.client_options import ask, client_options, output_options
from mdp.commands.settings.completion import service_names
from mdp.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mdp.client.client import Client

# The loop's timers have a resolution of a millisecond, so the last of these seconds before a request are met by short pauses. A loop that
# never sleeps would take a whole processor from what is measured: with two of them, the median latency was several times as long.
NEAR_S: Final = 0.002
PAUSE_S: Final = 0.0001  # the loop stands still for so long
TURNS: Final = 3  # of the loop before a pause: replies are read and reach their tasks
AT_ONCE: Final = 64  # requests sent without a pause when they are overdue, so that replies are read between them


def poisson_times(rate: float, count: int, chance: Callable[[], float]) -> Iterator[float]:
    """Yield the times in seconds of `count` arrivals of a Poisson process; `chance` returns numbers from 0 to below 1."""
    at_s = 0.0
    for _ in range(count):
        at_s -= math.log(1.0 - chance()) / rate
        yield at_s


async def send_at(times: Iterable[float], send: Callable[[float], None]) -> float:
    """Call `send(due)` at each of the times, or as soon after it as the loop allows.

    The times are seconds from the start, which is returned; `due` and the result are times of `time.perf_counter`. Cancel-safe.
    """
    began = time.perf_counter()
    sent = 0
    for at_s in times:
        due = began + at_s
        while (left_s := due - time.perf_counter()) > 0:
            sent = 0
            if left_s > NEAR_S:
                await asyncio.sleep(left_s - NEAR_S)
                continue
            for _ in range(TURNS):
                await asyncio.sleep(0)
            left_s = due - time.perf_counter()
            if left_s > 0:
                runtime.current().pause(min(left_s, PAUSE_S))
        sent += 1
        if sent % AT_ONCE == 0:
            await asyncio.sleep(0)
        send(due)
    return began


# Connections, code paths and the processor's clock are cold at first; this many requests are sent before the measurement.
WARM_UP_REQUESTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """Requests to measure."""

    service: str  # name of the service; its replies may be anything
    requests: int
    window: int
    size: int  # bytes of each body
    rate: float = 0.0  # requests/s at the times of a Poisson process; 0 to keep `window` in flight


@dataclass(frozen=True, slots=True)
class Figures:
    """Result of a measurement; latencies are None if nothing was answered."""

    dialect: str  # spoken with the broker
    replies: int
    lost: int  # requests without an answer
    errors: dict[str, int]  # lost requests by code
    elapsed_s: float  # seconds from the first request to the last reply
    rate: float
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None

    def as_dict(self, load: Load) -> dict[str, Any]:
        return asdict(load) | asdict(self)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the value that `share` (0 to 1) of the ordered values do not exceed; None for no values."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


async def measure(client: Client, load: Load) -> Figures:
    body = await _warmed_up(client, load)
    latencies_s: list[float] = []
    errors: Counter[str] = Counter()
    started = time.perf_counter()
    async for outcome in client.map(load.service, repeat(body, load.requests), window=load.window):
        if outcome.error is None:
            latencies_s.append(outcome.latency_s)
        else:
            errors[outcome.error.code] += 1
    elapsed_s = time.perf_counter() - started
    return _figures(client, load, latencies_s, errors, elapsed_s)


async def measure_open(client: Client, load: Load) -> Figures:
    """Send requests at the rate of the load, answered or not; latencies count from the scheduled time of a request."""
    body = await _warmed_up(client, load)
    latencies_s: list[float] = []
    errors: Counter[str] = Counter()
    ended = asyncio.Event()
    left = load.requests

    def done(due: float, reply: list[bytes] | None, error: RequestError | None) -> None:
        nonlocal left
        if error is None:
            latencies_s.append(time.perf_counter() - due)
        else:
            errors[error.code] += 1
        left -= 1
        if not left:
            ended.set()

    def send(due: float) -> None:
        try:
            client.ask(load.service, [body], done, due)
        except RequestError as error:  # too many requests wait for the window
            done(due, None, error)

    began = await send_at(poisson_times(load.rate, load.requests, runtime.current().chance().random), send)
    await ended.wait()
    return _figures(client, load, latencies_s, errors, time.perf_counter() - began)


async def _warmed_up(client: Client, load: Load) -> bytes:
    body = bytes(load.size)
    async for _ in client.map(load.service, repeat(body, min(WARM_UP_REQUESTS, load.requests)), window=load.window):
        pass
    return body


def _figures(client: Client, load: Load, latencies_s: list[float], errors: Counter[str], elapsed_s: float) -> Figures:
    latencies_s.sort()
    p50, p99, p999 = (percentile(latencies_s, share) for share in (0.5, 0.99, 0.999))
    return Figures(
        dialect=str(client.dialect or "none"),
        replies=len(latencies_s),
        lost=load.requests - len(latencies_s),
        errors=dict(errors),
        elapsed_s=elapsed_s,
        rate=len(latencies_s) / elapsed_s,
        p50_ms=_ms(p50),
        p99_ms=_ms(p99),
        p999_ms=_ms(p999),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def report(load: Load, figures: Figures) -> str:

    def latency(value: float | None) -> str:
        return "-" if value is None else f"{value:,.3f} ms"

    errors = ", ".join(f"{printable(code)} {count}" for code, count in sorted(figures.errors.items()))
    pace = f"at {load.rate:,g}/s" if load.rate else f"{load.window:,} in flight"
    of_what = f"{load.requests:,} requests of {load.size:,} bytes, {pace}"
    return "\n".join(
        [
            f"service {printable(load.service)}: {of_what}, MDP/{figures.dialect}",
            f"rate    {figures.rate:,.0f} replies/s in {figures.elapsed_s:.3f} s",
            f"p50     {latency(figures.p50_ms)}",
            f"p99     {latency(figures.p99_ms)}",
            f"p99.9   {latency(figures.p999_ms)}",
            f"lost    {figures.lost:,}" + (f" ({errors})" if errors else ""),
        ]
    )


@click.command(cls=Command)
@client_options
@click.option("--service", default="echo", shell_complete=service_names, help="Service to ask; any reply counts.")
@click.option("--requests", type=WholeRange(min=1), default=100_000, help="Requests to measure.")
@click.option("--window", type=WholeRange(min=1), default=1000, help="Requests in flight; with --rate at most.")
@click.option("--rate", type=FiniteRange(min=0), default=0.0, help="Requests/s at random times, answered or not; 0 for --window.")
@click.option("--size", type=click.IntRange(min=0, max=16 * 2**20), default=16, help="Bytes of each body.")
@output_options
def bench(as_json: bool, service: str, requests: int, window: int, rate: float, size: int, **asking: Any) -> None:
    """Measure rate, latency and loss of requests to a service."""
    load = Load(service, requests, window, size, rate)

    async def talk(client: Client) -> dict[str, Any]:
        code = await client.mmi("service", service)
        if code != "200":
            raise RequestFailed(f"{service}: nothing to measure, the broker answers {code}")
        settle_memory()
        figures = await (measure_open if rate else measure)(client, load)
        if not as_json:
            click.echo(report(load, figures))
        return figures.as_dict(load)

    figures = ask(talk, window=window, **asking)
    if as_json:
        write_json(figures)
    if figures["lost"]:
        raise RequestFailed(f"{service}: {figures['lost']} of {requests} requests were lost: {figures['errors']}")
