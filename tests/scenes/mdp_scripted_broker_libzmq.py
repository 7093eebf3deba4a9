"""The scripted broker of `stand_in` on libzmq: what our client and worker say must be what another implementation reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import zmq
import zmq.asyncio

from tests.scenes.mdp_scripted_broker import PROBE
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["LibzmqStandIn"]


class LibzmqStandIn:
    """See `StandIn`."""

    def __init__(self, *, protocol: bytes | None = b"200") -> None:
        self.protocol = protocol
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close(0)
        self._context.term()

    async def next(self) -> tuple[bytes, list[bytes]]:
        """Return the next message and who sent it."""
        while True:
            async with asyncio.timeout(PATIENCE_S):
                peer, *frames = await self._socket.recv_multipart()
            if frames != PROBE:
                return peer, frames
            if self.protocol is not None:
                self.send(peer, *PROBE[:3], self.protocol)

    def send(self, peer: bytes, *frames: bytes) -> None:
        """Send a message to a peer."""
        self._socket.send_multipart([peer, *frames])
