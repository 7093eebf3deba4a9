"""Open loop: requests at the times of a Poisson process, answered or not, measured from those times.

A closed loop sends the next request after an answer, so it sends fewer requests just when answers are slow, and hides the delays of other
clients. Here the latency of a request that could not be sent in time includes that delay.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Final

from core.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
