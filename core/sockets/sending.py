"""The sending side of a socket: its verbs, senders that wait for capacity, and what peers accept."""

from __future__ import annotations

import asyncio
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, cast

from mypy_extensions import mypyc_attr

from core import constants as c
from core.errors import EAGAIN, EINVAL, Again, ZMQError
from core.runtime.ownership import Owned
from core.sockets.results.futures import expire
from core.sockets.results.pending import PendingSend, place_of
from core.sockets.results.ready import DONE
from core.sockets.waiters import drop_ended
from core.zmtp.frames import Encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Buffer

    from core.errors import MessageTooLarge
    from core.net.socket_port import SocketContext
    from core.options import Options
    from core.pattern.base import Counters, Pattern
    from core.pattern.pipe import Pipe
    from core.sockets.endpoints import Endpoints
    from core.sockets.results.futures import Awaitable
    from core.sockets.results.pending import PendingReceive
    from core.zmtp.frames import Given, Message

_WAITS_MIN: Final = 16  # of one kind or line, before those that have ended are looked for
_SNDMORE: Final = int(c.SNDMORE)  # plain integers: `&` on an IntFlag costs half a microsecond
_NOBLOCK: Final = int(c.NOBLOCK)
# Compiled, a constant of the module costs less than a name that it imports.
_THREAD: Final = get_ident
_DONE: Final = DONE


@mypyc_attr(allow_interpreted_subclasses=True)
class Sending(Owned):
    """Base of a socket; `SocketBase` has the attributes."""

    __slots__ = ()

    context: SocketContext
    options: Options
    counters: Counters
    pattern: Pattern
    type_name: bytes
    _endpoints: Endpoints
    _judging: bool
    _partial: Message
    _pollers: list[asyncio.Future[None]]
    _receivers: deque[PendingReceive]
    _route: Callable[[bytes], Pipe | None]
    # What waits, in order, by routing id: `b""` unless messages are for a peer that they name. A batch is in the line of each of its peers.
    _senders: dict[bytes, deque[PendingSend]]
    _serving: dict[bytes, None] | None  # lines that are still to be served, while some are
    _sweep_at: int  # waits of one kind, or in one line

    def send_multipart(self, msg_parts: Sequence[bytes], flags: int = 0, copy: object = True, track: object = False) -> Awaitable[None]:
        """Send one message `[frame, …]`; the last item may be a `core.Encoded`.

        Acts at once; the awaitable is complete unless the high-water mark makes it wait. `copy` and `track` are accepted for
        programs written for libzmq.

        Raises:
            Again: NOBLOCK, and no peer has capacity (EAGAIN).
            BadState, HostUnreachable, OperationNotSupported: as the pattern says.
            MessageTooLarge: beyond the peer's limits (EMSGSIZE); nothing was sent. A ROUTER without MANDATORY drops and counts it.
            ZMQError: EINVAL, no frame at all.
            TypeError: a frame is not bytes-like.
        """
        if flags or self._partial or type(msg_parts) is not list:
            return self._send_parts(msg_parts, flags)
        try:  # costs nothing unless it raises
            if (not self._senders or self._is_first([msg_parts])) and self._put(msg_parts):
                return _DONE
        except (IndexError, TypeError):
            _refuse_bad([msg_parts])
            raise
        return self._send_later([msg_parts], 0)

    def _send_parts(self, msg_parts: Sequence[bytes], flags: int) -> Awaitable[None]:
        """Send in the uncommon ways: piecewise, without waiting, or from another sequence than a list."""
        if _THREAD() != self._owner_thread:
            self.enter()
        parts: list[Any] = [*msg_parts]
        if flags & _SNDMORE:
            if parts:
                _refuse_bad([parts])
            if parts and not self._partial and self._lacks_capacity(parts[0]) and (flags & _NOBLOCK or self.options.sndtimeo == 0):
                raise Again(EAGAIN, "no peer has capacity")
            self._partial += parts
            return _DONE
        # As in libzmq, NOBLOCK is about the first part: a program that repeats only the last one would send a torn message.
        begun = bool(self._partial)
        frames = [*self._partial, *parts]
        self._partial = []
        _refuse_bad([frames])
        if self._is_first([frames]) and self._put(frames):
            return _DONE
        return self._send_later([frames], flags, begun=begun)

    def _lacks_capacity(self, first: Any) -> bool:
        """Return whether a message with this first frame would wait."""
        self._endpoints.start_deferred()
        return not self.pattern.has_capacity_for(first) or not self._is_first([[first]])

    def send(self, data: Buffer, flags: int = 0, copy: object = True, track: object = False) -> Awaitable[None]:
        """Send one frame; with SNDMORE it is kept until the rest of its message comes (SOCK-14).

        The first frame finds out that its peer is unknown or, with NOBLOCK, that there is no capacity; the others wait. Where SNDTIMEO
        ends the wait of the last one, the whole message is dropped: send it again from its first frame.

        Raises:
            TypeError: it is not bytes-like. For the others see `send_multipart`.
        """
        frame = cast("Any", data)
        try:
            if not flags and not self._partial and not self._senders and self._put([frame]):
                return _DONE
        except TypeError:
            _refuse_bad([[frame]])
            raise
        return self._send_parts((frame,), flags)

    def send_many(self, messages: Sequence[Given]) -> Awaitable[None]:
        """Send a batch, in order; acts at once, and waits only for messages that find no capacity.

        Messages beyond the limits their peer has announced are dropped, counted as `beyond_peer` and logged; the others are sent.

        Raises:
            Again: SNDTIMEO, and no peer has capacity; `taken` of its messages were sent, or dropped, before.
            ZMQError: EINVAL, a message without any frame; those before it may have been sent.
        """
        if _THREAD() != self._owner_thread:
            self.enter()
        messages = given = _as_lists(messages)
        if self._judging:
            messages = self._within(messages)
        count = 0
        try:
            if self._is_first(messages):
                count = self.pattern.send_many(messages)
        except (IndexError, TypeError):
            _refuse_bad(messages)
            raise
        if count == len(messages):
            return _DONE
        try:
            some_dropped = given if len(messages) != len(given) else None
            return self._send_later(list(messages[count:] if count else messages), 0, len(given), some_dropped)
        except Again as error:
            error.taken = place_of(given, messages[count + error.taken :])
            raise

    def _send_later(
        self, messages: list[Message], flags: int, total: int = 0, given: Sequence[Given] | None = None, *, begun: bool = False
    ) -> Awaitable[None]:
        """Queue messages of a send; `total` and `given` as for `PendingSend`, if it sends several.

        A message that has `begun` waits, also with NOBLOCK and with SNDTIMEO of 0.
        """
        _refuse_bad(messages)
        if _THREAD() != self._owner_thread:
            self.enter()
        count = 0
        if self._endpoints.start_deferred() and self._is_first(messages):
            count = self.pattern.send_many(messages)
            if count == len(messages):
                return _DONE
            messages = messages[count:]
        if not begun and (flags & _NOBLOCK or self.options.sndtimeo == 0):
            raise Again(EAGAIN, "no peer has capacity", taken=count)
        loop = asyncio.get_running_loop()
        self.follow_loop(loop)
        pending = PendingSend(messages, loop, max(total, count + len(messages)), given)
        if self.options.sndtimeo > 0:
            expire(pending, self.options.sndtimeo, "sndtimeo: no peer had capacity")
        pending.names = self._names(messages)
        if any(len(self._senders.get(name, ())) >= self._sweep_at for name in pending.names):
            self._sweep()
        for name in pending.names:
            self._senders.setdefault(name, deque()).append(pending)
        if self.pattern.addressed:
            pending.add_done_callback(self._send_ended)
        return pending

    def send_octets(self, routing_id: bytes, pieces: Sequence[bytes]) -> None:
        """Send encoded messages, `[all frames of one message, …]`, in order; acts at once, never waits.

        The fastest way to answer: on ROUTER to one peer, on DEALER to the next peer (`routing_id` is ignored). The bytes must be whole ZMTP
        frames within the limits of the peer; they are not checked. Without capacity it acts like `send_many`, whose `Again` it raises.
        What is not bytes, and could change before it is written, is a TypeError.
        """
        # Compiled, a list is walked without an iterator, and bytes would be taken for granted.
        messages: list[Any] = pieces if type(pieces) is list else [*pieces]
        for piece in messages:
            if not isinstance(piece, bytes):
                raise TypeError(f"an encoded message must be bytes, not {type(piece).__name__}")
        if _THREAD() != self._owner_thread:
            self.enter()
        pipe = self._route(routing_id)
        if pipe is None or self._senders or not pipe.write_pieces(messages):
            head = [routing_id] if self.type_name == b"ROUTER" else []
            self.send_many([[*head, Encoded(piece)] for piece in messages])

    def _sweep(self) -> None:
        """Forget waits that have ended: programs wait for a quiet socket again and again, with a time limit."""
        left = max(drop_ended(self._receivers), drop_ended(self._pollers), *map(drop_ended, self._senders.values()))
        self._sweep_at = max(_WAITS_MIN, 2 * left)

    # -- senders that wait

    def _names(self, messages: Sequence[Given]) -> list[bytes]:
        """Return the lines of messages."""
        firsts: list[Any] = [message[0] for message in messages] if self.pattern.addressed else [b""]
        return [*dict.fromkeys(first if type(first) is bytes else bytes(first) for first in firsts)]

    def _is_first(self, messages: Sequence[Given]) -> bool:
        """Return whether nothing that waits is for a peer of these messages."""
        return not self._senders or not any(name in self._senders for name in self._names(messages))

    def _waiting_sends(self) -> dict[PendingSend, None]:
        return dict.fromkeys(pending for line in self._senders.values() for pending in line if not pending.done())

    def _serve_senders(self, names: Iterable[bytes]) -> None:
        """Send what waits in these lines until it finds no capacity."""
        if self._serving is not None:
            self._serving.update(dict.fromkeys(names))  # called by a send of this loop
            return
        self._serving = dict.fromkeys(names)
        try:
            while self._serving:
                name, _ = self._serving.popitem()
                line = self._senders.get(name)
                while line and self._serve_sender(line[0]):
                    line.popleft()
                if not line:
                    self._senders.pop(name, None)
        finally:
            self._serving = None

    def _send_ended(self, pending: PendingSend) -> None:
        """Serve its lines: a batch that stood behind it may find capacity at another peer."""
        self._serve_senders(pending.names)

    def _serve_sender(self, pending: PendingSend) -> bool:
        """Send the messages of one pending send; returns False when some are left."""
        if pending.done():
            return True
        if any(self._senders[name][0] is not pending for name in pending.names):
            return False
        try:
            if self._judging:
                pending.keep(self._within(pending.messages, alone=len(pending.messages) == 1))
            count = self.pattern.send_many(pending.messages)
        except (ZMQError, IndexError, TypeError) as error:  # the last two: the program has changed a message that waits
            pending.set_exception(error)
        else:
            if count < len(pending.messages):
                del pending.messages[:count]
                return False
            pending.set_result(None)
        return True

    # -- limits that peers have announced; unused while none has

    def _judge_from_now_on(self, pipe: Pipe) -> list[MessageTooLarge]:
        """Check messages against limits from now on; returns an error for each queued message that was dropped."""
        if not self._judging:
            self._judging = True
            if not self._ended:
                self.use_to_put(self._put_judged)
        errors = pipe.judge_outbox()
        for error in errors:
            self._drop_beyond(error)
        return errors

    def _put_judged(self, frames: Given) -> bool:
        """Send one message, if it is within the limits of its peer; raises MessageTooLarge."""
        error = self.pattern.judge(frames)
        if error is not None:
            if self.type_name == b"ROUTER" and not self.options.router_mandatory:  # drops what it cannot deliver (RTR-05)
                self._drop_beyond(error)
                return True
            raise error
        dropped = self.counters.beyond_peer
        sent = self.pattern.send(frames)
        if self.counters.beyond_peer != dropped:  # publishers drop
            self._warn_beyond("message dropped for subscribers whose limits it exceeds", octets=sum(map(len, frames)))
        return sent

    def _within(self, messages: Sequence[Given], *, alone: bool = False) -> list[Message]:
        """Return the messages of a batch within the limits; the others are dropped, or a single one raises."""
        within: list[Message] = []
        for message in messages:
            error = self.pattern.judge(message)
            if error is None:
                within.append(message)
            elif alone:
                raise error
            else:
                self._drop_beyond(error)
        return within

    def _drop_beyond(self, error: MessageTooLarge) -> None:
        self.counters.beyond_peer += 1
        self._warn_beyond(f"message dropped: {error}", size=error.size, limit=error.limit)

    def _warn_beyond(self, text: str, **fields: object) -> None:
        self.context.warnings.warning(("beyond_peer", self.type_name), "%s", text, **fields)


def _as_lists(messages: Any) -> Sequence[Given]:
    """Return messages as lists, which the patterns want; many programs have tuples."""
    for message in messages:
        if type(message) is not list:
            return [[*(message or ())] for message in messages]
    return cast("Sequence[Given]", messages)


def _refuse_bad(messages: Sequence[Given]) -> None:
    """Raise ZMQError (EINVAL) for a message without any frame, TypeError for a frame that is not bytes-like."""
    for message in messages:
        if not message:
            raise ZMQError(EINVAL, "a message has at least one frame")
        for frame in message:
            if not isinstance(frame, bytes | Encoded):
                try:
                    memoryview(frame)
                except TypeError:
                    raise TypeError(f"a frame is bytes-like, not {type(frame).__name__}") from None
