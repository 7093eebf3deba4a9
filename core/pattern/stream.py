"""STREAM: raw TCP connections, each with a routing id (libzmq's `ZMQ_STREAM`). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from core.errors import HostUnreachable
from core.pattern.base import Pattern
from core.pattern.distributor import has_capacity
from core.pattern.reqrep import Router
from core.zmtp.connection import Connection, State
from core.zmtp.frames import encode_frame, frame_at
from core.zmtp.scan import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.pattern.pipe import Pipe
    from core.zmtp.frames import Given
    from core.zmtp.limits import ConnectionLimits
    from core.zmtp.mechanism import Mechanism


class Stream(Router):
    """Messages are `[routing id][bytes]`; an empty one is the beginning or end of a connection, and closes it when sent."""

    type_name: ClassVar[bytes] = b"STREAM"
    announces_identity: ClassVar[bool] = False
    takes_inproc: ClassVar[bool] = False

    def send(self, frames: Given) -> bool:
        """Send bytes to a peer, or close its connection with an empty frame; raises HostUnreachable, returns False without capacity."""
        pipe = self._connected(frames[0])
        if len(frames) == 2 and not len(frames[1]):
            self._unroute(pipe)
            pipe.engine.finish()
            return True
        if not has_capacity(pipe):
            pipe.waiting_for_capacity = True
            return False
        pipe.write(frames, 1)
        return True

    def _connected(self, routing_id: Any) -> Pipe:
        pipe = self._pipe_of(routing_id)
        if pipe is None or not pipe.connected:
            raise HostUnreachable(routing_id=bytes(routing_id))
        return pipe

    def has_capacity_for(self, first: Any) -> bool:
        """Return whether the peer has capacity; raises HostUnreachable."""
        return has_capacity(self._connected(first))

    def send_many(self, messages: Sequence[Given]) -> int:
        return Pattern.send_many(self, messages)


class RawConnection(Connection):
    """A connection without ZMTP, whose every read is a message; arguments as for `Connection`.

    It has the interface of `Connection`, so that a session need not know: it is in traffic from the start, and what it sends is translated
    to the bodies of the frames.
    """

    def __init__(self, socket_type: bytes, mechanism: Mechanism, limits: ConnectionLimits, on_ready: Callable[[], None]) -> None:
        super().__init__(socket_type, mechanism, limits, on_ready)
        self._begins = on_ready

    def greet(self) -> bytes:
        """Return nothing: raw TCP has no greeting."""
        return b""

    def begin(self) -> Batch:
        """Begin the traffic; return the message that tells of the connection."""
        self.state = State.TRAFFIC
        self._begins()
        return self.notice()

    def notice(self) -> Batch:
        """Return the empty message that tells of the connection's beginning and end."""
        return self._batch(b"")

    def receive(self, data: bytes) -> Batch:
        return self._batch(data)

    @property
    def translates(self) -> bool:
        """Whether bytes to be sent go through `translate`: always."""
        return True

    def translate(self, octets: bytes) -> bytes:
        bodies, at, end = [], 0, len(octets)
        while at < end:
            _, start, at = frame_at(octets, at)
            bodies.append(octets[start:at])
        return b"".join(bodies)

    def _batch(self, body: bytes) -> Batch:
        octets = encode_frame(body)
        return Batch(self.decoder.head, octets, [0], [len(octets)])
