"""Runs handlers: a few long-lived tasks that take requests from one queue, never a task per request.

When requests arrive, one runner is woken; it calls one handler after the other. Only when a handler waits and requests are left
does the next runner wake, then two more, then four: handlers that never wait run back to back in one task, without a switch
between them, and handlers that do wait have `concurrency` runners within a few turns of the loop.

A handler runs in the task of its runner, so whatever cancels that task, the handler itself included, reaches both. A request is cancelled
once, however often it ends (CANCEL, then DISCONNECT, then a lost connection), and this one cancellation is taken back when the handler is
done. If any other is left then, or the task ends for another reason, the runner ends with it and another one takes its place.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from core.runtime import supervision
from core.runtime.leftovers import leave
from mdp.broker.workers.progress import Progress
from mdp.worker.cancellations import Cancellations
from mdp.worker.failure_log import FailureLog
from mdp.worker.handler import HandlerKind, PartsTooLarge, reply_frames
from mdp.worker.handler_threads import HandlerThreads
from mdp.worker.running_request import RunningRequest
from mdp.worker.session_options import RunnerCounters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mdp.request import Request

__all__ = ["RunnerCounters", "Runners"]

# How long handlers that never wait may keep the loop to themselves before heartbeats and sockets get their turn.
SLICE_S = 0.005
# What a frame of a reply costs that is kept, beside its octets: the object and its place in a list.
FRAME_OVERHEAD_BYTES = 64
# How long the last steps of a task may take after its handler was closed: some iterations of the event loop on a busy machine.
_LAST_STEPS_S = 0.25


class _Runner:
    """One long-lived task.

    Attributes:
        task: it runs in.
        context: of the task.
        wake: what it waits for while it has nothing to do; done when it is woken, or cancelled.
        begun: what it takes over when it wakes.
    """

    __slots__ = ("begun", "context", "task", "wake")

    task: asyncio.Task[None]
    wake: asyncio.Future[None]

    def __init__(self, context: contextvars.Context) -> None:
        self.context = context
        self.begun: RunningRequest | None = None


class Runners:
    """Calls one handler, several times at once.

    Args:
        handler: takes a `Request`.
        kind: how it is to be called.
        concurrency: how many requests are worked on at once.
        parts_max_bytes: how much of what a generator yields is kept where parts cannot be sent, per request.
        cancel_s: how long a cancelled handler may take to end before it counts as overdue.
        clock: reads the time, monotonic seconds.
        on_answer: called when there is something to send; cheap, once per answer.
        on_give_back: called with a request whose failure its dialect has no word for, and the error.
        wait_for_capacity: waits until the connection takes more after a part was sent.
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
        cancel_s: float,
        clock: Callable[[], float],
        on_answer: Callable[[], None],
        on_give_back: Callable[[Request, BaseException], None],
        on_idle: Callable[[], None],
        wait_for_capacity: Callable[[Request], Awaitable[None]],
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency of {concurrency}: one request at least must be worked on")
        self.counters = RunnerCounters()
        self.running: dict[Request, float] = {}
        self._handler = handler
        self._kind = kind
        self._concurrency = concurrency
        self._parts_max_bytes = parts_max_bytes
        self._cancel_s = cancel_s
        self._progress = Progress(cancel_s)
        self._failures = FailureLog(handler)
        self._clock = clock
        self._on_answer = on_answer
        self._on_give_back = on_give_back
        self._on_idle = on_idle
        self._wait_for_capacity = wait_for_capacity
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Request] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_runners: list[_Runner] = []  # may hold some whose task was cancelled and has not ended yet
        self._cancellations = Cancellations(handler, self.running, concurrency, cancel_s, self.counters, self.stuck)
        self._supervisor = supervision.current()
        self._eager = kind is HandlerKind.COROUTINE and inspect.iscoroutinefunction(handler)
        self._context = contextvars.copy_context()
        self._wake_next = 1
        self._checking = False
        self._closed = False
        self._abandoned = False  # handlers are left to themselves: what they do from now on is ignored
        self._threads = HandlerThreads(self._loop, handler) if kind is HandlerKind.THREAD else None
        self._call = self._send_parts if kind is HandlerKind.GENERATOR else handler if self._threads is None else self._threads.call
        self._started = 0

    @property
    def waiting(self) -> int:
        """Requests no handler was called for yet."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.running and not self._queue

    def stuck(self) -> str:
        """Return why requests wait and nothing runs, for people; empty while there is progress."""
        done = self.counters.handled + self.counters.errors + self.counters.cancelled + self.counters.expired
        wanted = len(self.running) - len(self._cancellations.since)
        full = len(self.running) >= self._concurrency
        for_s = self._progress.held_for_s(time.monotonic(), done=done, wanted=wanted, waiting=len(self._queue), full=full)
        if for_s is None:
            return ""
        why = f"{len(self._cancellations.since)} handlers do not end though they were cancelled"
        return f"{len(self._queue)} requests wait and nothing runs for {for_s:.0f} s; {why}"

    def put(self, requests: Sequence[Request]) -> None:
        """Have requests worked on, in order."""
        if (
            self._eager
            and self._idle_runners
            and not self._queue
            and not self.running
            and len(requests) == 1
            and not self._idle_runners[-1].wake.done()
            and asyncio.current_task() is None
        ):
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
        """Stop working on a request nobody wants any more; True if no handler will answer it. May be called again for the same one.

        A handler that runs is cancelled, once, and its runner answers; one in a thread cannot be stopped and should look at `cancelled`.
        """
        if request.cancelled:
            return request not in self.running
        request.cancelled = True
        if request not in self.running:
            self.counters.cancelled += 1
            return True  # still queued: its runner will pass over it
        if request._task is asyncio.current_task(self._loop):
            self._loop.call_soon(self._cancellations.cancel, request)  # as long as it does not wait it cannot be interrupted
        else:
            self._cancellations.cancel(request)
        return False

    def release(self, request: Request) -> bool:
        """Pass over a request, held here, that another worker could begin now; False if a handler was called for it already."""
        if request in self.running:
            return False
        request.cancelled = True  # still queued, or kept from the queue because the worker drains
        return True

    def forget_waiting(self) -> None:
        """Drop everything no handler was called for."""
        self._queue.clear()

    async def close(self) -> None:
        """Cancel what runs and end every runner; a handler that has not ended `cancel_s` seconds later is left to itself."""
        self._closed = True
        self._queue.clear()
        self._cancellations.close()
        if self._kind is HandlerKind.THREAD:
            for request in self.running:
                request.cancelled = True
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._cancel_s)
        finally:
            left = [task for task in self._tasks if not task.done()]
            self._abandoned = True
            self._cancellations.abandon(left)
            if self._threads is not None:
                self._threads.close()
            try:
                if left:
                    await asyncio.wait(left, timeout=_LAST_STEPS_S)
            finally:
                leave(left)  # those that go on whatever they meet

    # ------------------------------------------------------------------------------------------------------- who works when

    def _wake(self, count: int) -> bool:
        """Set up to so many runners to work; False when there are no more."""
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
        runner.task = self._loop.create_task(self._run(runner), name=f"mdp runner {self._started}", context=runner.context)
        runner.task.add_done_callback(self._replace)
        self._started += 1
        self._tasks.add(runner.task)

    def _replace(self, task: asyncio.Task[None]) -> None:
        """Note that a runner has ended; have another one take its place when there is something to do."""
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
        runner = self._idle_runners[-1]
        task = request._task = runner.task
        running = self.running
        running[request] = time.monotonic()
        asyncio._enter_task(self._loop, task)
        try:
            coroutine = self._handler(request)
            waits_for = runner.context.run(coroutine.send, None)
        except StopIteration as end:
            error = self._answer(request, end.value)
        except BaseException as raised:
            error = raised
        else:
            self._idle_runners.pop()
            runner.begun = RunningRequest(request, coroutine, waits_for)
            if not runner.wake.done():  # else the handler has cancelled its own task, and hears of it from the runner
                runner.wake.set_result(None)
            return
        finally:
            asyncio._leave_task(self._loop, task)
        del running[request]
        if error is not None:
            self._failed(request, error, None)
            if isinstance(error, KeyboardInterrupt):
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

    async def _run(self, runner: _Runner) -> None:
        """Work on requests until the task is cancelled."""
        # Hot path.
        task = runner.task
        queue, running, clock = self._queue, self.running, time.monotonic
        handler = self._call
        counters, on_answer = self.counters, self._on_answer
        begun: RunningRequest | None = None
        request: Request | None
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
                        if isinstance(error, Exception):
                            return  # it is answered; what ends the runner is another one
                        raise
                else:
                    del running[request]
                    counters.handled += 1
                    if len(request._owner.outgoing) == 1 and (queue or running):
                        on_answer()  # the first since they were sent; where nothing is left, what was answered leaves at once
                    if task.cancelling() and self._cancellations.take_back(request, task):
                        return
                now = clock()
                if now - slice_began > SLICE_S:
                    # Twice: in the next turn of the loop this comes first, and only then what was read, RECALL and CANCEL for example.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    now = slice_began = clock()
            request = reply = value = None  # may be large, and the next may be long in coming
            runner.wake = self._loop.create_future()
            self._idle_runners.append(runner)
            if not running:
                self._on_idle()
            begun = await self._wait(runner)

    async def _wait(self, runner: _Runner) -> RunningRequest | None:
        """Wait for work; returns a request that is worked on already, if it is one."""
        try:
            await runner.wake
        except asyncio.CancelledError:
            if runner in self._idle_runners:
                self._idle_runners.remove(runner)
            if runner.begun is None:
                raise
            runner.begun.interrupt()  # the cancellation is for the handler, which waits by now
        begun, runner.begun = runner.begun, None
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

    # ------------------------------------------------------------------------------------------------------ a generator's parts

    async def _send_parts(self, request: Request) -> Sequence[bytes]:
        """Send what a generator yields, each as soon as it is there; return what ends the reply.

        Raises:
            PartsTooLarge: the parts cannot be sent, and more of them came than may be kept.
        """
        session = request._owner
        joined: list[bytes] = []
        left_bytes = self._parts_max_bytes
        clock = time.monotonic
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

    def _failed(self, request: Request, error: BaseException, task: asyncio.Task[Any] | None) -> bool:
        """Answer for a handler that raised; True if the runner has to end."""
        if self._abandoned or self._loop.is_closed():
            return True
        unwanted = request in self._cancellations.since or (request.cancelled and not self._closed)
        # SystemExit is a failed request like any other (fault P6); the user's Ctrl-C is not, and a coroutine that is closed has to end.
        ends = isinstance(error, KeyboardInterrupt | GeneratorExit)
        if task is not None and self._cancellations.take_back(request, task):
            ends = True
        if unwanted:
            self.counters.cancelled += 1
            if request._owner.holds(request):
                request._owner.refuse(request, "CANCELLED", "")
                self._on_answer()
            return ends
        if isinstance(error, asyncio.CancelledError) and self._closed:
            return True  # DISCONNECT gives the request back
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
