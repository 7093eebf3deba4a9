"""A connection from the front to a shard, on behalf of one peer of the front."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import core
from core.zmtp.limits import PeerLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.zmtp.scan import Batch


class ShardConnection:
    """A DEALER whose messages are forwarded as bytes.

    Args:
        unsent_max_bytes: what may wait for a shard that does not read or is being started.
        on_lost: called once when the connection was up and is lost; the connection is closed then.
        limits: those that the peer has announced, None if it has not; they are announced to the shard.

    Messages that are sent before the connection is up are sent then.
    """

    def __init__(
        self,
        context: core.Context,
        endpoint: str,
        name: bytes,
        unsent_max_bytes: int,
        *,
        on_messages: Callable[[list[bytes]], None],
        on_lost: Callable[[], None],
        limits: PeerLimits | None = None,
    ) -> None:
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._is_up = False
        self._socket = context.socket(core.DEALER, sndhwm=0, sndhwm_bytes=unsent_max_bytes, routing_id=name, **_announced(limits))
        self._socket.set_batch_receiver(self._received, on_peer=self._peer_changed)
        self._socket.connect(endpoint)

    def send(self, messages: Sequence[bytes]) -> bool:
        """Send encoded messages; False if there is no capacity, and nothing was sent."""
        if self._socket.closed or not self._socket.writable():
            return False
        self._socket.send_octets(b"", messages)
        return True

    def unread(self) -> int:
        """Return how many bytes wait for the shard."""
        return sum(pipe.waiting_bytes() for pipe in self._socket.pattern.pipes)

    def hold(self) -> None:
        for pipe in self._socket.pattern.pipes:
            pipe.engine.throttle()

    def release(self) -> None:
        for pipe in self._socket.pattern.pipes:
            if pipe.throttled:
                pipe.engine.resume()

    def close(self, linger_ms: int = 0) -> None:
        """Close in the next loop iteration; messages that have not left after `linger_ms` are dropped.

        Those for a shard that is being started are dropped at once: it would serve a peer that has gone.
        """
        self._on_lost = _nothing
        self._on_messages = _nothing_received
        # A socket must not be closed from its own callback.
        asyncio.get_running_loop().call_soon(self._close, linger_ms if self._is_up else 0)

    def _close(self, linger_ms: int) -> None:
        if not self._socket.closed:
            self._socket.close(linger_ms)

    def _received(self, batch: Batch) -> None:
        self._on_messages(pieces_of(batch))

    def _peer_changed(self, _: bytes, joined: bool) -> None:
        self._is_up = joined
        if not joined:
            lost = self._on_lost
            self.close()
            lost()


def _announced(limits: PeerLimits | None) -> dict[str, int]:
    """Return the options of a socket that announces the limits of a peer, up to the usual ones."""
    if limits is None:
        return {}
    told = limits.lowest(PeerLimits())
    frame = {} if told.frame_bytes >= told.message_bytes else {"maxmsgsize": max(1, told.frame_bytes)}
    return {"tell_limits": 1, "max_parts": max(1, told.parts), "max_message_bytes": max(1, told.message_bytes), **frame}


def pieces_of(batch: Batch) -> list[bytes]:
    batch = batch.encode()
    octets = batch.octets
    return [octets[start:end] for start, end in zip(batch.starts, batch.ends, strict=True)]


def _nothing() -> None: ...


def _nothing_received(_: list[bytes]) -> None: ...
