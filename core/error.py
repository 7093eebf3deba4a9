"""Errors under their names in ZeroMQ's Python binding: `import core.error` in place of `import zmq.error`."""

from __future__ import annotations

from core.errors import (
    Again,
    ContextTerminated,
    InterruptedSystemCall,
    NotDone,
    ZMQBaseError,
    ZMQBindError,
    ZMQError,
    ZMQVersionError,
    strerror,
)

__all__ = ["Again", "ContextTerminated", "InterruptedSystemCall", "NotDone"]
__all__ += ["ZMQBaseError", "ZMQBindError", "ZMQError", "ZMQVersionError", "strerror"]
