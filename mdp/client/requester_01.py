"""The client's side of MDP/0.1 and 0.2: one request in flight per connection (MDP-09 to 14, BEY-04).

    connection:  OPENING ──joined──► IDLE ──request──► BUSY ──reply of its service──► IDLE
                                                        │ attempt expired, cancelled: closed, another one is opened

Pure. These dialects do not number requests, so a reply belongs to the request of its connection. A connection whose request was given up is
closed, so its late reply cannot reach the next request. This is the guide's Lazy Pirate (close, reconnect, send again), many at a time.
Connections have numbers that are never reused.

`orders` collects connections to open and to close for the shell, `outgoing` pairs of connection and message.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from core.machine.requests import QUEUED, SENT
from core.zmtp.frames import LAST_HEADERS
from core.zmtp.scan import frames_between
from mdp.client.calls import PendingRequest
from mdp.client.pending import RequesterBase, give_up
from mdp.errors import NotSupported
from mdp.wire.commands import V01, client_request
from mdp.wire.events import Final as FinalEvent
from mdp.wire.events import Partial, parse_at_client
from mdp.wire.size_limits import ANY_SIZE, too_large

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.machine.requests import Timeouts
    from core.zmtp.frames import Message
    from core.zmtp.limits import PeerLimits
    from core.zmtp.scan import Batch
    from mdp.client.pending import RequesterCounters, RequesterLimits
    from mdp.errors import TooLarge
    from mdp.wire.commands import Dialect

_ENVELOPE_BYTES: Final = 512  # the frames of a request before its body are less, headers and the longest name of a service included


class OpenConnection(NamedTuple):
    """Open a connection and report `joined`."""

    number: int


class CloseConnection(NamedTuple):
    """Close a connection at once (LINGER 0)."""

    number: int


P = TypeVar("P", bound=PendingRequest)


class LockstepRequester(RequesterBase[P]):
    """Outstanding requests of one client over MDP/0.1 or 0.2.

    Args:
        timeouts: those of the previous machine, when the dialect has changed.
    """

    __slots__ = (
        "_busy", "_idle", "_may_open", "_numbers", "_opening", "_peer", "_plain_max", "dialect", "orders", "outgoing",
    )  # fmt: skip

    def __init__(
        self,
        dialect: Dialect,
        limits: RequesterLimits,
        timeouts: Timeouts[P] | None = None,
        counters: RequesterCounters | None = None,
    ) -> None:
        super().__init__(limits, timeouts, counters)
        self.dialect: Dialect = dialect
        self.orders: list[OpenConnection | CloseConnection] = []  # connections to open and to close, in order; see `take_orders`
        # messages to send, encoded or as frames, with the number of their connection; see `take_outgoing`
        self.outgoing: list[tuple[int, Message | bytes]] = []
        self._may_open = True
        self._numbers = 0
        self._peer: PeerLimits | None = None  # limits of the broker, None when it has announced none
        self._plain_max = ANY_SIZE  # bytes of a body of one frame that need no check
        self._opening: set[int] = set()
        self._idle: list[int] = []  # the last used one is used next: its caches are warm
        self._busy: dict[int, P] = {}

    @property
    def in_flight(self) -> int:
        return len(self._busy)

    @property
    def connections(self) -> int:
        return len(self._opening) + len(self._idle) + len(self._busy)

    def submit(self, pending: P, now: float) -> None:
        """Take a request; send it at once if a connection is idle. Raises Busy, TooLarge or NotSupported."""
        if self._idle and not self._backlog:
            self.timeouts.start(pending, now, pending.call.timeout_s, pending.call.deadline_s)
            error = self._refusal(pending)
            if error is not None:
                self._refuse(pending, error, now)
                raise error
            self._send(pending, self._idle.pop())
            return
        self._enqueue(pending, now)
        self._assign()

    def cancel(self, pending: P, now: float) -> None:
        """Settle a request without a result. Does nothing when it is settled."""
        if pending.stage not in (QUEUED, SENT):
            return
        self.counters.cancelled += 1
        self._close_connection(pending)
        self._settle(pending, now)
        self._assign()

    def take_orders(self) -> list[OpenConnection | CloseConnection]:
        orders, self.orders = self.orders, []
        return orders

    def take_outgoing(self) -> list[tuple[int, Message | bytes]]:
        outgoing, self.outgoing = self.outgoing, []
        return outgoing

    def begin(self) -> None:
        """Order connections, at least one, to see whether the broker is there."""
        self._may_open = True
        self._assign()
        if not self.connections:
            self._order()

    def unopened(self, number: int) -> None:
        """Do without a connection that was ordered; another is ordered when a request waits and something changes."""
        self._opening.discard(number)

    def joined(self, number: int, limits: PeerLimits | None = None) -> None:
        """Use a connection that was ordered and is up; `limits` are those the broker has announced."""
        if number in self._opening:
            self._peer = limits
            self._plain_max = ANY_SIZE if limits is None else limits.small - _ENVELOPE_BYTES
            self._opening.discard(number)
            self.connected = True
            self._idle.append(number)
            self._assign()

    def lost(self, now: float, number: int | None = None) -> list[P]:
        """Close all connections until `begin`; return the requests that cannot be sent again.

        The request of the lost connection `number` may be the reason; None when the client closes them all.
        """
        self._may_open = False
        innocent = () if number is None else {pending for at, pending in self._busy.items() if at != number}
        failed = self._put_back(self._busy.values(), now, innocent)
        self._close_all()
        return failed

    def restore(self, waiting: Sequence[P]) -> None:
        """Take over the waiting requests of another machine, and order connections for them."""
        super().restore(waiting)
        self._assign()

    def close(self, now: float) -> list[P]:
        """Fail all open requests with ClientClosed and close all connections."""
        settled = self._fail_all(self._busy.values(), now)
        self._close_all()
        return settled

    def receive(self, number: int, batch: Batch, now: float) -> list[P]:
        """Take messages of the broker on one connection; return requests that were settled or have new parts."""
        updates: list[P] = []
        for message in batch.made:
            self._receive_any(number, message, now, updates)
        octets = batch.octets
        for start, end in zip(batch.starts, batch.ends):
            pending = self._busy.get(number)
            if pending is not None and self.dialect == V01:
                # The first frames of the reply of MDP/0.1 are those of the request; only its body is made into frames.
                head = pending.call.prefix_01
                body_at = start + len(head)
                if octets[start:body_at] == head:
                    updates.append(pending)
                    self._finish(number, pending, frames_between(octets, body_at, end), now)
                    continue
            self._receive_any(number, frames_between(octets, start, end), now, updates)
        if self._backlog:
            self._assign()
        return updates

    def _receive_any(self, number: int, message: Message, now: float, updates: list[P]) -> None:
        """Take any message, with full validation."""
        pending = self._busy.get(number)
        if pending is None:
            self.counters.late += 1  # a second reply to one request, or a message on a connection that was given up
            return
        event = parse_at_client(message)
        if not isinstance(event, (Partial, FinalEvent)) or event.dialect != self.dialect or event.service != pending.call.service:
            self.counters.malformed += 1  # dropped; the request stays in flight (MDP-11)
            return
        updates.append(pending)
        if isinstance(event, FinalEvent):
            self._finish(number, pending, [*event.body], now)
        elif not self._keep_part(pending, [*event.body], now):
            self._close_connection(pending)

    def tick(self, now: float) -> list[P]:
        """End expired attempts; return requests that have no attempt left."""
        settled: list[P] = []
        again: list[P] = []
        for pending in self.timeouts.expired(now):
            self._close_connection(pending)
            # Resending after lost connections counts too.
            sendings_left = pending.stage != SENT or pending.sent < pending.call.attempts
            if sendings_left and pending.attempt < pending.call.attempts and now < pending.give_up_at and pending.parts is None:
                pending.attempt += 1
                self.timeouts.restart(pending, now, pending.call.timeout_s)
                if pending.stage == SENT:
                    again.append(pending)
            else:
                self._settle(pending, now)
                give_up(pending, now, self.destination, connected=self.connected, others=len(self._busy))
                settled.append(pending)
        self.counters.failed += len(settled)
        self._wait_first(again)
        self._assign()
        if self.refused:
            settled += self.refused
            self.refused = []
        return settled

    def deadline(self) -> float:
        return -inf if self.refused else self.timeouts.wake_at

    def _refusal(self, pending: P) -> TooLarge | NotSupported | None:
        call, body = pending.call, pending.body
        if call.headers:
            return NotSupported(call.name, text=f"MDP/{self.dialect} has no headers, which the request needs")
        if len(body) == 1 and len(body[0]) <= self._plain_max:  # hot path: most bodies are far below any limit
            return None
        octets = 6 + (0 if self.dialect == V01 else 1) + len(call.service)
        return too_large("request", body, self._peer, 3, octets, service=call.name)

    def _close_all(self) -> None:
        self.orders += [CloseConnection(number) for number in (*self._opening, *self._idle, *self._busy)]
        self.connected = False
        self._opening.clear()
        self._idle.clear()
        self._busy.clear()
        self.outgoing.clear()

    def _finish(self, number: int, pending: P, body: list[bytes], now: float) -> None:
        """Settle a request with its reply; its connection is free for the next one."""
        self._complete(pending, body, now)
        del self._busy[number]
        self._idle.append(number)

    def _close_connection(self, pending: P) -> None:
        """Close the connection of a request in flight, so that a late reply is lost (MDP-14)."""
        number = pending.connection
        if self._busy.get(number) is pending:
            del self._busy[number]
            self.orders.append(CloseConnection(number))

    def _assign(self) -> None:
        """Send waiting requests on idle connections; order new connections for the rest."""
        while (pending := self._first_waiting()) is not None:
            if self._idle:
                self._take_first()
                error = self._refusal(pending)
                if error is None:
                    self._send(pending, self._idle.pop())
                else:
                    self._refuse(pending, error, pending.started_at)
                    self.refused.append(pending)
            elif self._may_open and len(self._opening) < len(self._backlog) and self.connections < self.limits.connections_max:
                self._order()
            else:
                return

    def _order(self) -> None:
        self._numbers += 1
        self._opening.add(self._numbers)
        self.orders.append(OpenConnection(self._numbers))

    def _send(self, pending: P, number: int) -> None:
        if pending.sent:
            self.counters.repeated += 1
        else:
            self.counters.sent += 1
        pending.sent += 1
        pending.stage = SENT
        pending.connection = number
        self._busy[number] = pending
        body = pending.body
        if self.dialect == V01 and len(body) == 1 and len(body[0]) < 256:
            frame = body[0]
            message: Message | bytes = b"".join((pending.call.prefix_01, LAST_HEADERS[len(frame)], frame))
        else:
            message = client_request(self.dialect, pending.call.service, body)
        self.outgoing.append((number, message))
