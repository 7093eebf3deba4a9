"""One ZMTP connection, sans-I/O: greeting, handshake, traffic (RFC 23, RFC 37; ZMTP-01..60, 72..86).

    GREETING ──64 bytes──> HANDSHAKE ──mechanism complete──> TRAFFIC
        ├───────── identity of a 2.0 or 1.0 peer ───────────────┤
        └────────── broken rule, ERROR ──────────┴──────────────┴──> CLOSED

The shell calls `greet` when the transport is open and `receive` with the bytes it reads. After each call it sends what
`take_output` returns, and closes when `failure` is set. Time (HANDSHAKE_IVL, heartbeats) belongs to the shell. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from core.constants import ProtocolErrorCode as Code
from core.errors import HandshakeError, RemoteProtocolError
from core.zmtp import greeting as greet
from core.zmtp import zmtp2
from core.zmtp.commands import command, parse_command, pong
from core.zmtp.decoder import Decoder
from core.zmtp.frames import COMMAND, LONG, MORE, encode_command, encode_frame
from core.zmtp.scan import NOTHING, Batch
from core.zmtp.secured_decoder import SecuredDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.zmtp.frames import Message
    from core.zmtp.limits import ConnectionLimits
    from core.zmtp.mechanism import Mechanism
    from core.zmtp.zap import ZapReply

_REQ, _REP, _DEALER, _ROUTER = b"REQ", b"REP", b"DEALER", b"ROUTER"
_PUB, _XPUB, _SUB, _XSUB = b"PUB", b"XPUB", b"SUB", b"XSUB"

# Socket types that may connect to each type (matrix of conformance 1.5, ZMTP-45, ZMTP-49).
ACCEPTS: Final[dict[bytes, frozenset[bytes]]] = {
    _REQ: frozenset((_REP, _ROUTER)),
    _REP: frozenset((_REQ, _DEALER)),
    _DEALER: frozenset((_REP, _DEALER, _ROUTER)),
    _ROUTER: frozenset((_REQ, _DEALER, _ROUTER)),
    _PUB: frozenset((_SUB, _XSUB)),
    _XPUB: frozenset((_SUB, _XSUB)),
    _SUB: frozenset((_PUB, _XPUB)),
    _XSUB: frozenset((_PUB, _XPUB)),
    b"PUSH": frozenset((b"PULL",)),
    b"PULL": frozenset((b"PUSH",)),
    b"PAIR": frozenset((b"PAIR",)),
}
PONGS_MAX: Final = 64  # unsent PONGs: bounds the memory a peer can use that sends PINGs and does not read (W6)


class State(Enum):
    """Phase of a connection."""

    GREETING = 1
    HANDSHAKE = 2
    TRAFFIC = 3
    CLOSED = 4


class CommandCounters(Protocol):
    """Counters of a socket to which its connections add."""

    commands_ignored: int


class Connection:
    """See the module.

    Args:
        on_ready: called once when the handshake is complete and before the first message is decoded.
        oldest: the oldest major version of ZMTP a peer may speak, if the mechanism allows it (ZMTP-13).
        identity: own identity, sent to peers of 2.0 and 1.0.

    Attributes:
        decoder: of the traffic; the shell sets `head` from `on_ready`.
        failure: the rule that the peer broke, as an error.
        peer_type: the peer's Socket-Type, b"" if it did not say (ZMTP-40).
        peer_identity: its Identity, b"" if none or one that could pass for a generated id (ZMTP-44).
        generation: protocol version of the peer, UNKNOWN until it is detected.
        minor: the ZMTP 3 minor version spoken (ZMTP-06); 0 with older peers.
        gated: steps of the handshake that need key agreements wait for `permit`.
        work: key agreements of the step that waits, 0 for none.
        ping_ttl_ms: TTL of the last PING, 0 for none; the shell arms its timer from it (ZMTP-53).
        outgoing: bytes to send, see `take_output`.
        dropped: commands dropped because unknown or malformed (ZMTP-32).
        counters: of the socket, which count them too; None for a connection without a socket.
    """

    def __init__(
        self,
        socket_type: bytes,
        mechanism: Mechanism,
        limits: ConnectionLimits,
        on_ready: Callable[[], None],
        *,
        oldest: int = greet.MAJOR,
        identity: bytes = b"",
    ) -> None:
        self.state = State.GREETING
        self.socket_type = socket_type
        self.mechanism = mechanism
        self.limits = limits
        self.failure: RemoteProtocolError | None = None
        self.peer_type = b""
        self.peer_identity = b""
        self.generation = greet.Generation.UNKNOWN
        self.minor = 0
        self.gated = False
        self.work = 0
        self.ping_ttl_ms = 0
        self.dropped = 0
        self.counters: CommandCounters | None = None
        self.decoder = Decoder(
            on_command=self._on_command,
            frame_bytes_max=limits.frame_bytes,
            message_bytes_max=limits.message_bytes,
            parts_max=limits.parts,
        )
        self._on_ready = on_ready
        self._oldest = oldest if mechanism.bare else greet.MAJOR
        self._identity = identity
        padding = (len(identity) + 1 if self._oldest == 1 else 0).to_bytes(8, "big")  # ZMTP-15
        self._greeting = greet.StagedGreeting(greet.greeting(mechanism.name, as_server=mechanism.as_server, padding=padding), self._oldest)
        self._zmtp1: zmtp2.Zmtp1Decoder | None = None  # set when the peer speaks 1.0
        self._buffer = b""
        self._waiting: bytes | None = None  # a command that waits for `permit`
        self._handshake_bytes = 0
        self.pinged = False
        self.pongs: list[bytes] = []
        self.outgoing: list[bytes] = []
        self._secured = SecuredDecoder(mechanism, self.decoder, limits) if mechanism.encrypts else None

    # -- bytes out

    def greet(self) -> bytes:
        """Return the first bytes to send (ZMTP-03..05): the whole greeting, or what every peer understands (ZMTP-14)."""
        return self._greeting.begin()

    def take_output(self, *, pongs: bool = True) -> bytes:
        """Return the bytes to send; answers to PINGs may wait."""
        if pongs and self.pongs:
            self.outgoing += map(self.send_command, self.pongs)  # sealed now: sealed frames must be sent in order
            self.pongs.clear()
        octets = b"".join(self.outgoing)
        self.outgoing.clear()
        return octets

    def send_command(self, body: bytes) -> bytes:
        """Encode a command for this peer, sealed when the mechanism encrypts."""
        if self.mechanism.encrypts:
            return encode_frame(self.mechanism.seal(2, body))
        return encode_command(body)

    @property
    def is_silent(self) -> bool:
        """Whether the peer has sent nothing yet."""
        return self.state is State.GREETING and not self._buffer

    @property
    def translates(self) -> bool:
        """Whether encoded messages must go through `translate` before they are sent."""
        return self.mechanism.encrypts or self._zmtp1 is not None

    def translate(self, octets: bytes) -> bytes:
        """Return encoded messages sealed (CURVE-10), or as frames of 1.0 (ZMTP-19)."""
        return zmtp2.zmtp1_frames(octets) if self._zmtp1 is not None else self.mechanism.seal_frames(octets)

    def subscription(self, topic: bytes, subscribe: bool) -> bytes:
        """Encode a subscription or its end for this peer's version (ZMTP-61, ZMTP-64)."""
        if self.minor:
            return self.send_command(command(b"SUBSCRIBE" if subscribe else b"CANCEL", topic))
        frame = encode_frame((b"\x01" if subscribe else b"\x00") + topic)
        return self.translate(frame) if self.translates else frame

    # -- bytes in

    def receive(self, data: bytes) -> Batch:
        """Take bytes; returns the whole messages in them. Check `failure` and `take_output` afterwards."""
        if self.state is State.TRAFFIC:
            return self._traffic(data)
        if self.state is State.CLOSED:
            return NOTHING
        self._buffer += data
        try:
            self._advance()
        except RemoteProtocolError as error:
            self.outgoing += [encode_command(body) for body in self.mechanism.last_words]
            self._fail(error)
        return self._rest()

    def _rest(self) -> Batch:
        """Return the messages that came in one read with the end of the handshake."""
        if self.state is not State.TRAFFIC:
            return NOTHING
        rest, self._buffer = self._buffer, b""
        batch = self._traffic(rest)
        if self._zmtp1 is not None and self.socket_type in (_PUB, _XPUB):
            # A 1.0 subscriber does not send its subscriptions: it gets everything (ZMTP-21).
            batch = Batch(batch.head, batch.octets, batch.starts, batch.ends, [[b"\x01"], *batch.made])
        return batch

    def buffer(self, data: bytes) -> None:
        """Buffer bytes while a verdict or a permission is awaited; `resume` and `permit` use them."""
        self._buffer += data
        if len(self._buffer) > self.limits.handshake_bytes:
            self._fail(HandshakeError(f"more than {self.limits.handshake_bytes} bytes before the handshake"))

    def resume(self, reply: ZapReply) -> Batch:
        """Go on with the answer to `mechanism.zap_request`."""
        try:
            self.outgoing += [encode_command(body) for body in self.mechanism.authenticated(reply)]
        except RemoteProtocolError as error:
            self.refuse(error)
        return self.receive(b"")

    def permit(self) -> Batch:
        """Go on with the step that waited for key agreements."""
        self.work = 0
        return self.receive(b"")

    def refuse(self, error: RemoteProtocolError) -> None:
        """End the handshake for a reason of the shell (authentication, limits)."""
        self.outgoing += [encode_command(body) for body in self.mechanism.last_words]
        self._fail(error)

    def end(self) -> None:
        """Drop incomplete messages and reference cycles: the stream has ended."""
        self.state = State.CLOSED
        self._buffer = b""
        self._waiting = self._secured = None
        self.decoder = Decoder(on_command=_ignore)

    def _fail(self, error: RemoteProtocolError) -> None:
        self.failure = self.decoder.failure = error
        self.state = State.CLOSED
        self._buffer = b""

    def _advance(self) -> None:
        if self.state is State.GREETING and self._greeted():
            if self.generation is not greet.Generation.V3:
                self.state = State.TRAFFIC
                self._on_ready()
                return
            self.state = State.HANDSHAKE
            self.outgoing += [encode_command(body) for body in self.mechanism.start()]
        while self.state is State.HANDSHAKE and self.mechanism.zap_request is None:
            if self.mechanism.complete:
                self.state = State.TRAFFIC
                self._on_ready()
                return
            body = self._next_step()
            if body is None:
                return
            self._step(body)

    def _greeted(self) -> bool:
        """Check the received part of the greeting; an unacceptable peer fails without waiting for the rest (ZMTP-77)."""
        data = self._buffer
        if self.generation is greet.Generation.UNKNOWN:
            self.generation = generation = greet.generation(data)
            more = self._greeting.go_on(data)
            if more:
                self.outgoing.append(more)
            if (generation is greet.Generation.V1 and self._oldest > 1) or (generation is greet.Generation.V2 and self._oldest > 2):
                raise HandshakeError(f"peer speaks {generation.value} or {greet.looks_like(data)}", offset=0)
            if generation is greet.Generation.V2:
                self.outgoing.append(zmtp2.zmtp2_tail(self.socket_type, self._identity))
        if self.generation is not greet.Generation.V3:
            return self.generation is not greet.Generation.UNKNOWN and self._greeted_by_legacy(data)
        if len(data) < greet.GREETING_BYTES:
            return False
        self.minor = greet.peer_minor(data[: greet.GREETING_BYTES], self.mechanism.name)
        self._buffer = data[greet.GREETING_BYTES :]
        return True

    def _greeted_by_legacy(self, data: bytes) -> bool:
        """Read the identity of a 2.0 or 1.0 peer, which completes its handshake (ZMTP-16, ZMTP-20)."""
        if self.generation is greet.Generation.V2:
            second = zmtp2.zmtp2_greeting(data)
            if second is None:
                return False
            kind, identity, end = second
            self.mechanism.peer_metadata = {b"socket-type": kind, b"identity": identity}
        else:
            first = zmtp2.zmtp1_identity(data)
            if first is None:
                return False
            identity, end = first
            self.mechanism.peer_metadata = {b"identity": identity}
            self.outgoing.append(self._identity)
            self._zmtp1 = zmtp2.Zmtp1Decoder(self.decoder)
        self._check_peer()
        self._buffer = data[end:]
        return True

    def _next_step(self) -> bytes | None:
        """Return the next command, None while it is incomplete or waits for `permit`."""
        if self.work:
            return None
        if self._waiting is not None:
            body, self._waiting = self._waiting, None
            return body
        next_body = self._next_handshake_command()
        if next_body is None or not self.gated:
            return next_body
        self.work = self.mechanism.work(next_body)
        if self.work:
            self._waiting = next_body
            return None
        return next_body

    def _next_handshake_command(self) -> bytes | None:
        """Take one command frame from the buffer; a message frame here is an error (ZMTP-78)."""
        data = self._buffer
        if not data:
            return None
        flags = data[0]
        # A clear COMMAND bit is accepted for handshake commands only, as by libzmq (ZMTP-31).
        start = 9 if flags & LONG else 2
        if flags & MORE and not flags & COMMAND:
            raise HandshakeError("message before the handshake is complete", code=Code.ZMTP_UNEXPECTED_COMMAND)
        size = int.from_bytes(data[1:start], "big")
        if self._handshake_bytes + size > self.limits.handshake_bytes:
            raise HandshakeError(f"handshake of more than {self.limits.handshake_bytes} bytes")
        if len(data) < start + size:
            return None
        self._handshake_bytes += size
        self._buffer = data[start + size :]
        return data[start : start + size]

    def _step(self, body: bytes) -> None:
        bodies = self.mechanism.receive(body)
        if self.mechanism.peer_metadata:
            self._check_peer()
        self.outgoing += [encode_command(answer) for answer in bodies]

    def _check_peer(self) -> None:
        metadata = self.mechanism.peer_metadata
        self.peer_type = metadata.get(b"socket-type", b"")
        if b"socket-type" in metadata and self.peer_type not in ACCEPTS[self.socket_type]:  # leaving it out is allowed (ZMTP-40)
            text = self.peer_type.decode("ascii", "backslashreplace") or "a socket without a type"
            ours = self.socket_type.decode()
            reason = f"a {ours} socket does not talk to {text}"
            if self.generation is greet.Generation.V3 and (self.mechanism.as_server or not self.mechanism.encrypts):  # CURVE-14
                # ERROR is sent in clear even with encryption, so it must not contain a socket type (ZMTP-12).
                told = b"socket types do not match" if self.mechanism.encrypts else reason.encode()[:255]
                self.mechanism.last_words.append(command(b"ERROR", bytes((len(told),)) + told))
            raise HandshakeError(reason, code=Code.ZMTP_INVALID_METADATA)
        identity = metadata.get(b"identity", b"")
        if len(identity) > greet.IDENTITY_BYTES_MAX:
            raise HandshakeError(f"identity of {len(identity)} bytes", code=Code.ZMTP_INVALID_METADATA)
        self.peer_identity = b"" if identity[:1] == b"\0" else identity

    def _traffic(self, data: bytes) -> Batch:
        sealed = self._secured
        if sealed is not None:
            batch = sealed.feed(data)
            if sealed.failure is not None:
                self._fail(sealed.failure)
            return batch
        batch = (self._zmtp1 or self.decoder).feed(data)
        if self.decoder.failure is not None:
            self._fail(self.decoder.failure)
        return batch

    def _on_command(self, body: bytes) -> Message | None:
        """Handle a command of the traffic; SUBSCRIBE and CANCEL become the messages of 3.0 peers (ZMTP-62)."""
        if self.generation is not greet.Generation.V3:
            self._drop_command()  # a reserved bit, from a peer without commands (ZMTP-18, ZMTP-60)
            return None
        try:
            name, data = parse_command(body)
        except RemoteProtocolError:
            self._drop_command()  # ZMTP-32, ZMTP-83
            return None
        if name == b"PING":
            answer, self.ping_ttl_ms = pong(data)
            self.pinged = True
            if len(self.pongs) < PONGS_MAX:
                self.pongs.append(answer)
            else:
                self._drop_command()
        elif name in (b"SUBSCRIBE", b"CANCEL") and self.socket_type in (_PUB, _XPUB):
            return [(b"\x01" if name == b"SUBSCRIBE" else b"\x00") + data]
        elif name != b"PONG":
            self._drop_command()
        return None

    def _drop_command(self) -> None:
        self.dropped += 1
        if self.counters is not None:
            self.counters.commands_ignored += 1


def _ignore(body: bytes) -> None:
    """Ignore a command of a stream that has ended."""
