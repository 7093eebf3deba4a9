"""Devices with a socket that gets a copy of every message, and with one that takes commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.constants import PUB
from core.devices.basedevice import Device, ProcessDevice, Side, ThreadDevice
from core.sockets.proxy import proxy

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["ProcessProxy", "ProcessProxySteerable", "Proxy", "ProxySteerable", "ThreadProxy", "ThreadProxySteerable"]


class Proxy(Device):
    """A device with a third socket, which gets a copy of every message.

    Args:
        in_type: type of the first socket.
        out_type: type of the second; below 0 the first is both.
        mon_type: type of the third.
    """

    def __init__(self, in_type: int, out_type: int, mon_type: int = PUB) -> None:
        super().__init__(in_type=in_type, out_type=out_type)
        self.mon_type = mon_type
        self._mon = Side(mon_type)

    def bind_mon(self, addr: str) -> None:
        """Have the third socket bind to an endpoint."""
        self._mon.binds.append(addr)

    def bind_mon_to_random_port(self, addr: str, min_port: int = 0, max_port: int = 65536, max_tries: int = 100) -> int:
        """Have the third socket bind to a port that is free now, and return it. Raises ZMQBindError."""
        return self._bind_to_random_port(self._mon, addr, min_port, max_port, max_tries)

    def connect_mon(self, addr: str) -> None:
        """Have the third socket connect to an endpoint."""
        self._mon.connects.append(addr)

    def setsockopt_mon(self, opt: int, value: Any) -> None:
        """Have an option of the third socket set."""
        self._mon.options.append((opt, value))

    def _make_sockets(self) -> None:
        super()._make_sockets()
        self._pair = (self._sockets[0]._inner, self._sockets[-1]._inner)
        self._capture = self._made(self._mon)._inner

    def _forward(self) -> Coroutine[Any, Any, None]:
        return proxy(*self._pair, self._capture)


class ProxySteerable(Proxy):
    """A proxy with a fourth socket, which takes commands: PAUSE, RESUME, TERMINATE, STATISTICS; see `core.proxy`.

    Args:
        in_type: type of the first socket.
        out_type: type of the second; below 0 the first is both.
        mon_type: type of the third.
        ctrl_type: type of the fourth.

    Raises:
        TypeError: without `ctrl_type`.
    """

    def __init__(self, in_type: int, out_type: int, mon_type: int = PUB, ctrl_type: int | None = None) -> None:
        if ctrl_type is None:
            raise TypeError("ctrl_type must be given")
        super().__init__(in_type, out_type, mon_type)
        self.ctrl_type = ctrl_type
        self._ctrl = Side(ctrl_type)

    def bind_ctrl(self, addr: str) -> None:
        """Have the fourth socket bind to an endpoint."""
        self._ctrl.binds.append(addr)

    def bind_ctrl_to_random_port(self, addr: str, min_port: int = 0, max_port: int = 65536, max_tries: int = 100) -> int:
        """Have the fourth socket bind to a port that is free now, and return it. Raises ZMQBindError."""
        return self._bind_to_random_port(self._ctrl, addr, min_port, max_port, max_tries)

    def connect_ctrl(self, addr: str) -> None:
        """Have the fourth socket connect to an endpoint."""
        self._ctrl.connects.append(addr)

    def setsockopt_ctrl(self, opt: int, value: Any) -> None:
        """Have an option of the fourth socket set."""
        self._ctrl.options.append((opt, value))

    def _make_sockets(self) -> None:
        super()._make_sockets()
        self._control = self._made(self._ctrl)._inner

    def _forward(self) -> Coroutine[Any, Any, None]:
        return proxy(*self._pair, self._capture, self._control)


class ThreadProxy(Proxy, ThreadDevice):
    """A `Proxy` in the background of this process."""


class ProcessProxy(Proxy, ProcessDevice):
    """A `Proxy` in a process of its own."""


class ThreadProxySteerable(ProxySteerable, ThreadDevice):
    """A `ProxySteerable` in the background of this process."""


class ProcessProxySteerable(ProxySteerable, ProcessDevice):
    """A `ProxySteerable` in a process of its own."""
