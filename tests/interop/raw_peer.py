"""One side of a ZMTP connection on a blocking TCP socket; uses only a mechanism of the project.

It exists so that the mechanisms meet libzmq octet by octet, without sessions, queues or an event loop in between.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from core.zmtp.mechanism import Mechanism
    from core.zmtp.zap import ZapReply

TIMEOUT_S = 100.0  # a peer that says nothing fails the test in place of hanging it
MORE, LONG, COMMAND = 1, 2, 4


class PeerClosed(Exception):
    """The other side closed the connection."""


class RawPeer:
    """Our mechanism against the program at the other end of `connection`."""

    minor = 1  # of the version in our greeting

    def __init__(self, connection: socket.socket, mechanism: Mechanism, timeout_s: float = TIMEOUT_S) -> None:
        self.mechanism = mechanism
        self._socket = connection
        self._socket.settimeout(timeout_s)

    @classmethod
    def connect(cls, endpoint: str, mechanism: Mechanism, timeout_s: float = TIMEOUT_S) -> Self:
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        return cls(socket.create_connection((host, int(port)), TIMEOUT_S), mechanism, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def greet(self) -> None:
        """Exchange greetings, then send what the mechanism starts with."""
        name = self.mechanism.name.ljust(20, b"\0")
        self.send_octets(b"\xff" + bytes(8) + b"\x7f\x03" + bytes((self.minor,)) + name + bytes((self.mechanism.as_server,)) + bytes(31))
        greeting = self.read_octets(64)
        assert greeting[12:32] == name
        self.send_commands(self.mechanism.start())

    def step(self) -> None:
        """Take one handshake command of the other side and answer it."""
        _, body = self.read_frame()
        self.send_commands(self.mechanism.receive(body))

    def judge(self, reply: ZapReply) -> None:
        """Answer the mechanism's question about the other side."""
        try:
            self.send_commands(self.mechanism.authenticated(reply))
        finally:
            self.send_commands(self.mechanism.last_words)

    def handshake(self) -> None:
        """Go through a handshake in which nobody is asked."""
        self.greet()
        while not self.mechanism.complete:
            self.step()

    def send_commands(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.send_frame(COMMAND, body)

    def send_frame(self, flags: int, body: bytes) -> None:
        size = len(body).to_bytes(8, "big") if len(body) > 255 else bytes((len(body),))
        self.send_octets(bytes((flags | (LONG if len(body) > 255 else 0),)) + size + body)

    def read_frame(self) -> tuple[int, bytes]:
        """Return (flags without LONG, body)."""
        (flags,) = self.read_octets(1)
        size = int.from_bytes(self.read_octets(8 if flags & LONG else 1), "big")
        return flags & ~LONG, self.read_octets(size)

    def send(self, frames: list[bytes]) -> None:
        """Send a message as the mechanism has it: sealed or clear."""
        for number, frame in enumerate(frames, 1):
            more = MORE if number < len(frames) else 0
            if self.mechanism.encrypts:
                self.send_frame(0, self.mechanism.seal(more, frame))
            else:
                self.send_frame(more, frame)

    def recv(self) -> list[bytes]:
        """Return the frames of the next message."""
        frames: list[bytes] = []
        while True:
            flags, body = self.read_frame()
            if self.mechanism.encrypts:
                assert flags == 0  # CURVE-10
                flags, body = self.mechanism.open(body)
            frames.append(body)
            if not flags & MORE:
                return frames

    def send_octets(self, octets: bytes) -> None:
        """Send exactly these."""
        self._socket.sendall(octets)

    def read_octets(self, size: int) -> bytes:
        """Return exactly so many."""
        data = b""
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise PeerClosed
            data += chunk
        return data
