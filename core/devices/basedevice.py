"""A proxy whose sockets are described first and made when it starts, here, in the background or in a process."""

from __future__ import annotations

import logging
import multiprocessing
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final

from core.blocking.context import Context
from core.blocking.shared_loop import LOOP
from core.constants import PUSH, QUEUE
from core.errors import ContextTerminated, SocketClosed, ZMQBindError, ZMQError
from core.sockets.proxy import proxy

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

    from core.blocking.socket import Socket

__all__ = ["Device", "ProcessDevice", "Side", "ThreadDevice"]

_log = logging.getLogger("core.devices")
_TRIES: Final = 5  # to find a port that this device has not reserved


class Side:
    """Description of one socket: its type, options and endpoints."""

    def __init__(self, socket_type: int) -> None:
        self.socket_type = socket_type
        self.binds: list[str] = []
        self.connects: list[str] = []
        self.options: list[tuple[int, Any]] = []

    def make(self, context: Context) -> Socket:
        socket = context.socket(self.socket_type)
        try:
            self.apply(socket)
        except BaseException:
            socket.close(linger=0)
            raise
        return socket

    def apply(self, socket: Socket) -> None:
        for option, value in self.options:
            socket.setsockopt(option, value)
        for endpoint in self.binds:
            socket.bind(endpoint)
        for endpoint in self.connects:
            socket.connect(endpoint)


class Device:
    """A proxy between two sockets; `run` forwards until their context ends.

    Args:
        device_type: QUEUE, FORWARDER or STREAMER; they do the same.
        in_type: type of the first socket.
        out_type: type of the second; below 0 the first is both.

    Attributes:
        daemon: whether a process of the device ends with its parent.
        done: after the end.

    Raises:
        TypeError: a type is missing.
    """

    # makes the context: the shared one of the process, or another function without arguments
    context_factory: Any = Context.instance

    def __init__(self, device_type: int = QUEUE, in_type: int | None = None, out_type: int | None = None) -> None:
        if in_type is None or out_type is None:
            raise TypeError("in_type and out_type must be given")
        self.device_type = device_type
        self.in_type = in_type
        self.out_type = out_type
        self.daemon = True
        self.done = False
        self._in = Side(in_type)
        self._out = Side(out_type)
        self._reserved: set[str] = set()
        self._sockets: list[Socket] = []

    # -- description

    def bind_in(self, addr: str) -> None:
        """Have the first socket bind to an endpoint."""
        self._in.binds.append(addr)

    def bind_in_to_random_port(self, addr: str, min_port: int = 0, max_port: int = 65536, max_tries: int = 100) -> int:
        """Have the first socket bind to a port that is free now, and return it. Raises ZMQBindError."""
        return self._bind_to_random_port(self._in, addr, min_port, max_port, max_tries)

    def connect_in(self, addr: str) -> None:
        """Have the first socket connect to an endpoint."""
        self._in.connects.append(addr)

    def setsockopt_in(self, opt: int, value: Any) -> None:
        """Have an option of the first socket set."""
        self._in.options.append((opt, value))

    def bind_out(self, addr: str) -> None:
        """Have the second socket bind to an endpoint."""
        self._out.binds.append(addr)

    def bind_out_to_random_port(self, addr: str, min_port: int = 0, max_port: int = 65536, max_tries: int = 100) -> int:
        """Have the second socket bind to a port that is free now, and return it. Raises ZMQBindError."""
        return self._bind_to_random_port(self._out, addr, min_port, max_port, max_tries)

    def connect_out(self, addr: str) -> None:
        """Have the second socket connect to an endpoint."""
        self._out.connects.append(addr)

    def setsockopt_out(self, opt: int, value: Any) -> None:
        """Have an option of the second socket set."""
        self._out.options.append((opt, value))

    def _bind_to_random_port(self, side: Side, addr: str, min_port: int, max_port: int, max_tries: int) -> int:
        with Context() as context, context.socket(PUSH) as probe:
            for _ in range(_TRIES):
                port = probe.bind_to_random_port(addr, min_port, max_port, max_tries)
                endpoint = f"{addr}:{port}"
                if endpoint not in self._reserved:
                    self._reserved.add(endpoint)
                    side.binds.append(endpoint)
                    return port
        raise ZMQBindError(msg=f"no free port found for {addr}")

    # -- life

    def run(self) -> None:
        """Make the sockets and forward messages until the context ends or a socket is closed."""
        self._make_sockets()
        try:
            LOOP.run(self._forward_until_end)
        finally:
            self._ended()

    def start(self) -> None:
        """Run the device; subclasses do it in the background."""
        self.run()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, at most `timeout` seconds."""

    def _make_sockets(self) -> None:
        kind = type(self)
        self._context = kind.context_factory()
        ins = self._made(self._in)
        if self.out_type < 0:
            self._out.apply(ins)
        else:
            self._made(self._out)

    def _made(self, side: Side) -> Socket:
        socket = side.make(self._context)
        self._sockets.append(socket)
        return socket

    def _forward(self) -> Coroutine[Any, Any, None]:
        return proxy(self._sockets[0]._inner, self._sockets[-1]._inner)

    async def _forward_until_end(self) -> None:
        try:
            await self._forward()
        except (ContextTerminated, SocketClosed):
            pass  # the usual end

    def _ended(self) -> None:
        self.done = True
        for socket in self._sockets:
            socket.close()


class ThreadDevice(Device):
    """A device in the background of this process, on the thread that all blocking sockets share."""

    launcher: Future[None] | None = None

    def start(self) -> None:
        """Make the sockets and return; messages are forwarded in the background.

        Raises:
            ZMQError: a socket cannot be made, bound or connected.
        """
        self._make_sockets()
        self.launcher = LOOP.start(self._forward_in_background)

    async def _forward_in_background(self) -> None:
        try:
            await self._forward_until_end()
        except ZMQError as error:
            _log.error("the device has ended: %s", error)
            raise
        finally:
            self.done = True
            for socket in self._sockets:
                socket._inner.close()
                self._context.socket_closed(socket)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, at most `timeout` seconds."""
        if self.launcher is not None:
            wait([self.launcher], timeout)


class ProcessDevice(Device):
    """A device in a process of its own, with a context of its own."""

    context_factory: Any = Context
    launcher: multiprocessing.Process | None = None

    def start(self) -> None:
        """Start the process."""
        self.launcher = multiprocessing.Process(target=self.run, daemon=self.daemon)
        self.launcher.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, at most `timeout` seconds."""
        if self.launcher is not None:
            self.launcher.join(timeout)
