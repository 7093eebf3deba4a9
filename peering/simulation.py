"""The chapter's simulation: clusters of clients and workers around brokers that lend each other workers (PEER-12, PEER-16).

Each client pauses, then sends a burst of tasks one after the other; each worker takes some time for a task and returns it. A task is a
number of four hexadecimal digits, unique among those in flight. A client without a reply in time, or with a wrong one, reports the
task to the monitor of its cluster and continues with a new socket. All randomness comes from one seed, so a run can be repeated as far
as the operating system's timing allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Unpack

import core
from core.machine.envelope import READY
from peering.broker import Broker, endpoint_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from peering.task_router import RouterSettings

# Time for the last reports to reach the monitor.
REPORT_S: Final = 2.0

_DONE: Final = b"done"
_LOST: Final = b"lost"
_WRONG: Final = b"wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a simulation."""

    clusters: int = 3  # brokers, each with its own clients and workers
    clients: int = 10  # of each cluster
    workers: int = 5  # of each cluster
    requests: int = 300  # tasks in total
    burst_max: int = 14  # tasks a client sends one after the other
    pause_max_s: float = 4.0  # longest pause of a client between two bursts
    work_max_s: float = 1.0  # longest time a worker takes for a task
    timeout_s: float = 10.0  # time a client waits for a reply
    seed: int = 0  # of all randomness


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a simulation."""

    sent: int  # tasks the clients sent
    done: int  # answered with themselves
    lost: int  # not answered in time
    wrong: int  # answered with something else
    borrowed: int  # answered by a worker of another cluster
    seconds: float  # from the first to the last

    @property
    def complete(self) -> bool:
        return self.done == self.sent and not self.lost and not self.wrong


class Tasks:
    """Numbers of tasks, until all are sent."""

    def __init__(self, requests: int) -> None:
        self.left = requests  # tasks still to be taken
        self.sent = 0  # tasks taken
        self.reported = asyncio.Event()  # set when the monitors have received all reports
        self._reports = 0
        self._in_flight: set[bytes] = set()

    def take(self, chance: random.Random) -> bytes | None:
        if not self.left:
            return None
        self.left -= 1
        self.sent += 1
        task = b"%04X" % chance.randrange(0x10000)
        while task in self._in_flight:
            task = b"%04X" % chance.randrange(0x10000)
        self._in_flight.add(task)
        return task

    def over(self, task: bytes) -> None:
        self._in_flight.discard(task)

    def report(self) -> None:
        self._reports += 1
        if not self.left and self._reports == self.sent:
            self.reported.set()


class Cluster:
    """One broker with its clients, its workers and its monitor."""

    def __init__(self, context: core.Context, broker: Broker, plan: Plan, tasks: Tasks, directory: str) -> None:
        self.broker = broker
        self.seen: Counter[bytes] = Counter()  # reports of the clients, by outcome
        self._context = context
        self._plan = plan
        self._tasks = tasks
        self._monitor_at = endpoint_of(broker.name, "monitor", directory)
        self._monitor = context.socket(core.PULL)
        self._monitor.bind(self._monitor_at)
        self._monitor.set_receiver(self._report)

    def close(self) -> None:
        self._monitor.close(linger=0)

    def row(self) -> tuple[str, int, int, int, int, int, int]:
        """Return name, idle workers, open tasks, tasks at peers, tasks of peers so far, done and lost."""
        machine = self.broker.machine
        bad = self.seen[_LOST] + self.seen[_WRONG]
        helped = machine.counters["task_cloud"]
        return self.broker.name, machine.workers.idle, machine.open, machine.lent, helped, self.seen[_DONE], bad

    async def worker(self, seed: str) -> None:
        chance = random.Random(seed)
        with self._context.socket(core.REQ, linger=0) as socket:
            socket.connect(self.broker.localbe)
            await socket.send(READY)
            while True:
                task = await socket.recv_multipart()
                await asyncio.sleep(chance.uniform(0, self._plan.work_max_s))
                await socket.send_multipart(task)

    async def client(self, seed: str) -> None:
        chance, plan, tasks = random.Random(seed), self._plan, self._tasks
        with self._context.socket(core.PUSH, linger=int(REPORT_S * 1000)) as monitor:
            monitor.connect(self._monitor_at)
            socket = self._request_socket()
            try:
                while tasks.left:
                    await asyncio.sleep(chance.uniform(0, plan.pause_max_s))
                    for _ in range(chance.randint(0, plan.burst_max)):
                        task = tasks.take(chance)
                        if task is None:
                            return
                        outcome = await self._ask(socket, task)
                        tasks.over(task)
                        await monitor.send_multipart([outcome, task])
                        if outcome != _DONE:
                            socket.close(linger=0)
                            socket = self._request_socket()
            finally:
                socket.close(linger=0)

    def _request_socket(self) -> core.Socket:
        socket = self._context.socket(core.REQ)
        socket.connect(self.broker.localfe)
        return socket

    async def _ask(self, socket: core.Socket, task: bytes) -> bytes:
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                await socket.send(task)
                return _DONE if await socket.recv_multipart() == [task] else _WRONG
        except TimeoutError:
            return _LOST

    def _report(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            self.seen[frames[0]] += 1
            self._tasks.report()


async def simulate(
    plan: Plan, on_look: Callable[[list[Cluster]], None] | None = None, *, look_s: float = 0.5, **limits: Unpack[RouterSettings]
) -> Result:
    """Run the simulation to its end; call `on_look` with the clusters every `look_s`. The brokers have these limits."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="peering-"))
        context = await stack.enter_async_context(core.Context())
        names = [f"DC{number}" for number in range(1, plan.clusters + 1)]
        clusters: list[Cluster] = []
        tasks = Tasks(plan.requests)
        for name in names:
            peers = {peer: None for peer in names if peer != name}
            broker = await stack.enter_async_context(Broker(name, peers, directory=directory, context=context, **limits))
            cluster = Cluster(context, broker, plan, tasks, directory)
            stack.callback(cluster.close)
            clusters.append(cluster)
        started = loop.time()
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(cluster.worker(f"{plan.seed} worker {number} of {cluster.broker.name}"))
                for cluster in clusters
                for number in range(plan.workers)
            ]
            if on_look is not None:
                background.append(group.create_task(_look(clusters, on_look, look_s)))
            clients = [
                group.create_task(cluster.client(f"{plan.seed} client {number} of {cluster.broker.name}"))
                for cluster in clusters
                for number in range(plan.clients)
            ]
            await asyncio.gather(*clients)
            seconds = loop.time() - started
            with contextlib.suppress(TimeoutError):  # a missing report counts as a lost task
                async with asyncio.timeout(REPORT_S):
                    await tasks.reported.wait()
            if on_look is not None:
                on_look(clusters)
            for one in background:
                one.cancel()
        seen = sum((cluster.seen for cluster in clusters), Counter())
        lent = sum(cluster.broker.counters["reply_from_peer"] for cluster in clusters)
    return Result(tasks.sent, seen[_DONE], seen[_LOST], seen[_WRONG], lent, seconds)


async def _look(clusters: list[Cluster], on_look: Callable[[list[Cluster]], None], look_s: float) -> None:
    while True:
        on_look(clusters)
        await asyncio.sleep(look_s)
