"""How a socket is watched: as libzmq does it, with a callback, or with `async for` (MON-01 to MON-03)."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from core import constants as c
from core.errors import EPROTONOSUPPORT, InvalidEndpoint
from core.monitor import EVENTS_MAX, MonitorPair, MonitorStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.context import Context
    from core.monitor import MonitorEvent, Monitors
    from core.socket import Socket

__all__ = ["SocketMonitoring"]


class SocketMonitoring:
    """The watching verbs of a socket."""

    if not TYPE_CHECKING:  # see `SocketOwner`
        __slots__ = ()

    context: Context
    monitors: Monitors

    @abstractmethod
    def check_open(self) -> None:
        """See `SocketOptions`."""

    def on_event(self, sink: Callable[[MonitorEvent], None], events: int = c.EVENT_ALL) -> None:
        """Have `sink` called with each `MonitorEvent` of these kinds, inside the loop's turn."""
        self.monitors.add(sink, events)

    def events(self, events: int = c.EVENT_ALL, limit: int = EVENTS_MAX) -> MonitorStream:
        """Watch with `async for`: `MonitorEvent`s from now on, at most `limit` of them waiting; ends when the socket closes."""
        self.check_open()
        return MonitorStream(self.monitors, events, limit)

    def monitor(self, addr: str | None, events: int = c.EVENT_ALL) -> None:
        """Send the events as libzmq does, on a PAIR bound to an inproc name; None ends it (MON-02).

        Raises:
            ZMQError: EPROTONOSUPPORT, `addr` is not inproc; AddressInUse, somebody has the name.
        """
        self.check_open()
        if addr is not None and not addr.startswith("inproc://"):
            raise InvalidEndpoint(EPROTONOSUPPORT, "a monitor is reached by inproc only", endpoint=addr)
        self.monitors.stop_pair()
        if addr is not None:
            pair = MonitorPair(self.context, addr)
            self.monitors.add(pair.take, events)
            self.monitors.pair = pair

    def get_monitor_socket(self, events: int | None = None, addr: str | None = None) -> Socket:
        """Return a PAIR that receives the events, see `core.monitor.recv_monitor_message`; the same one until it or the monitor ends."""
        self.check_open()
        if self.monitors.reader is not None and not self.monitors.reader.closed:
            return self.monitors.reader
        addr = addr or f"inproc://monitor-{id(self):x}"
        self.monitor(addr, c.EVENT_ALL if events is None else events)
        reader = self.context.socket(c.PAIR, linger=0)
        reader.connect(addr)
        self.monitors.reader = reader
        return reader

    def disable_monitor(self) -> None:
        """End what `monitor` began."""
        self.monitors.reader = None
        self.monitor(None)
