"""Client machine of model 1: one server after the other, a fresh REQ socket for each try (FRL-01, FRL-02).

    submit ──► Open ──reply──► answered
                ▲ └──try_s, too large──► Close ──a server is left──┐      └── none left ──► NoServer, TooLarge
                └──────────────────────────────────────────────────┘

The guide waits the whole timeout for a dead first server on every request. Here a server that did not answer is asked last for some
time (`freelance.models.server_list`), so that cost is paid once.

The time for an answer begins when the server is connected; a lone server that is not connected in time keeps its socket for the next try.

Pure: `now` in monotonic seconds. `outgoing` collects the sockets to open and to close; calls return the requests that have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from core.machine.requests import SENT, KeyedRequests
from freelance.errors import ClientClosed, NoServer
from freelance.models.client_machine import WAITING_MAX, FreelanceRequest
from freelance.models.server_list import Health, ServerList

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freelance.errors import TooLarge

TRIES_OF_A_LONE_SERVER: Final = 3  # FRL-01; with several servers each is tried once


class Open(NamedTuple):
    """Open a socket for a try, and send the request there once it is connected."""

    number: int  # of the try
    endpoint: str
    body: Sequence[bytes]


class Close(NamedTuple):
    """Close the socket of a try."""

    number: int
    unanswered: str = ""  # the endpoint that did not answer in time


class SequentialRequest(FreelanceRequest):
    """One request until its end; its key is the number of its present try."""

    __slots__ = ("asked_at", "connected", "order", "server")

    order: list[bytes]
    server: bytes
    asked_at: float
    connected: bool  # the server of the present try


class Sequential(KeyedRequests[SequentialRequest]):
    """Requests of one client; `timeout_s` None is the sum of the tries. Raises ValueError without an endpoint."""

    __slots__ = ("_number", "_timeout_s", "_try_s", "outgoing", "servers")

    def __init__(self, endpoints: Iterable[str], try_s: float, timeout_s: float | None) -> None:
        super().__init__(WAITING_MAX, ClientClosed, NoServer)
        self.servers = ServerList(endpoints, Health())
        self.outgoing: list[Open | Close] = []
        self._try_s = try_s
        self._timeout_s = timeout_s
        self._number = 0

    def submit(self, pending: SequentialRequest, now: float) -> None:
        """Take a request and ask the first server; without a server, it ends at once."""
        pending.order = self._order(now)
        pending.server = b""
        pending.stage = SENT
        self._renumber(pending)
        self.timeouts.start(pending, now, self._try_s, self._timeout_s if pending.timeout_s is None else pending.timeout_s)
        self._ask_next(pending, now)

    def joined(self, number: int, now: float) -> None:
        """Record that the server of a try is connected."""
        pending = self._open.get(number)
        if pending is not None and not pending.connected:
            pending.connected = True
            self.timeouts.restart(pending, now, self._try_s)

    def receive(self, number: int, reply: list[bytes], now: float) -> list[SequentialRequest]:
        pending = self._open.get(number)
        if pending is None:
            self.counters["reply_unknown"] += 1
            return []
        if pending.server in self.servers:
            self.servers.answered(pending.server)
        self._finish(pending, now, reply)
        return self._updates()

    def refused(self, number: int, error: TooLarge, now: float) -> list[SequentialRequest]:
        """Record that a request was too large for its server, and ask the next one."""
        pending = self._open.get(number)
        if pending is not None:
            self.counters["send_refused"] += 1
            self.counters["sent"] -= 1
            pending.sent -= 1
            pending.refused[pending.server] = error
            self.outgoing.append(Close(number))
            self._ask_next(pending, now)
        return self._updates()

    def add(self, endpoint: str) -> bool:
        """Add a server for further requests; return whether it is new."""
        return self.servers.add(endpoint)

    def remove(self, name: bytes, now: float) -> list[SequentialRequest]:
        """Remove a server; a request that it was asked may still be answered."""
        if name in self.servers:
            self.servers.remove(name)
        return []

    def tick(self, now: float) -> list[SequentialRequest]:
        """End the tries whose time is over, and ask the next servers."""
        for pending in self.timeouts.expired(now):
            if pending.server in self.servers:
                self.servers.failed(pending.server, pending.asked_at, now)
            if now < pending.give_up_at and not pending.connected and pending.order[:1] == [pending.server]:
                self._begin_try(pending, pending.order.pop(0), now)
                continue
            self.outgoing.append(Close(pending.key, pending.server.decode()))
            if now < pending.give_up_at:
                self._ask_next(pending, now)
            else:
                self._no_server(pending, now)
        return self._updates()

    def deadline(self) -> float:
        return self.timeouts.wake_at

    def _order(self, now: float) -> list[bytes]:
        """Return the servers in the order to ask them, recent failures last."""
        order: list[bytes] = []
        for name in self.servers.by_name:
            self.servers.joined(name, now)  # only an answer shows whether it is there
        while (server := self.servers.take(now, order)) is not None:
            order.append(server.name)
        return order if len(order) > 1 else order * TRIES_OF_A_LONE_SERVER

    def _ask_next(self, pending: SequentialRequest, now: float) -> None:
        """Ask the next server of a request, in a new try; end the request if there is none."""
        while pending.order:
            name = pending.order.pop(0)
            if name in self.servers and name not in pending.refused:  # it may have been removed in the meantime
                del self._open[pending.key]
                self._renumber(pending)
                self._begin_try(pending, name, now)
                self.outgoing.append(Open(pending.key, name.decode(), pending.body))
                return
        self._no_server(pending, now)

    def _begin_try(self, pending: SequentialRequest, name: bytes, now: float) -> None:
        pending.server, pending.asked_at, pending.connected = name, now, False
        pending.sent += 1
        self.counters["sent"] += 1
        self.timeouts.restart(pending, now, self._try_s)

    def _renumber(self, pending: SequentialRequest) -> None:
        self._number += 1
        pending.key = self._number
        self._open[pending.key] = pending

    def _no_server(self, pending: SequentialRequest, now: float) -> None:
        if pending.refused:
            self.counters["too_large"] += 1
            self._fail(pending, now, next(iter(pending.refused.values())))
        else:
            self.counters["gave_up"] += 1
            self._fail(pending, now, NoServer(attempts=pending.sent, after_s=now - pending.started_at))

    def _end(self, pending: SequentialRequest, now: float) -> None:
        self.outgoing.append(Close(pending.key))
        super()._end(pending, now)
