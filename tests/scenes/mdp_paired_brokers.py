"""Two brokers of a pair in this process: breakable connections, clocks that jump, workers and clients on demand."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import bstar
import core
import mdp
from tests.scenes.bstar_sockets import Clock, Line, settled, until
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["CALM_MS", "QUICK_MS", "Brokers", "echo", "until"]

QUICK_MS = 400  # where a test waits for silence; a pause of a busy machine is shorter than two
CALM_MS = 2000  # where nobody is ever silent


class Brokers:
    """A pair of brokers on loopback, perhaps with a witness."""

    def __init__(self, *, heartbeat_ms: int = CALM_MS, witness: bool = False, **options: Any) -> None:
        self.heartbeat_ms = heartbeat_ms
        self.options = options
        self.with_witness = witness
        self.clocks = (Clock(), Clock())
        self.pairs: list[bstar.Pair] = []
        self.brokers: list[mdp.PairedBroker] = []
        self.fronts = ["", ""]
        self._stacks: list[AsyncExitStack] = []

    async def __aenter__(self) -> Self:
        self.stack = AsyncExitStack()
        self.context = await self.stack.enter_async_context(core.Context())
        self.lines = [await self.stack.enter_async_context(Line()) for _ in range(2)]  # what member i hears
        self.witness: bstar.Witness | None = None
        if self.with_witness:
            self.witness = bstar.Witness("tcp://127.0.0.1:*", heartbeat_ms=self.heartbeat_ms, context=self.context)
            await self.stack.enter_async_context(self.witness)
        for i in (0, 1):
            await self.start(i)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stack.aclose()
        for stack in self._stacks:
            await stack.aclose()

    async def start(self, i: int) -> None:
        """Start a member, again on the same front."""
        stack = AsyncExitStack()
        pair = bstar.Pair(
            (bstar.PRIMARY, bstar.BACKUP)[i],
            local="tcp://127.0.0.1:*",
            remote=self.lines[i].endpoint,
            heartbeat_ms=self.heartbeat_ms,
            clock=self.clocks[i],
            witness=self.witness.endpoint if self.witness else None,
        )
        await stack.enter_async_context(pair)
        broker = await stack.enter_async_context(mdp.PairedBroker(pair, **self.options))
        self.fronts[i] = broker.bind(self.fronts[i] or "tcp://127.0.0.1:*")
        self.lines[1 - i].target = pair.endpoint
        if i < len(self.pairs):
            self.pairs[i], self.brokers[i], self._stacks[i] = pair, broker, stack
        else:
            self.pairs.append(pair)
            self.brokers.append(broker)
            self._stacks.append(stack)

    async def stop(self, i: int) -> None:
        """End a member without handing over, as a crash does."""
        await self._stacks[i].aclose()

    async def settle(self) -> None:
        """Wait until the primary serves and the backup knows it."""
        await settled(*self.pairs)

    async def worker(self, service: str = "echo", handler: Any = echo, **options: Any) -> mdp.Worker:
        worker = mdp.Worker(self.fronts, service, handler=handler, **{"drain_s": 0.0, **options})
        return await self.stack.enter_async_context(worker)

    async def has_workers(self, count: int) -> None:
        """Wait until the primary serves so many workers, also where a pause of this process has ended its term."""
        while self.brokers[0].stats["workers"] != count:
            await self.settle()
            await until(lambda: self.brokers[0].stats["workers"] == count or not self.pairs[0].serving)

    async def client(self, **options: Any) -> mdp.Client:
        """Connect a client; it sends a request on several connections, as each pause of this process may end one."""
        return await self.stack.enter_async_context(mdp.Client(self.fronts, **{"timeout": 20.0, "attempts": 10, **options}))

    def serving(self) -> list[bool]:
        return [pair.serving for pair in self.pairs]
