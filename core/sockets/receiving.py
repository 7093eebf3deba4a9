"""The receiving side of a socket: its verbs, and pending receives in their order."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from mypy_extensions import mypyc_attr

from core import constants as c
from core.errors import EAGAIN, Again, BadState, ZMQError
from core.frame import framed
from core.sockets.results.futures import expire
from core.sockets.results.pending import Delivered, PendingBatch, PendingReceive, PendingShape, Unit
from core.sockets.results.ready import Ready
from core.sockets.sending import Sending

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from core.frame import Frame
    from core.pattern.fair_queue import FairQueue
    from core.pattern.pipe import Pipe
    from core.sockets.results.futures import Awaitable
    from core.zmtp.frames import Message
    from core.zmtp.scan import Batch

_NOBLOCK: Final = int(c.NOBLOCK)  # a plain integer: `&` on an IntFlag costs half a microsecond
TO_RECEIVER: Final = "messages go to the receiver that was set"
_THREAD: Final = get_ident  # compiled, a constant of the module costs less than a name that it imports


def _first(message: Message) -> bytes:
    return message[0]


def _whole(message: Message) -> Message:
    return message


def _alone(message: Message) -> list[Message]:
    return [message]


@mypyc_attr(allow_interpreted_subclasses=True)
class Receiving(Sending):
    """Base of a socket; `SocketBase` has the attributes."""

    __slots__ = ()

    inbound: FairQueue
    _active: deque[Pipe]
    _delivered: Delivered
    _plain: bool
    _receiver: Callable[[Batch], object] | None
    _rests: deque[Unit]

    @overload
    def recv_multipart(self, flags: int = 0, copy: Literal[True] = True, track: bool = False) -> Awaitable[Message]: ...
    @overload
    def recv_multipart(self, flags: int = 0, *, copy: Literal[False], track: bool = False) -> Awaitable[list[Frame]]: ...
    @overload
    def recv_multipart(self, flags: int, copy: Literal[False], track: bool = False) -> Awaitable[list[Frame]]: ...
    @overload
    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Awaitable[Any]: ...

    def recv_multipart(self, flags: int = 0, copy: object = True, track: object = False) -> Awaitable[Any]:
        """Receive one message `[frame, …]`; with `copy=False` its frames are `core.Frame`s, which know their sender.

        Cancel-safe: a cancelled receive loses no message.

        Raises:
            Again: NOBLOCK and no message (EAGAIN), or RCVTIMEO has passed.
            BadState, OperationNotSupported: as the pattern says.
        """
        if not copy:
            return self._receive_framed(_whole, flags)
        receivers = self._receivers
        if not receivers:
            message = self._take()
            if message is not None:
                return Ready(message)
        if flags or self.options.rcvtimeo >= 0 or self._endpoints.deferred or self._receiver is not None:
            return self._receive_later(None, flags)
        if _THREAD() != self._owner_thread:
            self.enter()
        loop = self._loop
        if loop is None or not loop.is_running():  # else it runs here: before Python 3.12 `get_running_loop` makes a system call
            loop = asyncio.get_running_loop()
            self.follow_loop(loop)
        pending = PendingReceive(loop)
        if len(receivers) >= self._sweep_at:
            self._sweep()
        receivers.append(pending)
        return pending

    @overload
    def recv(self, flags: int = 0, copy: Literal[True] = True, track: bool = False) -> Awaitable[bytes]: ...
    @overload
    def recv(self, flags: int = 0, *, copy: Literal[False], track: bool = False) -> Awaitable[Frame]: ...
    @overload
    def recv(self, flags: int, copy: Literal[False], track: bool = False) -> Awaitable[Frame]: ...
    @overload
    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Awaitable[Any]: ...

    def recv(self, flags: int = 0, copy: object = True, track: object = False) -> Awaitable[Any]:
        """Receive the next frame; `rcvmore` is true if its message goes on."""
        if copy:
            return self.receive_as(_first, flags, True)
        return self._receive_framed(_first, flags, single=True)

    def _receive_framed(self, shape: Callable[[Message], Any], flags: int, *, single: bool = False) -> Awaitable[Any]:
        if _THREAD() != self._owner_thread:
            self.enter()
        if not self._receivers:
            pipe = self._rests[0].pipe if self._rests else self.pattern.next_pipe()
            message = self._take()
            if message is not None:
                if single and len(message) > 1:
                    self.keep_rest(pipe, message[1:])
                return Ready(shape(framed(message, {} if pipe is None else pipe.metadata)))
        return self._receive_later(shape, flags, single=single, framed=True)

    def recv_many(self) -> Awaitable[list[Message]]:
        """Receive all queued messages, at least one."""
        if _THREAD() != self._owner_thread:
            self.enter()
        if not self._receivers:
            messages = [self._take_rest()] if self._rests else self.pattern.recv_many()
            if messages:
                return Ready(messages)
        return self._receive_later(_alone, 0, PendingBatch)

    def receive_as(self, shape: Callable[[Message], Any], flags: int, single: bool) -> Awaitable[Any]:
        """See `Serialization`; if `single`, the shape takes the first frame, and the others are for the next receive."""
        if not self._receivers:
            message = self._take()
            if message is not None:
                if single and len(message) > 1:
                    self.keep_rest(None, message[1:])
                return Ready(shape(message))
        return self._receive_later(shape, flags, single=single)

    def _receive_later(
        self,
        shape: Callable[[Message], Any] | None,
        flags: int,
        kind: type[PendingShape] = PendingShape,
        *,
        single: bool = False,
        framed: bool = False,
    ) -> Awaitable[Any]:
        if _THREAD() != self._owner_thread:
            self.enter()
        if self._endpoints.deferred:
            self._endpoints.start_deferred()
        timeout_ms = self.options.rcvtimeo
        if timeout_ms == 0 or (flags and flags & _NOBLOCK):
            raise Again(EAGAIN, "no message is queued")
        if self._receiver is not None:
            raise BadState(msg=TO_RECEIVER)
        loop = asyncio.get_running_loop()
        self.follow_loop(loop)
        pending = PendingReceive(loop) if shape is None else kind(shape, loop, single=single, framed=framed)
        if timeout_ms > 0:
            expire(pending, timeout_ms, "rcvtimeo: no message came")
        if len(self._receivers) >= self._sweep_at:
            self._sweep()
        self._receivers.append(pending)
        return pending

    # -- pending receives and pollers

    def _serve_receivers(self) -> None:
        receivers = self._receivers
        while receivers:
            pending = receivers[0]
            if not pending.done():
                rest = bool(self._rests)
                if not self._plain and not rest and not self.pattern.readable():
                    break  # REP: the next request is delivered after the reply to this one
                pipe = self._rests[0].pipe if rest else self.pattern.next_pipe()
                message = self._take_now()
                if message is None:
                    break
                receivers.popleft()
                pending.deliver(self._delivered, message, pipe, rest)
            else:
                receivers.popleft()
        if self._pollers:
            self._wake_pollers()

    def _wake_pollers(self) -> None:
        pollers, self._pollers = self._pollers, []
        for waiter in pollers:
            if not waiter.done():
                waiter.set_result(None)

    def put_back(self, units: Sequence[Unit]) -> None:
        """See `MessageSource`; these come before all that is queued."""
        for unit in reversed(units):
            if unit.rest:
                self._keep(unit)
            elif not self.options.conflate or unit.pipe is None or not unit.pipe.inbox:  # else there is a newer one
                self.pattern.put_back(unit.pipe, unit.frames)
        if units:
            self._serve_put_back()

    @abstractmethod
    def _serve_put_back(self) -> None:
        """See `SocketBase`."""

    def keep_rest(self, pipe: Pipe | None, rest: Message) -> None:
        """Keep the frames after a received frame for the next receive."""
        self._keep(Unit(pipe, rest, True))

    def _keep(self, unit: Unit) -> None:
        self._rests.appendleft(unit)
        self.pattern.drop_rest = self._drop_rest
        self.use_to_take(self._take_rest)

    def left_rest(self, rest: Message) -> bool:
        """See `MessageSource`."""
        for unit in self._rests:
            if unit.frames is rest:
                self._rests.remove(unit)
                self._follow_rests()
                return True
        return False

    def _take_rest(self) -> Message:
        unit = self._rests.popleft()
        self._follow_rests()
        return unit.frames

    def _drop_rest(self) -> None:
        self._rests.clear()
        self._follow_rests()

    def _follow_rests(self) -> None:
        """Go on with whole messages when no rest is left."""
        if not self._rests:
            self.pattern.drop_rest = None
            self.use_to_take(self.pattern.receiver())

    def _fail_receiver(self) -> None:
        """Fail the first pending receive of a reply that will not come."""
        while self._receivers:
            pending = self._receivers.popleft()
            if not pending.done():
                try:
                    self.pattern.recv()
                except ZMQError as error:
                    pending.set_exception(error)
                return
