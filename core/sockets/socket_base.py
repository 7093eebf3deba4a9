"""The inner side of a socket: messages from sessions and inproc pipes.

The verbs are in `core.sockets.socket`, `core.sockets.sending` and `core.sockets.receiving`; the pattern decides which message goes where.
The way of a received message: session → `received` → pattern → a pending receive, the inbox, or the batch receiver.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from core import constants as c
from core.errors import AuthenticationRefused, InvalidOption, LimitExceeded
from core.options import Options
from core.pattern.base import Counters, Pattern
from core.pattern.pair import Pair
from core.pattern.pipe import ConflatingPipe, Pipe
from core.pattern.pipeline import Pull, Push
from core.pattern.pubsub import Pub, Sub, XPub, XSub
from core.pattern.reqrep import Dealer, Rep, Req, Router
from core.pattern.stream import Stream
from core.security.mechanisms import Security
from core.sockets.endpoints import Endpoints
from core.sockets.monitor import Monitors
from core.sockets.receiving import Receiving
from core.sockets.results.pending import Delivered
from core.zmtp.frames import Message
from core.zmtp.limits import PeerLimits
from core.zmtp.scan import Batch

if TYPE_CHECKING:
    from core.net.inproc import InprocPipe
    from core.net.socket_port import SessionPort, SocketContext
    from core.option_table import OptionValue
    from core.runtime.write_scheduler import WriteScheduler
    from core.zmtp.mechanism import Mechanism

_PATTERNS: Final[dict[int, type[Pattern]]] = {
    c.PAIR: Pair,
    c.PUB: Pub,
    c.SUB: Sub,
    c.REQ: Req,
    c.REP: Rep,
    c.DEALER: Dealer,
    c.ROUTER: Router,
    c.PULL: Pull,
    c.PUSH: Push,
    c.XPUB: XPub,
    c.XSUB: XSub,
    c.STREAM: Stream,
}
Receiver = Callable[[list[Message]], object]
BatchReceiver = Callable[[Batch], object]
PeerWatcher = Callable[[bytes, bool], None]
MARKS: Final = frozenset(("sndhwm", "rcvhwm", "sndhwm_bytes", "rcvhwm_bytes"))

# Slots refuse misspelt options, and are faster than a dictionary. Written in the class, they would hide the options from type checkers,
# for which these are properties.
_SLOTS: Final = (
    "_active", "_again", "_delivered", "_endpoints", "_inproc_batch", "_judging", "_on_peer", "_partial",
    "_plain", "_pollers", "_receiver", "_receivers", "_rests", "_route", "_scheduler", "_senders", "_serving", "_sweep_at",
    "closed", "context", "counters", "inbound", "monitors", "options", "pattern",
    "security", "socket_type", "type_name",
)  # fmt: skip


@mypyc_attr(allow_interpreted_subclasses=True)
class SocketBase(Receiving):
    """State of a socket, and the calls from its connections.

    Attributes:
        context: that made the socket.
        socket_type: `core.ROUTER` and so on.
        type_name: the same, as in the handshake.
        options: all values.
        counters: what was dropped, by reason.
        pattern: decides which message goes where.
        security: makes the mechanisms of connections.
        monitors: of its events.
        closed: after `close`.
    """

    __slots__ = _SLOTS

    def __init__(self, context: SocketContext, socket_type: c.SocketType, options: dict[str, OptionValue | str]) -> None:
        self.context = context
        self.socket_type = socket_type
        self.options = Options(**options)
        self.counters = Counters()
        self.closed = False
        self._serving = None
        kind = _PATTERNS[socket_type]
        first_id = int(context.random() * 2**32)
        args = (first_id,) if kind in (Router, Req, Stream) else ()
        self.pattern = kind(self.options, self.counters, *args)
        self.type_name = kind.type_name
        self.security = Security(kind.type_name, kind.announces_identity)
        self._endpoints = Endpoints(self)
        self.monitors: Monitors = Monitors(context.supervisor)
        self.inbound = self.pattern.inbound
        self._active = self.inbound.active
        self._plain = self.pattern.plain
        self.pattern.on_state_change = self._on_state_change
        self._again = False  # pending receives are about to be served again
        super().__init__(self.pattern.receiver(), self.pattern.send, self._active)
        self._judging = False  # some peer has announced limits
        self._route = self.pattern.router()
        self._receiver = None  # called with each batch
        self._scheduler: WriteScheduler | None = None  # of the loop on which the receiver is called
        self._on_peer: PeerWatcher | None = None
        self._receivers = deque()
        self._senders = {}
        self._pollers = []
        self._sweep_at = 0  # the first wait sets it
        self._rests = deque()  # of messages that are received frame by frame (RCVMORE): more than one when receives were cancelled
        self._delivered = Delivered(self)
        self.pattern.outdate = self._delivered.outdate
        self._partial = []  # frames given one by one (SNDMORE)
        self._inproc_batch: list[tuple[Pipe, Message]] = []  # for the receiver, in the next loop iteration
        self._follow_receiver()

    @property
    def scheduler(self) -> WriteScheduler:
        """The write scheduler of the running loop."""
        return self.context.scheduler

    def enter(self) -> None:
        """See `Owned`; the first call on a loop starts what was bound and connected before."""
        super().enter()
        if self._endpoints.deferred and asyncio._get_running_loop() is not None:
            self._endpoints.start_deferred()

    # -- the batch receiver

    def _hand_over_queued(self) -> None:
        while (receiver := self._receiver) is not None and self.pattern.readable():
            pipe = self.pattern.next_pipe()
            if len(self._active) == 1:
                messages = self.pattern.recv_many()
            else:
                message = self.pattern.recv()
                messages = [] if message is None else [message]
            for head, run in groupby(messages, key=self._head):
                self._hand_over_alone(pipe, _hand_over, self, receiver, Batch.of(head, list(run)))

    def _head(self, message: Message) -> list[bytes]:
        """Return the first frames that a batch with this message has in common."""
        return message[:1] if self.type_name == b"ROUTER" else []

    def _hand_over_alone(self, pipe: Pipe | None, hand_over: Callable[..., object], *arguments: object) -> None:
        """Give the receiver messages of one peer; if it raises, disconnect that one, and go on with the others."""
        self.context.supervisor.call("core receiver", hand_over, *arguments, failed=partial(_cut, self.pattern, pipe))

    def _forget_dropped(self) -> None:
        """Let a REQ socket with a receiver forget a request that was dropped; it is counted and logged."""
        if self._takes_batches() and isinstance(self.pattern, Req):
            self.pattern.forget_dropped()

    def _takes_batches(self) -> bool:
        return self._receiver is not None

    # -- pipes and connections; see core.net.socket_port.SocketPort

    def new_pipe(self, endpoint: str, *, connecting: bool = False) -> Pipe:
        """See `SocketPort`."""
        kind = ConflatingPipe if self.options.conflate else Pipe
        return kind(endpoint=endpoint, connecting=connecting)

    def adopt(self, pipe: Pipe, options: Options) -> None:
        """Set the marks and name of a new pipe, and attach it: it can be sent to (SOCK-02).

        Args:
            pipe: of a connecting endpoint.
            options: as they were at connect().
        """
        self._set_marks(pipe)
        pattern = self.pattern
        if options.connect_routing_id:
            pipe.local_name = options.connect_routing_id
            if pattern.route(pipe.local_name) is not None:
                text = "a connection with CONNECT_ROUTING_ID takes over the routing id of a peer, which cannot be sent to any longer"
                self.context.warnings.warning(("taken_over", self.type_name), "%s", text, routing_id=pipe.local_name.hex())
        pattern.attach(pipe)
        self._probe(pipe, options)
        self.on_writable(pipe)  # some patterns send to it before its first handshake

    def _probe(self, pipe: Pipe, options: Options) -> None:
        """Send an empty message to a ROUTER (DLR-03), and HELLO_MSG (OPT-09): once per connect(), once per accepted peer."""
        if options.probe_router and self.type_name in (b"DEALER", b"REQ", b"ROUTER"):
            pipe.write([b""])
        if options.hello_msg and self.type_name in (b"DEALER", b"PAIR", b"ROUTER"):
            pipe.write([options.hello_msg])

    def _set_marks(self, pipe: Pipe) -> None:
        options = self.options
        pipe.set_marks(options.sndhwm, options.rcvhwm, options.sndhwm_bytes, options.rcvhwm_bytes)

    def options_for_listening(self) -> Options:
        """Return the options of a bound endpoint: those of the socket, with the context's security unless they have their own.

        Raises:
            InvalidOption: no peer could ever connect.
        """
        options = self.options.copy()
        secured = self.context.security
        if secured is not None and options.mechanism == c.SecurityMechanism.NULL:
            if self.context.authenticator is None:
                raise InvalidOption(msg="the security of the context accepts no clients", option="security")
            secured.for_listening(options)
        self.security.check(options)
        return options

    def options_for_connecting(self, endpoint: str) -> Options:
        """Return the options of a connected endpoint, as `options_for_listening`.

        Raises:
            InvalidOption: keys are missing or do not fit together.
        """
        options = self.options.copy()
        secured = self.context.security
        if secured is not None and options.mechanism == c.SecurityMechanism.NULL:
            secured.for_connecting(options, endpoint)
        self.security.check(options)
        return options

    def new_mechanism(self, options: Options, peer_address: str) -> Mechanism:
        """See `SocketPort`."""
        return self.security.mechanism(options, peer_address)

    def peer_ready(self, session: SessionPort) -> bool:
        """See `SocketPort`."""
        pipe = session.pipe
        if not pipe.connecting:
            self._set_marks(pipe)
            if not self.pattern.attach(pipe):
                return False
        pipe.limits = PeerLimits.told(pipe.metadata)
        if pipe.limits is not None:
            for error in self._judge_from_now_on(pipe):
                if isinstance(self.pattern, Req):
                    self.pattern.dropped(error)
                    self._fail_receiver()
                    self._forget_dropped()
        if self._endpoints.session_ready(session):
            pipe.engine.mute(self._drop_unexpected)
            self._tell_watcher(pipe, True)
            return True
        return self._welcome(pipe)

    def _drop_unexpected(self, count: int) -> None:
        self.counters.unexpected += count

    def _welcome(self, pipe: Pipe) -> bool:
        if not self.pattern.ready(pipe) or (pipe.takes_octets and not self._tell_watcher(pipe, True)):
            if pipe.connecting:
                self.pattern.suspend(pipe)
            else:
                self.pattern.detach(pipe)
            return False
        if not pipe.connecting:
            self._probe(pipe, self.options)
        if self._on_peer is not None and not pipe.takes_octets:
            # An inproc peer is ready before connect() has returned, when the caller does not expect the call yet.
            asyncio.get_running_loop().call_soon(self._tell_of_inproc, pipe)
        if self._senders or self._pollers:
            asyncio.get_running_loop().call_soon(self.on_writable, pipe)
        return True

    def _tell_watcher(self, pipe: Pipe, connected: bool) -> bool:
        """Report a peer; returns False if it is not to stay, because the watcher has raised."""
        if self._on_peer is None or self.closed:
            return True
        failed: list[Exception] = []
        name = pipe.routing_id or pipe.identity
        self.context.supervisor.call("core peer watcher", self._on_peer, name, connected, failed=failed.append)
        return not failed

    def _tell_of_inproc(self, pipe: Pipe) -> None:
        if pipe.connected and not self._tell_watcher(pipe, True):
            pipe.engine.abort_with("the watcher of peers has failed")

    def peer_gone(self, session: SessionPort) -> None:
        """See `SocketPort`."""
        pipe = session.pipe
        if pipe.connecting:
            self.pattern.suspend(pipe)
        else:
            self.pattern.detach(pipe)
            self.counters.undelivered += pipe.discard_outbox()
        self._dispatch_pending()  # an XPUB reports the topics of its subscriber (PSB-06)
        # If another peer has taken over the routing id (RTR-08), no peer is reported as gone.
        if not pipe.routing_id or self.pattern.peer(pipe.routing_id) in (None, pipe):
            self._tell_watcher(pipe, False)

    def detach(self, pipe: Pipe) -> None:
        """See `EndpointsSocket`."""
        self.pattern.detach(pipe)
        if asyncio._get_running_loop() is not None:
            self._on_state_change()  # not within a call of the program

    def session_opened(self, session: SessionPort) -> None:
        """See `SocketPort`."""
        self._endpoints.sessions[session] = None

    def departed(self) -> None:
        """See `EndpointsSocket`."""

    def failed(self, session: SessionPort) -> None:
        """See `SocketPort`."""
        error = session.failure
        fields: dict[str, object] = {"endpoint": session.endpoint}
        if session.ready:
            self.counters.protocol_errors += 1
        else:
            self.counters.handshakes_failed += 1
        kind: object = type(error)
        if isinstance(error, LimitExceeded):
            self.counters.count_limit(kind := error.kind)
            fields |= {"size": error.size, "limit": error.limit}
        if not isinstance(error, AuthenticationRefused):  # logged by the authenticator
            text = "connection with %s ended: %s"
            self.context.warnings.warning((kind, session.peer_address), text, session.peer_address or "a peer", error, **fields)

    def received(self, pipe: Pipe, batch: Batch, octets: int) -> None:
        """See `SocketPort`. Hot path of every receive."""
        receiver = self._receiver
        try:
            if receiver is not None and self._active:
                self._hand_over_queued()  # what came before there was a receiver
                receiver = self._receiver
            if receiver is None:
                _queue(self, pipe, batch.messages(), octets)
            elif not self._plain:
                messages = self.pattern.deliver(pipe, batch.messages())
                if messages:
                    self.inbound.push(pipe, messages)  # REQ, REP: `recv` changes the message
                self._dispatch_pending()
            elif len(batch.ends) + len(batch.made) == 1:  # as `len(batch)`, a call less
                receiver(batch)  # the answer to one message leaves at once
            else:
                _hand_over(self, receiver, batch)
        except MemoryError:  # what came is read already: it is the program's records that may be changed by half
            self.context.supervisor.ran_out("core receiver")
            raise

    def _dispatch_pending(self) -> None:
        """Deliver what the pattern may have queued by itself."""
        if self.inbound.active:
            if self._takes_batches():
                self._hand_over_queued()
            elif self._receivers or self._pollers:
                self._serve_receivers()
        if self._senders:
            self._serve_senders(self._senders)  # the peer that had no capacity has left, or is no longer subscribed

    def _serve_put_back(self) -> None:
        """Deliver what cancelled receives have put back."""
        if self._takes_batches():
            asyncio.get_running_loop().call_soon(self._hand_over_queued)
        else:
            self._serve_receivers()

    def _on_state_change(self) -> None:
        """Serve pending receives in the next loop iteration; see `Pattern.on_state_change`."""
        waited_for = self._senders or (self._active and (self._takes_batches() or self._receivers))
        if (waited_for or self._pollers) and not self._again:
            self._again = True
            asyncio.get_running_loop().call_soon(self._serve_again)

    def _serve_again(self) -> None:
        self._again = False
        self._dispatch_pending()
        self._wake_pollers()

    def on_writable(self, pipe: Pipe) -> None:
        """See `SocketPort`."""
        self.pattern.on_writable(pipe)
        if self._senders:
            self._serve_senders((pipe.routing_id,))
        if self._pollers:
            self._wake_pollers()

    def emit(self, event: int, value: int, endpoint: str, reason: str = "", *, peer: str = "", identity: bytes = b"") -> None:
        """See `SocketPort`."""
        self.monitors.emit(event, value, endpoint, reason, peer, identity)

    def inproc_ready(self, pipe: InprocPipe) -> bool:
        """See `InprocSocket`."""
        self._set_marks(pipe)
        if not pipe.connecting and not self.pattern.attach(pipe):
            return False
        if not self._welcome(pipe):
            return False
        self.on_writable(pipe)
        return True

    def inproc_gone(self, pipe: InprocPipe) -> None:
        """See `InprocSocket`; an inproc connection does not come back (TRN-12)."""
        self.detach(pipe)
        if not pipe.paired:
            self.counters.undelivered += pipe.discard_outbox()
        joined = pipe.connected and not pipe.left
        pipe.release()
        self._endpoints.inproc_ended(pipe)
        loop = asyncio._get_running_loop()
        if joined and loop is not None:
            loop.call_soon(self._tell_watcher, pipe, False)  # after its last messages, and never inside the other socket's call

    def inproc_sent(self, pipe: InprocPipe) -> None:
        """See `InprocSocket`; the watcher at the other end hears of its peer first, and then of its end."""
        loop = asyncio._get_running_loop()
        if loop is None:
            pipe.abort_with("left")
        else:
            loop.call_soon(pipe.abort_with, "left")

    def _follow_receiver(self) -> None:
        """Update whether messages can be put directly into inboxes."""
        self.inbound.direct = not self._takes_batches() and self._plain and not self.options.conflate

    def received_inproc(self, pipe: InprocPipe, message: Message) -> None:
        """Take a message from the other end.

        A receiver gets it in the next loop iteration, never inside the sender's call.
        """
        if not self._takes_batches():
            receivers = self._receivers
            if receivers and self._plain and not self._active and not receivers[0].done():  # as in `_queue`, a tenth faster
                receivers.popleft().deliver(self._delivered, message, pipe)
                if self._rests and receivers:
                    self._serve_receivers()
            else:
                _queue(self, pipe, [message], 0)
            return
        self._inproc_batch.append((pipe, message))
        if len(self._inproc_batch) == 1:
            asyncio.get_running_loop().call_soon(self._inproc_over)

    def _inproc_over(self) -> None:
        batch, self._inproc_batch = self._inproc_batch, []
        for pipe, run in groupby(batch, key=itemgetter(0)):
            head = [pipe.routing_id] if self.type_name == b"ROUTER" else []
            self._hand_over_alone(pipe, self.received, pipe, Batch.of(head, [message for _, message in run]), 0)


# Compiled, a method of a class that has interpreted subclasses is looked up by its name at each call. These are called for every read.


def _cut(pattern: Pattern, pipe: Pipe | None, error: Exception) -> None:
    pattern.receiver_failed()
    if pipe is not None:
        pipe.engine.abort_with("its receiver has failed")


def _hand_over(socket: SocketBase, receiver: BatchReceiver, batch: Batch) -> None:
    """Give a batch to the receiver; its answers are sent together when it returns."""
    scheduler = socket._scheduler
    if scheduler is None:
        scheduler = socket._scheduler = socket.context.scheduler
    scheduler.batching += 1
    try:
        receiver(batch)
    finally:
        scheduler.end_batch()


def _queue(socket: SocketBase, pipe: Pipe, messages: list[Message], octets: int) -> None:
    """Take messages for pending and later receives."""
    receivers = socket._receivers
    if receivers and socket._plain and len(messages) == 1 and not socket._active and not receivers[0].done():
        # A round trip: one message for one pending receive.
        receivers.popleft().deliver(socket._delivered, messages[0], pipe)
        if socket._rests and receivers:
            socket._serve_receivers()  # the first receive took one frame; the next takes those behind it
        return
    if not socket._plain:
        messages = socket.pattern.deliver(pipe, messages)
        if not messages:
            socket._dispatch_pending()
            return
    active = socket._active
    inbox = pipe.inbox
    if socket.options.conflate:
        socket.inbound.discard(pipe)
        messages = messages[-1:]
    if not inbox:
        active.append(pipe)
    inbox.extend(messages)
    pipe.unread_bytes += octets
    if receivers or socket._pollers:
        socket._serve_receivers()
    if len(inbox) >= pipe.rcvhwm or pipe.unread_bytes >= pipe.rcvhwm_bytes:
        pipe.engine.throttle()
