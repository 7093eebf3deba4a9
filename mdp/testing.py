"""A broker for tests in this process, with workers and a client, ready when the block begins.

    async with mdp.testing.broker(double) as local:                         # handlers decorated with `mdp.service`
        assert await local.client.request("double", b"x") == [b"x", b"x"]

    @pytest.fixture
    async def shop():                                                       # no plugin: a fixture is two lines
        async with mdp.testing.broker(services={"echo": echo}) as local:
            yield local

It needs no pytest, no free port and no waiting: the broker is reached over `inproc` in its own context, so tests in one process are
independent.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import core
from mdp.broker.broker import Broker
from mdp.client.client import Client
from mdp.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

__all__ = ["Local", "broker"]

_ENDPOINTS: Final = {"inproc": "inproc://broker", "tcp": "tcp://127.0.0.1:*"}
# Timeout of the registration of a worker, which usually takes some loop iterations.
READY_S: Final = 10.0
# Interval at which the broker is checked meanwhile.
CHECK_S: Final = 0.001
# Shorter than in production: a test need not wait long for a handler that hangs.
DRAIN_S: Final = 1.0


class Local:
    """A broker in this process, with its workers and a client.

    Attributes:
        broker: the `mdp.Broker`, with its `counters` and `stats`.
        endpoint: of the broker; `inproc` endpoints are reached from `context` only.
        context: of all sockets here.
        client: an `mdp.Client` of this broker.
        workers: one per service, in the order of the arguments.
    """

    def __init__(self, broker: Broker, endpoint: str, context: core.Context, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self.context = context
        self.client = Client(endpoint, context=context)
        self.workers: list[Worker] = []
        self._stack = stack

    async def add_worker(self, service: str | Callable[..., Any], handler: Callable[..., Any] | None = None, **options: Any) -> Worker:
        """Start a worker; return when the broker has registered it. It ends with the block.

        Args:
            service: a name, or a handler decorated with `mdp.service`.
            handler: of the service, if `service` is a name.
            options: of `mdp.Worker`.

        Raises:
            TimeoutError: the broker did not register it within `READY_S` seconds.
        """
        worker = Worker(self.endpoint, service, handler=handler, context=self.context, **{"drain_s": DRAIN_S, **options})
        before = self._registered(worker.service)
        await self._stack.enter_async_context(worker)
        async with asyncio.timeout(READY_S):
            while self._registered(worker.service) <= before:  # noqa: ASYNC110 - the broker has no hook for this
                await asyncio.sleep(CHECK_S)
        self.workers.append(worker)
        return worker

    async def add_client(self, **options: Any) -> Client:
        """Return another client, with options of `mdp.Client`; it is closed with the block."""
        return await self._stack.enter_async_context(Client(self.endpoint, context=self.context, **options))

    def _registered(self, service: str) -> int:
        known = self.broker.machine.directory.services.get(service.encode())
        return 0 if known is None else len(known.workers)


@asynccontextmanager
async def broker(
    *handlers: Callable[..., Any],
    services: Mapping[str, Callable[..., Any]] | None = None,
    transport: Literal["inproc", "tcp"] = "inproc",
    **limits: Any,
) -> AsyncIterator[Local]:
    """Run a broker, a worker per handler, and a client on the running loop; all end with the block.

    Args:
        handlers: decorated with `mdp.service`.
        services: further handlers, by name of their service.
        transport: "inproc", or "tcp" on a loopback port chosen by the system, for peers in other processes or in other languages.
        limits: any field of `mdp.BrokerOptions`, by name: `heartbeat_ms`, `queue_max`, `manage`, …; `start_hold_ms` is 0 here.

    Raises:
        TypeError: a handler without a name, or an unknown limit.
    """
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(core.Context())
        serving = await stack.enter_async_context(Broker(context=context, **{"start_hold_ms": 0, **limits}))
        local = Local(serving, serving.bind(_ENDPOINTS[transport]), context, stack)
        for handler in handlers:
            await local.add_worker(handler)
        for name, handler in (services or {}).items():
            await local.add_worker(name, handler)
        # Entered last, so left first: requests end before the workers drain.
        await stack.enter_async_context(local.client)
        yield local
