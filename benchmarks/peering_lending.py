"""Cost of a borrowed worker against a local one, with 2 to 8 brokers; losses when one is killed.

    python -m benchmarks.peering_lending [--kind mdp|peering] [--brokers 2,4,8] [--seconds 3] [--json]

Every broker and worker is a process of its own; the client is this one. `mdp` is `mdp broker --peer`, each broker the peer of all others,
with `mdp worker` (echo); `peering` is `peering broker` with REQ workers and REQ clients. For each number of brokers:

    local     the worker is at the client's broker
    borrowed  it is at another one
    mesh      one at each broker, each with 5 ms of work and one request at a time; all load is at the first broker
    kill      as mesh, and one of the lending brokers is killed in the middle, with its borrowed tasks: each request must be answered once

Measured are the round trip of one request after the other (p50, p99), the rate with many in flight, and the CPU time of all processes for
a request of either kind, which a busy machine affects little; for `kill` the losses. Estimate before the first run: a borrowed worker
costs 1.5 to 2 times the round trip of a local one, because of one more broker and connection, and has half of its rate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import core
import mdp
from benchmarks.process import cpu_s

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parent.parent
WINDOW = 64
TURNS = 5
WORK_S = 0.005
REQUEST_S = 30.0
"""Longest wait for one request; a slower one is lost."""

WORKER = """
import asyncio, sys
import core

async def main(endpoint, seconds):
    async with core.Context() as context, context.socket(core.REQ) as socket:
        socket.connect(endpoint)
        await socket.send(b"READY")
        print("worker serves", file=sys.stderr, flush=True)
        while True:
            frames = await socket.recv_multipart()
            if seconds:
                await asyncio.sleep(seconds)
            await socket.send_multipart(frames)

asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""
HANDLER = f"import asyncio\nasync def work(request):\n    await asyncio.sleep({WORK_S})\n    return request.body\n"


class Processes:
    """Programs in one folder, ended with the block."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, ready: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `python ARGUMENTS` and wait for the line that says it serves."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": f"{ROOT}:{self.folder}", "PATH": "/usr/bin:/bin"},
        )
        self._all.append(process)
        assert process.stderr is not None
        said = b""
        for line in process.stderr:
            said += line
            if ready in line.decode():
                return process
        raise RuntimeError(f"{arguments} ended: {said.decode()}")

    def cpu_s(self) -> float:
        """Return the CPU seconds of all programs and this one."""
        return cpu_s(os.getpid()) + sum(cpu_s(process.pid) for process in self._all)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
        for process in self._all:
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


class Kind(Protocol):
    """Factory of brokers, workers and requests of one kind."""

    def mesh(self, processes: Processes, count: int) -> list[subprocess.Popen[bytes]]:
        """Start brokers that are each other's peers."""

    def worker(self, processes: Processes, broker: int, *, slow: bool) -> None:
        """Start a worker of a broker."""

    def clients(self, folder: str, count: int) -> contextlib.AbstractAsyncContextManager[list[Any]]:
        """Return functions that send a body to the first broker and return the reply's."""


class Majordomo:
    """`mdp broker --peer`."""

    def _at(self, folder: str, number: int) -> str:
        return f"ipc://{folder}/broker-{number}"

    def mesh(self, processes: Processes, count: int) -> list[subprocess.Popen[bytes]]:
        at = [self._at(processes.folder, number) for number in range(count)]
        return [
            processes.start(
                "broker serves",
                *("-m", "mdp", "broker", "--bind", mine, "--peer-name", f"broker-{number}"),
                *(word for other in at if other != mine for word in ("--peer", other)),
            )
            for number, mine in enumerate(at)
        ]

    def worker(self, processes: Processes, broker: int, *, slow: bool) -> None:
        Path(processes.folder, "slow.py").write_text(HANDLER, encoding="utf-8")
        how = ("--handler", "slow:work", "--concurrency", "1", "--credit", "1") if slow else ("--handler", "echo")
        at = self._at(processes.folder, broker)
        processes.start("worker serves", "-m", "mdp", "worker", "--broker", at, "--service", "work", "--dialect", "0.3", *how)

    @contextlib.asynccontextmanager
    async def clients(self, folder: str, count: int) -> Any:
        async with mdp.Client(self._at(folder, 0), timeout=REQUEST_S, attempts=1) as client:

            async def ask(body: bytes) -> list[bytes]:
                reply: list[bytes] = await client.request("work", body, wait=True)
                return reply

            yield [ask] * count


class Peering:
    """`peering broker`."""

    def mesh(self, processes: Processes, count: int) -> list[subprocess.Popen[bytes]]:
        names = [f"DC{number}" for number in range(count)]
        return [
            processes.start(
                "broker runs",
                *("-m", "peering", "broker", name, "--ttl-ms", str(int(REQUEST_S * 1000))),
                *(word for other in names if other != name for word in ("--peer", other)),
            )
            for name in names
        ]

    def worker(self, processes: Processes, broker: int, *, slow: bool) -> None:
        processes.start("worker serves", "-c", WORKER, f"ipc://DC{broker}-localbe.ipc", str(WORK_S if slow else 0))

    @contextlib.asynccontextmanager
    async def clients(self, folder: str, count: int) -> Any:
        async with contextlib.AsyncExitStack() as stack:
            context = await stack.enter_async_context(core.Context())
            yield [self._client(stack.enter_context(context.socket(core.REQ, linger=0)), folder) for _ in range(count)]

    def _client(self, socket: core.Socket, folder: str) -> Any:
        socket.connect(f"ipc://{folder}/DC0-localfe.ipc")

        async def ask(body: bytes) -> list[bytes]:
            async with asyncio.timeout(REQUEST_S):
                await socket.send(body)
                reply: list[bytes] = await socket.recv_multipart()
                return reply

        return ask


KINDS: dict[str, Kind] = {"mdp": Majordomo(), "peering": Peering()}


async def one_by_one(ask: Any, seconds: float) -> dict[str, float]:
    """Return the round trip of one request after the other."""
    times: list[float] = []
    until = perf_counter() + seconds
    while (started := perf_counter()) < until:
        await ask(b"x")
        times.append(perf_counter() - started)
    times.sort()
    return {"p50_us": round(statistics.median(times) * 1e6), "p99_us": round(times[int(len(times) * 0.99)] * 1e6), "answered": len(times)}


async def many(asks: list[Any], seconds: float, *, during: Any = None) -> dict[str, float]:
    """Return the rate with many requests in flight, and their outcomes."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    counts = {"sent": 0, "answered": 0, "lost": 0, "wrong": 0}

    async def client(number: int) -> None:
        while loop.time() < until:
            counts["sent"] += 1
            body = b"%d %d" % (number, counts["sent"])
            try:
                reply = await asks[number](body)
            except (TimeoutError, mdp.RequestError):
                counts["lost"] += 1
                continue
            counts["answered" if reply == [body] else "wrong"] += 1

    started = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(len(asks)):
            group.create_task(client(number))
        if during is not None:
            await asyncio.sleep(seconds / 2)
            during()
    return {**counts, "rate": round(counts["answered"] / (loop.time() - started))}


@contextlib.asynccontextmanager
async def town(kind: Kind, brokers: int, worker_at: int) -> AsyncIterator[tuple[Processes, list[Any]]]:
    """Brokers, one quick worker and clients at the first broker."""
    with tempfile.TemporaryDirectory() as folder, Processes(folder) as processes:
        kind.mesh(processes, brokers)
        kind.worker(processes, worker_at, slow=False)
        async with kind.clients(folder, WINDOW) as asks:
            await asks[0](b"warm")
            yield processes, asks


async def compare(kind: Kind, brokers: int, seconds: float) -> dict[str, dict[str, float]]:
    """Measure a local and a borrowed worker in alternation, so that other load affects both."""
    found: dict[str, dict[str, list[float]]] = {"local": {}, "borrowed": {}}
    async with town(kind, brokers, 0) as local, town(kind, brokers, brokers - 1) as borrowed:
        for _ in range(TURNS):
            for scene, (processes, asks) in (("local", local), ("borrowed", borrowed)):
                before = processes.cpu_s()
                figures = await one_by_one(asks[0], seconds / TURNS)
                between = processes.cpu_s()
                crowd = await many(asks, seconds / TURNS)
                figures["cpu_us_single"] = (between - before) / figures.pop("answered") * 1e6
                figures["cpu_us_many"] = (processes.cpu_s() - between) / crowd["answered"] * 1e6
                figures["rate"] = crowd["rate"]
                for name, value in figures.items():
                    found[scene].setdefault(name, []).append(value)
    return {scene: {name: round(statistics.median(values)) for name, values in figures.items()} for scene, figures in found.items()}


async def measure(kind: Kind, brokers: int, seconds: float) -> dict[str, Any]:
    """Run all scenes with so many brokers."""
    found: dict[str, Any] = {"brokers": brokers, **await compare(kind, brokers, seconds)}
    for scene in ("mesh", "kill"):
        with tempfile.TemporaryDirectory() as folder, Processes(folder) as processes:
            running = kind.mesh(processes, brokers)
            for number in range(brokers):
                kind.worker(processes, number, slow=True)
            async with kind.clients(folder, WINDOW) as asks:
                await asks[0](b"warm")
                found[scene] = await many(asks, seconds, during=running[-1].kill if scene == "kill" else None)
    found["cost"] = {
        "round_trip": round(found["borrowed"]["p50_us"] / found["local"]["p50_us"], 2),
        "rate": round(found["local"]["rate"] / found["borrowed"]["rate"], 2),
        **{name: round(found["borrowed"][name] / found["local"][name], 2) for name in ("cpu_us_single", "cpu_us_many")},
    }
    return found


def main() -> None:
    """Measure according to the command line, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=sorted(KINDS), default="mdp")
    parser.add_argument("--brokers", default="2,4,8")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for brokers in options.brokers.split(","):
        found = asyncio.run(measure(KINDS[options.kind], int(brokers), options.seconds))
        print(json.dumps(found) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
