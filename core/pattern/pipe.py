"""Pipes: the two queues between a socket and one peer, with high-water marks (SOCK-02..06).

Outgoing messages are encoded when they are sent and wait as bytes, so that an engine (the connection's shell) can send all of them
in one write. Incoming messages wait decoded. A connecting socket keeps its pipe across connections; an accepted one loses it with the
connection (SOCK-03). Pure: a pipe knows only its engine.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from mypy_extensions import trait

from core.zmtp.frames import LAST_HEADERS, Encoded, Message, encode_message, encode_pair, encode_parts, long_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.errors import MessageTooLarge
    from core.zmtp.frames import Given
    from core.zmtp.limits import PeerLimits

UNLIMITED: Final = 2**61  # a high-water mark of 0 means none; compiled, larger integers are slow
# From this size on bytes are written at once and not at the end of the loop iteration: joining saves little, waiting costs memory.
HEAVY: Final = 256 * 1024
LARGE: Final = 2 * 1024  # bytes from which on a copy costs more than a second buffer in the write: 0.4 of the time at 8 KiB


class Engine(Protocol):
    """Moves the bytes of a pipe."""

    # Take a message, large ones in pieces, while the outbox is empty; False: put it into the outbox.
    def try_write(self, piece: bytes | list[bytes]) -> bool: ...
    def write_out(self) -> None: ...  # write the outbox now or at the end of the loop iteration
    def flush(self) -> bool: ...  # write what the transport takes now; returns whether the outbox has capacity again
    def unwritten(self) -> int: ...  # how many bytes wait in the transport
    def in_transit(self) -> int: ...  # a number that grows while a message moves, in either direction; 0 when there is none
    def throttle(self) -> None: ...  # stop reading: the inbox is full
    def resume(self) -> None: ...  # read on: the inbox is empty after it was full
    def subscribe(self, topic: bytes, subscribe: bool) -> None: ...  # send a subscription to the publisher
    def mute(self, dropped: Callable[[int], None]) -> None: ...  # drop and count what comes: another peer has taken over the routing id
    def abort_with(self, reason: str) -> None: ...  # close the connection because of the peer
    def finish(self) -> None: ...  # close the connection after what is queued, for good


@trait
class Passive:
    """Base of engines that move nothing by themselves."""

    __slots__ = ()

    def try_write(self, piece: bytes | list[bytes]) -> bool:
        return False

    def flush(self) -> bool:
        return False

    def unwritten(self) -> int:
        return 0

    def in_transit(self) -> int:
        return 0

    def write_out(self) -> None: ...
    def throttle(self) -> None: ...
    def resume(self) -> None: ...
    def subscribe(self, topic: bytes, subscribe: bool) -> None: ...
    def mute(self, dropped: Callable[[int], None]) -> None: ...
    def abort_with(self, reason: str) -> None: ...
    def finish(self) -> None: ...


class Detached(Passive):
    """Engine without a connection: everything waits, and subscriptions are sent on a new connection."""

    __slots__ = ()


DETACHED: Final[Engine] = Detached()


class Pipe:
    """Queues of one peer."""

    __slots__ = (
        "_heavy", "_sndhwm", "_sndhwm_bytes", "connected", "connecting", "endpoint", "engine", "identity", "in_parts", "inbox", "limit",
        "limits", "listed", "local_name", "metadata", "outbox", "rcvhwm", "rcvhwm_bytes", "routing_id", "waiting_for_capacity",
        "take", "takes_octets", "throttled", "unread_bytes",
    )  # fmt: skip

    def __init__(self, *, connecting: bool = False, endpoint: str = "") -> None:
        # Compiled, attributes are kept in this order: first what each message needs, in as few lines of memory as possible.
        self.engine: Engine = DETACHED
        self.outbox: list[Any] | deque[Any] = []  # encoded messages to be written, one item per message (inproc: the other end's inbox)
        self.limit = UNLIMITED  # messages at which the outbox is full; 0 while it has too many bytes
        self._heavy = 0
        self._sndhwm = UNLIMITED
        self._sndhwm_bytes = UNLIMITED
        self.in_parts = False  # an item of the outbox is a list of the pieces of a large message
        self.takes_octets = True  # encoded messages can be put into the outbox (not with inproc)
        self.waiting_for_capacity = False  # a send found the outbox full; the socket is to be called when it has capacity
        self.throttled = False  # the inbox was full and the engine stopped reading
        self.connected = False  # the handshake with the present peer is complete
        self.connecting = connecting  # made by connect(); outlives its connections
        self.listed = False  # in the list of the load balancer
        self.inbox: deque[Message] = deque()  # messages received and not yet taken by the application
        self.take: Callable[[], Message] = self.inbox.popleft  # compiled, a method that is looked up once costs half
        self.unread_bytes = 0  # bytes received since the inbox was last empty
        self.rcvhwm = UNLIMITED
        self.rcvhwm_bytes = UNLIMITED
        self.routing_id = b""  # name of the peer for ROUTER; b"" where it has none
        self.identity = b""  # announced by the peer
        self.local_name = b""  # routing id given by CONNECT_ROUTING_ID (RTR-10)
        self.endpoint = endpoint  # as given or accepted on, for events
        self.metadata: dict[bytes, bytes] = {}  # of the peer's handshake
        self.limits: PeerLimits | None = None  # announced by the peer, None for none; kept between connections

    def set_marks(self, sndhwm: int, rcvhwm: int, sndhwm_bytes: int, rcvhwm_bytes: int) -> None:
        """Set the high-water marks, messages and bytes; 0 is no limit (SOCK-05, SOCK-07: at once)."""
        self._sndhwm = sndhwm or UNLIMITED
        self._sndhwm_bytes = sndhwm_bytes or UNLIMITED
        self.rcvhwm = rcvhwm or UNLIMITED
        self.rcvhwm_bytes = rcvhwm_bytes or UNLIMITED
        self.limit = self._sndhwm if self._heavy < self._sndhwm_bytes else 0

    def write(self, frames: Given, first: int = 0) -> None:
        """Encode `frames[first:]` into the outbox. The caller has checked the capacity."""
        body = frames[-1]
        size = len(body)
        if size >= LARGE:
            self._write_large(frames, first)
            return
        if len(frames) - first == 1:
            if type(body) is bytes:
                if size < 254:
                    piece = LAST_HEADERS[size] + body
                    outbox = self.outbox
                    if outbox or not self.engine.try_write(piece):
                        outbox.append(piece)
                    return
                piece = (LAST_HEADERS[size] if size < 256 else long_header(size)) + body
            elif type(body) is Encoded:
                if size < 256:
                    outbox = self.outbox
                    if outbox or not self.engine.try_write(body):
                        outbox.append(body)
                    return
                piece = body
            else:
                piece = encode_message(frames, first)
        else:
            piece = encode_message(frames, first)
        self.write_octets(piece)

    def _write_large(self, frames: Given, first: int) -> None:
        """As `write`, without copying the body."""
        parts = encode_parts(frames, first)
        outbox = self.outbox
        if not outbox and self.engine.try_write(parts):
            return
        outbox.append(parts)
        self.in_parts = True
        self._weigh(sum(map(len, parts)))

    def _weigh(self, size: int) -> None:
        """Count the bytes of larger messages; a queue of small messages is bounded by their number."""
        self._heavy += size
        if self._heavy >= self._sndhwm_bytes:
            self.limit = 0
        if self._heavy >= HEAVY:
            self.engine.flush()

    def write_many(self, messages: Sequence[Given]) -> None:
        outbox = self.outbox
        for frames in messages:
            count = len(frames)
            body = frames[-1]
            size = len(body)
            if size >= LARGE:
                self._write_large(frames, 0)
                continue
            if count == 2:
                piece = encode_pair(frames[0], body)
            elif count == 1 and type(body) is Encoded:
                piece = body
            elif count == 1 and type(body) is bytes and size < 256:
                piece = LAST_HEADERS[size] + body
            else:
                piece = encode_message(frames)
            if len(piece) < 256 and outbox:
                outbox.append(piece)
            else:
                self.write_octets(piece)

    def write_octets(self, piece: bytes) -> None:
        outbox = self.outbox
        if not outbox and self.engine.try_write(piece):
            return
        outbox.append(piece)
        if len(piece) > 255:
            self._weigh(len(piece))

    def write_pieces(self, pieces: list[bytes]) -> bool:
        """Put encoded messages into the outbox, all or none; returns False without capacity."""
        outbox, count = self.outbox, len(pieces)
        if not self.takes_octets or len(outbox) + count > self.limit:
            return False
        if count == 1 and not outbox:
            piece = pieces[0]
            if not self.engine.try_write(piece):
                outbox.append(piece)
                self._weigh(len(piece))
            return True
        outbox.extend(pieces)
        self.engine.write_out()
        if outbox:
            self._weigh(sum(map(len, pieces)))
        return True

    def take_parts(self) -> list[bytes]:
        """Empty the outbox; returns its bytes in pieces, without copies."""
        parts: list[bytes] = []
        for item in self.outbox:
            if type(item) is list:
                parts += item
            else:
                parts.append(item)
        self.outbox.clear()
        self.in_parts = False
        self._heavy = 0
        self.limit = self._sndhwm
        return parts

    def take_outbox(self) -> bytes:
        if self.in_parts:
            return b"".join(self.take_parts())
        outbox = self.outbox
        if len(outbox) == 1:
            octets: bytes = outbox.pop()
        else:
            octets = b"".join(outbox)
            outbox.clear()
        if self._heavy:
            self._heavy = 0
            self.limit = self._sndhwm
        return octets

    def waiting_bytes(self) -> int:
        """Return how many sent bytes are not written yet, 0 for inproc. Visits each message."""
        if not self.takes_octets:
            return 0
        return sum(sum(map(len, item)) if type(item) is list else len(item) for item in self.outbox) + self.engine.unwritten()

    def judge_outbox(self) -> list[MessageTooLarge]:
        """Drop queued messages beyond the peer's limits; returns an error for each."""
        limits, errors = self.limits, []
        if limits is None or not self.outbox or not self.takes_octets:
            return []
        kept: list[Any] = []
        for item in self.outbox:
            octets = b"".join(item) if type(item) is list else item
            error = limits.judge([Encoded(octets)])
            if error is None:
                kept.append(item)
            else:
                errors.append(error)
        if errors:
            self.outbox.clear()
            self.outbox.extend(kept)
        return errors

    def discard_outbox(self) -> int:
        """Drop the queued messages; returns how many."""
        count = len(self.outbox)
        if count:
            self.take_parts()
        return count


class ConflatingPipe(Pipe):
    """A pipe whose queues keep only the newest message (CONFLATE, OPT-02)."""

    __slots__ = ()

    # do nothing: marks have no meaning here
    def set_marks(self, sndhwm: int, rcvhwm: int, sndhwm_bytes: int, rcvhwm_bytes: int) -> None: ...

    def write(self, frames: Given, first: int = 0) -> None:
        self.write_octets(encode_message(frames, first))

    def write_many(self, messages: Sequence[Given]) -> None:
        for frames in messages:
            self.write(frames)

    def write_pieces(self, pieces: list[bytes]) -> bool:
        self.write_octets(pieces[-1])
        return True

    def write_octets(self, piece: bytes) -> None:
        self.outbox.clear()
        self._heavy = 0
        super().write_octets(piece)
