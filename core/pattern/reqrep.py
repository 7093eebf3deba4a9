"""DEALER, ROUTER, REQ, REP (RFC 28; DLR, RTR, REQ and REP rules of conformance 5.2-5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from core.errors import BadState, HostUnreachable
from core.pattern.base import Counters, Pattern
from core.pattern.distributor import has_capacity
from core.pattern.pipeline import Balanced
from core.zmtp.frames import Encoded, Message, encode_message, encode_pair
from core.zmtp.zap import PROVEN_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.errors import MessageTooLarge
    from core.options import Options
    from core.pattern.pipe import Pipe
    from core.zmtp.frames import Given


class Dealer(Balanced):
    """Round robin out, fair queueing in, frames untouched (DLR-01)."""

    type_name: ClassVar[bytes] = b"DEALER"
    announces_identity: ClassVar[bool] = True
    one_per_endpoint: ClassVar[bool] = True


class Router(Pattern):
    """Messages carry their peer's routing id as first frame, both ways (RTR-01)."""

    type_name: ClassVar[bytes] = b"ROUTER"
    addressed: ClassVar[bool] = True
    announces_identity: ClassVar[bool] = True

    def __init__(self, options: Options, counters: Counters, first_id: int) -> None:
        super().__init__(options, counters)
        self.routes: dict[bytes, Pipe] = {}  # routing id → pipe, of peers that can be sent to
        self._next_id = first_id & 0xFFFFFFFF

    def route(self, routing_id: bytes) -> Pipe | None:
        return self.routes.get(routing_id)

    def router(self) -> Callable[[bytes], Pipe | None]:
        return self.routes.get

    def attach(self, pipe: Pipe) -> bool:
        """Take a pipe; a name set by CONNECT_ROUTING_ID can be sent to at once (RTR-10)."""
        self.pipes[pipe] = None
        if pipe.local_name:
            pipe.routing_id = pipe.local_name
            if self.routes.get(pipe.local_name, pipe) is not pipe:
                self.counters.taken_over += 1
            self.routes[pipe.local_name] = pipe
        return True

    def ready(self, pipe: Pipe) -> bool:
        """Assign a routing id to the peer (RTR-02, 03, 13); returns False if it is in use (RTR-07)."""
        wanted = pipe.routing_id or pipe.identity
        holder = self.routes.get(wanted) if wanted else pipe
        if holder is not None and holder is not pipe and not self._hand_over(holder, pipe):
            self.counters.duplicate_id += 1
            return False
        pipe.routing_id = wanted or self._generate()
        self.routes[pipe.routing_id] = pipe
        return True

    def _hand_over(self, holder: Pipe, newcomer: Pipe) -> bool:
        """Hand a routing id over, if the option allows it (RTR-08) and both peers have the same proven identity.

        The holder keeps its connection: disconnected, it would reconnect and take the id back, again and again. What it has sent stays
        readable.
        """
        if not self.options.router_handover or any(holder.metadata.get(name) != newcomer.metadata.get(name) for name in PROVEN_PROPERTIES):
            return False
        holder.engine.mute(self._drop_displaced)
        return True

    def _drop_displaced(self, count: int) -> None:
        self.counters.displaced += count

    def peer(self, routing_id: bytes) -> Pipe | None:
        return self.routes.get(routing_id)

    def _generate(self) -> bytes:
        while True:
            self._next_id = (self._next_id + 1) & 0xFFFFFFFF
            routing_id = b"\0" + self._next_id.to_bytes(4, "big")
            if routing_id not in self.routes:
                return routing_id

    def suspend(self, pipe: Pipe) -> None:
        """Keep id and queue of a peer we connect to (RTR-13); with IMMEDIATE drop unnamed ones (OPT-01)."""
        if self.options.immediate and not pipe.local_name:
            self._unroute(pipe)
            pipe.routing_id = b""
            self.counters.undelivered += pipe.discard_outbox()

    def detach(self, pipe: Pipe) -> None:
        super().detach(pipe)
        self._unroute(pipe)

    def _unroute(self, pipe: Pipe) -> None:
        if self.routes.get(pipe.routing_id) is pipe:
            del self.routes[pipe.routing_id]

    def _pipe_of(self, routing_id: Any) -> Pipe | None:
        """Return the pipe of a routing id, which may be any bytes-like object."""
        try:
            return self.routes.get(routing_id)
        except (TypeError, ValueError):  # a bytearray, or a view of one, has no hash
            return self.routes.get(bytes(routing_id))

    def judge(self, frames: Given) -> MessageTooLarge | None:
        pipe = self._pipe_of(frames[0]) if frames else None
        return None if pipe is None or pipe.limits is None else pipe.limits.judge(frames, 1)

    def has_capacity_for(self, first: Any) -> bool:
        """With MANDATORY, raise HostUnreachable for an unknown routing id, or return whether its peer has capacity (RTR-06)."""
        if not self.options.router_mandatory:
            return True
        pipe = self._pipe_of(first)
        if pipe is None:
            raise HostUnreachable(routing_id=bytes(first))
        return has_capacity(pipe)

    def send(self, frames: Given) -> bool:
        """Route `[routing id][frame…]`; drops, or with MANDATORY raises HostUnreachable for an unknown id, or waits (RTR-04..06)."""
        pipe = self._pipe_of(frames[0])
        if pipe is None:
            if self.options.router_mandatory:
                raise HostUnreachable(routing_id=bytes(frames[0]))
            self.counters.unroutable += 1
            return True
        if len(frames) == 1:
            self.counters.empty += 1
            return True
        if len(pipe.outbox) >= pipe.limit and not pipe.engine.flush():
            if self.options.router_mandatory:
                pipe.waiting_for_capacity = True
                return False
            self.counters.peer_full += 1
            return True
        pipe.write(frames, 1)
        return True

    def send_many(self, messages: Sequence[Given]) -> int:
        """As `send` for each. Hot path of every broker, so the common case is inlined."""
        routes = self.routes
        count = 0
        last: Any = None
        pipe: Pipe | None = None
        for frames in messages:
            if frames[0] is not last:  # replies of a batch mostly go to one client
                last = frames[0]
                pipe = routes.get(last) if type(last) is bytes else self._pipe_of(last)
            if pipe is not None and pipe.takes_octets and len(pipe.outbox) < pipe.limit:
                size = len(frames)
                if size == 3:
                    piece = encode_pair(frames[1], frames[2])
                elif size == 2:
                    piece = frames[1] if type(frames[1]) is Encoded else encode_message(frames, 1)
                elif size != 1:
                    piece = encode_message(frames, 1)
                else:
                    self.counters.empty += 1
                    count += 1
                    continue
                if len(piece) < 256:
                    outbox = pipe.outbox
                    if outbox or not pipe.engine.try_write(piece):
                        outbox.append(piece)
                else:
                    pipe.write_octets(piece)
                count += 1
                continue
            if not self.send(frames):
                break
            count += 1
        return count

    def writable(self) -> bool:
        """Return True; with MANDATORY only if some peer has capacity (RTR-06)."""
        if not self.options.router_mandatory:
            return True
        for pipe in self.routes.values():
            if has_capacity(pipe):
                return True
            pipe.waiting_for_capacity = True
        return False


class Req(Balanced):
    """Strictly a request, then its reply (REQ-01..10)."""

    type_name: ClassVar[bytes] = b"REQ"
    as_queued: ClassVar[bool] = False
    announces_identity: ClassVar[bool] = True
    plain: ClassVar[bool] = False
    one_per_endpoint: ClassVar[bool] = True

    def __init__(self, options: Options, counters: Counters, first_id: int) -> None:
        super().__init__(options, counters)
        self._awaiting: Pipe | None = None  # the peer of the request
        self._dropped: MessageTooLarge | None = None  # why the request was dropped
        self._waiting = False
        self._request_id = first_id & 0xFFFFFFFF

    def judge(self, frames: Given) -> MessageTooLarge | None:
        """See `Pattern`; the envelope counts."""
        limits = self.limits()
        if limits is None:
            return None
        return limits.judge(frames, parts=2, octets=4) if self.options.req_correlate else limits.judge(frames, parts=1)

    def send(self, frames: Given) -> bool:
        """Send a request; earlier received messages are discarded (REQ-06). Raises BadState (REQ-02, REQ-09)."""
        if self._waiting and not self.options.req_relaxed:
            raise BadState(msg="a REQ socket awaits the reply to its last request")
        if self.drop_rest is not None:
            if not self.options.req_relaxed:
                raise BadState(msg="a REQ socket has to receive all frames of a reply before it sends")
            self.drop_rest()
        envelope = [b""]
        if self.options.req_correlate:
            request_id = (self._request_id + 1) & 0xFFFFFFFF
            envelope = [request_id.to_bytes(4, "little"), b""]
        self._waiting = False  # a relaxed REQ drops the previous request even without capacity, like libzmq (REQ-09)
        self._dropped = None
        if not self.outbound.send([*envelope, *frames]):
            return False
        for pipe in list(self.inbound.active):
            self.counters.stale += self.inbound.discard(pipe)
        self._request_id = (self._request_id + 1) & 0xFFFFFFFF
        self._awaiting = self.outbound.last
        self._waiting = True
        self.outdate()
        return True

    def send_many(self, messages: Sequence[Given]) -> int:
        """One at a time: a second request needs the reply to the first."""
        return Pattern.send_many(self, messages)

    def deliver(self, pipe: Pipe, messages: list[Message]) -> list[Message]:
        """Return the awaited reply, without its delimiter (REQ-04, REQ-07, REQ-08)."""
        bodies: list[Message] = []
        correlate = bool(self.options.req_correlate)
        for message in messages:
            at = message.index(b"") if b"" in message[:2] else -1
            if at < 0 or len(message) < at + 2 or (at == 1 and len(message[0]) != 4) or (correlate and at == 0):
                self.counters.malformed += 1
                if not pipe.takes_octets:
                    continue  # inproc: there is no connection to end
                pipe.engine.abort_with("reply without a delimiter")
                return bodies
            awaited = self._waiting and pipe is self._awaiting and not pipe.inbox and not bodies
            if correlate:
                awaited = awaited and message[0] == self._request_id.to_bytes(4, "little")
            if awaited:
                bodies.append(message[at + 1 :])
            else:
                self.counters.unexpected += 1
        return bodies

    def recv(self) -> Message | None:
        """Take the reply; raises BadState without a request (REQ-02), MessageTooLarge if it was dropped for limits announced since."""
        if self._dropped is not None:
            error, self._dropped, self._waiting = self._dropped, None, False
            raise error
        if not self._waiting:
            raise BadState(msg="a REQ socket has to send before it receives")
        message = self.inbound.pop()
        if message is not None:
            self._waiting = False
            self.on_state_change()
        return message

    def recv_many(self) -> list[Message]:
        message = self.recv()
        return [] if message is None else [message]

    def dropped(self, error: MessageTooLarge) -> None:
        """Note that the queued request was dropped; `recv` raises the error."""
        self._dropped = error

    def forget_dropped(self) -> None:
        """Take another request though no `recv` has raised the error, because a receiver has no `recv`."""
        if self._dropped is not None:
            self._dropped, self._waiting = None, False
            self.on_state_change()

    def put_back(self, pipe: Pipe | None, message: Message) -> None:
        """Put back a reply; one of the request before is not (REQ-06), see `outdate`."""
        super().put_back(pipe, message)
        self._waiting = True

    def detach(self, pipe: Pipe) -> None:
        """Remove the peer; if it has the request, no reply will come (REQ-05)."""
        super().detach(pipe)
        if pipe is self._awaiting:
            self._awaiting = None

    def readable(self) -> bool:
        return self._waiting and super().readable()

    def writable(self) -> bool:
        free = not self._waiting and self.drop_rest is None
        return (free or bool(self.options.req_relaxed)) and super().writable()


class Rep(Pattern):
    """Strictly a request, then our reply, which goes back along its envelope (REP-01..06)."""

    type_name: ClassVar[bytes] = b"REP"
    as_queued: ClassVar[bool] = False
    plain: ClassVar[bool] = False

    def __init__(self, options: Options, counters: Counters) -> None:
        super().__init__(options, counters)
        self._requester: Pipe | None = None
        self._envelope: Message | None = None

    def deliver(self, pipe: Pipe, messages: list[Message]) -> list[Message]:
        """Drop requests without a delimiter (REP-04); a body of one empty frame is fine (REP-05)."""
        sound = [message for message in messages if b"" in message[:-1]]
        self.counters.malformed += len(messages) - len(sound)
        return sound

    def recv(self) -> Message | None:
        """Take the body of the next request, keep its envelope; raises BadState before the last answer (REP-02)."""
        if self._envelope is not None:
            raise BadState(msg="a REP socket has to answer before it receives")
        taken = self.inbound.pop_from()
        if taken is None:
            return None
        self._requester, message = taken
        body = message.index(b"") + 1
        self._envelope = message[:body]
        self.on_state_change()
        return message[body:]

    def recv_many(self) -> list[Message]:
        message = self.recv()
        return [] if message is None else [message]

    def put_back(self, pipe: Pipe | None, message: Message) -> None:
        super().put_back(self._requester, [*(self._envelope or []), *message])
        self._requester = self._envelope = None

    def judge(self, frames: Given) -> MessageTooLarge | None:
        pipe = self._requester
        if pipe is None or pipe.limits is None or self._envelope is None:
            return None
        return pipe.limits.judge([*self._envelope, *frames])

    def send(self, frames: Given) -> bool:
        """Send the reply; never waits, raises BadState if there is no request to answer (REP-02, REP-03)."""
        if self._envelope is None:
            raise BadState(msg="a REP socket has to receive before it answers")
        if self.drop_rest is not None:
            raise BadState(msg="a REP socket has to receive all frames of a request before it answers")
        pipe, envelope = self._requester, self._envelope
        if pipe is None or pipe not in self.pipes or not self.available(pipe):
            self.counters.requester_gone += 1
        elif len(pipe.outbox) >= pipe.limit and not pipe.engine.flush():
            self.counters.peer_full += 1
        else:
            pipe.write([*envelope, *frames])
        self._requester = self._envelope = None
        self.outdate()
        self.on_state_change()
        return True

    def receiver_failed(self) -> None:
        self._requester = self._envelope = None

    def readable(self) -> bool:
        return self._envelope is None and bool(self.inbound.active)

    def writable(self) -> bool:
        return self._envelope is not None and self.drop_rest is None
