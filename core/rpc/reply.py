"""The future of one request. Not compiled: its base is a future of Python's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from core.machine.requests import PendingRequest


class Withdrawing(Protocol):
    """The client of a request, as its future sees it."""

    def withdraw(self, pending: PendingRequest) -> None: ...  # cancel a request, unless it is settled


class Reply(asyncio.Future[list[bytes]]):
    """The future of one reply; cancelling it withdraws the request."""

    # No `__init__`: the future's own, which is not written in Python, is all that runs for every request.
    __slots__ = ("engine", "request")

    engine: Withdrawing
    request: PendingRequest

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel; a request in flight is cancelled at the other side too, if its protocol can do that."""
        if not super().cancel(msg):
            return False
        self.engine.withdraw(self.request)
        return True
