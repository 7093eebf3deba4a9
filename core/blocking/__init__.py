"""Sockets whose calls block, for programs without asyncio: `import core.blocking as zmq` in place of `import zmq`.

    import core.blocking as zmq

    with zmq.Context() as context:
        socket = context.socket(zmq.REQ)
        socket.connect("tcp://127.0.0.1:5555")
        socket.send(b"hello")
        print(socket.recv())

One event loop, on a thread of its own, runs all blocking sockets of a process; a call costs two thread switches, about 0.1 ms. They may be
used from any thread. `core` has the same sockets for asyncio.
"""

from typing import TYPE_CHECKING

from core import asyncio, capabilities, constants, error, errors, utils
from core.blocking.context import Context
from core.blocking.poll import Poller, device, proxy, proxy_steerable, select
from core.blocking.socket import Socket
from core.capabilities import DRAFT_API, IPC_PATH_MAX_LEN, has, pyzmq_version, pyzmq_version_info, zmq_version, zmq_version_info
from core.constants import *  # noqa: F403 - the constants are the public face of a ZeroMQ binding
from core.errors import *  # noqa: F403
from core.frame import Frame, Message
from core.security.authenticator import curve_keypair, curve_public

__all__ = ["DRAFT_API", "IPC_PATH_MAX_LEN", "Context", "Frame", "Message", "Poller", "Socket", "__version__", "asyncio"]
__all__ += ["curve_keypair", "curve_public", "device", "error", "has", "proxy", "proxy_steerable", "pyzmq_version", "pyzmq_version_info"]
__all__ += ["select", "utils", "zmq_version", "zmq_version_info"]
__version__ = pyzmq_version()  # programs compare it; the version of this package is `core.__version__`
__all__ += constants.__all__
__all__ += errors.__all__

if not TYPE_CHECKING:  # type checkers find the missing names themselves

    def __getattr__(name: str) -> object:
        """Refuse names that are left out on purpose, with the reason and what to use instead."""
        raise capabilities.missing(__name__, name)
