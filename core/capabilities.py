"""Capabilities and versions, under the names of ZeroMQ's Python binding, and what is left out on purpose."""

from __future__ import annotations

import socket
import sys
from types import FunctionType
from typing import Final

from core.pattern.pipe import Pipe

__all__ = [
    "DRAFT_API",
    "IPC_PATH_MAX_LEN",
    "compiled",
    "has",
    "missing",
    "pyzmq_version",
    "pyzmq_version_info",
    "zmq_version",
    "zmq_version_info",
]

# The release whose behaviour was observed (see `specs/`) and is followed.
FOLLOWED: Final = (4, 3, 5)
# The release of the binding whose names are followed.
NAMES_FOLLOWED: Final = (27, 1, 0)

DRAFT_API: Final = False  # draft socket types are not built
# Bytes of the path of an ipc endpoint, without the final zero; 0 where the system has no such sockets.
IPC_PATH_MAX_LEN: Final = 0 if not hasattr(socket, "AF_UNIX") else 107 if sys.platform == "linux" else 103

_TUNING = "there are no input/output threads to tune: sockets run in the event loop of the caller"
_MULTICAST = "multicast transports (pgm, norm, udp) are not built; use PUB and SUB over tcp"
_DRAFT = "draft socket types are not built; use {} instead"
# What a program may ask for by name, and what to use instead.
_LEFT_OUT: Final = {
    **dict.fromkeys(("AFFINITY", "IN_BATCH_SIZE", "OUT_BATCH_SIZE", "BUSY_POLL", "PRIORITY", "LOOPBACK_FASTPATH"), _TUNING),
    **dict.fromkeys(("THREAD_PRIORITY", "THREAD_SCHED_POLICY", "THREAD_NAME_PREFIX"), _TUNING),
    **dict.fromkeys(("THREAD_AFFINITY_CPU_ADD", "THREAD_AFFINITY_CPU_REMOVE"), _TUNING),
    **dict.fromkeys(("RATE", "RECOVERY_IVL", "MULTICAST_HOPS", "MULTICAST_LOOP", "MULTICAST_MAXTPDU"), _MULTICAST),
    **dict.fromkeys(("CLIENT", "SERVER", "PEER"), _DRAFT.format("DEALER and ROUTER")),
    **dict.fromkeys(("RADIO", "DISH", "DGRAM"), _DRAFT.format("PUB and SUB")),
    **dict.fromkeys(("GATHER", "SCATTER"), _DRAFT.format("PUSH and PULL")),
    "CHANNEL": _DRAFT.format("PAIR"),
    **dict.fromkeys(("DISCONNECT_MSG", "HICCUP_MSG"), "watch the socket: `async for event in socket.events()`"),
    **dict.fromkeys(("STREAM_NOTIFY", "ROUTER_RAW"), "use a STREAM socket, which always tells of connections"),
    **dict.fromkeys(("ROUTER_NOTIFY", "NOTIFY_CONNECT", "NOTIFY_DISCONNECT"), "watch the socket: `async for event in socket.events()`"),
    "BLOCKY": "`Context.term` never waits; `async with Context()` and `await context.wait_closed()` do",
    "USE_FD": "a socket opens its own files; a program started by systemd binds an endpoint",
    "TCP_ACCEPT_FILTER": 'use core.Authenticator(allow=["10.0.0.0/8"])',
    "IPV4ONLY": "use IPV6 = 0",
    "GSSAPI": "use CURVE or PLAIN",
    "MessageTracker": "data is copied when it is sent, so buffers can be used again at once",
    "Stopwatch": "use time.perf_counter()",
    "get_includes": "there is no libzmq to compile against",
    "get_library_dirs": "there is no libzmq to link with",
    "zmq_errno": "errors carry their number: `error.errno`",
    "green": "use core.blocking in threads, or core with asyncio",
    "ssh": "use `ssh -L PORT:HOST:PORT` and connect to the local port, or CURVE",
    "eventloop": "tornado runs on asyncio: use core in its coroutines",
    "backend": "there is one implementation",
    "sugar": "import the names from core",
}
_FAMILIES: Final = {
    "GSSAPI_": _LEFT_OUT["GSSAPI"],
    "VMCI_": "vmci is not built; use tcp or ipc",
    "WSS_": "WebSocket transports are not built; use tcp with CURVE",
    "NORM_": _MULTICAST,
    "IPC_FILTER_": 'use core.Authenticator(allow=["uid:1000"])',
    "TOPICS_": "read the subscriptions from an XPUB",
}


def missing(module: str, name: str) -> AttributeError:
    """Return the error for a missing name, with the reason and a replacement if it is left out on purpose."""
    advice = _LEFT_OUT.get(name) or next((text for start, text in _FAMILIES.items() if name.startswith(start)), None)
    if advice is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    return AttributeError(f"{module} has no {name}: {advice}", name=name)


# Whether the compiled modules of this installation are used, and not their source; the two behave the same.
compiled: Final = not isinstance(Pipe.write, FunctionType)


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


def pyzmq_version_info() -> tuple[int, int, int]:
    """Return the release of ZeroMQ's Python binding whose names are followed; `core.__version__` is the version of this package."""
    return NAMES_FOLLOWED


def pyzmq_version() -> str:
    """Return the followed release of ZeroMQ's Python binding as text."""
    return ".".join(map(str, NAMES_FOLLOWED))
