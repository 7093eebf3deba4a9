"""A broker for tests: in this process, with workers that serve and a client that asks, ready when the block begins.

    async with mdp.testing.broker(double) as local:                         # handlers decorated with `mdp.service`
        assert await local.client.request("double", b"x") == [b"x", b"x"]

    @pytest.fixture
    async def shop():                                                       # no plugin: a fixture is two lines
        async with mdp.testing.broker(services={"echo": echo}) as local:
            yield local

Nothing of it needs pytest, a free port or a wait for something to settle: the broker is reached over `inproc`, in a context of its
own, so that tests in one process know nothing of each other.
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
# A worker in the same process registers within some turns of the loop; only one that cannot is waited for as long as this.
READY_S: Final = 10.0
# How often the broker is looked at meanwhile.
LOOK_S: Final = 0.001
# A test is not kept waiting for a handler that hangs as long as a program in production would be.
DRAIN_S: Final = 1.0


class Local:
    """A broker of this process and those who use it.

    Attributes:
        broker: the `mdp.Broker`, with its `counters` and `stats`.
        endpoint: where it listens; `inproc` endpoints are reached from `context` only.
        context: of all sockets here.
        client: an `mdp.Client` of this broker.
        workers: one for each service, in the order in which they were given.
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
            handler: with a name, what answers.
            options: of `mdp.Worker`.

        Raises:
            TimeoutError: the broker did not register it within `READY_S` seconds.
        """
        worker = Worker(self.endpoint, service, handler=handler, context=self.context, **{"drain_s": DRAIN_S, **options})
        before = self._registered(worker.service)
        await self._stack.enter_async_context(worker)
        async with asyncio.timeout(READY_S):
            while self._registered(worker.service) <= before:  # noqa: ASYNC110 - for one test to hear of it the broker gets no hook
                await asyncio.sleep(LOOK_S)
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
    """Run a broker on the running loop, a worker for each handler, and a client; all end with the block.

    Args:
        handlers: decorated with `mdp.service`.
        services: further handlers, by name of their service.
        transport: "inproc", or "tcp" on a loopback port the system chooses, for peers in other processes and of other makers.
        limits: any field of `mdp.BrokerOptions`, by name: `heartbeat_ms`, `queue_max`, `manage`, …; `start_hold_ms` is 0 here.

    Raises:
        TypeError: a handler without a name, or no such limit.
    """
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(core.Context())
        serving = await stack.enter_async_context(Broker(context=context, **{"start_hold_ms": 0, **limits}))
        local = Local(serving, serving.bind(_ENDPOINTS[transport]), context, stack)
        for handler in handlers:
            await local.add_worker(handler)
        for name, handler in (services or {}).items():
            await local.add_worker(name, handler)
        # Entered last, so left first: no request of a test outlives it into the drain of the workers.
        await stack.enter_async_context(local.client)
        yield local
