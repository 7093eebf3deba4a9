"""The connection to one peer that may lend workers: a client of MDP/0.3 that queries the peer's capacity at intervals.

A peer that does not answer `MISSED_MAX` queries in a row is lost: its connection is closed and another one opened, so that its queue is not
sent later.
"""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

import core
from core.daemon.logs import RateLimitedLog
from core.machine.liveness import Stalls, Transit
from core.rpc.connect_times import with_connect_times
from core.runtime import supervision
from core.sockets.monitor import TROUBLES
from mdp.wire.commands import CLIENT_ERROR_03, CLIENT_FINAL_03, CLIENT_REQUEST_03, HEAD_BYTES
from mdp.wire.lending import LENDING_SERVICE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.zmtp.limits import PeerLimits

# Queries without an answer after which a peer is lost.
MISSED_MAX: Final = 3
# Interval of queries while requests wait for workers of the peer.
ASK_SOON_S: Final = 0.05
# First byte of the ids of queries; ids of requests stay below 2**63.
_QUERY: Final = b"\xff"
log = logging.getLogger(__name__)


class PeerListener(Protocol):
    """The receiver of the events of a connection."""

    def on_offer(self, endpoint: str, body: list[bytes]) -> None:
        """Handle the peer's answer to a query."""

    def on_query_sent(self, endpoint: str) -> None:
        """Note that a query was sent."""

    def on_peer_lost(self, endpoint: str) -> None:
        """Note that the peer was lost."""

    def on_answers(self, endpoint: str, batch: list[list[bytes]]) -> None:
        """Handle other messages of the peer."""


class PeerConnection:
    """The connection to one peer, reopened when it is lost.

    Args:
        state_s: seconds between two queries.
    """

    # Of the connection that is up.
    _due_at: float  # when the next query is due
    _missed: int  # queries without an answer
    _lost_at: float  # when an answer to the last of `MISSED_MAX` queries is due

    def __init__(
        self,
        context: core.Context,
        endpoint: str,
        name: bytes,
        listener: PeerListener,
        *,
        state_s: float,
        socket_options: Mapping[str, Any],
    ) -> None:
        self.endpoint = endpoint
        self._context = context
        self._name = name
        self._listener = listener
        self._state_s = state_s
        self._options = socket_options
        self._loop = asyncio.get_running_loop()
        self._clock = supervision.current().timer("mdp lending clock", self._ask)
        self._stalls = Stalls(state_s / 2, state_s)
        self._transit = Transit()
        self._number = 0
        self._asked_at = inf  # when the last query was sent
        self._up = False
        self._lines = RateLimitedLog(log)
        self._away_since = inf  # when the first attempt failed since the peer was heard
        self._warned = False
        self._socket = self._connect()

    @property
    def limits(self) -> PeerLimits | None:
        """Limits the peer has announced, None if it has not."""
        return self._socket.peer_limits()

    def send(self, messages: list[list[bytes]]) -> bool:
        """Send messages; return whether the connection is up."""
        if self._up:
            self._socket.send_many(messages)
        return self._up

    def ask_soon(self) -> None:
        if self._up and not self._missed:
            self._ask_at(self._asked_at + ASK_SOON_S)

    async def close(self) -> None:
        """Close the connection; no more events follow."""
        self._clock.cancel()
        self._drop()
        await self._socket.wait_closed()

    def _connect(self) -> core.Socket:
        # No high-water mark: the capacity of the peer limits the number of messages.
        socket = self._context.socket(core.DEALER, **{"sndhwm": 0, "tell_limits": 1, **with_connect_times(self._options), "linger": 0})
        socket.set_receiver(self._received, on_peer=self._changed)
        socket.on_event(lambda event: self._note_trouble(event.reason), TROUBLES)
        socket.connect(self.endpoint)
        return socket

    def _drop(self) -> None:
        # The clock is left as it is: within its own call a cancelled clock would not try again after a fault.
        self._up = False
        self._socket.close()  # does nothing if it is closed, because no other one could be made

    def _note_trouble(self, reason: str) -> None:
        """Log why the peer is not heard, after as long as makes it lost, and then once a minute."""
        now = self._loop.time()
        self._away_since = min(self._away_since, now)
        if reason and now - self._away_since >= MISSED_MAX * self._state_s:
            self._warned = True
            self._lines.warning("unreachable", "no workers of the peer at %s, and it is tried again: %s", self.endpoint, reason)

    def _changed(self, _: bytes, joined: bool) -> None:
        self._up = joined
        if joined:
            self._missed = 0
            self._ask_at(self._loop.time())
        else:
            self._clock.cancel()
            self._listener.on_peer_lost(self.endpoint)

    def _received(self, batch: list[list[bytes]]) -> None:
        answers, offers = list[list[bytes]](), list[list[bytes]]()
        for frames in batch:
            (offers if frames[0][HEAD_BYTES : HEAD_BYTES + 1] == _QUERY else answers).append(frames)
        if answers:
            self._listener.on_answers(self.endpoint, answers)
        for head, *body in offers:
            if head == CLIENT_FINAL_03 + self._id or head == CLIENT_ERROR_03 + self._id:  # otherwise it is late
                self._missed, self._away_since = 0, inf
                if self._warned:
                    self._warned = False
                    log.info("the peer at %s answers", self.endpoint)
                self._listener.on_offer(self.endpoint, body)

    @property
    def _id(self) -> bytes:
        return _QUERY + self._number.to_bytes(7, "big")

    def _ask_at(self, at: float) -> None:
        if self._clock.when is None or self._due_at > at:
            self._due_at = at
            self._clock.at(at)

    def _ask(self) -> None:
        if self._context.closed:
            return  # by the program
        now = max(self._loop.time(), self._due_at)  # a timer may come early, by one step of the clock
        self._stalls.called(self._due_at, now)
        if not self._missed:
            self._transit = Transit()
        silent = self._missed >= MISSED_MAX and now >= self._stalls.excused(self._lost_at, self._state_s)
        if silent and not self._transit.moves(self._socket.in_transit()):
            self._drop()
            self._note_trouble("it is connected and does not answer")
            self._listener.on_peer_lost(self.endpoint)  # first, in case the next connection cannot be made
            self._socket = self._connect()
            return
        self._number += 1
        if self.send([[CLIENT_REQUEST_03 + self._id, LENDING_SERVICE, b"", self._name]]):
            self._listener.on_query_sent(self.endpoint)
        self._missed += 1
        if self._missed == MISSED_MAX:
            self._lost_at = now + self._state_s
        self._asked_at = now
        self._ask_at(now + self._state_s)
