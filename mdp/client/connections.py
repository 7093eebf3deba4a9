"""How a client's machine reaches its broker: one connection for MDP/0.3, a pool of them for MDP/0.1 and 0.2.

Both kinds look the same to the client: `open`, `flush` after the machine has something to send, `close_all`, `close`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from mdp.client.requester_01 import LockstepRequester, OpenConnection
from mdp.session.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import core
    from core.zmtp.decoder import Message
    from core.zmtp.limits import PeerLimits
    from mdp.client.calls import PendingRequest
    from mdp.client.requester import Requester

__all__ = ["LockstepTransport", "PipelinedTransport", "Transport"]

News: TypeAlias = "Callable[[list[PendingRequest]], None]"


class PipelinedTransport:
    """One connection for everything.

    Args:
        context: makes the socket.
        options: socket options.
        clock: reads the time, monotonic seconds.
        machine: what decides.
        on_joined: called when the connection is up.
        on_news: called with requests that were settled or have parts.
        on_lost: called when the connection is gone.
    """

    def __init__(
        self,
        context: core.Context,
        options: Mapping[str, Any],
        clock: Callable[[], float],
        machine: Requester[PendingRequest],
        *,
        on_joined: Callable[[], None],
        on_news: News,
        on_lost: Callable[[], None],
    ) -> None:
        self.machine = machine
        self._context = context
        self._options = options
        self._on_joined = on_joined
        self._on_news = on_news
        self._on_lost = on_lost
        self._time = clock
        self._connection: Connection | None = None
        self._joined = False

    @property
    def trouble(self) -> str:
        """EndReason there is no connection, for people."""
        return "" if self._connection is None else self._connection.trouble

    @property
    def limits(self) -> PeerLimits | None:
        """What the broker has told that it takes."""
        return None if self._connection is None else self._connection.limits

    def open(self, endpoint: str) -> None:
        """Connect."""
        self._connection = Connection(
            self._context,
            endpoint,
            self._options,
            on_joined=self._join,
            on_batch=self._receive,
            on_lost=self._lose,
            express=self._express,
        )

    def flush(self) -> None:
        """Send what the machine has for the broker."""
        machine = self.machine
        if machine.outgoing and self._connection is not None:
            outgoing, machine.outgoing = machine.outgoing, []
            self._connection.send(outgoing)

    def close_all(self) -> list[Connection]:
        """Close the connection and return it; what was in flight is kept for the next one."""
        connection, self._connection = self._connection, None
        if self._joined:
            self._joined = False
            self._on_news(self.machine.lost(self._time()))
        if connection is None:
            return []
        connection.close()
        return [connection]

    def _join(self) -> None:
        self._joined = True
        self.machine.joined(self._time(), None if self._connection is None else self._connection.limits)
        self._on_joined()
        self.flush()

    def _receive(self, batch: list[Message]) -> None:
        self._on_news(self.machine.receive(batch, self._time()))

    def _express(self, _: bytes, octets: bytes, longest: int) -> int:
        news: list[PendingRequest] = []
        taken = self.machine.express(octets, longest, self._time(), news)
        if news:
            self._on_news(news)
        return taken

    def _lose(self) -> None:
        self._joined = False
        news = self.machine.lost(self._time())
        self._on_lost()
        self._on_news(news)


class LockstepTransport:
    """A connection for each request in flight; arguments as for `PipelinedTransport`."""

    def __init__(
        self,
        context: core.Context,
        options: Mapping[str, Any],
        clock: Callable[[], float],
        machine: LockstepRequester[PendingRequest],
        *,
        on_joined: Callable[[], None],
        on_news: News,
        on_lost: Callable[[], None],
    ) -> None:
        self.machine = machine
        self._context = context
        self._options = options
        self._on_joined = on_joined
        self._on_news = on_news
        self._on_lost = on_lost
        self._time = clock
        self._endpoint = ""
        self._connections: dict[int, Connection] = {}

    @property
    def trouble(self) -> str:
        """EndReason there is no connection, for people."""
        return next((connection.trouble for connection in self._connections.values() if connection.trouble), "")

    @property
    def limits(self) -> PeerLimits | None:
        """What the broker has told that it takes."""
        return next((connection.limits for connection in self._connections.values()), None)

    def open(self, endpoint: str) -> None:
        """Connect once, to see whether the broker is there, and then as often as requests need it."""
        self._endpoint = endpoint
        self.machine.begin()
        self.flush()

    def flush(self) -> None:
        """Open, close and send as the machine says."""
        machine = self.machine
        if machine.outgoing:
            outgoing, machine.outgoing = machine.outgoing, []
            for number, message in outgoing:
                self._connections[number].send((message,))
        if machine.orders:
            for order in machine.take_orders():
                if isinstance(order, OpenConnection):
                    self._open(order.number)
                else:
                    self._connections.pop(order.number).close()

    def close_all(self) -> list[Connection]:
        """Close all connections and return them; what was in flight is kept."""
        connections = [*self._connections.values()]
        self._on_news(self.machine.lost(self._time()))
        self.flush()
        return connections

    def _open(self, number: int) -> None:
        def joined() -> None:
            self.machine.joined(number, self._connections[number].limits)
            self._on_joined()
            self.flush()

        def receive(batch: list[Message]) -> None:
            self._on_news(self.machine.receive(number, batch, self._time()))

        def express(_: bytes, octets: bytes, longest: int) -> int:
            pending = self.machine.express(number, octets, longest, self._time())
            if pending is None:
                return 0
            self._on_news([pending])
            return len(octets)

        def lose() -> None:
            if number in self._connections:
                # One connection is cut when the broker is: another broker may answer next, and in another dialect.
                news = self.machine.lost(self._time(), number)
                self._on_lost()
                self._on_news(news)

        self._connections[number] = Connection(
            self._context, self._endpoint, self._options, on_joined=joined, on_batch=receive, on_lost=lose, express=express
        )


Transport = PipelinedTransport | LockstepTransport
