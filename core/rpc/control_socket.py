"""Control socket of a daemon: operators' requests over a ROUTER."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from core.constants import ROUTER
from core.errors import ZMQError
from core.sockets.context import Context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from core.security.credentials import Secured
    from core.sockets.socket import Socket

LINGER_MS: Final = 200  # time for answers to leave when the daemon closes


@asynccontextmanager
async def asking(kind: int, endpoint: str, timeout_s: float, security: Secured | None) -> AsyncIterator[Socket]:
    """Yield a socket connected to an endpoint, for a question that is answered within a time; raises TimeoutError."""
    async with Context(security=security) as context, context.socket(kind, linger=0) as socket, asyncio.timeout(timeout_s):
        socket.connect(endpoint)
        yield socket


class ControlSocket(ABC):
    """ROUTER that answers operators; subclasses set their attributes before they call `__init__`."""

    def __init__(self, context: Context, endpoint: str, **options: Any) -> None:
        self._socket = context.socket(ROUTER, linger=LINGER_MS, **options)
        try:
            self._socket.bind(endpoint)
        except ZMQError:
            self._socket.close()
            raise
        self._socket.set_receiver(self._receive)

    @property
    def endpoint(self) -> str:
        return self._socket.last_endpoint

    async def close(self) -> None:
        self._socket.close()
        await self._socket.wait_closed()

    @abstractmethod
    def _receive(self, batch: list[list[bytes]]) -> None: ...  # answer requests `[address][…]`
