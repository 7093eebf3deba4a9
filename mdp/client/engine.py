"""The shell of a client of MDP: drives search, machine and connections; see `core.rpc.client_engine`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from core.rpc.client_engine import ClientEngine
from core.runtime import supervision
from mdp.client.connections import LockstepTransport, PipelinedTransport
from mdp.client.pending import RequesterCounters
from mdp.client.requester import Requester, numbers_from
from mdp.client.requester_01 import LockstepRequester
from mdp.errors import ClientClosed
from mdp.session.broker_search import EndReason
from mdp.session.reconnector import Reconnector
from mdp.wire.commands import V03

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import core
    from core.security.credentials import Secured
    from core.zmtp.limits import PeerLimits
    from mdp.client.calls import PendingRequest
    from mdp.client.connections import Transport
    from mdp.client.pending import RequesterLimits
    from mdp.session.broker_search import BrokerSearch
    from mdp.session.connection import Connection

Machine: TypeAlias = Requester[Any] | LockstepRequester[Any]


class MdpEngine(ClientEngine[Machine]):
    """Connects to a broker, and runs the machine of its dialect.

    Args:
        context: of the sockets; the engine has its own when None.
    """

    def __init__(
        self,
        search: BrokerSearch,
        epoch: int,
        limits: RequesterLimits,
        context: core.Context | None,
        socket_options: Mapping[str, Any],
        security: Secured | None = None,
        counters: RequesterCounters | None = None,
    ) -> None:
        self.search = search
        self.counters = RequesterCounters() if counters is None else counters
        # called when a broker is connected to, with its endpoint and the number of its shards
        self.on_shards: Callable[[str, int], None] = _no_shards
        self.connections = 0
        self._numbers = numbers_from(epoch)
        self._limits = limits
        machine: Requester[Any] = Requester(self._numbers, limits, None, self.counters)
        self._timeouts = machine.timeouts
        self._transport: Transport[Any] | None = None
        super().__init__(machine, "mdp", ClientClosed, context, security, socket_options)
        self._ticker = supervision.current().timer("mdp client clock", self._tick)

    @property
    def limits(self) -> PeerLimits | None:
        return None if self._transport is None else self._transport.limits

    def notify(self, updates: Iterable[Any]) -> None:
        """Notify the callers of requests, each in its way: a future, a callback, an iterator."""
        for pending in updates:
            pending.notify()

    def flush(self) -> None:
        if self._transport is not None:
            self._transport.flush()

    # ------------------------------------------------------------------------------------------------------ start, time, end

    def _connect(self) -> None:
        self._reconnector = Reconnector(
            self.search,
            self.context,
            self.socket_options,
            on_open=self._open,
            on_close=self._close_connections,
            on_change=self._arm,
            ending_max=self._limits.connections_max + 8,
            votes=True,
            name="client",
        )
        self.search.start(self.clock())
        self._reconnector.run_actions()

    def _deadline(self) -> float:
        return min(self.search.deadline(), self.machine.deadline())

    def _do_due(self, now: float) -> None:
        machine = self.machine
        trouble = self._reconnector.trouble or ("" if self._transport is None else self._transport.trouble)
        machine.destination = self.search.endpoints() + (f" ({trouble})" if trouble else "")
        self.search.tick(now)
        updates = machine.tick(now)
        if isinstance(machine, Requester) and machine.dead:
            self.search.failed(EndReason.SILENT, now)
        self.notify(updates)
        self._reconnector.run_actions()

    def _close_sockets(self) -> Iterable[core.Socket]:
        self.search.close()
        self._reconnector.run_actions()
        return ()

    async def _disconnect(self) -> None:
        self._close_sockets()
        await self._reconnector.wait_closed()

    # --------------------------------------------------------------------------------------------------------- connection

    def _open(self) -> None:
        dialect, old = self.search.dialect, self.machine
        where = self.context, self.socket_options, self.clock
        callbacks: dict[str, Any] = {"on_joined": self._on_joined, "on_received": self._on_received, "on_updates": self._on_updates}
        callbacks["on_lost"] = self._reconnector.lost
        kept = self._limits, self._timeouts, self.counters
        if dialect == V03:
            numbered = old if isinstance(old, Requester) else Requester(self._numbers, *kept)
            self.machine, self._transport = numbered, PipelinedTransport(*where, numbered, **callbacks)
        else:
            # Its dialect stays: it was given, or is the older one of the two that are asked for.
            lockstep = old if isinstance(old, LockstepRequester) else LockstepRequester(dialect, *kept)
            self.machine, self._transport = lockstep, LockstepTransport(*where, lockstep, **callbacks)
        if self.machine is not old:
            self.machine.destination = old.destination
            self.machine.take_over(old)
        self.connections += 1
        self._reconnector.connected()
        self._transport.open(self.search.endpoint)
        self.on_shards(self.search.endpoint, self.search.shards if dialect == V03 else 0)

    def _close_connections(self) -> list[Connection]:
        transport, self._transport = self._transport, None
        return [] if transport is None else transport.close_all()

    def _on_joined(self) -> None:
        self.search.joined(self.clock())
        if isinstance(self.machine, Requester) and (self.search.ballot.counter or self.limits is not None):
            # Brokers of a pair answer heartbeats, and so do those that announce their limits: silence counts from the start.
            self.machine.answers_heartbeats = True
        self._arm()

    def _on_received(self, updates: list[PendingRequest]) -> None:
        self.search.failures = 0  # it has answered us: see `BrokerSearch.confirmed`
        self._on_updates(updates)

    def _on_updates(self, updates: list[PendingRequest]) -> None:
        # Hot path: once per batch.
        self._submitted = False
        try:
            for pending in updates:
                if pending.caller is not None:
                    pending.notify()
        except MemoryError:
            self.machine.keep(updates)
            raise
        if self._transport is not None:
            self._transport.flush()
        if self.machine.refused:
            self._arm()


def _no_shards(endpoint: str, count: int) -> None: ...
