"""Channels: several workers of MDP/0.3 on one connection.

    "MDPW03".0d.channel4 · message of a worker of MDP/0.3          both ways

Each channel is a worker of its own: with READY, credit, heartbeats and DISCONNECT. The end of the connection is the end of all of them. A
broker that takes channels announces `X-MDP-Channels` in the handshake of the connection. It knows the worker of a channel by a routing id
that no connection can have: `00`, the number of the channel, and the routing id of the connection.

Pure. A broker divides what it receives at its edge, so everything behind sees one peer for each channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.zmtp.frames import MORE_HEADERS
from core.zmtp.limits import PeerLimits
from core.zmtp.scan import Batch
from mdp.wire.commands import MDPW03

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a broker sets as METADATA of its socket.
ANNOUNCED: Final = b"X-MDP-Channels:1"
_PROPERTY: Final = b"x-mdp-channels"
_COMMAND: Final = MDPW03 + b"\x0d"
_NUMBER_BYTES: Final = 4
# A connection is closed before its numbers are used up.
CHANNELS_MAX: Final = 2 ** (8 * _NUMBER_BYTES) - 1
# Size of the frame that is added to each message.
FRAME_BYTES: Final = len(_COMMAND) + _NUMBER_BYTES
# First bytes of a message on a channel.
CHANNEL_HEAD: Final = MORE_HEADERS[FRAME_BYTES] + _COMMAND
_HEAD_BYTES: Final = len(CHANNEL_HEAD)
_PREFIX_BYTES: Final = _HEAD_BYTES + _NUMBER_BYTES
_INNER_AT: Final = _PREFIX_BYTES + 2  # after the header of the next frame
_MARK: Final = b"\0"
_ID_BYTES: Final = len(_MARK) + _NUMBER_BYTES  # before the routing id of the connection; an id of this length was made by the ROUTER


def takes_channels(metadata: Mapping[bytes, bytes]) -> bool:
    """Return whether the properties of a peer's handshake announce channels."""
    return metadata.get(_PROPERTY) == b"1"


def channel_frame(number: int) -> bytes:
    return _COMMAND + number.to_bytes(_NUMBER_BYTES, "big")


def is_channel(peer: bytes) -> bool:
    """Return whether a routing id is that of a channel; peers cannot choose such ids, and generated ones are shorter."""
    return len(peer) > _ID_BYTES and peer[0] == 0


def connection_of(peer: bytes) -> bytes:
    """Return the routing id of the connection of a peer: its own, if it is no channel."""
    return peer[_ID_BYTES:] if is_channel(peer) else peer


def prefix_of(peer: bytes) -> bytes:
    """Return the bytes in front of each message to a channel."""
    return CHANNEL_HEAD + peer[len(_MARK) : _ID_BYTES]


def within(limits: PeerLimits) -> PeerLimits:
    return PeerLimits(max(1, limits.parts - 1), max(1, limits.message_bytes - FRAME_BYTES), limits.frame_bytes)


def divide(batch: Batch) -> list[Batch]:
    """Return the messages of a connection, encoded, as batches of its channels, in order.

    A message of the connection itself, or one on a channel that is not a worker's, stays as it came.
    """
    octets, connection = batch.octets, batch.head[0]
    parts: list[Batch] = []
    last = b""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in zip(batch.starts, batch.ends):
        peer = connection
        if octets.startswith(CHANNEL_HEAD, start) and octets.startswith(MDPW03, start + _INNER_AT):
            peer = _MARK + octets[start + _HEAD_BYTES : start + _PREFIX_BYTES] + connection
            start += _PREFIX_BYTES
        if peer != last:
            starts, ends = [], []
            parts.append(Batch([peer], octets, starts, ends))
            last = peer
        starts.append(start)
        ends.append(end)
    return parts
