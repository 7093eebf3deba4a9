"""Runs handlers: a few long-lived tasks that take requests from one queue, never a task per request.

When requests arrive, one runner is woken; it calls one handler after the other. Only when a handler waits and requests are left
does the next runner wake, then two more, then four: handlers that never wait run back to back in one task, without a switch
between them, and handlers that do wait have `concurrency` runners within a few turns of the loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import secrets
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mdp.errors import HandlerError
from mdp.handler import BadReply, HandlerKind, PartsTooLarge, reply_frames
from mdp.protocol import is_code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence

    from mdp.request import Request

__all__ = ["RunnerCounters", "Runners"]

log = logging.getLogger("mdp.worker")

# How long handlers that never wait may keep the loop to themselves before heartbeats and sockets get their turn.
SLICE_S = 0.005
# What a frame of a reply costs that is kept, beside its octets: the object and its place in a list.
FRAME_OVERHEAD_BYTES = 64
# Octets of the text of a deliberate HandlerError that reach the client.
_TEXT_CHARS_MAX = 1000


@dataclass(slots=True)
class RunnerCounters:
    """What became of requests that reached a handler, or did not.

    Attributes:
        handled: handlers that returned.
        errors: handlers that failed.
        cancelled: requests that became unwanted before their handler was done.
        expired: requests whose deadline passed before a handler was free.
        lost: of the errors, those the dialect could not tell the client.
        parts_dropped: of the errors, generators that yielded more than may be kept for a broker without PARTIAL.
    """

    handled: int = 0
    errors: int = 0
    cancelled: int = 0
    expired: int = 0
    lost: int = 0
    parts_dropped: int = 0


class _Begun:
    """A handler that was called and waits for something; to be awaited by the runner that takes it over.

    Args:
        request: what it works on.
        coroutine: of the handler.
        waits_for: the future it has given out, None when it only lets others go first.
    """

    __slots__ = ("_coroutine", "_interrupted", "_waits_for", "request")

    def __init__(self, request: Request, coroutine: Coroutine[Any, None, Any], waits_for: asyncio.Future[Any] | None) -> None:
        self.request = request
        self._coroutine = coroutine
        self._waits_for = waits_for
        self._interrupted = False

    def interrupt(self) -> None:
        """Cancel what the handler waits for, as a task does whose cancellation was asked for."""
        if self._waits_for is None or not self._waits_for.cancel():
            self._interrupted = True

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, waits_for = self._coroutine, self._waits_for
        try:
            if self._interrupted:
                waits_for = coroutine.throw(asyncio.CancelledError())
            while True:
                try:
                    given = yield waits_for
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:
                    waits_for = coroutine.throw(error)
                else:
                    waits_for = coroutine.send(given)
        except StopIteration as end:
            return end.value


class _Parked(NamedTuple):
    """A runner without work: what it waits for, its task, and the context its task runs in."""

    future: asyncio.Future[_Begun | None]
    task: asyncio.Task[None]
    context: contextvars.Context


class Runners:
    """Calls one handler, several times at once.

    Args:
        handler: takes a `Request`.
        kind: how it is to be called.
        concurrency: how many requests are worked on at once.
        parts_max_bytes: how much of what a generator yields is kept where parts cannot be sent, per request.
        clock: reads the time, monotonic seconds.
        on_answer: called when there is something to send; cheap, once per answer.
        on_give_back: called with a request whose failure its dialect has no word for, and the error.
        room: waits until a part that was sent has left, or as good as.
        on_idle: called when nothing runs and nothing waits any more.

    Attributes:
        counters: what happened.
        running: requests that are worked on, oldest first, with the time their handler was called.
    """

    def __init__(
        self,
        handler: Callable[[Request], Any],
        kind: HandlerKind,
        concurrency: int,
        *,
        parts_max_bytes: int,
        clock: Callable[[], float],
        on_answer: Callable[[], None],
        on_give_back: Callable[[Request, BaseException], None],
        on_idle: Callable[[], None],
        room: Callable[[Request], Awaitable[None]],
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency of {concurrency}: one request at least must be worked on")
        self.counters = RunnerCounters()
        self.running: dict[Request, float] = {}
        self._handler = handler
        self._kind = kind
        self._concurrency = concurrency
        self._parts_max_bytes = parts_max_bytes
        self._clock = clock
        self._on_answer = on_answer
        self._on_give_back = on_give_back
        self._on_idle = on_idle
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Request] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._parked: list[_Parked] = []
        self._eager = kind is HandlerKind.COROUTINE and inspect.iscoroutinefunction(handler)
        self._context = contextvars.copy_context()
        self._wake_next = 1
        self._checking = False
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None

    @property
    def waiting(self) -> int:
        """Requests no handler was called for yet."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.running and not self._queue

    def put(self, requests: Sequence[Request]) -> None:
        """Have requests worked on, in order."""
        if self._eager and self._parked and not self._queue and not self.running and len(requests) == 1 and asyncio.current_task() is None:
            self._begin(requests[0])
            return
        self._queue.extend(requests)
        if self._kind is HandlerKind.INLINE:
            self._run_inline()
            return
        self._wake(1)
        if len(self._queue) > 1:
            self._wake_next = 1
            self._check_soon()

    def drop(self, request: Request) -> bool:
        """Stop working on a request nobody wants any more; True if no handler will answer it.

        A handler that runs is cancelled and its runner answers; one in a thread cannot be stopped and should look at `cancelled`.
        """
        request.cancelled = True
        if request not in self.running:
            self.counters.cancelled += 1
            return True  # still queued: its runner will pass over it
        task = request._task
        if task is not None and task is not asyncio.current_task(self._loop):
            task.cancel()
        return False

    def forget_waiting(self) -> None:
        """Drop everything no handler was called for."""
        self._queue.clear()

    async def close(self) -> None:
        """Cancel what runs and end every runner."""
        self._closed = True
        self._queue.clear()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._threads is not None:
            # Threads cannot be stopped; a handler that never returns must not keep the program from ending its loop.
            self._threads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------------------------------- who works when

    def _wake(self, count: int) -> bool:
        """Set up to so many runners to work; False when there are no more."""
        for _ in range(count):
            if self._parked:
                self._parked.pop().future.set_result(None)
            elif len(self._tasks) < self._concurrency:
                context, name = self._context.copy(), f"mdp runner {len(self._tasks)}"
                self._tasks.append(self._loop.create_task(self._run(context), name=name, context=context))
            else:
                return False
        return True

    def _check_soon(self) -> None:
        if not self._checking:
            self._checking = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        """Wake more runners if requests are left after those woken had their turn: a handler waits."""
        self._checking = False
        if self._queue and not self._closed:
            if self._wake(self._wake_next):
                self._check_soon()
            self._wake_next *= 2

    def _begin(self, request: Request) -> None:
        """Call the handler at once, in the name of a runner that waits: one that never waits is done without a turn of the loop."""
        # Hot path of one request at a time.
        if request.cancelled or (request.expires_at is not None and self._expire(request)):
            return
        parked = self._parked[-1]
        task = request._task = parked.task
        running = self.running
        running[request] = time.monotonic()
        asyncio._enter_task(self._loop, task)
        try:
            coroutine = self._handler(request)
            waits_for = parked.context.run(coroutine.send, None)
        except StopIteration as end:
            error = self._answer(request, end.value)
        except BaseException as raised:
            error = raised
        else:
            self._parked.pop()
            parked.future.set_result(_Begun(request, coroutine, waits_for))
            return
        finally:
            asyncio._leave_task(self._loop, task)
        del running[request]
        if error is not None and self._failed(request, error, task):
            raise error
        if not self._queue and not running:
            self._on_idle()

    def _answer(self, request: Request, value: Any) -> BaseException | None:
        """Answer a request with what its handler returned; returns why that cannot be."""
        try:
            request._owner.answer(request, (value,) if type(value) is bytes else reply_frames(value))
        except BaseException as error:
            return error
        self.counters.handled += 1
        return None

    async def _run(self, context: contextvars.Context) -> None:
        """Work on requests until cancelled."""
        # Hot path.
        task = asyncio.current_task()
        assert task is not None
        queue, running, clock = self._queue, self.running, time.monotonic
        handler = self._handler if self._kind is HandlerKind.COROUTINE else self._call
        counters, on_answer = self.counters, self._on_answer
        begun: _Begun | None = None
        while True:
            now = slice_began = clock()
            while queue or begun is not None:
                if begun is not None:
                    request, reply, begun = begun.request, begun, None
                else:
                    request = queue.popleft()
                    if request.cancelled or (request.expires_at is not None and self._expire(request)):
                        continue
                    request._task = task
                    running[request] = now
                    reply = None
                try:
                    value = await (handler(request) if reply is None else reply)
                    request._owner.answer(request, (value,) if type(value) is bytes else reply_frames(value))
                except BaseException as error:
                    del running[request]
                    if self._failed(request, error, task):
                        raise
                else:
                    del running[request]
                    if request.cancelled:
                        self._uncancel(task)
                    counters.handled += 1
                    if len(request._owner.outgoing) == 1 and (queue or running):
                        on_answer()  # the first since they were sent; where nothing is left, what was answered leaves at once
                now = clock()
                if now - slice_began > SLICE_S:
                    await asyncio.sleep(0)
                    now = slice_began = clock()
            parked = _Parked(self._loop.create_future(), task, context)
            self._parked.append(parked)
            if not running:
                self._on_idle()
            begun = await self._wait(parked)

    async def _wait(self, parked: _Parked) -> _Begun | None:
        """Wait for work; returns a request that is worked on already, if it is one."""
        try:
            return await parked.future
        except asyncio.CancelledError:
            if parked in self._parked:
                self._parked.remove(parked)
            begun = None if parked.future.cancelled() or not parked.future.done() else parked.future.result()
            if begun is None:
                raise
            begun.interrupt()  # the cancellation is for the handler, which waits by now
            return begun

    def _run_inline(self) -> None:
        """Call a plain handler on the loop, for as long as a slice lasts, then in the next turn again."""
        queue, clock = self._queue, time.monotonic
        slice_ends = clock() + SLICE_S
        while queue and not self._closed:
            request = queue.popleft()
            if request.cancelled or (request.expires_at is not None and self._expire(request)):
                continue
            try:
                value = self._handler(request)
                request._owner.answer(request, (value,) if type(value) is bytes else reply_frames(value))
            except BaseException as error:
                if self._failed(request, error, None):
                    raise
            else:
                self.counters.handled += 1
                self._on_answer()
            if queue and clock() > slice_ends:
                self._loop.call_soon(self._run_inline)
                return
        self._on_idle()

    # ------------------------------------------------------------------------------------------------------ kinds of handlers

    async def _call(self, request: Request) -> Any:
        """Call a handler that is no coroutine function."""
        if self._kind is HandlerKind.GENERATOR:
            return await self._send_parts(request)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="mdp-handler")
        context = contextvars.copy_context()
        return await self._loop.run_in_executor(self._threads, context.run, _guarded, self._handler, request)

    async def _send_parts(self, request: Request) -> Sequence[bytes]:
        """Send what a generator yields, each as soon as it is there; return what ends the reply.

        Raises:
            PartsTooLarge: the parts cannot be sent, and more of them came than may be kept.
        """
        session = request._owner
        joined: list[bytes] = []
        room = self._parts_max_bytes
        clock = time.monotonic
        slice_ends = clock() + SLICE_S
        async with aclosing(self._handler(request)) as parts:
            async for value in parts:
                frames = reply_frames(value)
                if session.can_send_parts:
                    session.send_part(request, frames)
                    self._on_answer()
                    await self._room(request)
                else:
                    room -= sum(map(len, frames)) + FRAME_OVERHEAD_BYTES * len(frames)
                    if room < 0:
                        self.counters.parts_dropped += 1
                        raise PartsTooLarge(self._parts_max_bytes)
                    joined += frames
                if clock() > slice_ends:
                    # Neither the generator nor the room has to have waited for anything.
                    await asyncio.sleep(0)
                    slice_ends = clock() + SLICE_S
        # One empty frame says that there are no more parts.
        return joined or (b"",)

    # ---------------------------------------------------------------------------------------------------------------- failures

    def _expire(self, request: Request) -> bool:
        """Refuse a request whose deadline has passed."""
        if request.left_s(self._clock()) != 0.0:
            return False
        self.counters.expired += 1
        request._owner.refuse(request, "DEADLINE_EXCEEDED", "waited too long for a handler")
        self._on_answer()
        return True

    @staticmethod
    def _uncancel(task: asyncio.Task[Any] | None) -> None:
        if task is not None and task.cancelling():
            task.uncancel()

    def _failed(self, request: Request, error: BaseException, task: asyncio.Task[Any] | None) -> bool:
        """Answer for a handler that raised; True if the runner has to end."""
        if isinstance(error, GeneratorExit):
            return True  # the loop is gone
        if request.cancelled:
            self._uncancel(task)
            self.counters.cancelled += 1
            if request._owner.holds(request):
                request._owner.refuse(request, "CANCELLED", "")
                self._on_answer()
            return task is not None and task.cancelling() > 0
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            return True  # the worker closes: DISCONNECT gives the request back
        self.counters.errors += 1
        # The client learns type and id; the log has the place under the same id, and neither has the payload. A traceback may.
        id = secrets.token_hex(4)
        if isinstance(error, BadReply):
            # Our own words, with nothing of the payload in them, and more of a help than the place.
            log.warning("%s: handler failed with %s: %s, id %s", request.service, type(error).__name__, error, id)
        else:
            log.warning("%s: handler failed with %s at %s, id %s", request.service, type(error).__name__, _place(error), id)
        log.debug("%s: id %s", request.service, id, exc_info=error)
        if request._owner.can_refuse:
            deliberate = str(error.text)[:_TEXT_CHARS_MAX] if isinstance(error, HandlerError) else ""
            code = error.code if isinstance(error, HandlerError) and is_code(error.code) else HandlerError.default_code
            request._owner.refuse(request, code, deliberate or f"{type(error).__name__}, id {id}")
            self._on_answer()
        else:
            self.counters.lost += 1
            self._on_give_back(request, error)
        # SystemExit is a failed request like any other (fault P6); the user's Ctrl-C is not.
        return isinstance(error, KeyboardInterrupt)


def _guarded(handler: Callable[[Request], Any], request: Request) -> Any:
    """Call a handler in a thread. No future can carry a StopIteration: whoever awaited it would wait for ever."""
    try:
        return handler(request)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error


def _place(error: BaseException) -> str:
    """Return file and line where an error was raised."""
    trace = error.__traceback__
    if trace is None:
        return "an unknown place"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
