"""ZeroMQ sockets on asyncio, without libzmq: wire-compatible ZMTP 3.1 over tcp, ipc and inproc.

    import core

    async with core.Context() as context:
        router = context.socket(core.ROUTER)
        router.bind("tcp://127.0.0.1:*")
        dealer = context.socket(core.DEALER)
        dealer.connect(router.last_endpoint)
        await dealer.send_multipart([b"hello"])
        peer, body = await router.recv_multipart()

Names, constants and verbs are those of ZeroMQ's Python binding, so a program written for it runs after changing the import.
"""

from majordomo_toolkit import __version__
from core import asyncio, constants, errors
from core.capabilities import has, zmq_version, zmq_version_info
from core.constants import *  # noqa: F403 - the constants are the public face of a ZeroMQ binding
from core.errors import *  # noqa: F403
from core.frame import Frame
from core.options import Options
from core.runtime.event_loop import run
from core.security.authenticator import Authenticator, ZapHandler, curve_keypair, curve_public
from core.security.credentials import Curve, Plain, context_for
from core.sockets.context import Context
from core.sockets.monitor import MonitorEvent
from core.sockets.poll import Poller
from core.sockets.proxy import proxy
from core.sockets.socket import Socket
from core.zmtp.decoder import Encoded
from core.zmtp.zap import ZapReply, ZapRequest

__all__ = ["Authenticator", "Context", "Curve", "Encoded", "Frame", "MonitorEvent", "Options", "Plain", "Poller", "Socket", "ZapHandler"]
__all__ += ["ZapReply", "ZapRequest", "__version__", "asyncio", "context_for", "curve_keypair", "curve_public", "has", "proxy", "run"]
__all__ += ["zmq_version", "zmq_version_info"]
__all__ += constants.__all__  # a type checker takes what is not named here for private
__all__ += errors.__all__
