"""Names of ZeroMQ's asyncio binding: `import core as zmq` in place of `import zmq, zmq.asyncio`."""

from __future__ import annotations

from core.sockets.context import Context
from core.sockets.poll import Poller
from core.sockets.socket import Socket

__all__ = ["Context", "Poller", "Socket"]
