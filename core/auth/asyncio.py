"""Authenticator of programs on asyncio: `core.auth.asyncio` in place of `zmq.auth.asyncio`."""

from __future__ import annotations

from typing import Any

from core.auth.base import Authenticator
from core.sockets.context import Context

__all__ = ["AsyncioAuthenticator"]


class AsyncioAuthenticator(Authenticator):
    """Decides on peers of a `core.Context`; see `core.auth.Authenticator`.

    Args:
        context: whose sockets ask; `core.Context.instance()` when left out.
        loop: accepted and ignored.
        encoding: as for `core.auth.Authenticator`.
        log: the same.
    """

    def __init__(self, context: Any = None, loop: Any = None, encoding: str = "utf-8", log: Any = None) -> None:
        super().__init__(context, encoding, log)

    def _shared_context(self) -> Context:
        return Context.instance()
