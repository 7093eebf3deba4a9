"""A connection without a network, whose reads a test makes.

It sees what is written. The time is that of the running loop.
"""

from __future__ import annotations

import asyncio
import socket as system
from typing import TYPE_CHECKING, Any, Self, cast

from core.net.session import Session
from core.options import Options
from tests.scenes.raw_octets import GREETING_NULL, ready

if TYPE_CHECKING:
    import core

__all__ = ["Driven", "HeldTransport"]


class HeldTransport(asyncio.Transport):
    """Keeps what is written, and how it ended; a pair of sockets stands for the system.

    Attributes:
        said: octets written since they were last taken.
        reading: whether the transport would read.
        end: "", "eof", "closed" or "aborted".
        waiting: octets that the system has not taken yet.
    """

    def __init__(self, held: system.socket | None, addresses: tuple[Any, Any] = (("127.0.0.1", 5), ("127.0.0.9", 7))) -> None:
        super().__init__({"socket": held, "sockname": addresses[0], "peername": addresses[1]})
        self.said = b""
        self.reading = True
        self.end = ""
        self.waiting = 0
        self._protocol: asyncio.BaseProtocol

    def write(self, data: Any) -> None:
        self.said += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.end = "eof"

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def is_closing(self) -> bool:
        return self.end in {"closed", "aborted"}

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol


class Driven:
    """A session of a socket, and its peer.

    Attributes:
        peer: the other end of what the system holds: what is sent there is not read by the session.
        closed: how often the session said that it has ended.
    """

    def __init__(self, owner: core.Socket, **options: Any) -> None:
        self.closed = 0
        self.owner = owner
        self.options = Options(**options)
        ours, self.peer = system.socketpair()
        self.held = ours
        ours.setblocking(False)
        self.transport = HeldTransport(ours)
        self.session = Session(cast("Any", owner), None, "tcp://127.0.0.1:5", self._ended, self.options)
        self.transport.set_protocol(cast("Any", self.session))

    def _ended(self, session: Session) -> None:
        assert session is self.session
        self.closed += 1
        self.owner._endpoints.sessions.pop(session, None)  # as its listener would

    def __enter__(self) -> Self:
        self.session.connection_made(self.transport)
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close(0)
        self.session.connection_lost(None)
        self.held.close()
        self.peer.close()

    def says(self, octets: bytes) -> bytes:
        """Have the session, or what reads for it, read octets; return what was written since the last call."""
        protocol = self.transport.get_protocol()
        while octets and isinstance(protocol, asyncio.BufferedProtocol):
            place = memoryview(protocol.get_buffer(len(octets)))
            count = min(len(place), len(octets))
            place[:count] = octets[:count]
            protocol.buffer_updated(count)
            octets = octets[count:]
            protocol = self.transport.get_protocol()
        if octets:
            self.session.data_received(octets)
        return self.said()

    def said(self) -> bytes:
        """Return what was written since the last call."""
        said, self.transport.said = self.transport.said, b""
        return said

    def shake(self, kind: bytes, greeting: bytes = GREETING_NULL) -> None:
        """Greet and exchange READY."""
        self.says(greeting + ready(kind))
        assert self.session.ready
