"""Ports of the loopback interface that a test keeps for itself."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def kept_port() -> Iterator[int]:
    """Keep a port on which nothing listens, until servers of the test bind it.

    Connections to it are refused, and the system gives it to no other socket. A port that is merely free may be another test's by the
    time it is used.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that servers, which set it too, may bind the port as well
        keeper.bind(("127.0.0.1", 0))
        yield int(keeper.getsockname()[1])
