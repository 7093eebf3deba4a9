"""One DEALER connection to a broker, used once: when it is lost it is closed, and another one takes its place.

A socket of `core` would reconnect by itself and keep what was queued; clients and workers of Majordomo must know about every new
connection (READY comes first on it, MDP-15; requests are sent again, BEY-04), so what was meant for the old one goes with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import core
from core.awaiting import DONE
from mdp.protocol import EMPTY, MDPC01, V01, V03, client_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from core.zmtp.framing import Message
    from mdp.protocol import Dialect

__all__ = ["DIALECT_SERVICE", "PROBE_S", "Connection", "Probe"]

# What answers which dialects a broker speaks (specs/mdp.md); a broker that does not know it answers 501 or not at all.
DIALECT_SERVICE = b"mmi.protocol"
# A broker that took the connection and is silent for so long is one that takes `mmi.protocol` for a service nobody offers.
PROBE_S = 1.0

_TROUBLES = (
    core.EVENT_CLOSED | core.EVENT_HANDSHAKE_FAILED_NO_DETAIL | core.EVENT_HANDSHAKE_FAILED_PROTOCOL | core.EVENT_HANDSHAKE_FAILED_AUTH
)


class Connection:
    """A connection that is being made, is up, or is closed.

    Args:
        context: makes the socket.
        endpoint: of the broker.
        options: socket options (CURVE keys and so on).
        on_joined: called when the connection is up; it may send.
        on_batch: called with `[[frame, …], …]`.
        on_lost: called once when a connection that was up is gone; then `close`.

    Attributes:
        trouble: why the last attempt to connect failed, for people; empty for no reason known.

    Raises:
        core.ZMQError: the endpoint or an option is not valid.
    """

    def __init__(
        self,
        context: core.Context,
        endpoint: str,
        options: Mapping[str, Any],
        *,
        on_joined: Callable[[], None],
        on_batch: Callable[[list[Message]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.trouble = ""
        self._on_joined = on_joined
        self._on_lost = on_lost
        # No marks: what is in flight is bounded by the window of the client and by the credit of the worker.
        self._socket = context.socket(core.DEALER, **{"linger": 0, "sndhwm": 0, "rcvhwm": 0, **options})
        self._socket.on_event(self._note_trouble, _TROUBLES)
        self._socket.set_receiver(on_batch, on_peer=self._peer_changed)
        self._socket.connect(endpoint)

    def send(self, messages: Sequence[Message]) -> Awaitable[None]:
        """Send messages, in order; acts at once, and the awaitable says when there is room for more."""
        try:
            return self._socket.send_many(messages)
        except (core.ContextTerminated, core.SocketClosed):
            return DONE  # the owner of the context has ended it: there is nobody left to say anything to

    def close(self, linger_ms: int = 0) -> None:
        """Close; what was sent and has not left is dropped, unless it gets some time."""
        self._socket.close(linger_ms)

    async def wait_closed(self) -> None:
        """Wait until nothing of a closed connection is left."""
        await self._socket.wait_closed()

    def _peer_changed(self, _: bytes, joined: bool) -> None:
        if joined:
            self.trouble = ""
            self._on_joined()
        else:
            self._on_lost()

    def _note_trouble(self, event: core.MonitorEvent) -> None:
        if event.reason:
            self.trouble = event.reason


class Probe:
    """Asks a broker which dialect it speaks, on a connection of its own, so that READY stays the first message on a worker's.

    Args:
        context: makes the socket.
        endpoint: of the broker.
        options: socket options.
        on_reached: called with whether the broker took the connection or dropped it.
        on_dialect: called once with the answer, in a turn of its own: 0.3, or 0.1 for anything else and for silence.
    """

    def __init__(
        self,
        context: core.Context,
        endpoint: str,
        options: Mapping[str, Any],
        *,
        on_reached: Callable[[bool], None],
        on_dialect: Callable[[Dialect], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_reached = on_reached
        self._on_dialect = on_dialect
        self._timer: asyncio.TimerHandle | None = None
        self._answered = False
        self.connection = Connection(context, endpoint, options, on_joined=self._joined, on_batch=self._received, on_lost=self._lost)

    def close(self) -> None:
        """Give the question up."""
        self._answered = True
        self._cancel_timer()
        self.connection.close()

    def _joined(self) -> None:
        self._on_reached(True)
        self.connection.send([client_request(V01, DIALECT_SERVICE, [V03.encode()])])
        self._timer = self._loop.call_later(PROBE_S, self._answer, V01)

    def _lost(self) -> None:
        # The socket connects anew by itself; the question is asked again then.
        self._cancel_timer()
        self._on_reached(False)

    def _received(self, batch: list[Message]) -> None:
        known = [EMPTY, MDPC01, DIALECT_SERVICE, b"200"]
        for message in batch:
            if message[:3] == known[:3]:
                self._cancel_timer()
                # Not from within the socket's own turn: the answer closes the socket.
                self._timer = self._loop.call_later(0, self._answer, V03 if message == known else V01)
                return

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answer(self, dialect: Dialect) -> None:
        if not self._answered:
            self._answered = True
            self._on_dialect(dialect)
