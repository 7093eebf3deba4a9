"""Events of a socket: typed, with reason and peer, and in libzmq's two-frame form on a PAIR (MON-01..03).

Three ways to the same events: `Socket.on_event` calls a function at once; `Socket.events` is an `async for`; `Socket.monitor` and
`Socket.get_monitor_socket` are for programs written for libzmq. Each ends with MONITOR_STOPPED when the socket is closed.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Self, cast

from core import constants as c
from core.constants import Event
from core.errors import EINVAL, EPROTONOSUPPORT, Again, ContextTerminated, InvalidEndpoint, SocketClosed, ZMQError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.net.socket_port import InnerSocket, SocketContext, SocketFactory
    from core.runtime.supervision import Supervisor
    from core.sockets.results.futures import Awaitable
    from core.sockets.serialization import Serialization
    from core.zmtp.frames import Message

# Ends of attempts to connect.
TROUBLES: Final = c.EVENT_CLOSED | c.EVENT_HANDSHAKE_FAILED_NO_DETAIL | c.EVENT_HANDSHAKE_FAILED_PROTOCOL | c.EVENT_HANDSHAKE_FAILED_AUTH
EVENTS_MAX: Final = 1000  # queued for a slow reader; the default HWM of a message queue
_EVENT_AND_VALUE = Struct("=HI")  # host order, packed (MON-02)


@dataclass(frozen=True, slots=True)
class MonitorEvent:
    """Event of an endpoint or connection.

    Attributes:
        event: kind of event.
        value: descriptor, delay in ms, errno or code, as libzmq defines for the event.
        endpoint: of the event.
        reason: one clause for people, may be empty.
        peer: the peer's numeric address, `:uid:gid:pid` for ipc; empty where there is no connection yet.
        identity: announced by the peer, once its handshake is complete.
    """

    event: Event
    value: int
    endpoint: str
    reason: str = ""
    peer: str = ""
    identity: bytes = b""

    @property
    def refuses_security(self) -> bool:
        """Whether a handshake failed because the security of one side does not suit the other."""
        return self.event == Event.HANDSHAKE_FAILED_AUTH or (
            self.event == Event.HANDSHAKE_FAILED_PROTOCOL and self.value == c.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
        )


class Monitors:
    """Monitors of one socket; an error of a callback is logged and counted, and changes nothing else."""

    __slots__ = ("_sinks", "_supervisor", "pair", "reader")

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._sinks: list[tuple[int, Callable[[MonitorEvent], None]]] = []
        self.pair: MonitorPair | None = None  # the monitor in libzmq's form, at most one
        self.reader: InnerSocket | None = None  # the socket at its other end, if `get_monitor_socket` made one

    def add(self, sink: Callable[[MonitorEvent], None], events: int) -> None:
        self._sinks.append((events, sink))

    def remove(self, sink: Callable[[MonitorEvent], None]) -> None:
        self._sinks = [entry for entry in self._sinks if entry[1] != sink]

    def emit(self, event: int, value: int, endpoint: str, reason: str, peer: str, identity: bytes) -> None:
        for events, sink in self._sinks:
            if events & event:
                told = MonitorEvent(Event(event), value, endpoint, reason, peer, identity)
                self._supervisor.call("core event callback", sink, told)

    def end(self) -> None:
        """Send MONITOR_STOPPED as the last event: the socket was closed (MON-03)."""
        self.stop_pair()
        self.emit(Event.MONITOR_STOPPED, 0, "", "", "", b"")
        self._sinks.clear()

    def stop_pair(self) -> None:
        """End the monitor in libzmq's form; MONITOR_STOPPED is its last event too."""
        pair, self.pair = self.pair, None
        if pair is not None:
            if any(sink == pair.on_event and events & Event.MONITOR_STOPPED for events, sink in self._sinks):
                pair.on_event(MonitorEvent(Event.MONITOR_STOPPED, 0, ""))
            self.remove(pair.on_event)
            pair.close()


class MonitorStream:
    """Asynchronous iterator of the events from now on; MONITOR_STOPPED is the last.

    Attributes:
        missed: events dropped, oldest first, because `limit` of them were waiting.
    """

    def __init__(self, monitors: Monitors, events: int, limit: int) -> None:
        self._monitors = monitors
        self._queue: deque[MonitorEvent] = deque()
        self._limit = limit
        self._news = asyncio.Event()
        self._ended = False
        self.missed = 0
        monitors.add(self._take, events | Event.MONITOR_STOPPED)

    def _take(self, event: MonitorEvent) -> None:
        if len(self._queue) >= self._limit:
            self._queue.popleft()
            self.missed += 1
        self._queue.append(event)
        self._ended = event.event == Event.MONITOR_STOPPED
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MonitorEvent:
        while not self._queue:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._queue.popleft()

    def close(self) -> None:
        """Stop watching; queued events can still be read."""
        self._monitors.remove(self._take)
        self._ended = True
        self._news.set()


class MonitorPair:
    """Monitor in libzmq's form: each event is `[event and value][endpoint]` on a PAIR bound to an inproc name (MON-02).

    If the reader is slow, the newest events are dropped and counted; the watched socket never waits.
    """

    def __init__(self, context: SocketFactory, address: str) -> None:
        self.missed = 0  # events dropped because the queue was full
        self._pair = context.inner_socket(c.PAIR, linger=0, sndhwm=EVENTS_MAX)
        try:
            self._pair.bind(address)
        except ZMQError:
            self._pair.close()
            raise

    def on_event(self, event: MonitorEvent) -> None:
        first = _EVENT_AND_VALUE.pack(event.event, event.value & 0xFFFFFFFF)
        try:
            self._pair.send_multipart([first, event.endpoint.encode()], c.NOBLOCK)
        except (Again, ContextTerminated, SocketClosed):  # the context closes all its sockets, this one too
            self.missed += 1

    def close(self) -> None:
        """Close the PAIR; the reader keeps what was sent."""
        self._pair.close()


def parse_monitor_message(msg: Sequence[bytes]) -> dict[str, Any]:
    """Return `event`, `value` and `endpoint` of the two frames of an event.

    Raises:
        ZMQError: EINVAL, not the frames of an event.
    """
    if len(msg) != 2 or len(msg[0]) != _EVENT_AND_VALUE.size:
        raise ZMQError(EINVAL, f"not a monitor event: {len(msg)} frames")
    event, value = _EVENT_AND_VALUE.unpack(msg[0])
    return {"event": Event(event), "value": value, "endpoint": bytes(msg[1])}


def recv_monitor_message(socket: Serialization, flags: int = 0) -> Awaitable[dict[str, Any]]:
    """Receive an event from the PAIR of `Socket.get_monitor_socket`."""

    def shape(message: Message) -> dict[str, Any]:
        return parse_monitor_message(message)

    return socket.receive_as(shape, flags, False)


class SocketMonitoring:
    """Monitoring verbs of a socket."""

    if not TYPE_CHECKING:  # see `SocketBase`
        __slots__ = ()

    context: SocketContext
    monitors: Monitors

    @abstractmethod
    def check_open(self) -> None: ...
    @abstractmethod
    def check_loop(self) -> None: ...

    def on_event(self, sink: Callable[[MonitorEvent], None], events: int = c.EVENT_ALL) -> None:
        """Call `sink` with each `MonitorEvent` of these kinds, at once; an error that it raises is logged and counted."""
        self.monitors.add(sink, events)

    def events(self, events: int = c.EVENT_ALL, limit: int = EVENTS_MAX) -> MonitorStream:
        """Watch with `async for`: `MonitorEvent`s from now on, at most `limit` of them waiting; ends when the socket closes."""
        self.check_open()
        return MonitorStream(self.monitors, events, limit)

    def monitor(self, addr: str | None, events: int = c.EVENT_ALL) -> None:
        """Send the events as libzmq does, on a PAIR bound to an inproc name; None ends it (MON-02).

        Raises:
            ZMQError: EPROTONOSUPPORT, `addr` is not inproc; AddressInUse, the name is bound.
            WrongOwner: another thread runs the event loop of this socket.
        """
        self.check_open()
        self.check_loop()
        if addr is not None and not addr.startswith("inproc://"):
            raise InvalidEndpoint(EPROTONOSUPPORT, "a monitor is reached by inproc only", endpoint=addr)
        self.monitors.stop_pair()
        if addr is not None:
            pair = MonitorPair(self.context, addr)
            self.monitors.add(pair.on_event, events)
            self.monitors.pair = pair

    def get_monitor_socket(self, events: int | None = None, addr: str | None = None) -> Self:
        """Return a PAIR that receives the events, the same until it or the monitor ends; see `recv_monitor_message`."""
        self.check_open()
        reader = self.monitors.reader
        if reader is None or reader.closed:
            addr = addr or f"inproc://monitor-{id(self):x}"
            self.monitor(addr, c.EVENT_ALL if events is None else events)
            reader = self.monitors.reader = self.context.socket(c.PAIR, linger=0)
            reader.connect(addr)
        return cast("Self", reader)

    def disable_monitor(self) -> None:
        """End the monitor that `monitor` or `get_monitor_socket` made."""
        self.monitors.reader = None
        self.monitor(None)
