"""inproc: two connected pipes within a context; messages are not encoded (TRN-12, TRN-13).

The high-water mark of a direction is the sum of the sender's SNDHWM and the receiver's RCVHWM; a message is in the receiver's
inbox the moment it is sent. There is no handshake and no reconnection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from core.errors import EADDRINUSE, AddressInUse
from core.pattern.pipe import DETACHED, UNLIMITED, Passive, Pipe
from core.zmtp.frames import Encoded, Message, octets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.options import Options
    from core.pattern.fair_queue import FairQueue
    from core.zmtp.frames import Given


class InprocSocket(Protocol):
    """A socket, as its inproc pipes see it."""

    options: Options
    type_name: bytes
    inbound: FairQueue

    def on_writable(self, pipe: Pipe) -> None: ...  # send what waits: a pipe has capacity again
    def inproc_ready(self, pipe: InprocPipe) -> bool: ...  # attach a connected pipe; returns False to refuse it
    def inproc_gone(self, pipe: InprocPipe) -> None: ...  # a connection has ended
    def inproc_sent(self, pipe: InprocPipe) -> None: ...  # a connection that was left before its name was bound has sent its messages
    def received_inproc(self, pipe: InprocPipe, message: Message) -> None: ...  # take a message from the other end


class InprocPipe(Pipe, Passive):
    """One end of a connection: its own engine, with the other end's inbox as its outbox.

    There is no transport, and messages are handed over when they are written; `flush` makes the sender wait.
    """

    __slots__ = ("_far_queue", "_prefix", "_put", "far", "left", "owner", "paired")

    def __init__(self, owner: InprocSocket, endpoint: str, *, connecting: bool = False) -> None:
        super().__init__(connecting=connecting, endpoint=endpoint)
        self.owner = owner  # the socket at this end
        self.far: InprocPipe | None = None  # the other end, None while the name is not bound
        self.left = False  # its socket is closed or disconnected, and waits for the name to send what it has sent before
        self.paired = False  # both ends are ready; messages sent before wait in this end's outbox, later ones are in the other's inbox
        self.takes_octets = False
        self.engine = self
        waiting = deque[Message]()
        self.outbox = waiting  # until both ends are ready
        # Compiled, a method that is looked up once costs half, and an attribute of an owner, whose class is not known, four times as much.
        self._put: Callable[[Message], None] = waiting.append
        self._far_queue = owner.inbound  # once both ends are ready, that of the other one
        self._prefix: Given = []

    def set_marks(self, sndhwm: int, rcvhwm: int, sndhwm_bytes: int, rcvhwm_bytes: int) -> None:
        """Add the marks of both ends; 0 at either end means no limit, and bytes are not counted.

        The sender waits, not a connection.
        """
        far = self.far
        if far is None:
            self.limit = sndhwm or UNLIMITED
            return
        theirs = far.owner.options
        self.limit = sndhwm + theirs.rcvhwm if sndhwm and theirs.rcvhwm else UNLIMITED
        far.limit = theirs.sndhwm + rcvhwm if theirs.sndhwm and rcvhwm else UNLIMITED
        if self.throttled:
            self.resume()  # the mark may be higher

    @property
    def waits(self) -> bool:
        """Whether messages wait for the name to be bound."""
        return not self.paired and self.engine is not DETACHED and bool(self.outbox)

    def pair(self) -> None:
        """Send what waited until both ends were ready."""
        far, waiting = self.far, self.outbox
        if far is None:
            return  # never: the ends have each other
        self.paired = True
        self.outbox = far.inbox
        self._put = far.inbox.append
        self._far_queue = far.owner.inbound
        if far.owner.type_name == b"ROUTER":
            self._prefix = [far.routing_id]
        for message in waiting:
            self.write(message)

    def write(self, frames: Given, first: int = 0) -> None:
        """Hand a message to the other end; the list is copied, its frames are not."""
        body = frames[first]  # IndexError for an empty message, as with other pipes; the socket reports it
        if type(body) is bytes and len(frames) == 1 and not self._prefix:
            message: Given = [body]
        else:  # of bytes-like frames, until they are copied: compiled code believes the type
            message = self._prefix + frames[first:]
            for frame in message:
                if type(frame) is not bytes:
                    message = _owned(message)
                    break
        far = self.far
        if far is None or not self.paired or (self.outbox and self._far_queue.direct):
            self._put(message)
        else:
            far.owner.received_inproc(far, message)

    def write_many(self, messages: Sequence[Given]) -> None:
        for message in messages:
            self.write(message)

    def flush(self) -> bool:
        """Whether the other end has capacity; if not, its reader calls `resume` later."""
        if len(self.outbox) < self.limit:
            return True
        if self.far is not None:
            self.far.throttled = True
        return False

    def resume(self) -> None:
        self.throttled = False
        if self.far is not None:
            self.far.owner.on_writable(self.far)

    def subscribe(self, topic: bytes, subscribe: bool) -> None:
        message = [(b"\x01" if subscribe else b"\x00") + topic]
        if not self.paired:
            self.outbox.append(message)
        elif self.far is not None:
            self.far.owner.received_inproc(self.far, message)

    def mute(self, dropped: Callable[[int], None]) -> None:
        """End the connection, because inproc messages cannot be read and dropped."""
        self.abort_with("its routing id was taken over")

    def abort_with(self, reason: str) -> None:
        if self.engine is DETACHED:
            return
        far, self.far = self.far, None
        self.owner.inproc_gone(self)
        if far is not None:
            far.far = None
            far.owner.inproc_gone(far)

    def release(self) -> None:
        """Forget the engine: the pipe has left its socket."""
        self.engine = DETACHED
        self.connected = False


def _owned(message: Given) -> Message:
    owned: Message = []
    for frame in message:
        if type(frame) is Encoded:
            owned += frame.frames()
        else:
            owned.append(octets_of(frame))
    return owned


def _metadata(owner: InprocSocket) -> dict[bytes, bytes]:
    """Return what a peer of another transport gets from the handshake."""
    return {b"socket-type": owner.type_name} | {name.lower(): value for name, value in owner.options.properties()}


def _join(connecting: InprocPipe, binder: InprocSocket) -> None:
    """Connect a pipe to a bound socket: attach both ends, exchange identities, deliver queued messages."""
    far = InprocPipe(binder, connecting.endpoint)
    owner = connecting.owner
    far.identity, connecting.identity = owner.options.routing_id, binder.options.routing_id
    far.metadata = _metadata(owner)
    connecting.metadata = _metadata(binder)
    far.far, connecting.far = connecting, far
    connecting.connected = far.connected = True
    # What an end sends as soon as it is ready (probe, welcome, subscriptions) waits until the other end is ready too.
    if not binder.inproc_ready(far) or not (connecting.left or owner.inproc_ready(connecting)):
        connecting.abort_with("the socket does not take this peer")
        return
    connecting.pair()
    if connecting.left:
        owner.inproc_sent(connecting)
    else:
        far.pair()


class InprocNames:
    """Bound names, and the pipes that wait for one (TRN-09, TRN-12)."""

    def __init__(self) -> None:
        self._bound: dict[str, InprocSocket] = {}
        self._waiting: dict[str, list[InprocPipe]] = {}

    def bind(self, name: str, endpoint: str, owner: InprocSocket) -> None:
        """Bind a name (raises AddressInUse), and connect the pipes that wait for it."""
        if name in self._bound:
            raise AddressInUse(EADDRINUSE, f"{endpoint} is in use", endpoint=endpoint)
        self._bound[name] = owner
        for pipe in self._waiting.pop(name, []):
            _join(pipe, owner)

    def unbind(self, name: str) -> None:
        self._bound.pop(name, None)

    def connect(self, name: str, pipe: InprocPipe) -> None:
        """Connect to the socket bound to the name, now or when it is bound."""
        owner = self._bound.get(name)
        if owner is None:
            self._waiting.setdefault(name, []).append(pipe)
        else:
            _join(pipe, owner)

    def forget(self, pipe: InprocPipe) -> None:
        for name, waiting in list(self._waiting.items()):
            if pipe in waiting:
                waiting.remove(pipe)
                if not waiting:
                    del self._waiting[name]

    def bound(self, name: str) -> InprocSocket | None:
        return self._bound.get(name)
