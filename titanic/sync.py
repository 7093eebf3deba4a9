"""Synchronous `titanic.Client` for scripts, notebooks and threads."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

import mdp
from core.rpc.sync_facade import SyncFacade
from titanic.client import Client

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence

    from titanic.client import Ticket, TitanicSettings
    from titanic.errors import TitanicError

__all__ = ["SyncClient", "SyncOutcome", "SyncTicket"]

T = TypeVar("T")


class SyncTicket:
    """A `Ticket` for code without an event loop; its methods block."""

    def __init__(self, client: SyncClient, ticket: Ticket) -> None:
        self._client = client
        self._ticket = ticket
        self.uuid = ticket.uuid

    def fetch(self) -> list[bytes] | None:
        """See `Ticket.fetch`."""
        return self._client.run(self._ticket.fetch())

    def result(self, timeout: float | None = None) -> list[bytes]:
        """See `Ticket.result`."""
        return self._client.run(self._ticket.result(timeout))

    def close(self) -> None:
        """See `Ticket.close`."""
        self._client.run(self._ticket.close())


class SyncOutcome(NamedTuple):
    """An `Outcome` of `SyncClient.results`."""

    ticket: SyncTicket
    reply: list[bytes] | None
    error: TitanicError | mdp.RequestError | None


class SyncClient(SyncFacade[Client]):
    """A `Client` for code without an event loop; it runs one in a thread.

    Args:
        broker: endpoint, or several in order of preference.
        options: as for `Client`.
    """

    def __init__(self, broker: str | Sequence[str], **options: Unpack[TitanicSettings]) -> None:
        super().__init__(Client(broker, **options), "titanic-client", mdp.ClientClosed)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the client, and wait for its result."""
        return self._run(work)

    def submit(
        self,
        service: str | bytes,
        *frames: bytes,
        key: str | bytes | None = None,
        delay: float = 0.0,
        ttl: float = 0.0,
        attempts: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> SyncTicket:
        """See `Client.submit`."""
        submitted = self._client.submit(service, *frames, key=key, delay=delay, ttl=ttl, attempts=attempts, headers=headers)
        return SyncTicket(self, self.run(submitted))

    def ticket(self, uuid: str) -> SyncTicket:
        """See `Client.ticket`."""
        return SyncTicket(self, self._client.ticket(uuid))

    def tickets(self) -> list[SyncTicket]:
        """See `Client.tickets`."""
        return [SyncTicket(self, ticket) for ticket in self._client.tickets()]

    def results(self, tickets: Iterable[SyncTicket], *, timeout: float | None = None, window: int = 256) -> Iterator[SyncOutcome]:
        """See `Client.results`."""
        outcomes = self._client.results((ticket._ticket for ticket in tickets), timeout=timeout, window=window)
        with closing(self._iterate(outcomes)) as ready:
            for outcome in ready:
                yield SyncOutcome(SyncTicket(self, outcome.ticket), outcome.reply, outcome.error)
