"""The ways in which a caller gets the end of its request: a future, or a callback."""

from __future__ import annotations

from typing import Any

from core.machine.requests import SETTLED
from core.rpc.client_engine import Reply, settle_future
from mdp.client.calls import PendingRequest
from mdp.client.pending import ClientClosed

__all__ = ["PendingCallback", "PendingFuture", "Reply"]


class PendingFuture(PendingRequest):
    """A request with a future: `caller`."""

    __slots__ = ()

    def notify(self) -> None:
        """Settle the future."""
        settle_future(self, ClientClosed)


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
