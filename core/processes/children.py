"""Child processes: N of one command, restarted when one ends, stopped together.

    async with Children(4, lambda number: [sys.executable, "-m", …], name="worker process") as children:
        await children.until_ready()
        await children.until_failed()        # raises ChildFailed, or waits
    # SIGTERM to all, and the wait for their ends

A child that ends is started again, after a delay that grows while it keeps ending soon. A child that has never been ready and ends with an
exit code, such as that of a wrong option, would do so each time: that is a failure of all. `core.processes.parent` is the other end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from asyncio.subprocess import DEVNULL
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from core.daemon.exit_codes import ExitError
from core.daemon.logs import RateLimitedLog
from core.machine.peer_text import json_or_none
from core.processes.parent import PARENT_FD, READY, STOP
from core.runtime import runtime, supervision
from core.runtime.event_loop import until_one_ends
from core.runtime.supervision import Restart

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

log = logging.getLogger("core.processes")

# Above any number of cores today; each is an interpreter of 30 MiB and more.
CHILDREN_MAX: Final = 256
# A child's message on the channel; a longer one is left out.
LINE_BYTES_MAX: Final = 4 * 2**20
# Variables of a service manager, which watches the parent only.
_NOT_INHERITED: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", PARENT_FD)


class ChildFailed(ExitError):
    """A child ended before it was ready, with an exit code; ours is the same."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = exit_code  # click's type has it in the class


class Child:
    """One child: the process that runs at present, if any, and its history.

    Attributes:
        number: from 0.
        pid: of the process; None while none runs.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Process | None = None
        self.channel: socket.socket | None = None
        self.ready = False
        self.was_ready = False  # any process of this child
        self.starts = 0
        self.rereads = False  # its files, as soon as it serves: they were changed while it started
        self.wake = asyncio.Event()  # ends the wait before a restart

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def stop(self) -> None:
        """Let the process stop in its orderly way, if one runs; a daemon that serves learns it over the channel."""
        if self.ready and self.channel is not None:
            with suppress(OSError):  # it has just ended, or has not read what was sent before
                self.channel.send(STOP)
        else:
            self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                self.process.send_signal(number)


class Children:
    """Starts processes within its block, and keeps that many running.

    Args:
        command: returns the command line of a child by its number, from 0.
        environment: returns variables of a child, besides our own, by its number.
        on_change: called with a child when it becomes ready, and when it has ended.
        is_tolerant: whether a child that cannot start is no failure: it waits for `restart_all`.
    """

    def __init__(
        self,
        count: int,
        command: Callable[[int], Sequence[str]],
        *,
        name: str,
        environment: Callable[[int], Mapping[str, str]] = lambda _: {},
        restart: Restart | None = None,
        on_message: Callable[[Child, dict[str, Any]], None] | None = None,
        on_change: Callable[[Child], None] | None = None,
        is_tolerant: bool = False,
    ) -> None:
        self._command = command
        self._name = name
        self._environment = environment
        self._restart = restart or Restart(most_s=10.0, steady_s=10.0)
        self._on_message = on_message
        self._on_change = on_change
        self._is_tolerant = is_tolerant
        self._clock = runtime.current().monotonic
        self._chance = runtime.current().chance().random
        self._supervisor = supervision.current()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._news = asyncio.Event()
        self._left_out = RateLimitedLog(log)  # messages
        self._failure: ChildFailed | None = None
        self.all = [Child(number) for number in range(count)]

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self.all if child.pid is not None]

    async def until_ready(self) -> None:
        """Wait until all children serve. Cancel-safe; raises ChildFailed: one cannot start."""
        while not all(child.ready for child in self.all):
            await self._next_news()

    async def until_failed(self) -> None:
        """Wait until a child cannot start, and raise ChildFailed. Cancel-safe."""
        while True:
            await self._next_news()

    def signal(self, number: int) -> None:
        for child in self.all:
            child.signal(number)

    def end_at_once(self) -> None:
        """End each process at once, by both signals of a stop, whether or not it was asked to stop before."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGINT)

    def reread(self) -> None:
        """Let all processes read their files again; those that still start do it when they serve."""
        for child in self.all:
            child.rereads = not child.ready
            if child.ready:
                child.signal(signal.SIGHUP)

    def restart_all(self) -> None:
        """Stop all processes in their orderly way and start new ones; at once where none runs."""
        for child in self.all:
            child.wake.set()
            child.stop()

    async def drain(self) -> None:
        """Stop all processes in their orderly way and wait for their ends. Cancel-safe."""
        self._stopping = True
        for child in self.all:
            child.stop()
            child.wake.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def __aenter__(self) -> Self:
        for child in self.all:
            self._tasks.append(self._supervisor.task("child process", lambda child=child: self._keep(child)))  # type: ignore[misc]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            await self.drain()
        finally:
            await supervision.cancel_all(self._tasks)  # kills what still runs

    async def _next_news(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._news.clear()
        await self._news.wait()
        if self._failure is not None:
            raise self._failure

    async def _keep(self, child: Child) -> None:
        """Run one process after the other."""
        soon = 0  # ends in a row of processes that did not run for long
        while not self._stopping:
            child.wake.clear()
            began = self._clock()
            code = await self._run(child)
            if self._on_change is not None:
                self._on_change(child)
            if self._stopping:
                self._log("process ended", child, code)
                return
            if child.wake.is_set():
                soon = 0
                continue
            soon = 1 if self._clock() - began >= self._restart.steady_s else soon + 1
            await self._after_end(child, code, soon)

    async def _after_end(self, child: Child, code: int, soon: int) -> None:
        """Wait before the next start; for ever if it would fail again."""
        if code > 0 and not child.was_ready and not self._is_tolerant:
            self._log("process cannot start", child, code)
            self._failure = ChildFailed(f"{self._name} {child.number} ended with exit code {code}; its own lines say why", code)
            self._news.set()
            await child.wake.wait()
        elif code > 0 and self._is_tolerant:
            self._log("process ended, a change of the files starts it again", child, code)
            await child.wake.wait()
        else:
            delay_s = self._restart.delay_s(soon, self._chance())
            self._log("process ended, it is started again", child, code, restart_s=round(delay_s, 3))
            with suppress(TimeoutError):
                await asyncio.wait_for(child.wake.wait(), delay_s)

    async def _run(self, child: Child) -> int:
        """Run one process to its end; return its exit code, negative for a signal."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        child.channel, child.rereads = ours, False
        process: Process | None = None
        try:
            with theirs:
                environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
                process = child.process = await asyncio.create_subprocess_exec(
                    *self._command(child.number),
                    stdin=DEVNULL,
                    env={**environment, **self._environment(child.number), PARENT_FD: str(theirs.fileno())},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C at a terminal reaches the parent only, which stops the children
                )
            child.starts += 1
            log.info("process starts", extra={"process_number": child.number, "pid": process.pid})
            if self._stopping:  # since before there was a process to signal
                child.stop()
            await until_one_ends(self._read(child, ours), _end_of(process))
            # Its channel may have been closed before its end, or by it alone.
            return await process.wait()
        finally:
            child.channel = None
            ours.close()
            if process is not None and process.returncode is None:
                log.warning("process is killed", extra={"process_number": child.number, "pid": process.pid})
                process.kill()
                await process.wait()
            child.process, child.ready = None, False
            self._news.set()

    async def _read(self, child: Child, channel: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=channel, limit=LINE_BYTES_MAX)
        try:
            while not reader.at_eof():
                try:
                    line = await reader.readline()
                except ValueError:
                    line = b"too long; the next one is its end"
                except ConnectionError:  # it has ended before it read what was sent
                    return
                message = json_or_none(line)
                if isinstance(message, dict):
                    self._take(child, message)
                elif line:  # it may have been cut off by the end of the process
                    text = "a message of a process cannot be read"
                    self._left_out.warning(child.number, text, process_number=child.number, pid=child.pid)
        finally:
            writer.close()

    def _take(self, child: Child, message: dict[str, Any]) -> None:
        if READY in message and not child.ready:
            child.ready = child.was_ready = True
            log.info("process serves", extra={"process_number": child.number, "pid": child.pid})
            self._news.set()
            if child.rereads:
                child.signal(signal.SIGHUP)
            if self._on_change is not None:
                self._on_change(child)
        if self._on_message is not None:
            self._on_message(child, message)

    def _log(self, text: str, child: Child, code: int, **fields: object) -> None:
        how: dict[str, object] = {"exit_code": code} if code >= 0 else {"signal": _name_of(-code)}
        log.log(
            logging.INFO if self._stopping or not code else logging.WARNING, text, extra={"process_number": child.number, **how, **fields}
        )


async def _end_of(process: Process) -> None:
    await process.wait()


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
