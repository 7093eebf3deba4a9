"""One DEALER connection to a broker, never reconnected: a lost connection is closed and replaced by a new one.

A socket of `core` would reconnect by itself and keep its queue. Clients and workers of Majordomo must know about each new connection (READY
is its first message, MDP-15; requests are sent again, BEY-04), so the queue of a lost connection is dropped with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import core
from core.rpc.connect_times import OTHER_SECURITY, with_connect_times
from core.sockets.monitor import TROUBLES
from core.sockets.results.ready import DONE
from core.zmtp.frames import Encoded
from mdp.wire.channels import takes_channels

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from core.zmtp.frames import Message
    from core.zmtp.limits import PeerLimits
    from core.zmtp.scan import Batch

# A broker that cannot be reached is logged at once, and then at this interval.
LOG_INTERVAL_S: Final = 30.0
_DONE: Final = DONE  # compiled, a constant of the module costs less than a name that it imports
NO_GREETING: Final = "it accepted the connection and has not begun to speak ZMTP"


class Connection:
    """A connection that is being opened, is up, or is closed; raises core.ZMQError for an endpoint or option."""

    def __init__(
        self,
        context: core.Context,
        endpoint: str,
        options: Mapping[str, Any],
        *,
        on_joined: Callable[[], None],
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[], None],
        on_refused: Callable[[], None] | None = None,
        spare: tuple[int, int] = (0, 0),
    ) -> None:
        self.trouble = ""  # why the last attempt to connect failed, for people; empty when unknown
        self.refused = False  # whether the broker refused our security then
        self._on_refused = on_refused  # called for each failed attempt to connect
        self._on_joined = on_joined  # called when the connection is up; it may send
        self._on_lost = on_lost  # called once when a connection that was up is lost; then call `close`
        # No high-water marks: messages in flight are limited by the client's window and the worker's credit.
        self._socket = context.socket(
            core.DEALER, **{"linger": 0, "sndhwm": 0, "rcvhwm": 0, "tell_limits": 1, **with_connect_times(options)}
        )
        # Frames and bytes that are added to each message, beyond the limits of the options.
        self._socket.set("max_parts", self._socket.max_parts + spare[0])
        self._socket.set("max_message_bytes", self._socket.max_message_bytes + spare[1])
        self._socket.on_event(self._note_trouble, TROUBLES)
        self._socket.on_event(self._note_connected, core.EVENT_CONNECTED)
        self._socket.set_batch_receiver(on_batch, on_peer=self._peer_changed)
        try:
            self._socket.connect(endpoint)
        except core.ZMQError:
            self._socket.close(0)
            raise

    @property
    def limits(self) -> PeerLimits | None:
        return self._socket.peer_limits()

    @property
    def takes_channels(self) -> bool:
        """Whether the broker announced channels in the handshake."""
        return takes_channels(self.metadata)

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Properties that the broker announced in the handshake, lower-case name to value."""
        return next((pipe.metadata for pipe in self._socket.pattern.pipes), {})

    def send(self, messages: list[Message | bytes]) -> Awaitable[None]:
        """Send messages in order, encoded ones (`bytes`) unchanged; acts at once, and the awaitable waits for capacity."""
        try:
            for message in messages:
                if type(message) is not bytes:
                    break
            else:
                self._socket.send_octets(b"", messages)  # type: ignore[arg-type]  # all of them are bytes
                return _DONE
            return self._socket.send_many([[Encoded(m)] if type(m) is bytes else m for m in messages])  # type: ignore[misc]  # see above
        except (core.ContextTerminated, core.SocketClosed):
            return _DONE  # the owner of the context has closed it

    def in_transit(self) -> int:
        return self._socket.in_transit()

    def abandon(self) -> None:
        """Do nothing: no other worker uses the connection; see `Channel`."""

    def silent(self) -> None:
        """Do nothing, as `abandon`."""

    def close(self, linger_ms: int = 0) -> None:
        """Close; messages that have not left after `linger_ms` are dropped."""
        self._socket.close(linger_ms)

    async def wait_closed(self) -> None:
        await self._socket.wait_closed()

    def _peer_changed(self, _: bytes, joined: bool) -> None:
        if joined:
            self.trouble = ""
            self._on_joined()
        else:
            self._on_lost()

    def _note_connected(self, event: core.MonitorEvent) -> None:
        self.trouble = self.trouble or NO_GREETING

    def _note_trouble(self, event: core.MonitorEvent) -> None:
        self.refused = event.refuses_security
        if event.reason:
            self.trouble = f"{OTHER_SECURITY}: {event.reason}" if self.refused else event.reason
        if self._on_refused is not None:
            self._on_refused()
