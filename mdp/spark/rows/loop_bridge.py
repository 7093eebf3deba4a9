"""The event loop of a Python worker process of Spark, on a thread of its own, and the clients that live on it.

Spark calls ordinary generators and lets them wait whenever the next stage has enough. A loop driven from inside such a generator would
stand still with it, and with the loop the heartbeats. So the loop runs on its own thread from the first partition of the process to its
last, and partitions hand rows over to it. A client is shared by all partitions of the process that want the same broker.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from core.runtime import supervision
from core.runtime.event_loop import loop_factory
from mdp.client.client import Client
from mdp.spark.rows.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextlib import AbstractAsyncContextManager

    from mdp.spark.rows.curve_files import CurveFiles
    from mdp.spark.rows.exchange import Asking, Chunk

__all__ = ["Bridge", "Destination", "Entrance", "process_bridge"]

# Clients that are kept for the next partition. A process that talks to more brokers than this connects anew for each.
_IDLE_CLIENTS_MAX = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Destination:
    """What a client is made with; partitions with the same share one.

    Attributes:
        broker: endpoint, or several in order of preference.
        timeout_s: seconds to wait for each attempt.
        attempts: how many times a request is sent.
        options: further keyword arguments of `mdp.Client`, as sorted pairs.
        curve: files with CURVE keys, read where the client is made.
    """

    broker: str | tuple[str, ...]
    timeout_s: float
    attempts: int
    options: tuple[tuple[str, Any], ...] = ()
    curve: CurveFiles | None = None


def _connect(to: Destination) -> AbstractAsyncContextManager[Asking]:
    options = dict(to.options)
    if to.curve is not None:
        options["socket_options"] = {**options.get("socket_options", {}), **to.curve.socket_options()}
    return Client(to.broker, timeout=to.timeout_s, attempts=to.attempts, **options)


class _Line:
    """One client: the task that holds it open, and how many partitions use it."""

    def __init__(self) -> None:
        self.users = 0
        self.stop = asyncio.Event()
        self.client: asyncio.Future[Asking] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    async def keep_open(self, client: AbstractAsyncContextManager[Asking]) -> None:
        """Open the client, hold it until told to stop, close it: by one task, as task groups inside it demand."""
        try:
            async with client as opened:
                self.client.set_result(opened)
                await self.stop.wait()
        except BaseException as error:
            if not self.client.done():
                self.client.set_exception(error)  # no fault of ours: whose partition it is hears of it
                return
            raise

    def failed(self, error: Exception) -> None:
        """Tell who waits for the client, if it was never opened."""
        if not self.client.done():
            self.client.set_exception(error)


class Entrance:
    """Where a partition's thread hands its rows over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, exchange: Exchange) -> None:
        self._loop = loop
        self._exchange = exchange

    def feed(self, chunk: Chunk) -> None:
        """Hand a chunk over; its `finished` says when it is back. Does not wait."""
        self._loop.call_soon_threadsafe(self._exchange.feed, chunk)


class Bridge:
    """An event loop on a daemon thread with the clients that live on it.

    Args:
        connect: makes the client for a destination.
    """

    def __init__(self, connect: Callable[[Destination], AbstractAsyncContextManager[Asking]] = _connect) -> None:
        self._connect = connect
        self._loop = loop_factory()()
        # Oldest use first. Touched inside the loop only.
        self._lines: dict[Destination, _Line] = {}
        self._pid = os.getpid()
        # A daemon: Spark ends its Python workers without asking their threads, and the interpreter waits for no other kind to end.
        self._thread = supervision.current().thread("mdp dispatch loop", self._loop.run_forever, restart=supervision.RESTART)

    @contextmanager
    def exchange(self, to: Destination, service: str, window: int, *, parts: bool = False, wait: bool = False) -> Iterator[Entrance]:
        """Open an exchange for one partition; leaving the block gives up what has no answer yet.

        Args:
            to: which client.
            service: whom to ask.
            window: requests under way at most.
            parts: take replies part by part.
            wait: wait for a service that has no worker at the moment.
        """
        exchange = self._run(self._open(to, service, window, parts, wait))
        try:
            yield Entrance(self._loop, exchange)
        finally:
            self._run(self._release(to, exchange))

    def close(self) -> None:
        """Close every client and end the thread."""
        self._run(self._close_lines(list(self._lines)))
        self.halt()
        self._loop.close()

    def halt(self) -> None:
        """End the thread and leave the clients as they are: their connections end with the process.

        A process that ends while a thread is inside the loop's native code would crash where that thread next wants the interpreter. In
        a forked copy there is no thread, and nothing happens.
        """
        if os.getpid() == self._pid and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _open(self, to: Destination, service: str, window: int, parts: bool, wait: bool) -> Exchange:
        line = self._lines.pop(to, None)
        if line is None:
            client = self._connect(to)
            line = _Line()
            keep_open = partial(line.keep_open, client)
            line.task = supervision.current().task("mdp dispatch client", keep_open, restart=supervision.ONCE, failed=line.failed)
        self._lines[to] = line
        line.users += 1
        try:
            return Exchange(await line.client, service, window, parts=parts, wait=wait)
        except BaseException:
            del self._lines[to]
            raise

    async def _release(self, to: Destination, exchange: Exchange) -> None:
        await exchange.close()
        self._lines[to].users -= 1
        idle = [other for other, line in self._lines.items() if line.users == 0]
        await self._close_lines(idle[: max(0, len(idle) - _IDLE_CLIENTS_MAX)])

    async def _close_lines(self, destinations: list[Destination]) -> None:
        for to in destinations:
            line = self._lines.pop(to)
            line.stop.set()
            if line.task is not None:
                await line.task


def process_bridge() -> Bridge:
    """Return the bridge of this process, the same for every partition it is given.

    The only state that outlives a call here: from one partition to the next Spark leaves a Python worker nothing but its modules.
    """
    return _bridge_of(os.getpid())  # after a fork the parent's thread is not there


@cache
def _bridge_of(pid: int) -> Bridge:
    # What the process has loaded by now, PySpark and Arrow, stays for good; out of the collector's way it costs a tenth less per row.
    gc.freeze()
    bridge = Bridge()
    atexit.register(bridge.halt)
    return bridge
