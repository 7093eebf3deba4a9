"""The names a program written for ZeroMQ's asyncio binding imports: `import core as zmq` in place of `import zmq, zmq.asyncio`."""

from __future__ import annotations

from core.context import Context
from core.poll import Poller
from core.socket import Socket

__all__ = ["Context", "Poller", "Socket"]
