"""Event loop of a Python worker process of Spark, on its own thread, with the clients on it.

Spark calls ordinary generators and suspends them while the next stage is busy. A loop inside such a generator would stop with it, and so
would the heartbeats. So the loop runs on its own thread from the first partition of the process to its last, and partitions pass rows to
it. All partitions of the process with the same broker share a client.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from core.runtime import supervision
from core.runtime.event_loop import loop_factory
from mdp.client.client import Client
from mdp.errors import Unreachable
from mdp.spark.dispatch_choices import WINDOW_MAX
from mdp.spark.flow.breaker import Breaker
from mdp.spark.flow.discovery import named_client
from mdp.spark.flow.rate import JobRates
from mdp.spark.rows.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextlib import AbstractAsyncContextManager

    from mdp.spark.flow.discovery import NameServers
    from mdp.spark.flow.windows import RequestClient
    from mdp.spark.rows.curve_files import CurveFiles
    from mdp.spark.rows.exchange import Chunk

# Clients kept for the next partition. A process with more brokers reconnects for each.
_IDLE_CLIENTS_MAX = 4

# Services of one client whose breakers are kept.
_BREAKERS_MAX = 1000
# Consecutive requests without answer that open a breaker, if the window is smaller.
_FAILURES_MIN = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Destination:
    """Arguments of a client; partitions with equal ones share it."""

    brokers: tuple[str, ...]  # endpoints, in order of preference
    timeout_s: float  # seconds to wait for each attempt
    attempts: int
    options: tuple[tuple[str, Any], ...] = ()  # further keyword arguments of `mdp.Client`, as sorted pairs
    curve: CurveFiles | None = None  # files with CURVE keys, read where the client is made
    names: NameServers | None = None  # that know the brokers behind `name://`

    def rotated(self, number: int) -> Destination:
        """Return the same with another broker first, the others behind it in case it is not reachable."""
        first = number % len(self.brokers)
        return replace(self, brokers=(*self.brokers[first:], *self.brokers[:first]))


def _connect(to: Destination) -> AbstractAsyncContextManager[RequestClient]:
    # What is in flight is bounded by the windows of the partitions.
    options = {"window": WINDOW_MAX, **dict(to.options)}
    if to.curve is not None:
        options["socket_options"] = {**options.get("socket_options", {}), **to.curve.socket_options()}
    if to.names is not None:
        more = options.pop("socket_options", {})
        return named_client(to.names, to.brokers, more, timeout=to.timeout_s, attempts=to.attempts, **options)
    return Client(to.brokers, timeout=to.timeout_s, attempts=to.attempts, **options)


class SharedClient:
    """One client: the task that keeps it open, and the number of partitions that use it."""

    def __init__(self) -> None:
        self.users = 0
        self.stop = asyncio.Event()
        self.client: asyncio.Future[RequestClient] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self._breakers: dict[str, Breaker] = {}

    def breaker_of(self, to: Destination, service: str, window: int) -> Breaker:
        """Return the breaker of a service, the same for all partitions."""
        if service not in self._breakers:
            if len(self._breakers) >= _BREAKERS_MAX:
                self._breakers.clear()
            brokers, failures_max = ", ".join(to.brokers), max(window, _FAILURES_MIN)
            self._breakers[service] = Breaker(brokers, timeout_s=to.timeout_s, attempts=to.attempts, failures_max=failures_max)
        return self._breakers[service]

    async def keep_open(self, client: AbstractAsyncContextManager[RequestClient]) -> None:
        """Open the client, wait, close it: in one task, as its task groups require."""
        try:
            async with client as opened:
                self.client.set_result(opened)
                await self.stop.wait()
        except BaseException as error:
            if not self.client.done():
                self.client.set_exception(error)  # not our error: the partition raises it
                return
            raise

    def failed(self, error: Exception) -> None:
        """Report an error to the partitions that wait for the client, if it was never opened."""
        if not self.client.done():
            self.client.set_exception(error)


class Passage:
    """Interface of a partition to its exchange, which is on another thread; a call passes a chunk without waiting."""

    def __init__(self, loop: asyncio.AbstractEventLoop, exchange: Exchange) -> None:
        self._loop = loop
        self._exchange = exchange
        self._flow = exchange.flow

    def __call__(self, chunk: Chunk) -> None:
        self._flow.hungry = False  # until the loop has seen it
        self._loop.call_soon_threadsafe(self._exchange.feed, chunk)

    def release(self, octets: int) -> None:
        """Note that answers of so many bytes were taken."""
        self._loop.call_soon_threadsafe(self._exchange.release, octets)

    def request(self, service: str, *frames: bytes) -> list[bytes]:
        """Send one request of one attempt, beside those of the rows, and return its reply; raises RequestError."""
        return asyncio.run_coroutine_threadsafe(self._request(service, frames), self._loop).result()

    async def _request(self, service: str, frames: tuple[bytes, ...]) -> list[bytes]:
        if self._exchange.given_up:
            raise Unreachable(service)
        return await self._exchange.client.request(service, *frames, attempts=1)

    @property
    def hungry(self) -> bool:
        """Whether the exchange takes another chunk."""
        return self._flow.hungry

    @property
    def tight(self) -> bool:
        """Whether answers should be taken before their chunk is finished."""
        return self._flow.tight

    def begin_check(self) -> None:
        """Begin to look at chunks and at the state of the exchange; `wait` notices what changes from now on."""
        self._flow.changed.clear()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there was a change; return False if there was none in time."""
        return self._flow.changed.wait(timeout_s)


class Bridge:
    """Event loop on a daemon thread, with the clients on it."""

    def __init__(self, connect: Callable[[Destination], AbstractAsyncContextManager[RequestClient]] = _connect) -> None:
        self._connect = connect  # makes the client for a destination
        self._loop = loop_factory()()
        # Least recently used first. Used inside the loop only.
        self._clients: dict[Destination, SharedClient] = {}
        self._rates = JobRates()
        self._left: set[asyncio.Task[None]] = set()  # finish what ended tasks have left
        self._pid = os.getpid()
        # A daemon: Spark ends its Python workers without stopping their threads, and the interpreter would wait for others.
        self._thread = supervision.current().thread("mdp dispatch loop", self._loop.run_forever, restart=supervision.RESTART)

    @contextmanager
    def exchange(
        self, to: Destination, service: str, window: int, *, rate: tuple[str, float] | None = None, detach: bool = False, **bounds: Any
    ) -> Iterator[Passage]:
        """Open an exchange for one partition; `bounds` are further arguments of `Exchange`.

        `rate` is the name of a job and its rows a second in this process.
        Leaving the block gives up rows without an answer; with `detach` they are asked about while this process lives.
        """
        exchange = self._run(self._open(to, service, window, rate=rate, **bounds))
        try:
            yield Passage(self._loop, exchange)
        finally:
            self._run(self._leave(to, exchange) if detach else self._release(to, exchange))

    def close(self) -> None:
        self._run(self._end_all())
        self.halt()
        self._loop.close()

    def halt(self) -> None:
        """End the thread and leave the clients open: their connections end with the process.

        If a process exits while a thread is inside the loop's native code, it crashes when that thread needs the interpreter again. In a
        forked copy there is no thread, and nothing happens.
        """
        if os.getpid() == self._pid and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _open(self, to: Destination, service: str, window: int, *, rate: tuple[str, float] | None, **bounds: Any) -> Exchange:
        shared = self._clients.pop(to, None)
        if shared is None:
            client = self._connect(to)
            shared = SharedClient()
            keep_open = partial(shared.keep_open, client)
            shared.task = supervision.current().task("mdp dispatch client", keep_open, restart=supervision.ONCE, failed=shared.failed)
        self._clients[to] = shared
        shared.users += 1
        limit = None if rate is None else self._rates.of(*rate, self._loop.time())
        try:
            return Exchange(await shared.client, service, window, breaker=shared.breaker_of(to, service, window), rate=limit, **bounds)
        except BaseException:
            if self._clients.get(to) is shared:  # not if another partition has removed it, or a third has opened a new one since
                del self._clients[to]
            raise

    async def _leave(self, to: Destination, exchange: Exchange) -> None:
        """Let an exchange finish what it has taken, without anybody who waits for it."""
        supervision.current().task("mdp dispatch rest", partial(self._finish, to, exchange), among=self._left)

    async def _finish(self, to: Destination, exchange: Exchange) -> None:
        try:
            await exchange.finish()
        finally:
            await self._release(to, exchange)

    async def _release(self, to: Destination, exchange: Exchange) -> None:
        await exchange.close()
        self._clients[to].users -= 1
        idle = [other for other, shared in self._clients.items() if shared.users == 0]
        await self._close_clients(idle[: max(0, len(idle) - _IDLE_CLIENTS_MAX)])

    async def _end_all(self) -> None:
        for task in self._left:
            task.cancel()
        if self._left:
            await asyncio.wait(self._left)
        await self._close_clients(list(self._clients))

    async def _close_clients(self, destinations: list[Destination]) -> None:
        for to in destinations:
            shared = self._clients.pop(to)
            shared.stop.set()
            if shared.task is not None:
                await shared.task


def process_bridge() -> Bridge:
    """Return the bridge of this process: Spark keeps only the modules of a Python worker between partitions."""
    return _bridge_of(os.getpid())  # after a fork the parent's thread does not exist


@cache
def _bridge_of(pid: int) -> Bridge:
    # Objects loaded by now, PySpark and Arrow, stay for good; excluded from garbage collection they save a tenth per row.
    gc.freeze()
    bridge = Bridge()
    atexit.register(bridge.halt)
    return bridge
