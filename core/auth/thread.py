"""Authenticator of blocking programs: `core.auth.thread` in place of `zmq.auth.thread`."""

from __future__ import annotations

from core.auth.base import Authenticator
from core.blocking.context import Context

__all__ = ["ThreadAuthenticator"]


class ThreadAuthenticator(Authenticator):
    """Decides on peers of a `core.blocking.Context`, whose event loop has a thread already; see `core.auth.Authenticator`."""

    def _shared_context(self) -> Context:
        return Context.instance()

    def is_alive(self) -> bool:
        """Return whether it decides now."""
        return self.context.authenticator is self
