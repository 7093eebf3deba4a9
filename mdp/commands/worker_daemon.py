"""The body of `mdp worker`: workers of one program, their resources and their page."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.daemon.http import serve_page
from mdp.observe.worker_metrics import worker_page

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    import core
    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from mdp.worker.worker import Worker

__all__ = ["WorkerDaemonOptions", "serve_workers"]


@dataclass(frozen=True)
class WorkerDaemonOptions:
    """Options of `mdp worker`.

    Attributes:
        brokers: endpoints of the brokers, for the log.
        workers: one for each service, not started yet.
        context: of all workers; closed at the end.
        resources: makes what the handlers share, entered first and left last; None for nothing.
        http: address of the page, None for none.
    """

    brokers: Sequence[str]
    workers: Sequence[Worker]
    context: core.Context
    resources: Callable[[], AbstractAsyncContextManager[object]] | None = None
    http: NamedAddress | None = None


async def serve_workers(options: WorkerDaemonOptions, lifetime: Lifetime) -> None:
    """Answer requests until the process is asked to stop, then finish open ones.

    Raises:
        Unreachable: the page cannot be served.
    """
    workers = options.workers
    async with options.context, AsyncExitStack() as stack:
        if options.resources is not None:
            await stack.enter_async_context(options.resources())
        begun: list[Worker] = []
        stack.push_async_callback(_end_all, begun)
        for one in workers:
            await one.__aenter__()
            begun.append(one)
        await stack.enter_async_context(serve_page(options.http, worker_page(workers)))
        lifetime.ready("worker serves", services=[one.service for one in workers], brokers=list(options.brokers))
        await lifetime.until_stopped()
        # All at the same time: one by one, each would get its own drain time.
        await asyncio.gather(*(one.drain(lifetime.drain_s) for one in workers))


async def _end_all(workers: list[Worker]) -> None:
    """Leave the blocks of workers at the same time; one by one, each would give its handlers its own `cancel_s`."""
    await asyncio.gather(*(one.__aexit__(None, None, None) for one in workers))
