"""Capabilities, under the names of ZeroMQ's Python binding: `has`, and the version of libzmq whose behaviour is followed."""

from __future__ import annotations

import socket
from typing import Final

__all__ = ["has", "zmq_version", "zmq_version_info"]

# The release whose behaviour was observed (see `specs/`) and is followed.
FOLLOWED: Final = (4, 3, 5)


def has(capability: str) -> bool:
    """Return whether an optional capability of ZeroMQ is available.

    Args:
        capability: such as "ipc", "curve", "draft", "pgm".
    """
    return capability == "curve" or (capability == "ipc" and hasattr(socket, "AF_UNIX"))


def zmq_version_info() -> tuple[int, int, int]:
    """Return the version of libzmq whose behaviour is followed."""
    return FOLLOWED


def zmq_version() -> str:
    """Return the followed version of libzmq as text."""
    return ".".join(map(str, FOLLOWED))
