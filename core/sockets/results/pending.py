"""`Pending`, the result of a receive or a send that waits.

It has a future's methods, and asyncio takes it for one; so `gather`, `wait`, `wait_for` and `timeout` need no task around it. It is none of
asyncio's own, because a compiled class cannot have one as its base, and an interpreted one costs a fifth of a round trip.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from weakref import ref

from mypy_extensions import mypyc_attr

from core.frame import framed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from contextvars import Context

    from core.pattern.base import Pattern
    from core.pattern.pipe import Pipe
    from core.zmtp.frames import Given, Message

T = TypeVar("T")
_WAITS_MIN: Final = 16  # before those that have ended are looked for


class MessageSource(Protocol):
    """A socket, as its pending receives see it."""

    pattern: Pattern

    def keep_rest(self, pipe: Pipe | None, rest: Message) -> None: ...  # keep frames for the next receive; see `core.sockets.receiving`
    def left_rest(self, rest: Message) -> bool: ...  # forget kept frames, if these very ones are kept; returns whether they were
    def put_back(self, units: Sequence[Unit]) -> None: ...  # take back what no receive has any longer


class Unit:
    """A message, or the rest of one, on its way from one receive to another."""

    __slots__ = ("frames", "pipe", "rest")

    def __init__(self, pipe: Pipe | None, frames: Message, rest: bool) -> None:
        self.pipe = pipe
        self.frames = frames
        self.rest = rest  # some frame before these was received


class Pending(Generic[T]):
    """A result that is to come; for its methods see `asyncio.Future`."""

    __slots__ = ("_asyncio_future_blocking", "_callbacks", "_done", "_failed", "_loop", "_value")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False  # asyncio knows futures by this, and that they are awaited
        self._loop = loop
        self._done = False
        self._value: Any = None
        self._failed: asyncio.Future[Any] | None = None  # has the error, or was cancelled; it logs an error that is not retrieved
        self._callbacks: list[tuple[Callable[[Any], object], Context]] | None = None

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def done(self) -> bool:
        return self._done

    def cancelled(self) -> bool:
        return self._failed is not None and self._failed.cancelled()

    def result(self) -> T:
        """Return the value; raises the error of the operation, or CancelledError."""
        if self._failed is not None:
            self._failed.result()
        if not self._done:
            raise asyncio.InvalidStateError("the operation is not complete")
        value: T = self._value
        return value

    def exception(self) -> BaseException | None:
        """Return the error of the operation, None without one. Raises CancelledError if it was cancelled."""
        if self._failed is not None:
            return self._failed.exception()
        if not self._done:
            raise asyncio.InvalidStateError("the operation is not complete")
        return None

    def set_result(self, value: T) -> None:
        if self._done:
            raise asyncio.InvalidStateError("the operation is complete already")
        self._value = value
        self._complete()

    def set_exception(self, error: BaseException) -> None:
        if self._done:
            raise asyncio.InvalidStateError("the operation is complete already")
        self._failed = self._loop.create_future()
        self._failed.set_exception(error)
        self._complete()

    def cancel(self, msg: object = None) -> bool:
        if self._done:
            return False
        self._cancel(msg)
        self._complete()
        return True

    def taken(self) -> int:
        """Return how many messages of a send were sent, or dropped, so far."""
        return 0

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Call it in the loop iteration after the end."""
        if context is None:
            context = copy_context()
        if self._done:
            self._loop.call_soon(callback, self, context=context)
        elif self._callbacks is None:
            self._callbacks = [(callback, context)]
        else:
            self._callbacks.append((callback, context))

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Remove all that are equal to it; return how many there were."""
        before = self._callbacks or []
        self._callbacks = [each for each in before if each[0] != callback]
        return len(before) - len(self._callbacks)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def __iter__(self) -> Generator[Any, None, T]:
        return self.__await__()

    def _cancel(self, msg: object) -> None:
        self._failed = self._loop.create_future()
        self._failed.cancel(msg)

    def _complete(self) -> None:
        self._done = True
        callbacks = self._callbacks
        if callbacks is not None:
            self._callbacks = None
            for callback, context in callbacks:
                self._loop.call_soon(callback, self, context=context)

    # `asyncio.gather` asks for these two of a cancelled future.

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        failed: Any = self._failed
        error: asyncio.CancelledError = failed._make_cancelled_error()
        return error

    @property
    def _cancel_message(self) -> Any:
        failed: Any = self._failed
        return failed._cancel_message


class PendingReceive(Pending[Any]):
    """A pending receive.

    Cancelling it returns a delivered message whose result was not taken: a cancelled receive loses nothing (SOCK-13). Once `result` has
    returned the message, by an await or by a call, a cancel changes nothing: no message is received twice.
    """

    __slots__ = ("_anchor", "_delivered", "_left", "_pipe", "_rest", "_whole")

    # How to take the message back; set by `deliver` only, because most pending receives last for microseconds.
    _pipe: Pipe | None
    _rest: bool  # frames before these were delivered to another receive
    _whole: Message  # the frames, and those behind them

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._anchor: Anchor | None = None
        self._delivered: Delivered | None = None  # while it has a message that can be taken back
        self._left: Message | None = None  # the frames behind its own

    def deliver(self, delivered: Delivered, message: Message, pipe: Pipe | None, rest: bool = False) -> None:
        """Deliver a message, or the rest of one whose first frames were received before."""
        self._whole, self._pipe, self._rest = message, pipe, rest
        delivered.add(self)
        self.set_result(message)

    def result(self) -> Any:
        """Return the message, which now belongs to the caller; raises CancelledError if it was cancelled and the message put back."""
        message = super().result()
        delivered = self._delivered
        if delivered is not None:
            self._delivered = self._anchor = None
            if delivered.latest is self:
                delivered.latest = None
        return message

    def cancel(self, msg: object = None) -> bool:
        """Cancel; a delivered message whose result was not taken is put back."""
        delivered = self._delivered
        if delivered is None:
            return super().cancel(msg)
        self._cancel(msg)
        delivered.take_back(self)
        return True

    def _exchange(self, unit: Unit) -> Message | None:
        """Have another message instead of the delivered one; return the frames behind those that this receive takes."""
        self._whole, self._pipe, self._rest = unit.frames, unit.pipe, unit.rest
        self._value = unit.frames
        return None


class PendingShape(PendingReceive):
    """A pending receive that converts the message: first frame, text, JSON."""

    __slots__ = ("_framed", "_shape", "_single")

    def __init__(
        self, shape: Callable[[Message], Any], loop: asyncio.AbstractEventLoop, *, single: bool = False, framed: bool = False
    ) -> None:
        super().__init__(loop)
        self._shape = shape
        self._single = single  # one frame; those behind it are for the next receive
        self._framed = framed

    def deliver(self, delivered: Delivered, message: Message, pipe: Pipe | None, rest: bool = False) -> None:
        """Deliver a message, or the rest of one, converted."""
        frames = self._begin(message, pipe, rest)
        if self._left is not None:
            delivered.socket.keep_rest(pipe, self._left)
        delivered.add(self)
        value = self._converted(frames)
        if self._failed is None:
            self.set_result(value)
        else:
            self._complete()

    def _exchange(self, unit: Unit) -> Message | None:
        self._value = self._converted(self._begin(unit.frames, unit.pipe, unit.rest))
        return self._left

    def _begin(self, message: Message, pipe: Pipe | None, rest: bool) -> Message:
        """Note what is delivered; return what the shape gets, which takes no more than the first frame if `single`."""
        self._whole, self._pipe, self._rest = message, pipe, rest
        self._left = message[1:] if self._single and len(message) > 1 else None
        return framed(message, {} if pipe is None else pipe.metadata) if self._framed else message

    def _converted(self, frames: Message) -> Any:
        try:
            return self._shape(frames)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # of the caller's function, or not text or JSON: raised to the caller, and the message is consumed
            self._failed = self._loop.create_future()
            self._failed.set_exception(
                RuntimeError(f"{error!r} from the shape of a message") if isinstance(error, StopIteration) else error
            )
            self._delivered = self._anchor = None
            return None


class PendingBatch(PendingShape):
    """A pending receive of all messages: the first, and those that have come when its result is taken.

    Only the first would have to be put back.
    """

    __slots__ = ()

    def result(self) -> Any:
        """Return the messages, which now belong to the caller, including those that came meanwhile."""
        delivered = self._delivered
        messages = super().result()
        if delivered is not None and delivered.socket.pattern.readable():
            messages += delivered.socket.pattern.recv_many()
        return messages


@mypyc_attr(native_class=False)
class Anchor:
    """Takes a weak reference in place of its receive, which cannot have one when it is compiled."""

    __slots__ = ("__weakref__", "receive")

    def __init__(self, receive: PendingReceive) -> None:
        self.receive = receive


class Delivered:
    """The receives of a socket whose message was delivered and not taken yet, in order.

    A cancelled receive counts as never called: those behind it get the messages of those before them, so that messages stay
    in order, and the frames of a message together, whichever is cancelled first. A receive that its program has dropped is forgotten.
    """

    __slots__ = ("_earlier", "_sweep_at", "latest", "socket")

    def __init__(self, socket: MessageSource) -> None:
        self.socket = socket
        self.latest: PendingReceive | None = None  # mostly it is waited for, and the only one: then nothing else is needed
        self._earlier: list[ref[Anchor]] = []
        self._sweep_at = _WAITS_MIN

    def add(self, receive: PendingReceive) -> None:
        latest = self.latest
        if latest is not None:
            self._add_earlier(latest)
        receive._delivered = self
        if receive._callbacks:
            self.latest = receive
        else:  # nothing waits for it: its program may drop it
            self.latest = None
            self._add_earlier(receive)

    def _add_earlier(self, receive: PendingReceive) -> None:
        if len(self._earlier) >= self._sweep_at:
            self._earlier = [anchor for anchor in self._earlier if (held := anchor()) is not None and held.receive._delivered is self]
            self._sweep_at = max(_WAITS_MIN, 2 * len(self._earlier))
        receive._anchor = Anchor(receive)
        self._earlier.append(ref(receive._anchor))

    def _waiting(self) -> list[PendingReceive]:
        anchors = [anchor() for anchor in self._earlier]
        receives = [anchor.receive for anchor in anchors if anchor is not None]
        if self.latest is not None:
            receives.append(self.latest)
        return [receive for receive in receives if receive._delivered is self]

    def outdate(self) -> None:
        """Drop the messages once their receives are cancelled: a REQ or REP has had its turn since they were delivered."""
        self._earlier.clear()
        self.latest = None

    def take_back(self, cancelled: PendingReceive) -> None:
        """Give what a cancelled receive had to those behind it, and what they leave to the socket."""
        waiting = self._waiting()
        cancelled._delivered = cancelled._anchor = None
        if self.latest is cancelled:
            self.latest = None
        if cancelled not in waiting:
            self.socket.pattern.counters.stale += 1
            return
        units = [Unit(cancelled._pipe, cancelled._whole, cancelled._rest)]
        behind: list[PendingReceive] = []
        last = cancelled
        place = waiting.index(cancelled)
        for receive in waiting[place + 1 :]:
            if receive._rest:
                if last._left is not receive._whole:
                    continue  # frames before these were taken, so it keeps them
            else:
                self._end(units[-1], last)
                units.append(Unit(receive._pipe, receive._whole, False))
            behind.append(receive)
            last = receive
        self._end(units[-1], last)
        for receive in behind:
            left = receive._exchange(units[0])
            if left is None:
                del units[0]
            else:
                units[0] = Unit(units[0].pipe, left, True)
        self.socket.put_back(units)

    def _end(self, unit: Unit, last: PendingReceive) -> None:
        """Cut off the frames that are not there any longer; `last` had the last ones of those that are."""
        if last._left is not None and not self.socket.left_rest(last._left):
            unit.frames = unit.frames[: len(unit.frames) - len(last._left)]
            unit.rest = True


class PendingSend(Pending[None]):
    """A pending send; if it is cancelled in time, nothing is queued (SOCK-13).

    Args:
        total: messages of the call.
        given: they, or the last ones of them, if some were dropped.
    """

    __slots__ = ("_given", "_total", "messages", "names")

    def __init__(self, messages: list[Message], loop: asyncio.AbstractEventLoop, total: int, given: Sequence[Given] | None) -> None:
        super().__init__(loop)
        self.messages = messages  # left to send
        self.names: list[bytes] = []  # of the lines in which it waits, see `core.sockets.sending`
        self._total = total
        self._given = given

    def keep(self, within: list[Message]) -> None:
        """Leave out messages that were dropped: `within` are the others."""
        if self._given is None and len(within) != len(self.messages):
            self._given = self.messages
        self.messages = within

    def taken(self) -> int:
        given = self._given
        if given is None:
            return self._total - len(self.messages)
        return self._total - len(given) + place_of(given, self.messages)

    def _complete(self) -> None:
        super()._complete()
        self.messages = []  # the socket may keep this for a while
        self._given = None


def fail_all(waits: Iterable[Pending[Any]], error: Exception) -> None:
    """End waits with an error, which is logged for none: their callers may be gone."""
    for pending in waits:
        if not pending.done():
            pending.set_exception(error)
            pending.exception()


def place_of(given: Sequence[Given], left: Sequence[Given]) -> int:
    """Return the index, among all messages, of the first that is left; some between may have been dropped."""
    place = len(given)
    for message in reversed(left):  # from the end: the same list may have been given several times
        place -= 1
        while given[place] is not message:
            place -= 1
    return place
