"""ZeroMQ sockets on asyncio, without libzmq: wire-compatible ZMTP 3.1 over tcp, ipc and inproc.

    import core

    async with core.Context() as context:
        router = context.socket(core.ROUTER)
        router.bind("tcp://127.0.0.1:*")
        dealer = context.socket(core.DEALER)
        dealer.connect(router.last_endpoint)
        await dealer.send_multipart([b"hello"])
        peer, body = await router.recv_multipart()

Names, constants and verbs are those of ZeroMQ's Python binding, so a program written for it runs after changing the import:
`import core as zmq` in a program with asyncio, `import core.blocking as zmq` in a program without.
"""

from typing import TYPE_CHECKING

from majordomo_toolkit import __version__
from core import asyncio, capabilities, constants, error, errors, utils
from core.capabilities import DRAFT_API, IPC_PATH_MAX_LEN, compiled, has, pyzmq_version, pyzmq_version_info, zmq_version, zmq_version_info
from core.constants import *  # noqa: F403 - the constants are the public face of a ZeroMQ binding
from core.errors import *  # noqa: F403
from core.frame import Frame, Message
from core.options import Options
from core.runtime.event_loop import run
from core.security.authenticator import Authenticator, ZapHandler, curve_keypair, curve_public
from core.security.credentials import Curve, Plain, context_for
from core.sockets.context import Context
from core.sockets.monitor import MonitorEvent
from core.sockets.poll import Poller, select
from core.sockets.proxy import device, proxy
from core.sockets.proxy import proxy as proxy_steerable
from core.sockets.socket import Socket
from core.zmtp.frames import Encoded
from core.zmtp.zap import ZapReply, ZapRequest

__all__ = ["Authenticator", "Context", "Curve", "Encoded", "Frame", "MonitorEvent", "Options", "Plain", "Poller", "Socket", "ZapHandler"]
__all__ += ["ZapReply", "ZapRequest", "__version__", "asyncio", "context_for", "curve_keypair", "curve_public", "has", "proxy", "run"]
__all__ += ["zmq_version", "zmq_version_info"]
__all__ += ["DRAFT_API", "IPC_PATH_MAX_LEN", "Message", "device", "error", "proxy_steerable", "pyzmq_version", "pyzmq_version_info"]
__all__ += ["compiled", "select", "utils"]
__all__ += constants.__all__  # a type checker takes what is not named here for private
__all__ += errors.__all__

if not TYPE_CHECKING:  # type checkers find the missing names themselves

    def __getattr__(name: str) -> object:
        """Refuse names that are left out on purpose, with the reason and what to use instead."""
        raise capabilities.missing(__name__, name)
