"""The shard to which a message from a peer of the front belongs. Pure.

Only the frames before the body are looked at, except for MMI, whose body names the service that is asked about.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from core.zmtp.frames import frame_at
from core.zmtp.scan import frames_between
from mdp.broker.mmi import ON_DEAD_LETTERS, PREFIX, REPORTS
from mdp.wire.commands import (
    CLIENT_CANCEL_03,
    CLIENT_HEARTBEAT_03,
    CLIENT_REQUEST_03,
    EMPTY,
    HEAD_BYTES,
    MDPC01,
    MDPC02,
    MDPW01,
    MDPW02,
    NUMBERED_BYTES,
    V01,
    V02,
    V03,
    WORKER_READY_03,
)
from mdp.wire.shards import shard_of

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect


class Kind(Enum):
    """Use of a message by the front."""

    SHARD = auto()  # forward to one shard
    WORKER = auto()  # forward to one shard, as everything else from this peer from now on: it is a worker of the shard's service
    EVERYWHERE = auto()  # forward to every shard that this peer has sent something to
    HELLO = auto()  # answer: the question for the dialect
    MERGE = auto()  # forward to all shards, and answer with all their answers in one
    FIND = auto()  # forward to all shards, and answer with that of the shard that knows what is asked about


class Route(NamedTuple):
    """Where a message goes."""

    kind: Kind
    shard: int = 0
    dialect: Dialect = V03
    service: bytes = b""
    request: bytes = b""  # number of a request of MDP/0.3, or of the request that a CANCEL ends
    body: tuple[bytes, ...] = ()  # of a request for MMI


_HELLO: Final = b"mmi.protocol"
_FRAMES: Final = 4  # of a READY in MDP/0.1, the most that is needed
_COMMAND_REQUEST: Final = b"\x01"
_COMMAND_READY: Final = b"\x01"


def route_of(octets: bytes, start: int, end: int, count: int) -> Route:
    """Return the route of an encoded message at a broker of `count` shards; an invalid one goes to shard 0."""
    frames = _first_frames(octets, start, end)
    head, rest = frames[0], frames[1:]
    if head[:HEAD_BYTES] == CLIENT_REQUEST_03 and len(head) == NUMBERED_BYTES and rest:
        return _request(V03, rest[0], head[HEAD_BYTES:], octets, start, end, count)
    if head[:HEAD_BYTES] == CLIENT_CANCEL_03:
        return Route(Kind.EVERYWHERE, request=head[HEAD_BYTES:])
    if head[:HEAD_BYTES] == CLIENT_HEARTBEAT_03:
        return Route(Kind.EVERYWHERE)
    if head == WORKER_READY_03 and rest:
        return Route(Kind.WORKER, shard_of(rest[0], count), V03, rest[0])
    if head == MDPC02 and rest[:1] == [_COMMAND_REQUEST] and len(rest) > 1:
        return _request(V02, rest[1], b"", octets, start, end, count)
    if head == MDPW02 and rest[:1] == [_COMMAND_READY] and len(rest) > 1:
        return Route(Kind.WORKER, shard_of(rest[1], count), V02, rest[1])
    if head == EMPTY and rest[:1] == [MDPC01] and len(rest) > 1:
        return _request(V01, rest[1], b"", octets, start, end, count)
    if head == EMPTY and rest[:2] == [MDPW01, _COMMAND_READY] and len(rest) > 2:
        return Route(Kind.WORKER, shard_of(rest[2], count), V01, rest[2])
    return Route(Kind.SHARD)


def _request(dialect: Dialect, service: bytes, request: bytes, octets: bytes, start: int, end: int, count: int) -> Route:
    if not service.startswith(PREFIX):
        return Route(Kind.SHARD, shard_of(service, count), dialect, service, request)
    # MDP/0.1 has two frames before the service, 0.2 too, 0.3 one before it and the options after it.
    body = tuple(frames_between(octets, start, end)[3:])
    about = body[-1] if body else b""
    kind, shard = Kind.SHARD, shard_of(about, count)
    if service == _HELLO:
        kind = Kind.HELLO
    elif service in ON_DEAD_LETTERS:
        kind = Kind.FIND
    elif service in REPORTS and body == (b"",):
        kind = Kind.MERGE
    return Route(kind, shard, dialect, service, request, body)


def _first_frames(octets: bytes, start: int, end: int) -> list[bytes]:
    frames: list[bytes] = []
    while start < end and len(frames) < _FRAMES:
        _, at, start = frame_at(octets, start)
        frames.append(octets[at:start])
    return frames
