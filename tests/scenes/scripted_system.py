"""The system, with a resolver, sockets and a clock of the test."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from core.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Iterable


class System(runtime.Runtime):
    """The system, with a resolver, sockets and a clock of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int, socket.AddressFamily]] = []
        self.found: list[tuple[Any, ...]] = []
        self.made: list[socket.socket] = []
        self.now = 50.0
        self.monotonic = lambda: self.now

    def addresses(self, host: str, port: int, family: socket.AddressFamily) -> Iterable[tuple[Any, ...]]:
        self.asked.append((host, port, family))
        if not self.found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return self.found

    def stream_socket(self, family: socket.AddressFamily) -> socket.socket:
        self.made.append(super().stream_socket(family))
        return self.made[-1]
