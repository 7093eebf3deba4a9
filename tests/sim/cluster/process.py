"""Simulated hosts and processes, and the runtime that product code finds in them."""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, cast

from core.runtime import runtime as product_runtime
from core.runtime import supervision
from tests.sim.cluster.files import HostDisks, SimFiles
from tests.sim.cluster.loop import OWNER
from tests.sim.cluster.ports import SimSocket
from tests.sim.cluster.threads import SimCondition, SimEvent, SimLock, SimPool, SimQueue, SimThread, blocked

if TYPE_CHECKING:
    import socket
    import threading
    from collections.abc import Awaitable, Callable
    from concurrent.futures import ThreadPoolExecutor

    from tests.sim.cluster.network import SimTransport
    from tests.sim.cluster.ports import Listening
    from tests.sim.cluster.world import World

    Body = Callable[["Process"], Awaitable[None]]

__all__ = ["Host", "Process", "SimRuntime"]

WALL_NS = 1_700_000_000_000_000_000
DESCRIPTORS_FROM = 100
SETTLE_TURNS = 5  # a task that was cancelled needs a turn or two until it is done


class Host:
    """A machine: its address, clocks and disks.

    Attributes:
        up: it has power.
        rate: seconds of its clocks per second of the world.
        stopped: virtual time at which it was suspended, None while it runs.
        wall_offset_s: what an operator has added to its wall clock.
    """

    def __init__(self, world: World, name: str, ip: str) -> None:
        self.world = world
        self.name = name
        self.ip = ip
        self.up = True
        self.rate = 1.0
        self.wall_offset_s = 0.0
        self.stopped: float | None = None
        self.suspended_s = 0.0  # all together, which the monotonic clock does not count
        self.disks = HostDisks()
        self.processes: list[Process] = []
        self._from = world.random.uniform(10.0, 100_000.0)  # since it was switched on

    def local(self, now: float) -> float:
        now = now if self.stopped is None else self.stopped
        return self._from + (now - self.suspended_s) * self.rate

    def shift(self, seconds: float) -> None:
        """Put its clocks forward."""
        self._from += seconds

    def world_time(self, local: float) -> float:
        return (local - self._from) / self.rate + self.suspended_s

    def boot(self, now: float) -> float:
        return self._from + now * self.rate


class SimRuntime(product_runtime.Runtime):
    """The system, as product code of one process sees it."""

    def __init__(self, process: Life) -> None:
        world, host = process.world, process.host
        loop = world.loop
        self._process = process
        self._random = Random(f"{world.seed} {process.name} {process.lives}")
        self.monotonic = lambda: host.local(loop.now)
        self.boot_clock = lambda: host.boot(loop.now)
        self.pause = process.pause
        self.random_bytes = self._random.randbytes
        self.files = cast("product_runtime.Files", process.files)
        self.lock_file = process.files.lock_file

    def wall_ns(self) -> int:
        host = self._process.host
        return WALL_NS + int((host.boot(self._process.world.loop.now) + host.wall_offset_s) * 1e9)

    def chance(self, seed: int | None = None) -> Random:
        return Random(self._random.getrandbits(64) if seed is None else seed)

    def thread(self, name: str, work: Callable[[], object]) -> threading.Thread:
        return self._process.thread(name, work)

    def pool(self, threads: int, name: str) -> ThreadPoolExecutor:
        return SimPool(self._process.thread, threads, name)

    def queue(self) -> SimQueue:
        return SimQueue()

    def lock(self) -> threading.Lock:
        return cast("threading.Lock", SimLock())

    def condition(self) -> threading.Condition:
        return SimCondition()

    def event(self) -> threading.Event:
        return SimEvent()

    def stream_socket(self, family: socket.AddressFamily) -> socket.socket:
        return cast("socket.socket", SimSocket(self._process.world.network.ports, self._process))


class Process:
    """A program on a host, over all its lives.

    Attributes:
        alive: it runs, maybe suspended.
        lives: how often it was started.
        things: what the body puts here for checks: a broker, a store.
        supervisor: of the present life.
        ended: error of the last life, None for an orderly end.
    """

    def __init__(self, world: World, host: Host, name: str, body: Body) -> None:
        self.world = world
        self.host = host
        self.name = name
        self.body = body
        self.number = len(world.processes) + 1
        self.lives = 0
        self.life: Life | None = None
        self.things: dict[str, Any] = {}
        self.wanted = True  # restarted after a crash
        self.starting: asyncio.TimerHandle | None = None
        self.resumed_at = 0.0  # when it was last started or ended to be suspended
        host.processes.append(self)

    @property
    def alive(self) -> bool:
        return self.life is not None and self.life.alive

    @property
    def suspended(self) -> bool:
        return self.life is not None and self.life.held is not None

    def start(self) -> None:
        """Begin a life, if it has none and its host is up."""
        self.starting = None
        if self.host.stopped is not None:
            self.start_later(0.5)
        elif not self.alive and self.host.up and self.wanted:
            self.lives += 1
            self.things = {}
            self.life = Life(self)
            self.resumed_at = self.world.now
            self.world.mark("start", self.name)
            self.life.begin()

    def start_later(self, delay_s: float) -> None:
        if self.starting is None:
            self.starting = self.world.loop.after(delay_s, self.start)

    def crash(self, *, silent: bool = False) -> None:
        """End its life at once; with `silent` nothing tells its peers."""
        life = self.life
        if life is not None and life.alive:
            self.world.mark("crash", self.name)
            life.end("" if silent else "reset" if self.world.random.random() < 0.5 else "eof")

    def stop(self) -> None:
        """Ask it to end in order, as SIGTERM does."""
        if self.life is not None and self.life.alive:
            self.life.context.run(self.life.asked.set)

    def suspend(self) -> Callable[[], None]:
        """Hold back everything it does; return what ends that. It runs again after the last of them was ended."""
        return _nothing if self.life is None else self.life.suspend()


class Life:
    """One life of a process: `tests.sim.cluster.loop.Owner`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.host = process.host
        self.name = process.name
        self.lives = process.lives
        self.number = process.number * 1000 + process.lives
        self.alive = True
        self.held: list[asyncio.Handle] | None = None
        self.holds = 0  # faults that suspend it
        self.asked = asyncio.Event()  # to end in order
        self.after: Callable[[], None] | None = None
        self.ports: dict[Listening, None] = {}
        self.transports: dict[SimTransport, None] = {}
        self.threads: list[SimThread] = []
        self._next_descriptor = DESCRIPTORS_FROM
        self.files = SimFiles(self.host.disks, self.descriptor)
        self.context: Context = copy_context()
        self.runtime = SimRuntime(self)
        self.supervisor: supervision.Supervisor
        self.task: asyncio.Task[None] | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self._pool: SimPool | None = None
        self.context.run(self._enter)

    def _enter(self) -> None:
        OWNER.set(self)
        product_runtime._CURRENT.set(self.runtime)
        self.supervisor = supervision.Supervisor()
        supervision._CURRENT.set(self.supervisor)

    def begin(self) -> None:
        self.task = self.world.loop.create_task(self._run(), context=self.context, name=self.name)

    async def _run(self) -> None:
        process = self.process
        try:
            await process.body(process)
            for _ in range(SETTLE_TURNS):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.world.ended(process, error)
        else:
            self.world.ended(process, None)
        self.end("eof")

    def end(self, how: str) -> None:
        """Forget everything in memory; `how` its system ends the connections: "eof", "reset" or "" for silence."""
        if not self.alive:
            return
        self.alive = False
        for listening in list(self.ports):
            self.world.network.ports.close(listening)
        for transport in list(self.transports):
            transport.forget(how)
        self.transports.clear()
        for thread in list(self.threads):
            thread.kill()
        self.files.end()
        self.world.bury(self)

    def watch(self, step: Callable[[], None]) -> None:
        """Have something called after each step."""
        before = self.after

        def both() -> None:
            assert before is not None
            before()
            step()

        self.after = step if before is None else both

    def suspend(self) -> Callable[[], None]:
        if not self.holds:
            self.world.mark("suspend", self.name)
            self.held = []
        self.holds += 1
        return self._resume

    def _resume(self) -> None:
        self.holds -= 1
        held = self.held
        if not self.holds and held is not None:
            self.held = None
            if self.alive:
                self.process.resumed_at = self.world.now
                self.world.mark("resume", self.name)
                self.world.loop.resume(held)

    # ---- clocks

    def local(self, now: float) -> float:
        return self.host.local(now)

    def world_time(self, local: float) -> float:
        return self.host.world_time(local)

    # ---- network and threads

    def descriptor(self) -> int:
        self._next_descriptor += 1
        return self._next_descriptor

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        return await self.world.network.connect(self, factory, host, port)

    def serve(self, factory: Callable[[], Any], sock: Any) -> Any:
        return self.world.network.ports.serve(factory, sock)

    def thread(self, name: str, work: Callable[[], object]) -> SimThread:
        """Start a thread of this life."""
        if not self.alive:
            work = _nothing
        thread = SimThread(self.world.loop, self, name, partial(copy_context().run, work), self.threads)
        thread.start()
        return thread

    def pause(self, delay_s: float) -> None:
        """Block the calling thread."""
        blocked("sleeps").block(delay_s)

    def in_pool(self, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        if self._pool is None:
            self._pool = SimPool(self.thread, 8, "pool")
        return asyncio.wrap_future(self._pool.submit(call, *arguments), loop=self.world.loop)

    def failed(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.world.violated(f"{self.name}: {context.get('message')}: {error!r}")


def _nothing() -> None: ...
