"""A sharded broker in the process of a test: the front, and shards that can be stopped and started again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from mdp.shards.front import Front
from mdp.shards.identity import FRONT, FrontIdentity, ShardBroker
from mdp.wire.shards import shard_endpoint, shard_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from core.security.credentials import Secured
    from mdp.broker.limits import BrokerOptions


class Sharded:
    """The front at an ipc path, and its shards.

    `security` makes the security of a broker: each process has its own. `limits` are those of the front.
    """

    def __init__(
        self,
        endpoint: str,
        count: int = 2,
        security: Callable[[], Secured | None] = lambda: None,
        limits: BrokerOptions | None = None,
        **options: Any,
    ) -> None:
        self.endpoint = endpoint
        self.count = count
        self._security = security
        self._options = options
        self.identity, link_security = FrontIdentity.made_for(security())
        self.front = Front(count, limits, security=security(), shard_security=link_security, more=lambda: {"extra": 1})
        self.shards: list[ShardBroker | None] = [None] * count

    def shard_of(self, service: bytes) -> int:
        return shard_of(service, self.count)

    def names(self, shard: int, count: int = 1) -> list[str]:
        """Return so many services of a shard."""
        found = (f"service-{number}" for number in range(10_000))
        return [name for name in found if self.shard_of(name.encode()) == shard][:count]

    async def start(self, number: int) -> None:
        security = self._security()
        identity = FrontIdentity.found_in({FRONT: self.identity.encode(number)})  # as a process gets it
        identity.admit(security)
        broker = ShardBroker(identity, self.count, number, security=security, **self._options)
        endpoint = shard_endpoint(self.endpoint, number)
        assert endpoint is not None
        await broker.__aenter__()
        broker.bind(endpoint)
        self.shards[number] = broker

    async def stop(self, number: int) -> None:
        broker, self.shards[number] = self.shards[number], None
        if broker is not None:
            await broker.__aexit__(None, None, None)

    async def crash(self, number: int) -> None:
        """End a shard without its last messages."""
        broker = self.shards[number]
        assert broker is not None
        assert broker._stopped is not None
        broker._stopped.set_result(None)
        broker._clock.cancel()
        broker._socket.set_batch_receiver(None)
        broker._socket.close(0)
        await self.stop(number)

    async def __aenter__(self) -> Self:
        await self.front.__aenter__()
        self.front.bind(self.endpoint)
        for number in range(self.count):
            await self.start(number)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number in range(self.count):
            await self.stop(number)
        await self.front.__aexit__(kind, error, trace)
