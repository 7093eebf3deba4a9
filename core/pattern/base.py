"""What every messaging pattern can do, and the counters of what they drop (SOCK-01..17, BEY-16).

A pattern decides which pipe a message goes to and which message the application gets next. The socket above it waits and
wakes; the engines below the pipes move octets. Neither is known here. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from core.errors import OperationNotSupported
from core.pattern.fair_queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.errors import MessageTooLarge
    from core.options import Options
    from core.pattern.pipe import Pipe
    from core.zmtp.decoder import Message
    from core.zmtp.limits import PeerLimits

__all__ = ["Counters", "Pattern"]


class Counters:
    """Plain integers, one a reason; nothing is dropped without one.

    Attributes:
        unroutable: sent to a routing id nobody has (RTR-05).
        peer_full: sent to a peer whose queue was full, by a pattern that drops (RTR-05, PSB-01).
        empty: messages of a routing id and nothing else (RTR-04).
        malformed: received with a broken envelope (REP-04).
        unexpected: received where the pattern waits for none (REQ-04, ZMTP-70).
        unsubscribed: received by a SUB that did not ask for it (ZMTP-69).
        beyond_peer: messages to a peer that has told that it takes none so large, dropped in a batch or where a pattern drops.
        stale: received replies discarded by a new request (REQ-06).
        requester_gone: replies to a requester that left (REP-03).
        displaced: messages of peers whose routing id another peer has taken over (RTR-08).
        duplicate_id: peers cut because their routing id was taken (RTR-07).
        extra_peer: peers cut because a PAIR has one already (PAIR-02).
        undelivered: messages still queued when their peer left or the socket closed (SOCK-03, SOCK-15).
        protocol_errors: connections closed for what the peer did; of these, because of a limit:
        cut_frame_bytes: a frame longer than `maxmsgsize` (or `max_message_bytes`).
        cut_message_bytes: a message longer than `max_message_bytes`.
        cut_message_parts: a message of more frames than `max_parts`.
        cut_command_bytes: a command longer than any there is.
        cut_partial_bytes: all peers together brought more of unfinished messages than `max_partial_bytes`.
        cut_progress: a message that had begun did not get on, see `frame_ivl`.
        handshakes_failed: connections that ended before they were ready.
        handshakes_deferred: steps of handshakes that had to wait for their turn, see `max_key_agreements` (C3).
        refused_connections: not accepted because of a limit.
        commands_ignored: unknown or malformed commands of the traffic (ZMTP-32).
    """

    __slots__ = (
        "beyond_peer",
        "commands_ignored",
        "cut_command_bytes",
        "cut_frame_bytes",
        "cut_message_bytes",
        "cut_message_parts",
        "cut_partial_bytes",
        "cut_progress",
        "displaced",
        "duplicate_id",
        "empty",
        "extra_peer",
        "handshakes_deferred",
        "handshakes_failed",
        "malformed",
        "peer_full",
        "protocol_errors",
        "refused_connections",
        "requester_gone",
        "stale",
        "undelivered",
        "unexpected",
        "unroutable",
        "unsubscribed",
    )

    def __init__(self) -> None:
        for name in Counters.__slots__:
            setattr(self, name, 0)

    beyond_peer: int
    commands_ignored: int
    cut_command_bytes: int
    cut_frame_bytes: int
    cut_message_bytes: int
    cut_message_parts: int
    cut_partial_bytes: int
    cut_progress: int
    displaced: int
    duplicate_id: int
    empty: int
    extra_peer: int
    handshakes_deferred: int
    handshakes_failed: int
    malformed: int
    peer_full: int
    protocol_errors: int
    refused_connections: int
    requester_gone: int
    stale: int
    undelivered: int
    unexpected: int
    unroutable: int
    unsubscribed: int

    def count_limit(self, kind: str) -> None:
        """Count a peer that was cut because of a limit, see `LimitExceeded.kind`."""
        name = f"cut_{kind}"
        setattr(self, name, getattr(self, name) + 1)

    def as_dict(self) -> dict[str, int]:
        """Return name → count, zero ones included."""
        return {name: getattr(self, name) for name in Counters.__slots__}


class Pattern:
    """Base of the patterns: receives are fair-queued, sends are not possible.

    Attributes:
        type_name: Socket-Type of the handshake.
        announces_identity: READY carries Identity (ZMTP-38).
        plain: received messages reach the application as they came, so that a receiver can take them from the wire.
        keeps_connecting: the pipe of a connect() may be sent to before its first handshake (SOCK-02).
        one_per_endpoint: a second connect() to the same endpoint is the first one (SOCK-11).
        on_state_change: REQ and REP call it when a send made `recv` possible or the other way round.
    """

    type_name: ClassVar[bytes] = b""
    announces_identity: ClassVar[bool] = False
    plain: ClassVar[bool] = True
    keeps_connecting: ClassVar[bool] = False
    one_per_endpoint: ClassVar[bool] = False

    def __init__(self, options: Options, counters: Counters) -> None:
        self.options = options
        self.counters = counters
        self.inbound = FairQueue()
        self.on_state_change: Callable[[], object] = lambda: None
        if type(self).recv is Pattern.recv:
            self.recv = self.inbound.pop  # type: ignore[method-assign]  # one call less on the hot path
        self.pipes: dict[Pipe, None] = {}

    # -- pipes come and go

    def attach(self, pipe: Pipe) -> bool:
        """Take a new pipe; False refuses the peer, whose connection is then closed."""
        self.pipes[pipe] = None
        return True

    def ready(self, pipe: Pipe) -> bool:
        """The handshake of an attached pipe is complete (again); False refuses the peer."""
        return True

    def detach(self, pipe: Pipe) -> None:
        """The peer is gone for good. What it sent stays readable (SOCK-03), nothing can be sent to it."""
        self.pipes.pop(pipe, None)

    def suspend(self, pipe: Pipe) -> None:
        """A connecting pipe lost its connection and will get another; what was queued for it waits, within the marks (SOCK-02)."""

    def available(self, pipe: Pipe) -> bool:
        """Whether a pipe may be sent to: without a connection only one that will get another, and not with IMMEDIATE (OPT-01).

        IMMEDIATE has no meaning for inproc, whose pipe is the connection.
        """
        return pipe.connected or (pipe.connecting and (not self.options.immediate or not pipe.takes_octets))

    def on_writable(self, pipe: Pipe) -> None:
        """The pipe's outbox was emptied."""

    def peer(self, routing_id: bytes) -> Pipe | None:
        """Return the pipe of a connected peer by the identity it announced."""
        return next((pipe for pipe in self.pipes if pipe.connected and pipe.identity == routing_id), None)

    def follow_options(self) -> None:
        """Take over options that act at once (SOCK-07)."""

    # -- messages

    def deliver(self, pipe: Pipe, messages: list[Message]) -> list[Message]:
        """Take messages as they came off the wire; returns those for the application (the caller queues them)."""
        return messages

    def send(self, frames: Message) -> bool:
        """Send one message, or drop it where the pattern says so; False when it has to wait."""
        raise OperationNotSupported(msg=f"a {self.type_name.decode()} socket does not send")

    def send_many(self, messages: Sequence[Message]) -> int:
        """Send in order until one has to wait; returns how many were taken."""
        count = 0
        send = self.send
        for frames in messages:
            if not send(frames):
                break
            count += 1
        return count

    def judge(self, frames: Message) -> MessageTooLarge | None:
        """Return why the peer this message would go to does not take it, as far as it has told."""
        return None

    def limits(self) -> PeerLimits | None:
        """Return what all peers that told something take."""
        lowest: PeerLimits | None = None
        for pipe in self.pipes:
            if pipe.limits is not None:
                lowest = pipe.limits.lowest(lowest)
        return lowest

    def route(self, routing_id: bytes) -> Pipe | None:
        """Return the pipe any number of messages would go to, None when that is not one and the same."""
        return None

    def recv(self) -> Message | None:
        """Take the next message, None when there is none."""
        return self.inbound.pop()

    def recv_many(self) -> list[Message]:
        """Take all messages that are there."""
        return self.inbound.pop_many()

    def put_back(self, pipe: Pipe | None, message: Message) -> None:
        """Undo a `recv` that nobody consumed."""
        self.inbound.put_back(pipe, message)

    def readable(self) -> bool:
        """Whether `recv` would return a message."""
        return bool(self.inbound.active)

    def writable(self) -> bool:
        """Whether `send` would not have to wait."""
        return False


class SendOnly(Pattern):
    """Base of the patterns without a receiving direction (SOCK-12)."""

    def recv(self) -> Message | None:
        """Refuse.

        Raises:
            OperationNotSupported: always (ENOTSUP).
        """
        raise OperationNotSupported(msg=f"a {self.type_name.decode()} socket does not receive")

    def recv_many(self) -> list[Message]:
        """Refuse; see `recv`."""
        raise OperationNotSupported(msg=f"a {self.type_name.decode()} socket does not receive")

    def deliver(self, pipe: Pipe, messages: list[Message]) -> list[Message]:
        """Drop what the peer should not have sent."""
        self.counters.unexpected += len(messages)
        return []
