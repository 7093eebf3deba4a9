"""A broker that borrows workers of other brokers when its own are busy; every `mdp.Broker` lends.

    async with mdp.LendingBroker(["tcp://10.0.0.2:5555"], name="north") as broker:
        broker.bind("tcp://*:5555")
        await broker.serve_forever()

The shell of `mdp.cluster.lending`: it carries messages between the machine and the connections to peers. A broker without peers is a plain
`mdp.Broker`.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, Unpack

import core
from core.runtime import runtime
from mdp.broker.broker import Broker
from mdp.cluster.lending import LendingMachine
from mdp.cluster.peer_connection import PeerConnection

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from core.zmtp.limits import PeerLimits
    from core.zmtp.scan import Batch
    from mdp.broker.limits import BrokerArguments
    from mdp.broker.requests.request_ends import Output
    from mdp.cluster.lending import SendToPeer

log = logging.getLogger(__name__)


class LendingBroker(Broker):
    """A broker with peers.

    Args:
        peers: endpoints of other brokers, where their clients connect.
        name: of this broker, different from that of any other; random when left out.
        state_ms: interval of queries for a peer's capacity; a peer that does not answer three times is lost.
        hops_max: brokers a request may pass after the first one.
        peer_options: of the sockets to peers, e.g. CURVE keys.
        options: of `mdp.Broker`.

    Raises:
        BadName: the name is not valid for a broker.
    """

    def __init__(
        self,
        peers: Sequence[str],
        *,
        name: str = "",
        state_ms: float = 1000,
        hops_max: int = 1,
        peer_options: Mapping[str, Any] | None = None,
        **options: Unpack[BrokerArguments],
    ) -> None:
        super().__init__(**options)
        self.name = name or f"mdp-{runtime.current().random_bytes(8).hex()}"
        self.lending = LendingMachine(
            self.machine, self.name.encode(), state_s=state_ms / 1000, hops_max=hops_max, limits_of=self._limits_of
        )
        self._first_peers = list(dict.fromkeys(peers))
        self._state_s = state_ms / 1000
        self._peer_options = dict(peer_options or {})
        self._connections: dict[str, PeerConnection] = {}
        self._warned: set[str] = set()

    @property
    def lending_counters(self) -> Counter[str]:
        """Counters of requests that were lent, given back and dropped, by name."""
        return self.lending.counters

    def add_peer(self, endpoint: str) -> None:
        """Add a peer at run time (BEY-15).

        Raises:
            core.InvalidEndpoint: the endpoint is not valid.
            ValueError: it is a peer already.
        """
        if endpoint in self._connections:
            raise ValueError(f"{endpoint} is a peer already")
        self._connections[endpoint] = PeerConnection(
            self._context, endpoint, self.name.encode(), self, state_s=self._state_s, socket_options=self._peer_options
        )

    async def remove_peer(self, endpoint: str) -> None:
        """Remove a peer at run time; its requests go to other workers.

        Raises:
            ValueError: it is not a peer.
        """
        connection = self._connections.pop(endpoint, None)
        if connection is None:
            raise ValueError(f"{endpoint} is not a peer")
        self.on_peer_lost(endpoint)
        await connection.close()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            for endpoint in self._first_peers:
                self.add_peer(endpoint)
        except core.ZMQError:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        connections, self._connections = self._connections, {}
        async with AsyncExitStack() as stack:
            stack.push_async_callback(super().__aexit__, kind, error, trace)
            for connection in connections.values():
                stack.push_async_callback(connection.close)

    def _limits_of(self, endpoint: str) -> PeerLimits | None:
        known = self._connections.get(endpoint)
        return None if known is None else known.limits

    # --- called by connections ----------------------------------------------------------------------------------------------------

    def on_offer(self, endpoint: str, body: list[bytes]) -> None:
        """See `PeerConnection`."""
        if self._is_open and self._loop is not None:
            with self._records:
                self._flush(self.lending.on_offer(endpoint, body, self._now(self._loop)))
                self._balance()

    def on_query_sent(self, endpoint: str) -> None:
        """See `PeerConnection`."""
        self.lending.on_query_sent(endpoint)

    def on_peer_lost(self, endpoint: str) -> None:
        """See `PeerConnection`."""
        if self._is_open and self._loop is not None:
            with self._records:
                self._flush(self.lending.on_peer_lost(endpoint, self._now(self._loop)))
                self._balance()

    def on_answers(self, endpoint: str, batch: list[list[bytes]]) -> None:
        """See `PeerConnection`."""
        if self._is_open and self._loop is not None:
            with self._records:
                self._flush(self.lending.on_answers(endpoint, batch, self._now(self._loop)))
                self._balance()

    # --- called by the event loop --------------------------------------------------------------------------------------------------

    def _on_batch(self, batch: Batch) -> None:
        with self._records:
            super()._on_batch(batch)
            self._balance()

    def _on_peer(self, peer: bytes, joined: bool) -> None:
        with self._records:
            super()._on_peer(peer, joined)
            self._balance()

    def _on_time(self) -> None:
        super()._on_time()
        self._balance()

    def _flush(self, out: Output) -> None:
        to_peers = self.lending.take_for_peers(out)
        super()._flush(out)
        self._to_peers(to_peers)

    def _balance(self) -> None:
        if self._loop is None or not self._is_open:
            return
        now = self._now(self._loop)
        self._to_peers(self.lending.balance(now))
        self._flush(self.machine.take_output())
        if self.lending.needs_workers:
            for connection in self._connections.values():
                connection.ask_soon()
        for warning in self.lending.warnings:
            self._warn(warning)
        self.lending.warnings.clear()
        self._drained.look()

    def _to_peers(self, messages: list[SendToPeer]) -> None:
        by_endpoint: dict[str, list[SendToPeer]] = {}
        for one in messages:
            by_endpoint.setdefault(one.endpoint, []).append(one)
        for endpoint, ones in by_endpoint.items():
            connection = self._connections.get(endpoint)
            if (connection is None or not connection.send([one.frames for one in ones])) and self._loop is not None:
                for one in ones:
                    self._flush(self.lending.unsent(one, self._now(self._loop)))

    def _warn(self, warning: str) -> None:
        """Log a warning once; it may recur at each answer of a peer."""
        if warning not in self._warned and len(self._warned) < 1000:  # names come from peers
            self._warned.add(warning)
            log.warning("%s", warning)
