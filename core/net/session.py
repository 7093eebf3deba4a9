"""The shell of one connection: moves bytes between a transport, a `zmtp.Connection` and a pipe.

On the hot path `data_received` is one decode call and one hand-over to the socket. The bases of `Session` hold its other concerns:
`core.net.large_frames` incomplete messages, `core.net.heartbeat` timers and reading ahead, `core.net.writing` the outgoing side.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Final, cast

from core.constants import Event
from core.errors import AuthenticationRefused, HandshakeError, MechanismMismatch, RemoteProtocolError
from core.net.handshake import Handshake
from core.net.heartbeat import SIGN_OF_LIFE_S
from core.net.large_frames import NO_DECODER
from core.net.os_sockets import descriptor, is_self_connect, peer_address, tune, unread
from core.net.read_ahead import Muted, read_rest
from core.net.writing import LAST_WORDS_S, Ending, Writing, write_nothing
from core.pattern.pipe import DETACHED, Pipe
from core.pattern.stream import RawConnection
from core.runtime.write_scheduler import READ_IN_TURN_BYTES
from core.zmtp.connection import Connection
from core.zmtp.greeting import Generation
from core.zmtp.limits import ConnectionLimits
from core.zmtp.mechanism import PeerError
from core.zmtp.scan import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.net.socket_port import SocketPort
    from core.options import Options
    from core.zmtp.scan import Batch


class Phase(Enum):
    """Treatment of received bytes."""

    CLEAR = 1  # decoded at once
    CONNECTION = 2  # by the connection: in the handshake, and where it decrypts or translates
    SUSPENDED = 3  # kept until the handshake goes on
    ENDED = 4  # dropped


CLEAR: Final = Phase.CLEAR  # hot path: a lookup less
_STREAM: Final = b"STREAM"
_ADDRESSED: Final = (b"ROUTER", _STREAM)  # sockets whose messages begin with a routing id


class Session(Writing):
    """A connection of a socket.

    Args:
        pipe: of the endpoint, when connecting; an accepted session gets one when it is ready.
        options: as they were when the endpoint was bound or connected (SOCK-07).
    """

    __slots__ = ("_ending", "_handshake", "_on_closed", "_phase", "endpoint", "failure", "finished", "peer_address", "refused", "was_ready")

    def __init__(self, owner: SocketPort, pipe: Pipe | None, endpoint: str, on_closed: Callable[[Session], None], options: Options) -> None:
        self._phase = Phase.ENDED
        self.owner = self._sink = owner
        self.options = options
        self.pipe = pipe if pipe is not None else owner.new_pipe(endpoint)
        self.endpoint = endpoint
        self.ready = False
        self.was_ready = False
        self.failure: RemoteProtocolError | None = None  # why the peer was disconnected, None if it was not
        self.finished = False
        self.refused = False
        self.peer_address = ""
        self.transport = None
        self._write = write_nothing
        self.connection = None
        self._loop = asyncio.get_running_loop()
        self._shared = self._scheduler = owner.scheduler
        self._on_closed = on_closed
        self._translates = False
        self._rest, self._rest_at = b"", 0
        self._decoder = NO_DECODER
        self._backlog = owner.inbound.active
        self._outgoing = []
        self._pongs = []
        self._heartbeat = None
        self._handshake: Handshake | None = None
        self._paused = False  # the transport's buffer is full
        self._wrote = False
        self._write_scheduled = False
        self._whole = False
        self._progress = 0
        self._partial = 0
        self._progress_timer = None
        self._closing = False
        self._closed = False
        self._ending: Ending | None = None
        self._ahead = None  # set at the high-water mark, when reading goes on
        self._lost = None  # how the transport ended, while what it brought is not taken yet

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting and start the timer of the handshake (ZMTP-03, ZMTP-11)."""
        transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass
        self.transport = transport
        self._write = transport.write
        options = self.options
        self.owner.session_opened(self)
        if self._closing:  # by a callback of the event that reports it
            transport.abort()
            return
        self.peer_address = peer_address(transport)
        if is_self_connect(transport):  # ZMTP-87
            self.abort_with("connected to itself")
            return
        try:
            tune(transport, options)
        except OSError as error:  # of our configuration: the peer has no fault
            self._closing = True
            self._emit(Event.HANDSHAKE_FAILED_NO_DETAIL, error.errno or 0, error.strerror or str(error))
            transport.abort()
            return
        mechanism, limits = self.owner.new_mechanism(options, self.peer_address), ConnectionLimits.of(options)
        raw = RawConnection(_STREAM, mechanism, limits, self._on_ready) if self.owner.type_name == _STREAM else None
        connection = raw or Connection(
            self.owner.type_name, mechanism, limits, self._on_ready, oldest=options.oldest_zmtp, identity=options.routing_id
        )
        self.connection = connection
        connection.counters = self.owner.counters
        self._decoder = connection.decoder
        self._outgoing = connection.outgoing
        self._pongs = connection.pongs
        self._phase = Phase.CONNECTION
        self._handshake = Handshake(self, connection, self._scheduler)
        transport.write(connection.greet())
        if raw is not None:
            self.deliver(raw.begin(), 0)

    def data_received(self, data: bytes) -> None:
        self._wrote = False  # the answer to what was read may leave at once
        heartbeat = self._heartbeat
        if heartbeat is not None:
            heartbeat.heard = True
        batch = self._decoder.feed(data) if self._phase is CLEAR else self._receive(data)
        octets = len(data)
        self.deliver(batch, octets)
        if octets >= READ_IN_TURN_BYTES:
            self.read_in_turn()

    def read_in_turn(self) -> None:
        """Read no more in this iteration of the event loop; see `core.runtime.write_scheduler`."""
        transport = self.transport
        if transport is not None and transport.is_reading():
            transport.pause_reading()
            self._scheduler.read_later(self)

    def read_on(self) -> None:
        if self.transport is not None and self.has_place():
            if self._heartbeat is not None:
                self._heartbeat.heard = True  # what it has sent was not read for a while
            self.transport.resume_reading()

    def _reads_clear(self) -> bool:
        return self._phase is CLEAR

    def _receive(self, data: bytes) -> Batch:
        """Take bytes that are not, or not yet, messages in clear."""
        connection = self.connection
        if connection is None or self._phase is Phase.ENDED:
            return NOTHING
        if self._phase is Phase.SUSPENDED:
            connection.buffer(data)  # bounded: a peer has nothing to send now (ZMTP-35)
            return NOTHING
        return connection.receive(data)

    def is_reading(self) -> bool:
        """Note that something was read; returns False when the session is over."""
        self._wrote = False
        if self._heartbeat is not None:
            self._heartbeat.heard = True
        return not self._closing and not self._closed

    def deliver(self, batch: Batch, octets: int) -> None:
        """Hand over whole messages, then check what is incomplete; `octets` were read."""
        decoder = self._decoder
        if decoder.called or not self.ready:  # the lists themselves are two more lines of memory
            if self._outgoing or self._pongs or not self.ready:
                self._after_receive()
            decoder.called = bool(self._outgoing or self._pongs)  # PONGs may be held back
        if batch.ends or batch.made:
            self._whole = True
            # Of the bytes read, those of what is incomplete count later, with those that came before them.
            self._sink.received(self.pipe, batch, octets + self._partial - (decoder.progress if decoder.begun else 0))
        decoder = self._decoder  # another one if the session has ended meanwhile
        if decoder.begun or decoder.failure is not None:
            self._check_partial(decoder)
        elif self._partial:
            self.count_partial(0)

    def eof_received(self) -> bool:
        """Close too: the peer has ended its stream."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session, after the messages that came before are taken: a failed write says nothing about them."""
        transport = self.transport
        if self._closed or transport is None:
            return
        self._lost = (exc, descriptor(transport))
        try:
            # An OSError comes from a failed write or the read after it. After any other error, such as MemoryError, nothing is read.
            if self.ready and isinstance(exc, OSError) and not self._closing:
                if self._ahead is None:
                    self._read_ahead()
                if self._ahead is not None:
                    read_rest(transport, self._ahead)
        finally:
            self.transport = None
            self._write = write_nothing
            self._rest = b""
            self._paused = True
            self._stop_timers()
            if self._ahead is None or not self.pipe.throttled:
                self._give_ahead()

    def _end(self, exc: Exception | None, number: int) -> None:
        """Release everything that belongs to the transport, and tell the socket."""
        if self._closed:
            return
        self._closed = True
        self.count_partial(0)
        if isinstance(self.connection, RawConnection) and self.ready and not self._closing:
            self._sink.received(self.pipe, self.connection.notice(), 0)
        if self._handshake is not None:
            self._handshake.end()
        if self.connection is not None:
            # A partial message and what follows a failure go with the connection (ZMTP-27, ZMTP-86).
            self._break_cycles(self.connection)
        if self.ready:
            self.ready = False
            self.pipe.engine = DETACHED
            self.pipe.connected = False
            self.pipe.throttled = False
            self._emit(Event.DISCONNECTED, number, str(exc or self.failure or "closed by peer"))
            self.owner.peer_gone(self)
        elif self.failure is None and not self._closing:
            self._emit(Event.HANDSHAKE_FAILED_NO_DETAIL, 0, str(exc or "closed in the handshake"))
        self._on_closed(self)

    def _break_cycles(self, connection: Connection) -> None:
        """Drop reference cycles, so that up to 64 MiB of a peer are freed at once: daemons collect garbage seldom."""
        connection.end()
        self.connection = self._handshake = self._heartbeat = None
        self._decoder = NO_DECODER
        self._phase = Phase.ENDED
        self._outgoing = []
        self._pongs = []

    def resume(self) -> None:
        self.pipe.throttled = False
        self._whole = True  # the time limit of an incomplete message starts anew
        if self._heartbeat is not None:
            self._heartbeat.resume()
        if self._ahead is not None:
            self._scheduler.later(self, 0, self._give_ahead)  # not within the receive that emptied the inbox
        elif self.transport is not None:
            self.transport.resume_reading()

    def throttle(self) -> None:
        """Stop reading, so that TCP slows the peer down: the inbox is full."""
        self.pipe.throttled = True
        if self.transport is not None:
            if not self.has_place():
                self.transport.pause_reading()
            (self._heartbeat or self._new_heartbeat()).suspend()

    def subscribe(self, topic: bytes, subscribe: bool) -> None:
        """Send a subscription to the publisher, in the form it understands (ZMTP-61)."""
        connection = self.connection
        if connection is not None:
            self._outgoing.append(connection.subscription(topic, subscribe))
            if self.ready:
                self._after_receive()

    def mute(self, dropped: Callable[[int], None]) -> None:
        """Keep the connection, answer its PINGs, and drop and count its messages from now on."""
        self._sink = Muted(dropped)

    def abort_with(self, reason: str) -> None:
        """Close at once because of the peer."""
        self._drop_ahead()
        if self._lost is not None:
            self._end(RemoteProtocolError(reason), self._lost[1])
        stuck = self._paused and self.failure is None
        self._fail(RemoteProtocolError(reason))
        if stuck and self.transport is not None:
            self.transport.abort()  # the peer does not read: drop what waits for it

    # -- closing

    @property
    def takes_messages(self) -> bool:
        """Whether what is sent now leaves by this connection."""
        return self.ready and not self._closing and self._lost is None

    def finish(self) -> None:
        """End the stream after what is queued, for good: the application closes this one connection."""
        self.finished = True
        self.close(None)

    def close(self, linger_s: float | None) -> None:
        """End the stream after what is queued, and abort when that takes longer than `linger_s` (None: no limit).

        A second call can only shorten the time.
        """
        self._drop_ahead()
        if self._lost is not None:
            self._end(*self._lost)
        if self._closed:
            return
        if self._closing:
            if self._ending is not None and linger_s is not None:
                self._ending.shorten(linger_s)
            return
        self._closing = True
        if self.transport is None:
            return
        if linger_s == 0 or not self.ready:
            self.transport.abort()
            return
        self._phase = Phase.ENDED
        self.pipe.throttled = False
        self.transport.resume_reading()  # also where capacity has come, and the reading has not gone on yet
        self._paused = False
        if self._heartbeat is not None:
            self._heartbeat.stop()  # LINGER says how long the peer may be silent from now on
        self._ending = self._new_ending(self.transport, linger_s)
        self.flush()
        self.outbox_written()

    def outbox_written(self) -> None:
        """End the stream of a connection that is closing, unless a part of the outbox is still to be translated."""
        if self._ending is None or self.failure is not None or self._write is write_nothing:
            return
        if self._rest or (self._translates and self._paused and self.pipe.outbox):
            return
        self._write = write_nothing  # nothing may follow the end of a stream
        self._ending.end_stream()

    # -- handshake and failures

    def _on_ready(self) -> None:
        """Attach the pipe to the socket: the handshake is complete, and no message decoded yet."""
        connection, owner, pipe = self.connection, self.owner, self.pipe
        if connection is None:
            return  # never: the connection calls this
        pipe.identity = connection.peer_identity
        pipe.metadata = connection.mechanism.peer_metadata
        pipe.metadata[b"peer-address"] = self.peer_address.encode()  # overrides what the peer says
        pipe.engine = self
        pipe.connected = True
        if not owner.peer_ready(self):
            pipe.connected = False
            pipe.engine = DETACHED
            connection.refuse(HandshakeError("the socket does not take this peer"))
            return
        connection.decoder.head = [pipe.routing_id] if owner.type_name in _ADDRESSED else []
        connection.decoder.called = True  # the end of our handshake is still to be sent
        self._translates = connection.translates
        self._phase = Phase.CONNECTION if self._translates else CLEAR
        self._start_traffic()

    def _start_traffic(self) -> None:
        options = self.options
        if self._handshake is not None:
            self._handshake.stop_timer()
        timeout_ms = options.heartbeat_ivl if options.heartbeat_timeout < 0 else options.heartbeat_timeout
        if options.heartbeat_ivl and self.connection is not None and self.connection.generation is Generation.V3:  # ZMTP-60
            self._new_heartbeat(options.heartbeat_ivl / 1000, timeout_ms / 1000).start()
        self.ready = self.was_ready = True
        self._emit(Event.HANDSHAKE_SUCCEEDED, 0)
        # What waited for this connection is sent after our READY, which is still in `_outgoing`.
        self._loop.call_soon(self.iteration_ended)

    def _after_receive(self) -> None:
        """Send handshake commands, PONGs and subscriptions; start timers, and let the handshake proceed."""
        connection, transport = self.connection, self.transport
        if connection is None or transport is None:
            return
        # A PING with more behind it may come from a peer that has closed: an answer would reset the connection and lose the rest.
        hold = bool(self._pongs) and self.ready and unread(transport) > 0
        octets = connection.take_output(pongs=not hold)
        if octets and not transport.is_closing():
            self._write(octets)
        if hold:
            (self._heartbeat or self._new_heartbeat()).show_life(SIGN_OF_LIFE_S)
        if connection.ping_ttl_ms:
            (self._heartbeat or self._new_heartbeat()).ttl(connection.ping_ttl_ms / 1000)
            connection.ping_ttl_ms = 0
        if not self.ready and self._handshake is not None:
            self._handshake.proceed()

    def suspend_handshake(self) -> None:
        self._phase = Phase.SUSPENDED

    def resume_handshake(self, step: Callable[[], Batch]) -> None:
        if self.connection is not None and not self._closing and not self._closed:
            self._phase = Phase.CONNECTION
            self.deliver(step(), 0)

    def refuse(self, error: HandshakeError) -> None:
        if not self._closing and not self._closed:
            self._fail(error)

    def queue_key_agreements(self, number: int) -> bool:
        return False  # a listener limits them

    def _fail(self, error: RemoteProtocolError | None) -> None:
        """Close because of the peer, with an event that says why."""
        transport = self.transport
        if error is None or self._closed or transport is None or self.failure is not None:
            return
        error.__traceback__ = error.__context__ = error.__cause__ = None  # they refer to this session: a reference cycle
        self.failure = error
        self.refused = isinstance(error, PeerError | MechanismMismatch | AuthenticationRefused)
        self._emit_failure(error)
        self._closing = True
        self._paused = True  # what is sent from now on waits for the next connection
        self._write = write_nothing
        self._phase = Phase.ENDED
        self._decoder = NO_DECODER
        transport.close()  # an ERROR has been written; answers to PINGs that are held back are not
        self._ending = self._new_ending(transport, LAST_WORDS_S)  # ends also when the peer does not read

    def _emit_failure(self, error: RemoteProtocolError) -> None:
        self.owner.failed(self)
        if self.ready:
            return
        if isinstance(error, AuthenticationRefused):
            self._emit(Event.HANDSHAKE_FAILED_AUTH, int(error.status), error.reason)
        else:
            self._emit(Event.HANDSHAKE_FAILED_PROTOCOL, error.code, error.reason)

    def _emit(self, event: Event, value: int, reason: str = "") -> None:
        self.owner.emit(event, value, self.endpoint, reason, peer=self.peer_address, identity=self.pipe.identity)

    def _stop_timers(self) -> None:
        for timer in (self._ending, self._progress_timer):
            if timer is not None:
                timer.cancel()
        self._ending = None  # breaks a reference cycle
        if self._heartbeat is not None:
            self._heartbeat.stop()
