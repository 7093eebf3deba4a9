"""Authenticator of programs on tornado, which runs on asyncio: `core.auth.ioloop` in place of `zmq.auth.ioloop`."""

from __future__ import annotations

import warnings
from typing import Any

from core.auth.asyncio import AsyncioAuthenticator

__all__ = ["IOLoopAuthenticator"]


class IOLoopAuthenticator(AsyncioAuthenticator):
    """An `AsyncioAuthenticator` under its older name.

    Args:
        context: as for `AsyncioAuthenticator`.
        encoding: the same.
        log: the same.
        io_loop: ignored, with a warning.
    """

    def __init__(self, context: Any = None, encoding: str = "utf-8", log: Any = None, io_loop: Any = None) -> None:
        super().__init__(context, None, encoding, log)
        if io_loop is not None:
            warnings.warn("io_loop has no effect: the event loop of the sockets is used", DeprecationWarning, stacklevel=2)
