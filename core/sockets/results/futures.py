"""Results of sends and receives: awaitables with a future's methods; the call itself acts at once.

`Ready` (in `ready`) is complete and costs no future; `DONE` there is the result of every completed send. `Pending` (in `pending`)
waits for a message or for capacity. asyncio takes both for futures, so `gather`, `wait`, `wait_for` and `timeout` need no task around them.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from core.errors import EAGAIN, Again
from core.sockets.results.pending import Pending
from core.sockets.results.ready import Ready

T = TypeVar("T")

Awaitable = Ready[T] | Pending[T] | asyncio.Future[T]


def expire(pending: Pending[Any], timeout_ms: int, what: str) -> None:
    """Fail a pending send or receive with Again after a time; `what` has not happened then."""

    def over() -> None:
        if not pending.done():
            pending.set_exception(Again(EAGAIN, f"{what} within {timeout_ms} ms", taken=pending.taken()))

    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, over)
    pending.add_done_callback(lambda _: timer.cancel())
