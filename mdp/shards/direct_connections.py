"""Connections of a client to the shards of its broker, beside the one to the broker itself.

A broker that consists of shards forwards requests; a client that connects to the shards spares it that. A request goes to the shard of its
service while there is a connection to that, and to the broker otherwise, so nothing waits for a shard that is being started.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from core.errors import ZMQError
from mdp.wire.shards import shard_endpoint, shard_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.client.engine import MdpEngine

log = logging.getLogger("mdp.client")

# Questions for the broker as a whole.
_MMI: Final = b"mmi."
# Services whose shard is remembered; names come from the program.
REMEMBERED_MAX: Final = 1024


class ShardEngines:
    """Chooses the engine for each request.

    Args:
        broker: the engine of the broker itself, which learns of the shards.
    """

    def __init__(self, broker: MdpEngine, new_engine: Callable[[str], MdpEngine]) -> None:
        self._broker = broker
        self._new_engine = new_engine
        self._known: tuple[str, int] | None = None  # endpoint of the broker, and the number of its shards
        self._by_service: dict[bytes, MdpEngine] = {}
        self.engines: list[MdpEngine] = []  # of the shards
        # All that were made, by endpoint: requests that were sent may still be answered, and a broker that is left may be returned to.
        # There are no more than the brokers of the client have shards.
        self._made: dict[str, MdpEngine] = {}
        broker.on_shards = self._changed

    def engine_for(self, service: bytes) -> MdpEngine:
        if not self.engines:
            return self._broker
        engine = self._by_service.get(service)
        if engine is None:
            if len(self._by_service) >= REMEMBERED_MAX:
                self._by_service.clear()
            engine = self._broker if service.startswith(_MMI) else self.engines[shard_of(service, len(self.engines))]
            self._by_service[service] = engine
        return engine if engine.machine.connected else self._broker

    @property
    def in_flight(self) -> int:
        return sum(engine.machine.in_flight for engine in self._made.values())

    async def close(self) -> None:
        self._broker.on_shards = _ignored
        async with AsyncExitStack() as stack:
            for engine in self._made.values():
                stack.push_async_callback(engine.close)

    def _changed(self, endpoint: str, count: int) -> None:
        """Connect to the shards of a broker; requests waiting for those of another one go to the broker."""
        if (endpoint, count) == self._known:
            return
        self._known = endpoint, count
        former, self.engines = self.engines, []
        self._by_service.clear()
        for engine in former:
            for pending in self._broker.machine.take_over(engine.machine):
                pending.moved(self._broker)
        places = [shard_endpoint(endpoint, number) for number in range(count)]
        if None not in places:
            self.engines = [self._made.get(place) or self._started(place) for place in places if place is not None]

    def _started(self, place: str) -> MdpEngine:
        engine = self._made[place] = self._new_engine(place)
        try:
            engine.start()
        except ZMQError as error:  # such as a path that is too long for a socket
            log.warning("%s cannot be connected to, the broker forwards: %s", place, error)
        return engine


def _ignored(_: str, __: int) -> None: ...
