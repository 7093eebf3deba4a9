"""The world of one run: hosts, processes, network, what happened, and what was promised."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import warnings
from contextlib import contextmanager, suppress
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sim.cluster.loop import OWNER, Escaped, SimLoop
from tests.sim.cluster.network import Network
from tests.sim.cluster.process import Host, Process

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tests.sim.cluster.process import Body, Life

__all__ = ["Mark", "Violation", "World"]

MARKS_MAX = 20_000
STEPS_MAX = 100_000_000
COLLECT_STEPS = 100_000
STEPS_PER_S_MAX = 8_000  # of all processes together, twice what any scenario needs; a loop without pause makes far more
WOUNDED = "store is wounded"  # in the line of a store that writes nothing until it is restarted


class Violation(AssertionError):
    """A promise was broken."""


class Mark(NamedTuple):
    """Something that happened, for the picture."""

    at: float
    kind: str
    who: str
    what: str


class World:
    """Everything of one run; all randomness comes from the seed.

    Attributes:
        checks: called every virtual second; each raises or returns what is wrong.
        violations: what was found, the first one first.
        marks: what happened.
        kinds: further kinds of faults, of this scenario.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"{seed} world")
        self.loop = SimLoop()
        self.network = Network(self.loop, Random(f"{seed} network"))
        self.processes: dict[str, Process] = {}
        self.hosts: dict[str, Host] = {}
        self.checks: list[Callable[[], object]] = []
        self.violations: list[str] = []
        self.marks: list[Mark] = []
        self.kinds: dict[str, Callable[[World, Any], Callable[[], None]]] = {}
        self.restart_s = 1.0
        self._graves: list[Life] = []
        self._stopping = False

    # ---- building

    def host(self, name: str) -> Host:
        """Return a host, made at its first mention."""
        if name not in self.hosts:
            ip = f"10.0.0.{len(self.hosts) + 1}"
            self.hosts[name] = self.network.hosts[ip] = Host(self, name, ip)
        return self.hosts[name]

    def process(self, name: str, body: Body, host: str | None = None) -> Process:
        """Add a process and start it; on a host of its own name unless another is given."""
        process = self.processes[name] = Process(self, self.host(host or name), name, body)
        self.loop.at(self.loop.now, process.start)
        return process

    # ---- what happens

    @property
    def now(self) -> float:
        return self.loop.now

    def mark(self, kind: str, who: str, what: str = "") -> None:
        """Note something for the picture and the trace."""
        if len(self.marks) < MARKS_MAX:
            self.marks.append(Mark(self.now, kind, who, what))
        self.loop.note(f"{kind} {who} {what}".encode())

    def violated(self, what: str) -> None:
        if not self.violations:
            self.mark("violation", "world", what)
        self.violations.append(f"{self.now:.3f} s: {what}")

    def ended(self, process: Process, error: Exception | None) -> None:
        """Note the end of a body; one that failed is started again, as a service manager would."""
        if self._stopping:
            return
        if error is not None:
            self.mark("failed", process.name, f"{type(error).__name__}: {error}")
            process.things["error"] = error
            process.start_later(self.restart_s)
        else:
            self.mark("end", process.name)
            life = process.life
            left = [] if life is None else [task for task in life.tasks if not task.done() and task is not life.task]
            if left:
                self.violated(f"{process.name} left {[f'{task.get_name()} {task.get_coro()}' for task in left[:3]]}")
            process.start_later(self.restart_s)  # unless the run ends

    def bury(self, life: Life) -> None:
        """Keep what a life has left: destroying it would run its code."""
        self._graves.append(life)

    # ---- running

    async def sleep_until(self, at: float) -> None:
        if at > self.now:
            await asyncio.sleep(at - self.now)

    async def eventually(self, true: Callable[[], object], within_s: float, what: str, every_s: float = 0.25) -> bool:
        """Wait until something holds; it is a violation if it does not within a time."""
        until = self.now + within_s
        while not true():
            if self.now >= until:
                self.violated(f"not within {within_s:g} s: {what}")
                return False
            await asyncio.sleep(every_s)
        return True

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run the main coroutine of a scenario, in no process, to its end; then stop everything."""
        loop = self.loop
        loop.set_task_factory(self._task)
        loop.every, loop.each = COLLECT_STEPS, self._collect
        with _quiet(_Lines(self)):
            try:
                loop.run_until_complete(self._watched(main))
            except Escaped as error:
                self.violated(f"escaped: {error}")
            finally:
                self._stopping = True
                for process in self.processes.values():
                    if process.life is not None:
                        process.life.end("eof")
                logging.getLogger().handlers[:] = [logging.NullHandler()]
                self._forget()
                loop.close()

    def _collect(self) -> None:
        gc.collect(0)
        if self.loop.steps > STEPS_MAX:
            raise Escaped(f"more than {STEPS_MAX} steps")

    async def _watched(self, main: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(main)
        steps, at = self.loop.steps, self.now
        while not task.done():
            if self.loop.steps - steps > STEPS_PER_S_MAX * max(1.0, self.now - at):
                self.violated(f"a busy loop: {self.loop.steps - steps} steps in {self.now - at:.3f} s")
                task.cancel()
            steps, at = self.loop.steps, self.now
            for check in self.checks:
                try:
                    wrong = check()
                except AssertionError as error:
                    wrong = f"{type(error).__name__}: {error}"
                if wrong:
                    self.violated(str(wrong))
            if len(self.violations) > 20:
                task.cancel()
            await asyncio.wait([task], timeout=1.0)
        if not task.cancelled() or not self.violations:
            task.result()

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **named)
        context = named.get("context")
        owner = OWNER.get() if context is None else context.get(OWNER)
        if owner is not None:
            tasks = owner.tasks
            tasks.append(task)
            if len(tasks) > 4096:
                tasks[:] = [one for one in tasks if not one.done()]
        return task

    def _forget(self) -> None:
        """Drop what the lives have left. That runs `finally` blocks of theirs, without effect on the world."""
        for life in self._graves:
            for task in life.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()
            life.tasks.clear()
            life.task = None
            life.context = Context()
        self._graves.clear()
        for process in self.processes.values():
            process.things.clear()
        self.loop.forget()
        for _ in range(2):
            gc.collect()


@contextmanager
def _quiet(handler: logging.Handler) -> Iterator[None]:
    """Give log lines to the world, and collect garbage only when it says so.

    A collection runs code of dead processes, at a moment that depends on everything; what that code says is of no interest.
    """
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    hook, collecting = sys.unraisablehook, gc.isenabled()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    gc.disable()
    sys.unraisablehook = _ignored
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        sys.unraisablehook = hook
        root.handlers[:] = handlers
        root.setLevel(level)
        if collecting:
            gc.enable()


def _ignored(_: object) -> None: ...


class _Lines(logging.Handler):
    """Puts log lines into the marks."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        owner = OWNER.get()
        if owner is None or owner.alive:
            text = record.getMessage()[:300]
            if owner is not None and WOUNDED in text:
                self._world.processes[owner.name].things["wounded"] = True
            self._world.mark("log", "world" if owner is None else owner.name, f"{record.levelname} {text}")
