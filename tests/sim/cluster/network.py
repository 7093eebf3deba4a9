"""A network in memory: connections with latency, splits, back-pressure, cuts and resets.

Inside one connection bytes are in order and never lost, as with TCP: what is sent into a cut link waits there and arrives after it was
healed, or never, when one of the two systems ended first.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

from tests.sim.cluster.ports import Ports

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from random import Random

    from tests.sim.cluster.loop import SimLoop
    from tests.sim.cluster.process import Host, Life

__all__ = ["Link", "Network", "Wire"]

WINDOW_BYTES = 256 * 1024  # of the receiving system: sent and not read
HIGH_BYTES = 64 * 1024  # of asyncio's transports
PIECE_BYTES = 64 * 1024
CONNECT_S = 127.0  # after which Linux gives up
REPEAT_S = 0.2  # a system sends again what a healed link had lost
HEAL_S = 1.5  # at most so late
REPEAT_LATE_S = 2.0  # to a host without power


class Link:
    """One direction between two hosts.

    Attributes:
        latency_s, jitter_s: of each read of the other side.
        rate: bytes per second, 0 for no limit.
        cut: nothing passes.
    """

    def __init__(self) -> None:
        self.latency_s = 0.0002
        self.jitter_s = 0.0002
        self.rate = 0.0
        self.cut = 0  # number of faults that cut it
        self.waiting: dict[Wire, None] = {}


class Wire:
    """One direction of one connection: from what is written to what is read."""

    def __init__(self, network: Network, link: Link, random: Random) -> None:
        self._network = network
        self._loop = network.loop
        self.link = link
        self._random = random
        self.near: SimTransport  # writes
        self.far: SimTransport  # reads
        self._unsent = bytearray()
        self.flying = 0
        self._end: str = ""  # "eof" or "reset", after what is unsent
        self._end_sent = False
        self._departing = False
        self._arrives_at = 0.0
        self.dead = False  # the system that sends is gone
        self.swallows = False  # something between the two loses all of it, for good
        self._refusing = False

    def __hash__(self) -> int:
        return id(self)

    @property
    def unsent(self) -> int:
        return len(self._unsent)

    def write(self, data: bytes) -> None:
        self._unsent += data
        self._depart_soon()

    def end(self, how: str) -> None:
        """End the stream behind what was written; a reset overtakes it."""
        if self._end_sent or self._end == "reset":
            return
        if how == "reset":
            self._unsent.clear()
        self._end = how
        self._depart_soon()

    def _depart_soon(self) -> None:
        if not self._departing:
            self._departing = True
            self._loop.after(0.0, self._depart)

    def refuse(self) -> None:
        """Answer what has arrived for a connection that is gone; a host without power answers later."""
        if not self.dead:
            self.end("reset")
        elif self.near.process.host.up:
            self.dead = False
            self._unsent.clear()
            self._end, self._end_sent = "reset", False
            self._depart_soon()
        elif not self._refusing:
            self._refusing = True
            self._loop.after(REPEAT_LATE_S, self._refuse_again)

    def _refuse_again(self) -> None:
        self._refusing = False
        self.refuse()

    def go_on(self) -> None:
        """Send again: the link was healed, or the other side has read."""
        if self._unsent or (self._end and not self._end_sent):
            self._depart_soon()

    def _depart(self) -> None:
        self._departing = False
        if self.dead or self.swallows:
            return
        link = self.link
        if link.cut:
            link.waiting[self] = None
            return
        room = WINDOW_BYTES - self.flying - len(self.far.unread)
        size = min(len(self._unsent), room)
        data = b""
        if size > 0:
            # Reads of the other side begin and end anywhere.
            if size > 1 and self._random.random() < self._network.split:
                size = self._random.randrange(1, size)
            data = bytes(self._unsent[:size])
            del self._unsent[:size]
            self.flying += size
        end = self._end if not self._unsent and not self._end_sent else ""
        if end:
            self._end_sent = True
        if data or end:
            delay_s = link.latency_s + link.jitter_s * self._random.random()
            if link.rate:
                delay_s += len(data) / link.rate
            self._arrives_at = max(self._arrives_at, self._loop.now + delay_s)
            self._loop.at(self._arrives_at, self._arrive, data, end)
        if self._unsent and room > 0:
            self._depart_soon()
        self.near.written()

    def _arrive(self, data: bytes, end: str) -> None:
        self.flying -= len(data)
        self._loop.note(data)
        self.far.arrived(data, end)


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, process: Life, protocol: Any, ours: tuple[str, int], theirs: tuple[str, int], context: Context) -> None:
        super().__init__({"sockname": ours, "peername": theirs, "socket": None})
        self.process = process
        self._loop = process.world.loop
        self._protocol = protocol
        self._context = context
        self.out: Wire
        self.inwards: Wire
        self.unread = bytearray()
        self._end = ""  # of the other side, behind what is unread
        self._reading = True
        self._closing = False
        self._lost = False
        self._eof = False  # ours was sent
        self._paused_protocol = False
        self._reading_soon = False
        self._low, self._high = HIGH_BYTES // 4, HIGH_BYTES
        self.gone = False  # the system has forgotten the connection
        process.transports[self] = None

    # ---- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or self.gone:
            return
        if data:
            self.out.write(bytes(data))
            self._check_high()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _check_high(self) -> None:
        if not self._paused_protocol and self.get_write_buffer_size() > self._high:
            self._paused_protocol = True
            self._protocol.pause_writing()

    def written(self) -> None:
        """Note that bytes have left."""
        if self._paused_protocol and self.get_write_buffer_size() <= self._low and not self._lost:
            self._call(self._resume_protocol)
        if self._closing and not self.out.unsent:
            self._call(self._be_lost, None)

    def _resume_protocol(self) -> None:
        if self._paused_protocol and not self._lost:
            self._paused_protocol = False
            self._protocol.resume_writing()

    def write_eof(self) -> None:
        if not self._eof and not self._closing:
            self._eof = True
            self.out.end("eof")

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.out.unsent

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    # ---- reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._read_soon()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def arrived(self, data: bytes, end: str) -> None:
        """Take bytes, or the end of the other side's stream, into the system."""
        if self.gone:
            if data:
                self.out.refuse()
            return
        self.unread += data
        self._end = end or self._end
        self._read_soon()

    def _read_soon(self) -> None:
        if self._protocol is not None and not self._reading_soon and (self.unread or self._end) and not self._lost:
            self._reading_soon = True
            self._call(self._read)

    def _read(self) -> None:
        self._reading_soon = False
        if self._lost or self._closing:
            return
        if self._end == "reset":
            self._be_lost(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        if not self._reading:
            return
        if self.unread:
            data = bytes(self.unread[:PIECE_BYTES])
            del self.unread[: len(data)]
            self.inwards.go_on()
            self._feed(data)
            if self.unread or self._end:
                self._read_soon()
        elif self._end == "eof":
            self._end = "read"
            if not self._protocol.eof_received():
                self.close()

    def _feed(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        while data:
            room = memoryview(protocol.get_buffer(len(data)))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]
            protocol = self._protocol
            if data and not isinstance(protocol, asyncio.BufferedProtocol):
                protocol.data_received(data)
                return

    # ---- the end

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.out.end("reset" if self.unread and not self.out.unsent else "eof")
            if not self.out.unsent:
                self._call(self._be_lost, None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self.out.end("reset" if self.unread or self.out.unsent else "eof")
            self._call(self._be_lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def _be_lost(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = self.gone = True
        self.process.transports.pop(self, None)
        self._protocol.connection_lost(error)

    def forget(self, how: str) -> None:
        """Note the end of the process: its system ends the connection, or is gone without a word."""
        self.gone = self._closing = self._lost = True
        if how:
            self.out.end(how)
        else:
            self.out.dead = True

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon(call, *arguments, context=self._context)

    def made(self) -> None:
        self._protocol.connection_made(self)
        self._read_soon()


class Network:
    """All links, ports and connections.

    Attributes:
        split: how often bytes written together are read apart.
        ports: on which processes listen.
        connections: made so far.
    """

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.split = 0.05
        self.connections = 0
        self.hosts: dict[str, Host] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self.ports = Ports(loop)

    def link(self, source: str, target: str) -> Link:
        """Return one direction between two addresses."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link()
        return found

    def cut(self, source: str, target: str) -> None:
        self.link(source, target).cut += 1

    def heal(self, source: str, target: str) -> None:
        link = self.link(source, target)
        link.cut -= 1
        if not link.cut:
            waiting, link.waiting = link.waiting, {}
            for wire in waiting:
                self.loop.after(REPEAT_S + (HEAL_S - REPEAT_S) * self.random.random(), wire.go_on)

    async def connect(self, process: Life, factory: Callable[[], Any], host: str, port: int) -> tuple[SimTransport, Any]:
        loop, source = self.loop, process.host.ip
        target = source if host in ("127.0.0.1", "localhost") else host
        until = loop.time() + CONNECT_S
        wait_s = 1.0
        there, back = self.link(source, target), self.link(target, source)
        await asyncio.sleep(there.latency_s + back.latency_s + there.jitter_s * self.random.random())
        while there.cut or back.cut or target not in self.hosts or not self.hosts[target].up:
            if loop.time() > until:
                raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
            await asyncio.sleep(wait_s)
            wait_s *= 2
        listening = self.ports.listening((target, port))
        if listening is None or not listening.process.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        self.connections += 1
        ours, theirs = (source, self.ports.unused()), (target, port)
        near = SimTransport(process, factory(), ours, theirs, process.context)
        far = SimTransport(listening.process, None, theirs, ours, listening.context)
        near.out = far.inwards = Wire(self, there, self.random)
        far.out = near.inwards = Wire(self, back, self.random)
        near.out.near = near.inwards.far = near
        near.out.far = near.inwards.near = far
        near.made()

        def accept() -> None:
            if listening.accept is None:
                if listening.process.ports.get(listening, self) is None:
                    listening.queued.append(accept)
                else:
                    far.forget("reset")
            else:
                far.set_protocol(listening.accept())
                far.made()

        loop.call_soon(accept, context=listening.context)
        return near, near.get_protocol()
