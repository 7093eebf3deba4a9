"""The execution of handlers in a few long-lived tasks with one queue, instead of one task per request.

When requests arrive, one runner is woken; it calls one handler after the other. Only when a handler waits and requests are left, the next
runner is woken, then two more, then four. So handlers that never wait run in one task without task switches, and handlers that wait have
`concurrency` runners within a few loop iterations.

A handler runs in the task of its runner, so a cancellation of this task, by the handler or by others, concerns both. A request is
cancelled once, for whatever reasons and in whatever order (CANCEL, DISCONNECT, a lost connection, the end of the worker), and this
cancellation is undone when the handler has ended. If another cancellation is left then, or the task ends for another reason, the runner
ends and is replaced.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from core.runtime import runtime, supervision
from core.runtime.leftovers import leave
from mdp.errors import Busy
from mdp.worker.cancellations import Cancellations, Progress
from mdp.worker.failure_log import FailureLog
from mdp.worker.handler import HandlerKind, PartsTooLarge, first_step, reply_frames
from mdp.worker.handler_threads import HandlerThreads, NoThread
from mdp.worker.running_request import RunningRequest
from mdp.worker.session_options import RunnerCounters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mdp.request import Request

# How long handlers that never wait may use the event loop before heartbeats and sockets are served.
SLICE_S: Final = 0.005
# Memory of a kept frame beside its bytes: the object and its place in a list.
FRAME_OVERHEAD_BYTES: Final = 64
# How long a task may take to end after its handler was ended: some loop iterations on a busy machine.
_LAST_STEPS_S: Final = 0.25
_ENTER_TASK: Final = asyncio._enter_task  # compiled, a constant of the module costs less than an attribute of another
_LEAVE_TASK: Final = asyncio._leave_task
_FIRST_STEP: Final = first_step


class _Runner:
    """One long-lived task."""

    __slots__ = ("context", "started", "task", "wake")

    task: asyncio.Task[None]
    wake: asyncio.Future[None]  # awaited while it is idle; done when it is woken, or cancelled

    def __init__(self, context: contextvars.Context) -> None:
        self.context = context
        self.started: RunningRequest | None = None


class Runners:
    """The runners of one handler, which call it up to `concurrency` times at the same time.

    Args:
        parts_max_bytes: how much of a generator's parts is kept, per request, where parts cannot be sent.
        cancel_s: how long a cancelled handler may take to end before it counts as overdue.
        clock: reads the time, monotonic seconds.
        on_answer: called when there is something to send, up to once per answer.
        on_give_back: called with a request whose failure cannot be expressed in its dialect, and the error.
        wait_for_capacity: waits until the connection takes more after a part was sent.
        wrap: takes the call of the handler, a function of a request on the event loop, and returns the coroutine function or asynchronous
            generator to call instead; plain handlers still run in these threads.
    """

    def __init__(
        self,
        handler: Callable[[Request], Any],
        kind: HandlerKind,
        concurrency: int,
        *,
        parts_max_bytes: int,
        cancel_s: float,
        clock: Callable[[], float],
        on_answer: Callable[[], None],
        on_give_back: Callable[[Request, BaseException], None],
        on_idle: Callable[[], None],
        wait_for_capacity: Callable[[Request], Awaitable[None]],
        wrap: Callable[[Callable[[Request], Any]], Callable[[Request], Any]] | None = None,
        log_payloads: bool = False,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency of {concurrency}: it must be positive")
        self.counters = RunnerCounters()
        self.running: dict[Request, float] = {}  # requests whose handler runs, oldest first, with the time of the call
        self._concurrency = concurrency
        self._parts_max_bytes = parts_max_bytes
        self._cancel_s = cancel_s
        self._progress = Progress(cancel_s)
        self._failures = FailureLog(handler, payloads=log_payloads)
        self._clock = clock
        self._now = runtime.current().monotonic  # exact, where the loop's clock is rounded
        self._on_answer = on_answer
        self._on_give_back = on_give_back
        self._on_idle = on_idle
        self._wait_for_capacity = wait_for_capacity
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Request] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_runners: list[_Runner] = []  # may contain some whose task was cancelled and has not ended yet
        self._cancellations = Cancellations(handler, self.running, concurrency, cancel_s, self.counters, self.stuck)
        self._supervisor = supervision.current()
        self._threads = HandlerThreads(self._loop, handler) if kind is HandlerKind.THREAD else None
        if wrap is not None:
            handler = wrap(handler if self._threads is None else self._threads.call)
            kind = HandlerKind.GENERATOR if kind is HandlerKind.GENERATOR else HandlerKind.COROUTINE
        self._handler = handler
        self._kind = kind
        self._eager = kind is HandlerKind.COROUTINE and inspect.iscoroutinefunction(handler)
        self._call: Callable[[Request], Any]
        self._context = contextvars.copy_context()
        self._wake_next = 1
        self._checking = self._closed = False
        self._abandoned = False  # the end of handlers is ignored from now on
        if kind is HandlerKind.GENERATOR:
            self._call = self._send_parts
        elif kind is HandlerKind.THREAD and self._threads is not None:
            self._call = self._threads.call
        else:
            self._call = handler
        self._runners_started = 0

    @property
    def waiting(self) -> int:
        return sum(not request.cancelled for request in self._queue)  # others have those that were given back

    @property
    def idle(self) -> bool:
        return not self.running and not self._queue

    def stuck(self) -> str:
        """Return why requests wait and none runs, for people; empty while there is progress."""
        done = self.counters.handled + self.counters.errors + self.counters.cancelled + self.counters.expired
        wanted = len(self.running) - len(self._cancellations.since)
        full = len(self.running) >= self._concurrency
        for_s = self._progress.stuck_for_s(self._now(), done=done, wanted=wanted, waiting=len(self._queue), full=full)
        if for_s is None:
            return ""
        reason = f"{len(self._cancellations.since)} handlers do not end though they were cancelled"
        return f"{len(self._queue)} requests wait and nothing runs for {for_s:.0f} s; {reason}"

    def put(self, requests: Sequence[Request]) -> None:
        if (
            self._eager
            and self._idle_runners
            and not self._queue
            and not self.running
            and len(requests) == 1
            and not self._idle_runners[-1].wake.done()
            and self._begin(requests[0])
        ):
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
        """Cancel a request; return whether no handler will answer it. May be called repeatedly.

        A running handler is cancelled once, and its runner answers; a handler in a thread cannot be stopped and should check `cancelled`.
        """
        if request.cancelled:
            return request not in self.running
        request.cancelled = True
        if request not in self.running:
            self.counters.cancelled += 1
            return True  # still queued: its runner will skip it
        if request._task is asyncio.current_task(self._loop):
            self._loop.call_soon(self._cancellations.cancel, request)  # it cannot be interrupted before it waits
        else:
            self._cancellations.cancel(request)
        return False

    def release(self, request: Request) -> bool:
        """Skip a waiting request, for another worker that is free; return False if its handler was called already.

        Of a handler that is called inline, and may answer later (`titanic.store.deferred_worker`), only those that wait here are known.
        """
        if request in self.running or (self._kind is HandlerKind.INLINE and request not in self._queue):
            return False
        request.cancelled = True  # still queued, or not queued because the worker drains
        return True

    def forget_waiting(self) -> None:
        self._queue.clear()

    async def close(self) -> None:
        """Cancel all handlers, once each, and end all runners; abandon a handler that has not ended `cancel_s` seconds later."""
        self._closed = True
        self._queue.clear()
        if self._threads is not None:
            for request in self.running:
                request.cancelled = True
        self._cancellations.close(self._tasks)
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._cancel_s)
        except BaseException:  # not `finally`, which mypyc compiles wrongly with an `await` in it
            await self._abandon()
            raise
        await self._abandon()

    async def _abandon(self) -> None:
        left = [task for task in self._tasks if not task.done()]
        self._abandoned = True
        self._cancellations.abandon(left)
        if self._threads is not None:
            self._threads.close()
        try:
            if left:
                await asyncio.wait(left, timeout=_LAST_STEPS_S)
        finally:
            leave(left)  # tasks that still do not end

    # ------------------------------------------------------------------------------------------------------- runners

    def _wake(self, count: int) -> bool:
        """Wake or start up to `count` runners; return False when there are no more."""
        idle = self._idle_runners
        for _ in range(count):
            while idle:
                runner = idle.pop()
                if not runner.wake.done():
                    runner.wake.set_result(None)
                    break
            else:
                if len(self._tasks) >= self._concurrency:
                    return False
                self._start_runner()
        return True

    def _start_runner(self) -> None:
        runner = _Runner(self._context.copy())
        runner.task = supervision.begin(partial(self._run, runner), f"mdp runner {self._runners_started}", runner.context)
        runner.task.add_done_callback(self._replace)
        self._runners_started += 1
        self._tasks.add(runner.task)

    def _replace(self, task: asyncio.Task[None]) -> None:
        """Note that a runner has ended; start another one if requests are waiting."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if self._closed:
            return
        self.counters.replaced += 1
        if isinstance(error, Exception):
            self._supervisor.fault("mdp runner", error)
        if self._queue:
            self._wake(1)
        elif not self.running:
            self._on_idle()

    def _check_soon(self) -> None:
        if not self._checking:
            self._checking = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        """Wake more runners if requests are left after the woken ones have run: then a handler waits."""
        self._checking = False
        if self._queue and not self._closed:
            if self._wake(self._wake_next):
                self._check_soon()
            self._wake_next *= 2

    def _begin(self, request: Request) -> bool:
        """Call the handler at once, as the task of an idle runner; return False within another task."""
        if request.cancelled or (request.expires_at is not None and self._expire(request)):
            return True
        runner = self._idle_runners[-1]
        task = request._task = runner.task
        try:
            _ENTER_TASK(self._loop, task)
        except RuntimeError:  # asking for the current task first would cost as much as the rest
            return False
        self.running[request] = self._now()
        error: BaseException | None
        try:
            coroutine = self._handler(request)
            waits, value = runner.context.run(_FIRST_STEP, coroutine)
        except BaseException as raised:
            error = raised
        else:
            if waits:
                self._idle_runners.pop()
                runner.started = RunningRequest(request, coroutine, value)
                if not runner.wake.done():  # else the handler has cancelled its own task; the runner passes that on
                    runner.wake.set_result(None)
                return True
            error = self._answer(request, value)
        finally:
            _LEAVE_TASK(self._loop, task)
        del self.running[request]
        if error is not None:
            self._failed(request, error, None)
            if isinstance(error, KeyboardInterrupt):
                raise error
        if not self._queue and not self.running:
            self._on_idle()
        return True

    def _answer(self, request: Request, value: Any) -> BaseException | None:
        """Answer a request with the value of its handler; return the error if it is not valid."""
        try:
            request._owner.answer(request, (value,) if type(value) is bytes else reply_frames(value))
        except BaseException as error:
            return error
        self.counters.handled += 1
        return None

    async def _run(self, runner: _Runner) -> None:
        # Hot path.
        task = runner.task
        queue, running, clock = self._queue, self.running, self._now
        handler = self._call
        counters, on_answer, cancelling = self.counters, self._on_answer, task.cancelling
        started: RunningRequest | None = None
        request: Request | None
        while True:
            now = slice_began = clock()
            while queue or started is not None:
                if started is not None:
                    request, reply, started = started.request, started, None
                else:
                    request = queue.popleft()
                    if request.cancelled or (request.expires_at is not None and self._expire(request)):
                        continue
                    request._task = task
                    running[request] = now
                    reply = None
                try:
                    value = await (handler(request) if reply is None else reply)
                    session = request._owner
                    session.answer(request, (value,) if type(value) is bytes else reply_frames(value))
                except BaseException as error:
                    del running[request]
                    if self._failed(request, error, task):
                        if isinstance(error, Exception):
                            return  # it is answered; another cancellation ends the runner
                        raise
                else:
                    del running[request]
                    counters.handled += 1
                    if len(session.outgoing) == 1 and (queue or running):
                        on_answer()  # the first one; if no request is left, `on_idle` sends at once
                    if cancelling() and self._cancellations.take_back(request, task):
                        return
                now = clock()
                if now - slice_began > SLICE_S:
                    # Twice: the next loop iteration begins with this task, and only then handles what was read, for example CANCEL.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    now = slice_began = clock()
            request = reply = value = None  # may be large, and the next one may come late
            runner.wake = self._loop.create_future()
            self._idle_runners.append(runner)
            if not running:
                self._on_idle()
            started = await self._wait(runner)

    async def _wait(self, runner: _Runner) -> RunningRequest | None:
        """Wait for work; return a started handler to take over, if there is one."""
        try:
            await runner.wake
        except asyncio.CancelledError:
            if runner in self._idle_runners:
                self._idle_runners.remove(runner)
            if runner.started is None:
                raise
            runner.started.interrupt()  # the cancellation is for the handler
        started, runner.started = runner.started, None
        return started

    def _run_inline(self) -> None:
        """Call a plain handler on the event loop; after a slice of time, continue in another loop iteration."""
        queue, clock = self._queue, self._now
        slice_ends = clock() + SLICE_S
        while queue and not self._closed:
            request = queue.popleft()
            if request.cancelled or (request.expires_at is not None and self._expire(request)):
                continue
            try:
                value = self._handler(request)
                request._owner.answer(request, (value,) if type(value) is bytes else reply_frames(value))
            except BaseException as error:
                self._failed(request, error, None)
                if isinstance(error, KeyboardInterrupt):
                    raise
            else:
                self.counters.handled += 1
                self._on_answer()
            if queue and clock() > slice_ends:
                self._loop.call_soon(self._loop.call_soon, self._run_inline)  # twice, as in `_run`
                return
        self._on_idle()

    # ------------------------------------------------------------------------------------------------------ generators

    async def _send_parts(self, request: Request) -> Sequence[bytes]:
        """Send the values of a generator as parts; return the end of the reply. Raises PartsTooLarge."""
        session = request._owner
        joined: list[bytes] = []
        left_bytes = self._parts_max_bytes
        clock = self._now
        slice_ends = clock() + SLICE_S
        async with aclosing(self._handler(request)) as parts:
            async for value in parts:
                frames = reply_frames(value)
                if session.can_send_parts:
                    session.send_part(request, frames)
                    self._on_answer()
                    await self._wait_for_capacity(request)
                else:
                    left_bytes -= sum(map(len, frames)) + FRAME_OVERHEAD_BYTES * len(frames)
                    if left_bytes < 0:
                        self.counters.parts_dropped += 1
                        raise PartsTooLarge(self._parts_max_bytes)
                    joined += frames
                if clock() > slice_ends:
                    # Neither the generator nor the connection may have waited.
                    await asyncio.sleep(0)
                    slice_ends = clock() + SLICE_S
        # One empty frame ends the parts.
        return joined or (b"",)

    # ---------------------------------------------------------------------------------------------------------------- failures

    def _expire(self, request: Request) -> bool:
        if request.left_s(self._clock()) != 0.0:
            return False
        self.counters.expired += 1
        request._owner.refuse(request, "DEADLINE_EXCEEDED", "waited too long for a handler")
        self._on_answer()
        return True

    def _failed(self, request: Request, error: BaseException, task: asyncio.Task[Any] | None) -> bool:
        """Answer a request whose handler raised; return whether the runner has to end."""
        if self._abandoned or self._loop.is_closed():
            return True
        unwanted = request in self._cancellations.since or (request.cancelled and not self._closed)
        # SystemExit fails the request only (fault P6); Ctrl-C and the closing of a coroutine end the runner.
        ends = isinstance(error, KeyboardInterrupt | GeneratorExit)
        if task is not None and self._cancellations.take_back(request, task):
            ends = True
        if unwanted:
            self.counters.cancelled += 1
            if request._owner.end_cancelled(request):
                self._on_answer()
            return ends
        if isinstance(error, asyncio.CancelledError) and self._closed:
            return True  # DISCONNECT returns the request to the broker
        if isinstance(error, NoThread):
            self.counters.threadless += 1
            request._owner.refuse(request, Busy.default_code, str(error))
            self._on_answer()
            return ends
        self.counters.errors += 1
        failure = self._failures.note(request, error)
        if failure.deliberate:
            self.counters.refusals += 1
        if request._owner.can_refuse:
            request._owner.refuse(request, failure.code, failure.text)
            self._on_answer()
        else:
            self.counters.lost += 1
            self._on_give_back(request, error)
        return ends
