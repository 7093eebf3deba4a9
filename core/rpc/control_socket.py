"""Control socket of a daemon: operators' requests over a ROUTER."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from core.constants import EVENT_HANDSHAKE_SUCCEEDED, ROUTER
from core.errors import ZMQError
from core.machine.value_copies import KeepsFields
from core.rpc.connect_times import OTHER_SECURITY
from core.sockets.context import Context
from core.sockets.monitor import TROUBLES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from core.security.credentials import Secured
    from core.sockets.monitor import MonitorEvent
    from core.sockets.socket import Socket

CONNECT_S: Final = 2.5  # of an attempt to connect, or half of the time there is: the reason is known before the time is over
LINGER_MS: Final = 200  # time for answers to leave when the daemon closes


class NoAnswer(KeepsFields, TimeoutError):
    """A question was not answered in its time, or the security of one side does not suit the other.

    Attributes:
        endpoint: that was asked.
        timeout_s: seconds to wait.
        trouble: why the last attempt to connect failed; empty when it was connected and silent.
        refused: whether the security of one side does not suit the other, which waiting does not change.
    """

    def __init__(self, endpoint: str, timeout_s: float, trouble: str, *, refused: bool) -> None:
        silent = f"nothing heard from {endpoint} within {timeout_s:g} s" + (f": {trouble}" if trouble else "")
        super().__init__(f"{endpoint} {OTHER_SECURITY}: {trouble}" if refused else silent)
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.trouble = trouble
        self.refused = refused


@asynccontextmanager
async def asking(kind: int, endpoint: str, timeout_s: float, security: Secured | None) -> AsyncIterator[Socket]:
    """Yield a socket connected to an endpoint, for a question that is answered within a time; raises NoAnswer."""
    trouble, refused = "", False

    def note(event: MonitorEvent) -> None:
        nonlocal trouble, refused
        trouble, refused = event.reason or trouble, event.refuses_security
        if refused and not limit.expired():
            limit.reschedule(0.0)  # no later attempt is better

    def connected(_: MonitorEvent) -> None:
        nonlocal trouble
        trouble = ""

    try:
        async with Context(security=security) as context, context.socket(kind, linger=0) as socket:
            async with asyncio.timeout(timeout_s) as limit:
                socket.connect_timeout = round(1000 * min(CONNECT_S, timeout_s / 2))
                socket.on_event(note, TROUBLES)
                socket.on_event(connected, EVENT_HANDSHAKE_SUCCEEDED)
                try:
                    socket.connect(endpoint)
                    yield socket
                finally:
                    socket.monitors.remove(note)
    except TimeoutError:
        raise NoAnswer(endpoint, timeout_s, trouble, refused=refused) from None


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
