"""Shell of a client: its machine, timer, futures and end, and one write in an event-loop iteration.

It has no task: connections, the timer and callers call it, and each call does everything that is due. The requests of one loop iteration
are sent together; the first of them is sent at once. Subclasses have the sockets.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from mypy_extensions import mypyc_attr

from core.constants import EVENT_HANDSHAKE_SUCCEEDED
from core.errors import ContextTerminated, NoReply
from core.machine.deadlines import TIMER_S_MIN
from core.machine.requests import SETTLED, PendingRequest
from core.rpc.connect_times import with_connect_times
from core.rpc.reply import Reply
from core.runtime import runtime
from core.runtime.event_loop import clock_of
from core.runtime.forks import process_id
from core.security.credentials import context_for, only_one
from core.sockets.monitor import TROUBLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from core.runtime.supervision import Timer
    from core.security.credentials import Secured
    from core.sockets.context import Context
    from core.sockets.monitor import MonitorEvent
    from core.sockets.socket import Socket

# Compiled, a constant of the module costs less than a name that it imports.
_THREAD: Final = get_ident
_REPLY: Final = Reply


class ClientMachine(Protocol):
    """The machine of a client, as its shell sees it; see `core.machine.requests`."""

    def submit(self, pending: Any, now: float) -> None: ...  # send a request if that is possible now; raises if too many wait
    def cancel(self, pending: Any, now: float) -> None: ...  # settle it without a result; nothing when it is settled
    def tick(self, now: float) -> list[Any]: ...  # do what is due; returns the requests that were settled
    def deadline(self) -> float: ...  # when `tick` is due, inf for never
    def close(self, now: float) -> list[Any]: ...  # fail and return all open requests, because the client was closed


M = TypeVar("M", bound=ClientMachine)


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientEngine(ABC, Generic[M]):
    """Runs the machine of one client.

    Subclasses make `_ticker`, a supervised timer under a name of their own that calls `_tick`.

    Args:
        context: of the sockets; the engine has its own when None.

    Raises:
        TypeError: both context and security were given.
    """

    _ticker: Timer

    def __init__(
        self,
        machine: M,
        name: str,
        closed: type[Exception],
        context: Context | None,
        security: Secured | None,
        socket_options: Mapping[str, Any] | None,
    ) -> None:
        self.machine = machine
        self.loop: asyncio.AbstractEventLoop | None = None  # None before the start
        self.clock: Callable[[], float] = runtime.current().monotonic
        self.now = 0.0  # begin of this loop iteration, loop time
        self.closed = False  # no more requests are taken
        self._left = False  # `close` was called
        self.socket_options: dict[str, Any] = dict(socket_options or {})
        self._name = name
        self._closed = closed
        self.troubles: dict[str, str] = {}  # by endpoint: why it cannot be connected to
        self._submitted = False  # something, since the last message of a peer or end of an iteration
        self._end_scheduled = False  # `_end_iteration` will be called
        self._security = only_one(context, security)
        self._owns_context = context is None
        self._given_context = context
        self._timer_at = inf
        self._thread_id = 0  # of the loop
        self._pid = 0

    # ------------------------------------------------------------------------------------------------------------ callers

    def start(self) -> asyncio.AbstractEventLoop:
        """Start to connect, on the running loop; does nothing when started already.

        After an error nothing is started, and the next call begins anew. Raises ClientClosed or core.ZMQError.
        """
        if self.closed:
            raise self._closed
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
            self._thread_id, self._pid = _THREAD(), process_id()
            self.clock = clock_of(self.loop)
            self.context = context_for(self._given_context, self._security)
            try:
                self._connect()
            except BaseException:
                self.loop = None
                for socket in self._open_sockets():
                    socket.close(linger=0)
                raise
            self.context.on_end[self._context_ended] = self.loop
        return self.loop

    def begin_iteration(self) -> bool:
        """Read the clock once per loop iteration; return whether this call is the first, whose request is sent now.

        Later requests are collected until the iteration ends. Raises ClientClosed, RuntimeError on another loop than the first time.
        """
        if self.closed:
            raise self._closed
        # Hot path: the first request of the iteration has passed the whole check, which costs three times as much.
        if self._end_scheduled and _THREAD() == self._thread_id:
            return False
        loop = self.loop or self.start()
        if not self._on_loop() and asyncio.get_running_loop() is not loop:
            raise RuntimeError(f"this client belongs to another event loop; threads use {self._name}.SyncClient")
        self.now = self.clock()
        if not self._submitted:
            self._submitted = True
            return True
        self._end_scheduled = True
        loop.call_soon(self._end_iteration)
        return False

    def submit(self, pending: PendingRequest) -> None:
        """Send a request; at once if it is the first of this iteration. Raises ClientClosed, and the machine's errors."""
        # Hot path: `begin_iteration` and `flush_all` inlined for the first request of an iteration.
        machine = self.machine
        if self._submitted or self.closed or not self._on_loop():
            at_once = self.begin_iteration()
            machine.submit(pending, self.now)
            if at_once:
                self.flush_all()
            return
        self._submitted = True
        self.now = now = self.clock()
        machine.submit(pending, now)
        self.flush()
        if machine.deadline() < self._timer_at:
            self._arm()

    def ask(self, pending: PendingRequest) -> asyncio.Future[list[bytes]]:
        """Submit a request and return a plain future of its reply, which costs half of a `Reply`.

        The caller awaits it at once, and withdraws the request if it is cancelled. Raises as `submit`.
        """
        loop = self.loop or self.start()
        pending.caller = reply = loop.create_future()
        self.submit(pending)
        if pending.stage == SETTLED:  # already, by the call that submitted it
            self.notify((pending,))
        return reply

    def withdraw(self, pending: PendingRequest) -> None:
        if pending.stage == SETTLED or self.closed:
            return
        if self.loop is not None and not self.loop.is_running():  # cancelled from outside, when the loop has ended
            self.machine.cancel(pending, self.now)
            return
        at_once = self.begin_iteration()
        self.machine.cancel(pending, self.now)
        if at_once:
            self.flush_all()

    def reply_to(self, pending: PendingRequest) -> Reply:
        pending.caller = reply = _REPLY(loop=self.loop)
        reply.engine, reply.request = self, pending
        if pending.stage == SETTLED:  # already, by the call that submitted it
            self.notify((pending,))
        return reply

    def flush_all(self) -> None:
        self.flush()
        if self._deadline() < self._timer_at:
            self._arm()

    def new_socket(self, kind: int, **fixed: Any) -> Socket:
        """Return a socket with the options of the user, but those that are fixed."""
        socket = self.context.socket(kind, **{"tell_limits": 1, **with_connect_times(self.socket_options), **fixed})
        socket.on_event(self._not_connected, TROUBLES)
        socket.on_event(self._is_connected, EVENT_HANDSHAKE_SUCCEEDED)
        return socket

    def _not_connected(self, event: MonitorEvent) -> None:
        if event.reason:
            self.troubles[event.endpoint] = event.reason

    def _is_connected(self, event: MonitorEvent) -> None:
        self.troubles.pop(event.endpoint, None)

    async def close(self) -> None:
        """Fail open requests, close the sockets and wait for their end."""
        if self._left:
            return
        self._left = True
        self._fail_open()
        if self.loop is None:
            return
        self.context.on_end.pop(self._context_ended, None)
        async with AsyncExitStack() as stack:
            if self._owns_context:
                stack.push_async_callback(self.context.aclose, 0)
            await self._disconnect()

    # ------------------------------------------------------------------------------------------------------- subclasses

    @abstractmethod
    def _connect(self) -> None:
        """Begin to connect."""

    @abstractmethod
    def flush(self) -> None:
        """Send the messages of the machine."""

    def _close_sockets(self) -> Iterable[Socket]:
        """Close the sockets, and return them; may be called again."""
        sockets = [*self._open_sockets()]
        for socket in sockets:
            socket.close(linger=0)
        return sockets

    async def _disconnect(self) -> None:
        for socket in self._close_sockets():
            await socket.wait_closed()

    def _open_sockets(self) -> Iterable[Socket]:
        """Return the sockets that `close` must close."""
        return ()

    def _deadline(self) -> float:
        return self.machine.deadline()

    def _do_due(self, now: float) -> None:
        self.notify(self.machine.tick(now))

    # ---------------------------------------------------------------------------------------------------------------- end

    def _fail_open(self, reason: ContextTerminated | None = None) -> None:
        """Fail open requests, and take no more."""
        if self.closed:
            return
        self.closed = True
        self._ticker.cancel()
        if self.loop is None:
            return
        settled = self.machine.close(self.clock())
        for pending in settled:
            if pending.error is not None:
                pending.error.__cause__ = reason
        self.notify(settled)

    def _context_ended(self) -> None:
        """End: the program has ended the context, and nothing can be sent any longer."""
        self._fail_open(ContextTerminated())
        if self.loop is not None:
            self.loop.call_soon(self._close_sockets)  # not within a call of one of them

    # -------------------------------------------------------------------------------------------------- iterations and time

    def updated(self, updates: Iterable[PendingRequest]) -> None:
        """Notify callers and send, after a message or event of a peer."""
        self._submitted = False
        self.notify(updates)
        self.flush_all()

    def notify(self, updates: Iterable[PendingRequest]) -> None:
        for pending in updates:
            if self.troubles and isinstance(pending.error, NoReply):
                pending.error.trouble = ", ".join(f"{endpoint} ({why})" for endpoint, why in sorted(self.troubles.items()))
            settle_future(pending, self._closed)

    def _on_loop(self) -> bool:
        """Return whether the client's loop runs here; before Python 3.12 `get_running_loop` makes a system call."""
        loop = self.loop
        return loop is not None and _THREAD() == self._thread_id and process_id() == self._pid and loop.is_running()

    def _end_iteration(self) -> None:
        self._end_scheduled = self._submitted = False
        if not self.closed:
            self.flush_all()

    def _arm(self) -> None:
        due = self._deadline()
        if due >= self._timer_at or self.loop is None or self.closed:
            return  # a timer that is too early is left, which costs less than moving it each time
        self._timer_at = due
        self._ticker.at(max(due, self.clock() + TIMER_S_MIN))

    def _tick(self) -> None:
        if self.loop is None or self.closed:
            return
        self._timer_at = inf
        self._do_due(self.clock())
        self.flush_all()


def settle_future(pending: PendingRequest, closed: type[Exception]) -> None:
    """Settle the future of a request that is settled; an error `closed` need not be taken from it."""
    future = pending.caller
    if future is None or pending.stage != SETTLED:
        return
    pending.caller = None  # request and future refer to each other: leave no cycle to the garbage collector
    if future.done():
        return
    error = pending.error
    if error is None:
        future.set_result(pending.reply)
        return
    future.set_exception(error)
    if type(error) is closed:
        future.exception()  # closing a client must not log every request that was open
