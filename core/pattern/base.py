"""Base of the messaging patterns, and the counters of what they drop (SOCK-01..17, BEY-16).

A pattern decides which pipe a message goes to and which message the application gets next. The socket above waits and wakes; the
engines below the pipes move bytes. Neither is known here. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from core.errors import OperationNotSupported
from core.pattern.fair_queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.errors import MessageTooLarge
    from core.options import Options
    from core.pattern.pipe import Pipe
    from core.zmtp.frames import Given, Message
    from core.zmtp.limits import PeerLimits


@dataclass(slots=True, eq=False)
class Counters:
    """Counters by reason; nothing is dropped uncounted."""

    beyond_peer: int = 0  # messages beyond the limits their peer has announced, dropped in a batch or by a pattern that drops
    commands_ignored: int = 0  # commands that were dropped: unknown or malformed ones, PINGs of a peer that does not read (ZMTP-32)
    cut_command_bytes: int = 0  # a command longer than any valid one
    cut_frame_bytes: int = 0  # a frame longer than `maxmsgsize` (or `max_message_bytes`)
    cut_message_bytes: int = 0  # a message longer than `max_message_bytes`
    cut_message_parts: int = 0  # a message of more frames than `max_parts`
    cut_partial_bytes: int = 0  # incomplete messages of all peers beyond `max_partial_bytes`
    cut_progress: int = 0  # an incomplete message without progress, see `frame_ivl`
    displaced: int = 0  # messages of peers whose routing id was taken over by another peer (RTR-08)
    duplicate_id: int = 0  # peers disconnected because their routing id was in use (RTR-07)
    empty: int = 0  # messages of only a routing id (RTR-04)
    extra_peer: int = 0  # peers disconnected because a PAIR has one already (PAIR-02)
    handshakes_deferred: int = 0  # steps of handshakes that had to wait, see `max_key_agreements` (C3)
    handshakes_failed: int = 0  # connections that ended before they were ready
    malformed: int = 0  # received with a broken envelope (REP-04)
    peer_full: int = 0  # sent to a peer whose queue was full, by a pattern that drops (RTR-05, PSB-01)
    protocol_errors: int = 0  # connections closed because of the peer; the `cut_…` are those beyond a limit
    refused_connections: int = 0  # not accepted because of a limit
    requester_gone: int = 0  # replies to a requester that left (REP-03)
    stale: int = 0  # received replies discarded by a new request (REQ-06)
    taken_over: int = 0  # peers that lost their routing id to a connection with CONNECT_ROUTING_ID (RTR-10)
    undelivered: int = 0  # messages still queued when their peer left or the socket closed (SOCK-03, SOCK-15)
    unexpected: int = 0  # received when the pattern expects none (REQ-04, ZMTP-70)
    unroutable: int = 0  # sent to an unknown routing id (RTR-05)
    unsubscribed: int = 0  # received by a SUB without a matching subscription (ZMTP-69)

    def count_limit(self, kind: str) -> None:
        """Count a peer that was disconnected because of a limit, see `LimitExceeded.kind`."""
        name = f"cut_{kind}"
        setattr(self, name, getattr(self, name) + 1)

    def as_dict(self) -> dict[str, int]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


class Pattern:
    """Base of the patterns: receives are fair-queued unless `receives` is False, sends are not possible."""

    type_name: ClassVar[bytes] = b""  # Socket-Type of the handshake
    announces_identity: ClassVar[bool] = False  # READY carries Identity (ZMTP-38)
    receives: ClassVar[bool] = True  # has a receiving direction (SOCK-12)
    as_queued: ClassVar[bool] = True  # `recv` does no more than to take the next message of the fair queue
    plain: ClassVar[bool] = True  # received messages reach the application unchanged, so that a receiver can take them directly
    addressed: ClassVar[bool] = False  # the first frame names the peer, and a message waits for that one alone
    takes_inproc: ClassVar[bool] = True  # inproc endpoints have a meaning
    one_per_endpoint: ClassVar[bool] = False  # a second connect() to the same endpoint has no effect (SOCK-11)

    def __init__(self, options: Options, counters: Counters) -> None:
        self.options = options
        self.counters = counters
        self.inbound = FairQueue()
        # Called by REQ and REP when a send makes `recv` possible or the other way round.
        self.on_state_change: Callable[[], object] = lambda: None
        self.pipes: dict[Pipe, None] = {}
        # Set by the socket while only the first frames of a message were received; forgets the others.
        self.drop_rest: Callable[[], object] | None = None
        # Called by REQ and REP with each turn: what receives have is not put back any longer, because it is of the turn before.
        self.outdate: Callable[[], object] = lambda: None

    # -- pipes come and go

    def attach(self, pipe: Pipe) -> bool:
        """Take a new pipe; returns False to refuse the peer, whose connection is then closed."""
        self.pipes[pipe] = None
        return True

    def ready(self, pipe: Pipe) -> bool:
        """Note that the handshake of an attached pipe is complete; returns False to refuse the peer."""
        return True

    def detach(self, pipe: Pipe) -> None:
        """Remove a pipe for good. What its peer sent stays readable (SOCK-03)."""
        self.pipes.pop(pipe, None)

    # note that a connecting pipe lost its connection and will get another; queued messages wait (SOCK-02)
    def suspend(self, pipe: Pipe) -> None: ...

    def available(self, pipe: Pipe) -> bool:
        """Whether a pipe can be sent to: with a connection, or before it, but not with IMMEDIATE (OPT-01).

        IMMEDIATE has no meaning for inproc, whose pipe is the connection.
        """
        return pipe.connected or (pipe.connecting and (not self.options.immediate or not pipe.takes_octets))

    def on_writable(self, pipe: Pipe) -> None: ...  # note that the pipe's outbox was emptied

    def peer(self, routing_id: bytes) -> Pipe | None:
        """Return the pipe of a connected peer by the identity it announced."""
        return next((pipe for pipe in self.pipes if pipe.connected and pipe.identity == routing_id), None)

    def follow_options(self) -> None: ...  # apply options that act at once (SOCK-07)
    def receiver_failed(self) -> None: ...  # owe no answer to the message that a receiver has failed for

    # -- messages

    def deliver(self, pipe: Pipe, messages: list[Message]) -> list[Message]:
        """Take received messages; returns those for the application, which the caller queues."""
        if self.receives:
            return messages
        self.counters.unexpected += len(messages)  # the peer should not have sent them
        return []

    def send(self, frames: Given) -> bool:
        """Send one message, or drop it if the pattern drops; returns False if it has to wait."""
        raise OperationNotSupported(msg=f"a {self.type_name.decode()} socket does not send")

    def send_many(self, messages: Sequence[Given]) -> int:
        """Send in order until one has to wait; returns how many were sent."""
        count = 0
        send = self.send
        for frames in messages:
            if not send(frames):
                break
            count += 1
        return count

    def has_capacity_for(self, first: Any) -> bool:
        """Return whether a message with this first frame would not wait; raises what the frame alone is refused for."""
        return True

    def judge(self, frames: Given) -> MessageTooLarge | None:
        """Return why the message exceeds the announced limits of its peer, None if it does not."""
        return None

    def limits(self) -> PeerLimits | None:
        lowest: PeerLimits | None = None
        for pipe in self.pipes:
            if pipe.limits is not None:
                lowest = pipe.limits.lowest(lowest)
        return lowest

    def route(self, routing_id: bytes) -> Pipe | None:
        """Return the pipe that all messages would go to, None if there is not exactly one."""
        return None

    def router(self) -> Callable[[bytes], Pipe | None]:
        """Return what `route` does, as `receiver`."""
        return self.route

    def receiver(self) -> Callable[[], Message | None]:
        """Return what `recv` does: on the hot path of most patterns that is one call less."""
        return self.inbound.pop if self.as_queued else self.recv

    def recv(self) -> Message | None:
        if not self.receives:
            self._refuse_recv()
        return self.inbound.pop()

    def recv_many(self) -> list[Message]:
        if not self.receives:
            self._refuse_recv()
        return self.inbound.pop_many()

    def _refuse_recv(self) -> NoReturn:
        raise OperationNotSupported(msg=f"a {self.type_name.decode()} socket does not receive")

    def next_pipe(self) -> Pipe | None:
        """Return the pipe of the message that `recv` would return."""
        active = self.inbound.active
        return active[0] if active else None

    def put_back(self, pipe: Pipe | None, message: Message) -> None:
        """Undo a `recv` whose message was not consumed."""
        self.inbound.put_back(pipe, message)

    def readable(self) -> bool:
        return bool(self.inbound.active)

    def writable(self) -> bool:
        return False
