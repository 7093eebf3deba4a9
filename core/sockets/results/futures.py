"""Results of sends and receives: awaitables with a future's methods; the call itself acts at once.

`Ready` (in `ready`) is complete and costs no `asyncio.Future`; `DONE` is the result of every completed send. `PendingReceive`
and `PendingSend` are futures that wait for a message or for capacity. asyncio takes all of them for futures, so `gather`, `wait`,
`wait_for` and `timeout` need no task around them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from core.errors import EAGAIN, Again
from core.frame import framed
from core.sockets.results.ready import Ready

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from core.pattern.base import Pattern
    from core.pattern.pipe import Pipe
    from core.zmtp.decoder import Message

__all__ = ["DONE", "Awaitable", "PendingBatch", "PendingFirst", "PendingFirstFrame", "PendingFrames", "PendingReceive", "PendingSend"]
__all__ += ["PendingShape", "expire"]

T = TypeVar("T")


class MessageSource(Protocol):
    """A socket, as a pending receive sees it."""

    pattern: Pattern

    # take a message back; see `core.sockets.receiving`
    def put_back(self, pipe: Pipe | None, message: Message, *, rest: bool, single: bool) -> None: ...


# How to put a message back: (socket, message, its pipe, whether it is the rest of one).
Delivered = tuple[MessageSource, "Message", "Pipe | None", bool]


class _Done(Ready[None]):
    """The result of a completed send; awaiting it runs no Python code."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None)

    # An exhausted iterator ends an await with None, like a generator that returns, and runs no Python code.
    __await__ = cast("Callable[[Any], Generator[Any, None, None]]", iter(()).__iter__)


DONE: Final[Ready[None]] = _Done()


_result_of: Final[Callable[[asyncio.Future[Any]], Any]] = asyncio.Future.result  # half the time of `super().result()`


class PendingReceive(asyncio.Future[Any]):
    """A pending receive.

    Cancelling it returns a delivered message whose result was not taken: a cancelled receive loses nothing (SOCK-13). Once `result` has
    returned the message, by an await or by a call, a cancel changes nothing: no message is received twice.
    """

    # Set by `deliver` only, because most pending receives last for microseconds. Reading one that is not set costs as much as all the rest.
    __slots__ = ("_delivered", "_returned")

    def deliver(self, socket: MessageSource, message: Message, pipe: Pipe | None, rest: bool = False) -> None:
        """Deliver a message, or the rest of one whose first frames were received before."""
        self._delivered: Delivered | None = (socket, message, pipe, rest)
        self._returned = False
        self.set_result(message)

    def result(self) -> Any:
        """Return the message, which now belongs to the caller; raises CancelledError if it was cancelled and the message put back."""
        message = _result_of(self)
        if self._returned:
            raise asyncio.CancelledError
        self._delivered = None
        return message

    def exception(self) -> BaseException | None:
        """Return the error of the receive. Raises asyncio.CancelledError like `result`."""
        if getattr(self, "_returned", False):
            raise asyncio.CancelledError
        return super().exception()

    def cancelled(self) -> bool:
        return getattr(self, "_returned", False) or super().cancelled()

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    __iter__ = __await__

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel; a delivered message whose result was not taken is put back."""
        delivered: Delivered | None = getattr(self, "_delivered", None)
        if delivered is None:
            return super().cancel(msg)
        self._delivered = None
        self._returned = True
        socket, message, pipe, rest = delivered
        socket.put_back(pipe, message, rest=rest, single=isinstance(self, PendingFirst))
        return True


class PendingShape(PendingReceive):
    """A pending receive that converts the message: first frame, text, JSON."""

    __slots__ = ("_shape",)

    def __init__(self, shape: Callable[[Message], Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._shape = shape

    def deliver(self, socket: MessageSource, message: Message, pipe: Pipe | None, rest: bool = False) -> None:
        self._delivered = None
        try:
            result = self._shape(message)
        except Exception as error:  # from the caller's function, or not text or JSON: raised to the caller, and the message is consumed
            self.set_exception(RuntimeError(f"{error!r} from the shape of a message") if isinstance(error, StopIteration) else error)
        else:
            self._delivered = (socket, message, pipe, rest)
            self._returned = False
            self.set_result(result)


class PendingFirst(PendingShape):
    """A pending receive of one frame; the frames behind it are for the next receive."""

    __slots__ = ()


class PendingFrames(PendingShape):
    """A pending receive of frames that know their sender (`copy=False`)."""

    __slots__ = ()

    def deliver(self, socket: MessageSource, message: Message, pipe: Pipe | None, rest: bool = False) -> None:
        super().deliver(socket, framed(message, {} if pipe is None else pipe.metadata), pipe, rest)


class PendingFirstFrame(PendingFrames, PendingFirst):
    """A pending receive of one frame that knows its sender."""

    __slots__ = ()


class PendingBatch(PendingShape):
    """A pending receive of all messages: the first, and those that have come when its result is taken.

    Only the first would have to be put back.
    """

    __slots__ = ()

    def result(self) -> Any:
        """Return the messages, which now belong to the caller, including those that came meanwhile."""
        delivered: Delivered | None = getattr(self, "_delivered", None)
        messages = super().result()
        if delivered is not None and delivered[0].pattern.readable():
            messages += delivered[0].pattern.recv_many()
        return messages


class PendingSend(asyncio.Future[None]):
    """A pending send; if it is cancelled in time, nothing is queued (SOCK-13)."""

    def __init__(self, messages: list[Message], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.messages = messages  # left to send


Awaitable = Ready[T] | asyncio.Future[T]


def expire(pending: asyncio.Future[Any], timeout_ms: int) -> None:
    """Fail a pending send or receive with Again after a time."""

    def over() -> None:
        if not pending.done():
            pending.set_exception(Again(EAGAIN, f"nothing for {timeout_ms} ms"))

    timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, over)
    pending.add_done_callback(lambda _: timer.cancel())
