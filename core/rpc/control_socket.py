"""Control socket of a daemon: operators' requests over a ROUTER."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from core.constants import ROUTER
from core.errors import ZMQError

if TYPE_CHECKING:
    from core.sockets.context import Context

__all__ = ["ControlSocket"]

LINGER_MS: Final = 200  # time for answers to leave when the daemon closes


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
