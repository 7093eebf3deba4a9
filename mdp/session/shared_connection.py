"""One connection to a broker for several workers of a process: each has a channel of it (`mdp.wire.channels`).

To a worker its channel is what a `Connection` is to others. A broker that does not announce channels gets a connection for each worker, as
always. Like a `Connection`, a shared one is never reconnected: when it ends, it ends for all workers, which search for a broker again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from itertools import count, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from core.daemon.logs import RateLimitedLog
from core.zmtp.frames import encode_prefix
from core.zmtp.scan import Batch
from mdp.session.connection import LOG_INTERVAL_S, Connection
from mdp.wire.channels import CHANNELS_MAX, FRAME_BYTES, channel_frame, within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import core
    from core.zmtp.frames import Message
    from core.zmtp.limits import PeerLimits

_SPARE: Final = (1, FRAME_BYTES)  # frames and bytes that a channel adds to each message


class ConnectionCalls(TypedDict):
    """Callbacks of a connection."""

    on_joined: Callable[[], None]
    on_batch: Callable[[Batch], None]
    on_lost: Callable[[], None]
    on_refused: Callable[[], None]


class ChannelCalls(ConnectionCalls):
    """Callbacks of a channel."""

    on_stray: Callable[[int], None]


class SharedConnections:
    """The connections that the workers of a process share, one to each broker or shard."""

    def __init__(self) -> None:
        self.stray = 0  # messages that came for workers that had left; dropped, and told to one of the others
        # the log of what happens to all of these workers alike
        self.lines = RateLimitedLog(logging.getLogger("mdp.worker"), LOG_INTERVAL_S)
        self._trunks: list[_Trunk] = []

    def open(self, context: core.Context, endpoint: str, options: Mapping[str, Any], **calls: Unpack[ChannelCalls]) -> Channel:
        """Return a channel of a connection, opened if needed. Raises core.ZMQError."""
        trunk = next((trunk for trunk in self._trunks if trunk.serves(context, endpoint, options)), None)
        if trunk is None:
            trunk = _Trunk(self, context, endpoint, options)
            self._trunks.append(trunk)
        channel = Channel(trunk, **calls)
        trunk.add(channel)
        return channel

    def separate(self, channel: Channel, context: core.Context, endpoint: str, options: Mapping[str, Any]) -> None:
        """Give a worker a connection of its own: the broker does not take channels."""
        trunk = _Trunk(self, context, endpoint, options)
        self._trunks.append(trunk)
        trunk.keep_for(channel)

    def forget(self, trunk: _Trunk) -> None:
        self._trunks.remove(trunk)


@dataclass(slots=True, eq=False)
class Channel:
    """The share of one worker in a connection, or a connection of its own."""

    trunk: _Trunk  # the connection
    on_joined: Callable[[], None]
    on_batch: Callable[[Batch], None]
    on_lost: Callable[[], None]
    on_refused: Callable[[], None]
    on_stray: Callable[[int], None]  # called with the number of messages that came on the connection for workers that had left
    heard_at: float = 0.0  # time of the event loop at which the last message came, or the worker joined
    frame: bytes = b""  # first frame of its messages, b"" on a connection of its own
    prefix: bytes = b""  # the same, encoded
    closed: bool = False

    @property
    def trouble(self) -> str:
        """Why the last attempt to connect failed, for people; empty when unknown."""
        return self.trunk.connection.trouble

    @property
    def refused(self) -> bool:
        return self.trunk.connection.refused

    @property
    def limits(self) -> PeerLimits | None:
        """Limits of the broker for a message of this worker, None if it has not announced any."""
        limits = self.trunk.connection.limits
        return limits if limits is None or not self.frame else within(limits)

    @property
    def takes_channels(self) -> bool:
        return self.trunk.connection.takes_channels

    def in_transit(self) -> int:
        return self.trunk.connection.in_transit()

    def send(self, messages: list[Message | bytes]) -> Awaitable[None]:
        """Send messages; see `Connection.send`."""
        if self.frame:
            prefix, frame = self.prefix, self.frame
            messages = [prefix + message if isinstance(message, bytes) else [frame, *message] for message in messages]
        return self.trunk.connection.send(messages)

    def close(self, linger_ms: int = 0) -> None:
        """Leave the connection, which is closed with its last worker."""
        if not self.closed:
            self.closed = True
            self.trunk.leave(self, linger_ms)

    def abandon(self) -> None:
        """Report the connection as lost to all other workers: a killed process is imitated."""
        self.trunk.end(self)

    def silent(self) -> None:
        """Report the connection as lost to all other workers, unless the broker was silent to this one alone."""
        if not self.trunk.lives_without(self):
            self.trunk.end(self)

    async def wait_closed(self) -> None:
        """Wait for the end of the connection, if no other worker uses it."""
        await self.trunk.wait_closed()


class _Trunk:
    """A connection and the channels on it. Whether the broker takes channels is known when its handshake is over."""

    def __init__(self, owner: SharedConnections, context: core.Context, endpoint: str, options: Mapping[str, Any]) -> None:
        self._owner = owner
        self._context, self._endpoint, self._options = context, endpoint, options
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._channels: dict[bytes, Channel] = {}
        self._open: bool  # further workers may join
        self._alone = False  # it has no channels, but one worker
        self._up = self._lost = self._closed = False
        self._linger_ms = 0
        self.connection = Connection(
            context,
            endpoint,
            options,
            on_joined=self._joined,
            on_batch=self._received,
            on_lost=self.end,
            on_refused=self._refused,
            spare=_SPARE,
        )

    def serves(self, context: core.Context, endpoint: str, options: Mapping[str, Any]) -> bool:
        return self._open and context is self._context and endpoint == self._endpoint and options == self._options

    def add(self, channel: Channel) -> None:
        """Add a worker; it has joined in the next loop iteration at the earliest."""
        number = next(self._numbers)
        self._open = number < CHANNELS_MAX
        channel.frame = channel_frame(number)
        channel.prefix = encode_prefix([channel.frame])
        self._channels[channel.frame] = channel
        if self._up:
            self._loop.call_soon(self._join, channel)

    def leave(self, channel: Channel, linger_ms: int) -> None:
        """Remove a worker; close the connection after the last one."""
        self._linger_ms = max(self._linger_ms, linger_ms)
        self._channels = {frame: other for frame, other in self._channels.items() if other is not channel}
        if not self._channels and not self._closed:
            self._closed = True
            self._owner.forget(self)
            self.connection.close(self._linger_ms)

    def end(self, without: Channel | None = None) -> None:
        """Report the connection as lost to its workers, which close it."""
        if self._lost:
            return
        self._lost, self._open, self._up = True, False, False
        for channel in [*self._channels.values()]:
            if channel is not without:
                channel.on_lost()

    def lives_without(self, silent: Channel) -> bool:
        """Return whether the broker has spoken to another worker in the second half of its silence to one.

        If the broker has ended, it spoke to all at most a heartbeat later.
        """
        half = (silent.heard_at + self._loop.time()) / 2
        return any(channel.heard_at > half for channel in self._channels.values() if channel is not silent)

    async def wait_closed(self) -> None:
        if self._closed:
            await self.connection.wait_closed()

    def _join(self, channel: Channel) -> None:
        if self._up and not channel.closed:
            channel.heard_at = self._loop.time()
            channel.on_joined()

    def _joined(self) -> None:
        if self._lost or self._closed:
            return  # the socket has connected again by itself before it was closed, or its last worker has left
        self._up = True
        channels = [*self._channels.values()]
        if not self._alone and not self.connection.takes_channels:
            first, *others = channels
            channels = [first]
            self.keep_for(first)
            for channel in others:
                self._owner.separate(channel, self._context, self._endpoint, self._options)
        for channel in channels:
            channel.heard_at = self._loop.time()
            channel.on_joined()

    def keep_for(self, channel: Channel) -> None:
        """Use the connection for one worker, without channels."""
        self._open, self._alone = False, True
        self._channels = {b"": channel}
        channel.trunk = self
        channel.frame = channel.prefix = b""

    def _received(self, batch: Batch) -> None:
        if self._alone:
            for channel in self._channels.values():
                channel.on_batch(batch)
            return
        now = self._loop.time()
        for frame, run in groupby(batch.messages(), key=itemgetter(0)):
            # A bare channel frame has no message. Sockets give no empty one, so machines get an empty frame, which they count.
            messages = [message[1:] or [b""] for message in run]
            found = self._channels.get(frame)
            if found is None:
                self._owner.stray += len(messages)
                for channel in islice(self._channels.values(), 1):
                    channel.on_stray(len(messages))
            else:
                found.heard_at = now
                found.on_batch(Batch.of([], messages))

    def _refused(self) -> None:
        for channel in [*self._channels.values()]:
            channel.on_refused()
