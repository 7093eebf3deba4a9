"""The ways in which a caller gets the end of its request: a future, or a callback."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mdp.client.calls import SETTLED, PendingRequest
from mdp.client.pending import ClientClosed

if TYPE_CHECKING:
    from mdp.client.engine import ClientEngine

__all__ = ["PendingCallback", "PendingFuture", "Reply"]


class Reply(asyncio.Future[list[bytes]]):
    """The future of one reply; cancelling it withdraws the request."""

    # No `__init__`: the future's own, which is not written in Python, is all that runs for every request.
    __slots__ = ("engine", "request")

    engine: ClientEngine
    request: PendingFuture

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel; a request in flight is cancelled at the broker and worker too (MDP/0.3)."""
        if not super().cancel(msg):
            return False
        self.engine.withdraw(self.request)
        return True


class PendingFuture(PendingRequest):
    """A request with a future: `caller`."""

    __slots__ = ()

    def notify(self) -> None:
        """Settle the future."""
        future = self.caller
        if future is None or self.stage != SETTLED:
            return
        self.caller = None  # request and future refer to each other: leave no cycle to the garbage collector
        if future.done():
            return
        if self.error is None:
            future.set_result(self.reply)
            return
        future.set_exception(self.error)
        if type(self.error) is ClientClosed:
            future.exception()  # closing a client must not log every request that was open


class PendingCallback(PendingRequest):
    """A request with a callback: `caller(context, reply, error)`."""

    __slots__ = ("context",)

    context: Any

    def notify(self) -> None:
        """Call the function."""
        done = self.caller
        if done is not None and self.stage == SETTLED:
            self.caller = None
            done(self.context, self.reply, self.error)
