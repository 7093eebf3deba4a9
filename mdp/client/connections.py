"""Connections of a client's machine: one for MDP/0.3, a pool of them for MDP/0.1 and 0.2."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from core.errors import ZMQError
from mdp.client.calls import PendingRequest
from mdp.client.pending import RequesterBase
from mdp.client.requester import Requester
from mdp.client.requester_01 import CloseConnection, LockstepRequester
from mdp.session.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import core
    from core.zmtp.limits import PeerLimits
    from core.zmtp.scan import Batch

Updates: TypeAlias = "Callable[[list[PendingRequest]], None]"
M = TypeVar("M", bound=RequesterBase[Any])


class Transport(ABC, Generic[M]):
    """Carries messages between a machine and its connections.

    Args:
        clock: reads the time, monotonic seconds.
        on_received: called with what the messages of the broker have changed.
        on_updates: called with what the end of a connection has changed.
    """

    def __init__(
        self,
        context: core.Context,
        options: Mapping[str, Any],
        clock: Callable[[], float],
        machine: M,
        *,
        on_joined: Callable[[], None],
        on_received: Updates,
        on_updates: Updates,
        on_lost: Callable[[], None],
    ) -> None:
        self.machine = machine
        self._context = context
        self._options = options
        self._on_joined = on_joined
        self._on_received = on_received
        self._on_updates = on_updates
        self._on_lost = on_lost
        self._time = clock

    @property
    @abstractmethod
    def trouble(self) -> str:
        """Why there is no connection, for people."""

    @property
    @abstractmethod
    def limits(self) -> PeerLimits | None:
        """Limits the broker has announced."""

    @abstractmethod
    def open(self, endpoint: str) -> None:
        """Connect."""

    @abstractmethod
    def flush(self) -> None:
        """Carry out what the machine has queued."""

    @abstractmethod
    def close_all(self) -> list[Connection]:
        """Close all connections and return them; the machine keeps what was in flight."""


class PipelinedTransport(Transport[Requester[PendingRequest]]):
    """One connection for all requests."""

    _connection: Connection | None = None

    @property
    def trouble(self) -> str:
        return "" if self._connection is None else self._connection.trouble

    @property
    def limits(self) -> PeerLimits | None:
        return None if self._connection is None else self._connection.limits

    def open(self, endpoint: str) -> None:
        self._connection = Connection(
            self._context, endpoint, self._options, on_joined=self._join, on_batch=self._receive, on_lost=self._lose
        )
        self.machine.in_transit = self._connection.in_transit

    def flush(self) -> None:
        machine = self.machine
        if machine.outgoing and self._connection is not None:
            self._connection.send(machine.take_outgoing())

    def close_all(self) -> list[Connection]:
        connection, self._connection = self._connection, None
        self._on_updates(self.machine.lost(self._time()))
        if connection is None:
            return []
        connection.close()
        return [connection]

    def _join(self) -> None:
        self.machine.joined(self._time(), None if self._connection is None else self._connection.limits)
        self._on_joined()
        self.flush()

    def _receive(self, batch: Batch) -> None:
        machine = self.machine
        updates = machine.receive(batch.messages(), self._time())
        if machine.reports:
            # Called by the loop, which reports their errors as those of any callback; before the tasks that get the replies.
            for pending, progress in machine.take_reports():
                if pending.call.progress is not None:
                    asyncio.get_running_loop().call_soon(pending.call.progress, progress)
        self._on_received(updates)

    def _lose(self) -> None:
        updates = self.machine.lost(self._time())
        self._on_lost()
        self._on_updates(updates)


class LockstepTransport(Transport[LockstepRequester[PendingRequest]]):
    """One connection per request in flight."""

    @property
    def trouble(self) -> str:
        trouble = next((connection.trouble for connection in self._connections.values() if connection.trouble), "")
        return trouble or ("" if self._unopened is None else str(self._unopened))

    @property
    def limits(self) -> PeerLimits | None:
        return next((connection.limits for connection in self._connections.values()), None)

    def open(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._connections: dict[int, Connection] = {}
        self._unopened: ZMQError | None = None  # why the last connection that was ordered could not be made
        self.machine.begin()
        self.flush()
        self._check_opened()

    def _check_opened(self) -> None:
        # Not in `open`: mypyc takes `_unopened` for None there, as it was set, whatever was called since.
        if self._unopened is not None and not self._connections:
            raise self._unopened

    def flush(self) -> None:
        """Send the machine's messages; open and close connections."""
        machine = self.machine
        if machine.outgoing:
            for number, message in machine.take_outgoing():
                self._connections[number].send([message])
        if machine.orders:
            for order in machine.take_orders():
                if isinstance(order, CloseConnection):
                    # Absent if it could not be opened, and was given up before this write.
                    if (connection := self._connections.pop(order.number, None)) is not None:
                        connection.close()
                    continue
                try:
                    self._open(order.number)
                except ZMQError as error:  # for example more sockets than the context allows: those that are open serve
                    self._unopened = error
                    machine.unopened(order.number)

    def close_all(self) -> list[Connection]:
        connections = [*self._connections.values()]
        self._on_updates(self.machine.lost(self._time()))
        self.flush()
        return connections

    def _open(self, number: int) -> None:
        def joined() -> None:
            self.machine.joined(number, self._connections[number].limits)
            self._on_joined()
            self.flush()

        def receive(batch: Batch) -> None:
            self._on_received(self.machine.receive(number, batch, self._time()))

        def lose() -> None:
            if number in self._connections:
                # One lost connection means a lost broker: another broker may answer next, in another dialect.
                updates = self.machine.lost(self._time(), number)
                self._on_lost()
                self._on_updates(updates)

        self._connections[number] = Connection(
            self._context, self._endpoint, self._options, on_joined=joined, on_batch=receive, on_lost=lose
        )
