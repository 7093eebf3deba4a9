"""`Pending`, the result of a receive or a send that waits.

It has a future's methods, and asyncio takes it for one; so `gather`, `wait`, `wait_for` and `timeout` need no task around it. It is none of
asyncio's own, because a compiled class cannot have one as its base, and an interpreted one costs a fifth of a round trip.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from core.frame import framed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextvars import Context

    from core.pattern.base import Pattern
    from core.pattern.pipe import Pipe
    from core.zmtp.frames import Given, Message

T = TypeVar("T")


class MessageSource(Protocol):
    """A socket, as a pending receive sees it."""

    pattern: Pattern

    # take a message back; see `core.sockets.receiving`
    def put_back(self, pipe: Pipe | None, message: Message, *, rest: bool, single: bool) -> None: ...


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

    __slots__ = ("_message", "_pipe", "_rest", "_single", "_source")

    # How to put the message back; set by `deliver` only, because most pending receives last for microseconds.
    _message: Message
    _pipe: Pipe | None
    _rest: bool

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._source: MessageSource | None = None  # the socket that takes the message back
        self._single = False  # one frame; those behind it are for the next receive

    def deliver(self, socket: MessageSource, message: Message, pipe: Pipe | None, rest: bool = False) -> None:
        """Deliver a message, or the rest of one whose first frames were received before."""
        self._keep(socket, message, pipe, rest)
        self.set_result(message)

    def _keep(self, socket: MessageSource, message: Message, pipe: Pipe | None, rest: bool) -> None:
        self._source, self._message, self._pipe, self._rest = socket, message, pipe, rest

    def result(self) -> Any:
        """Return the message, which now belongs to the caller; raises CancelledError if it was cancelled and the message put back."""
        message = super().result()
        self._source = None
        return message

    def cancel(self, msg: object = None) -> bool:
        """Cancel; a delivered message whose result was not taken is put back."""
        source = self._source
        if source is None:
            return super().cancel(msg)
        self._source = None
        self._value = None
        self._cancel(msg)
        source.put_back(self._pipe, self._message, rest=self._rest, single=self._single)
        return True


class PendingShape(PendingReceive):
    """A pending receive that converts the message: first frame, text, JSON."""

    __slots__ = ("_framed", "_shape")

    def __init__(
        self, shape: Callable[[Message], Any], loop: asyncio.AbstractEventLoop, *, single: bool = False, framed: bool = False
    ) -> None:
        super().__init__(loop)
        self._shape = shape
        self._single = single
        self._framed = framed

    def deliver(self, socket: MessageSource, message: Message, pipe: Pipe | None, rest: bool = False) -> None:
        """Deliver a message, or the rest of one, converted."""
        if self._framed:
            message = framed(message, {} if pipe is None else pipe.metadata)
        try:
            result = self._shape(message)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # of the caller's function, or not text or JSON: raised to the caller, and the message is consumed
            self.set_exception(RuntimeError(f"{error!r} from the shape of a message") if isinstance(error, StopIteration) else error)
        else:
            self._keep(socket, message, pipe, rest)
            self.set_result(result)


class PendingBatch(PendingShape):
    """A pending receive of all messages: the first, and those that have come when its result is taken.

    Only the first would have to be put back.
    """

    __slots__ = ()

    def result(self) -> Any:
        """Return the messages, which now belong to the caller, including those that came meanwhile."""
        source = self._source
        messages = super().result()
        if source is not None and source.pattern.readable():
            messages += source.pattern.recv_many()
        return messages


class PendingSend(Pending[None]):
    """A pending send; if it is cancelled in time, nothing is queued (SOCK-13).

    Args:
        total: messages of the call.
        given: they, or the last ones of them, if some were dropped.
    """

    __slots__ = ("_given", "_total", "messages")

    def __init__(self, messages: list[Message], loop: asyncio.AbstractEventLoop, total: int, given: Sequence[Given] | None) -> None:
        super().__init__(loop)
        self.messages = messages  # left to send
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


def place_of(given: Sequence[Given], left: Sequence[Given]) -> int:
    """Return the index, among all messages, of the first that is left; some between may have been dropped."""
    place = len(given)
    for message in reversed(left):  # from the end: the same list may have been given several times
        place -= 1
        while given[place] is not message:
            place -= 1
    return place
