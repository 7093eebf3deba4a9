"""A broker in the process of a test, with workers and a client, and faults that a test causes."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

import core
from core.runtime import supervision
from mdp.app.app import App
from mdp.broker.broker import Broker
from mdp.client.client import Client
from mdp.worker.handler import services_of
from mdp.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from mdp.broker.limits import BrokerSettings
    from mdp.client.client import ConnectionSettings
    from mdp.request import Request
    from mdp.worker.handler import ServingSettings

__all__ = ["Local", "broker"]

_ENDPOINTS: Final = {"inproc": "inproc://broker", "tcp": "tcp://127.0.0.1:*"}
# Timeout of the registration of a worker, which usually takes some loop iterations.
READY_S: Final = 10.0
# Interval at which the broker is checked meanwhile.
CHECK_S: Final = 0.001
# Shorter than in production: a test need not wait long for a handler that hangs.
DRAIN_S: Final = 1.0


class _TestWorker(Worker):
    """A worker whose requests a test can delay."""

    def __init__(self, *arguments: Any, delays: Mapping[str, float], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._delays = delays
        self._delayed: deque[tuple[float, list[Request]]] = deque()
        self._timer = supervision.current().timer("mdp testing delay", self._deliver)

    def _on_requests(self, requests: list[Request]) -> None:
        delay_s = self._delays.get(self.service, 0.0)
        if not delay_s and not self._delayed:
            super()._on_requests(requests)
            return
        # After those that wait already: a connection keeps the order.
        last = self._delayed[-1][0] if self._delayed else 0.0
        self._delayed.append((max(last, self._now() + delay_s), requests))
        self._timer.at(self._delayed[0][0])

    def _deliver(self) -> None:
        try:
            while self._delayed and self._delayed[0][0] <= self._now():
                super()._on_requests(self._delayed.popleft()[1])
        finally:
            if self._delayed:
                self._timer.at(self._delayed[0][0])

    async def _close(self) -> None:
        self._timer.cancel()
        self._delayed.clear()
        await super()._close()


class Local:
    """A broker in this process, with its workers and a client.

    Attributes:
        broker: the `mdp.Broker`, with its `counters` and `stats`.
        endpoint: of the broker; `inproc` endpoints are reached from `context` only.
        context: of all sockets here.
        client: an `mdp.Client` of this broker.
        workers: one per service, in the order of the arguments; those that were lost are not there.
    """

    def __init__(self, broker: Broker, endpoint: str, context: core.Context, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self.context = context
        self.client = Client(endpoint, context=context)
        self.workers: list[Worker] = []
        self._stack = stack
        self._delays: dict[str, float] = {}

    async def add_worker(
        self, service: str | Callable[..., Any], handler: Callable[..., Any] | None = None, **options: Unpack[ServingSettings]
    ) -> Worker:
        """Start a worker; return when the broker has registered it. It ends with the block.

        Args:
            service: a name, or a handler decorated with `mdp.service`.
            handler: of the service, if `service` is a name.
            options: of `mdp.Worker`.

        Raises:
            TimeoutError: the broker did not register it within `READY_S` seconds.
        """
        return await self._start(self._worker(self.endpoint, service, handler=handler, **self._options(options)))

    async def add_app(self, app: App | ModuleType, **options: Unpack[ServingSettings]) -> list[Worker]:
        """Start an app, its lifespan first, or a module with decorated handlers; return when the broker has registered all workers.

        Raises:
            TypeError: the module decorates nothing with `mdp.service`.
            ValueError: it has two handlers of one service.
            TimeoutError: the broker did not register a worker within `READY_S` seconds.
        """
        if isinstance(app, App):
            await self._stack.enter_async_context(app.resources())
            return [await self._start(worker) for worker in app.workers(self.endpoint, make=self._worker, **self._options(options))]
        handlers = services_of(app)
        if not handlers:
            raise TypeError(f"{app.__name__} decorates nothing with mdp.service")
        return [await self.add_worker(handler, **options) for handler in handlers]

    async def add_client(self, **options: Unpack[ConnectionSettings]) -> Client:
        """Return another client, with options of `mdp.Client`; it is closed with the block."""
        return await self._stack.enter_async_context(Client(self.endpoint, context=self.context, **options))

    # ------------------------------------------------------------------------------------------------------------- faults

    async def lose_worker(self, which: str | Worker, *, silent: bool = False) -> Worker:
        """End a worker as if its process was killed: handlers are cancelled, and the connection ends.

        Args:
            which: the worker, or its service; of several the first.
            silent: as if its machine had lost its power: the connection does not end, and the broker gives its requests to others when it
                has heard nothing for `heartbeat_ms` times `liveness`, 7.5 s by default.

        Returns:
            The worker, which is not among `workers` any more.

        Raises:
            LookupError: there is no such worker.
        """
        for worker in self.workers:
            if worker is which or worker.service == which:
                self.workers.remove(worker)
                await worker.abort(silent=silent)
                return worker
        raise LookupError(f"there is no worker {which!r}; there are {', '.join(worker.service for worker in self.workers) or 'none'}")

    def delay(self, service: str, seconds: float) -> None:
        """Let requests reach the workers of a service later, as on a slow network; 0 ends it. Their order stays.

        The broker counts the time as that of the worker: a deadline passes, a client tries again, a heartbeat is sent meanwhile.
        """
        self._delays[service] = seconds

    def _worker(self, *arguments: Any, **options: Any) -> Worker:
        # Each worker has a connection of its own, also those of an app: losing one loses no other.
        return _TestWorker(*arguments, delays=self._delays, **{**options, "shared": None})

    def _options(self, options: ServingSettings) -> dict[str, Any]:
        return {"context": self.context, "drain_s": DRAIN_S, **options}

    async def _start(self, worker: Worker) -> Worker:
        before = self._registered(worker.service)
        await self._stack.enter_async_context(worker)
        async with asyncio.timeout(READY_S):
            while self._registered(worker.service) <= before:  # noqa: ASYNC110 - the broker has no hook for this
                await asyncio.sleep(CHECK_S)
        self.workers.append(worker)
        return worker

    def _registered(self, service: str) -> int:
        known = self.broker.machine.directory.services.get(service.encode())
        return 0 if known is None else len(known.workers)


@asynccontextmanager
async def broker(
    *handlers: Callable[..., Any] | App | ModuleType,
    services: Mapping[str, Callable[..., Any]] | None = None,
    transport: Literal["inproc", "tcp"] = "inproc",
    **limits: Unpack[BrokerSettings],
) -> AsyncIterator[Local]:
    """Run a broker, a worker per handler, and a client on the running loop; all end with the block.

    Args:
        handlers: decorated with `mdp.service`; an `mdp.App`, whose lifespan is entered; a module with decorated handlers.
        services: further handlers, by name of their service.
        transport: "inproc", or "tcp" on a loopback port chosen by the system, for peers in other processes or in other languages.
        limits: any field of `mdp.BrokerOptions`, by name: `heartbeat_ms`, `queue_max`, `manage`, …; `start_hold_ms` is 0 here.

    Raises:
        TypeError: a handler without a name, or an unknown limit.
    """
    limits.setdefault("start_hold_ms", 0)
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(core.Context())
        serving = await stack.enter_async_context(Broker(context=context, **limits))
        local = Local(serving, serving.bind(_ENDPOINTS[transport]), context, stack)
        for handler in handlers:
            if isinstance(handler, App | ModuleType):
                await local.add_app(handler)
            else:
                await local.add_worker(handler)
        for name, handler in (services or {}).items():
            await local.add_worker(name, handler)
        # Entered last, so left first: requests end before the workers drain.
        await stack.enter_async_context(local.client)
        yield local
