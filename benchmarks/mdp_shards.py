"""Capacity of a broker of one process against one of several shards, by the CPU time of its busiest process.

    python -m benchmarks.mdp_shards [--shards N] [--seconds S] [--rounds N] [--dialect 0.1]

Client and workers are programs of ours on the same machine and use more CPU than the broker, so its rate says nothing about the broker.
What a broker reaches on a machine with enough processors follows from the CPU time of its processes. The capacity of a process is the
number of requests it has answered for each second of its own CPU time; that of N shards under an even load is N times the lowest of theirs.
Variants run in turns; medians are compared. Services are spread evenly; each has as many requests in flight, in both variants.
With `--dialect`, client and workers stay at the front, as all peers do that do not know shards. The front is one process, so its CPU time a
request is what limits them. Peers of MDP/0.1 are bare sockets: workers with one request at a time, and clients with many in flight, as a
ROUTER in front of REQ clients has.
Estimate before the first run: 1.9 times for two shards, because a shard does what a broker does for half of the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import core
import mdp
from benchmarks.process import cpu_s
from core.daemon.run import settle_memory
from core.runtime.event_loop import run
from mdp.wire.commands import MDPC01, MDPW01, V01, V03
from mdp.wire.shards import shard_of

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVICES_PER_SHARD = 4
WINDOW = 500  # requests in flight for each service
BODY = b"0123456789abcdef"
WORKERS_01 = 8  # for each service
WARM_UP_S = 1.0  # each for the connections to the shards, and before the measurement


def services(shards: int) -> list[str]:
    """Return services of which each shard has as many."""
    names = [f"service-{number}" for number in range(1000)]
    return [name for shard in range(shards) for name in [n for n in names if shard_of(n.encode(), shards) == shard][:SERVICES_PER_SHARD]]


async def work(endpoint: str, names: Sequence[str], dialect: str) -> None:
    """Serve all services until the process is ended."""
    if dialect == V01:
        await work_01(endpoint, names)
        return
    app = mdp.App()
    for name in names:
        app.service(name, inline=True, credit=2 * WINDOW)(echo)
    async with app.serve(endpoint, dialect=dialect):
        settle_memory()
        print("ready", flush=True)
        await asyncio.Event().wait()


async def work_01(endpoint: str, names: Sequence[str]) -> None:
    """Serve all services in MDP/0.1, with several workers for each.

    They send no heartbeats, so that a worker without requests is dead after 7.5 s.
    """
    context = core.Context()
    for name in [*names] * WORKERS_01:
        socket = context.socket(core.DEALER, linger=0)

        def answer(batch: list[list[bytes]], socket: core.Socket = socket) -> None:
            for frames in batch:
                if frames[2] == b"\x02":
                    socket.send_multipart([b"", MDPW01, b"\x03", *frames[3:]])

        socket.set_receiver(answer)
        socket.connect(endpoint)
        socket.send_multipart([b"", MDPW01, b"\x01", name.encode()])
    settle_memory()
    print("ready", flush=True)
    await asyncio.Event().wait()


class Load01:
    """As `Load`, of a bare socket."""

    def __init__(self, context: core.Context, endpoint: str, name: str) -> None:
        self.name = name
        self.answered = 0
        self.lost = 0
        self._request = [b"", MDPC01, name.encode(), BODY]
        self._socket = context.socket(core.DEALER, linger=0)
        self._socket.set_receiver(self._received)
        self._socket.connect(endpoint)

    def begin(self) -> None:
        self._socket.send_many([self._request] * WINDOW)

    def _received(self, batch: list[list[bytes]]) -> None:
        self.answered += len(batch)
        self._socket.send_many([self._request] * len(batch))


def echo(request: mdp.Request) -> list[bytes]:
    """Return the body."""
    return request.body


class Load:
    """Requests to one service, as many in flight as `WINDOW`."""

    def __init__(self, client: mdp.Client, name: str) -> None:
        self.client = client
        self.name = name
        self.answered = 0
        self.lost = 0

    def begin(self) -> None:
        for _ in range(WINDOW):
            self.client.ask(self.name, (BODY,), self.done, None)

    def done(self, _: None, reply: list[bytes] | None, error: Exception | None) -> None:
        if reply is None:
            self.lost += 1
        self.answered += 1
        self.client.ask(self.name, (BODY,), self.done, None)


async def ask(endpoint: str, names: Sequence[str], pids: Sequence[int], seconds: float, warm_up_s: float, dialect: str) -> None:
    """Measure: answers, and CPU seconds of each process of the broker."""
    async with mdp.Client(endpoint, window=WINDOW * len(names), timeout=60.0, dialect=dialect) as client:
        for name in names:
            await client.request(name, BODY, wait=dialect != V01)
        await asyncio.sleep(warm_up_s)
        context = core.Context()
        loads: list[Load] | list[Load01] = [Load(client, name) for name in names]
        if dialect == V01:
            loads = [Load01(context, endpoint, name) for name in names]
        settle_memory()
        for load in loads:
            load.begin()
        await asyncio.sleep(warm_up_s)
        shards = max(1, len(pids) - 1)

        def answered() -> list[int]:
            return [sum(load.answered for load in loads if shard_of(load.name.encode(), shards) == shard) for shard in range(shards)]

        answers, used, began = answered(), [cpu_s(pid) for pid in pids], time.monotonic()
        counts, spent = [0], [0.0]
        while not (all(counts) and all(spent[-shards:])):  # on a busy machine a short time may see no answer of a shard
            await asyncio.sleep(seconds)
            spent = [cpu_s(pid) - before for pid, before in zip(pids, used, strict=True)]
            counts = [after - before for before, after in zip(answers, answered(), strict=True)]
        took = time.monotonic() - began
        lost = sum(load.lost for load in loads)
        found = {
            "answered": counts,
            "cpu_s": spent[-shards:],
            "front_cpu_s": sum(spent[:-shards]),
            "lost": lost,
            "rate": sum(counts) / took,
        }
        print(json.dumps(found), flush=True)
        os._exit(0)  # requests in flight are of no interest


def measure(shards: int, names: Sequence[str], seconds: float, folder: str, dialect: str, warm_up_s: float = WARM_UP_S) -> dict[str, Any]:
    """Run one variant once."""
    endpoint = f"ipc://{folder}/broker-{shards}"
    broker = subprocess.Popen(
        [sys.executable, "-m", "mdp", "broker", "--bind", endpoint, "--shards", str(shards)], stderr=subprocess.PIPE, text=True
    )
    own = [sys.executable, "-m", "benchmarks.mdp_shards", "--endpoint", endpoint, "--names", ",".join(names), "--dialect", dialect]
    worker = None
    try:
        assert broker.stderr is not None
        pids = [broker.pid]
        for line in broker.stderr:
            if "broker serves" in line and (shards == 1 or f"shards={shards}" in line):
                pids += [int(word) for word in line.partition('pids="')[2].rstrip('"\n').split(", ") if word]
                break
        worker = subprocess.Popen([*own, "--role", "worker"], stdout=subprocess.PIPE)
        assert worker.stdout is not None
        worker.stdout.readline()
        pid_list = ",".join(map(str, pids))
        spans = ("--seconds", str(seconds), "--warm-up", str(warm_up_s))
        asked = subprocess.run([*own, "--role", "client", "--pids", pid_list, *spans], stdout=subprocess.PIPE, check=True)
        found: dict[str, Any] = json.loads(asked.stdout)
        return found
    finally:
        for process in (worker, broker):
            if process is not None:
                process.send_signal(signal.SIGKILL if process is worker else signal.SIGTERM)
                process.wait(60)
                for stream in (process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--role", choices=["worker", "client"])
    parser.add_argument("--endpoint")
    parser.add_argument("--names", default="")
    parser.add_argument("--dialect", choices=["auto", V01, V03], default="auto")
    parser.add_argument("--pids", default="")
    given = parser.parse_args()
    if given.role == "worker":
        run(work(given.endpoint, given.names.split(","), given.dialect))
        return
    if given.role == "client":
        pids = [int(pid) for pid in given.pids.split(",")]
        run(ask(given.endpoint, given.names.split(","), pids, given.seconds, given.warm_up, given.dialect))
        return
    names = services(given.shards)
    capacity: dict[int, list[float]] = {1: [], given.shards: []}
    fronts: list[float] = []
    print(f"{len(names)} services, {WINDOW} requests in flight each, load {Path('/proc/loadavg').read_text().strip()}")
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.rounds):
            for shards, found in capacity.items():
                result = measure(shards, names, given.seconds, folder, given.dialect)
                each = [count / spent for count, spent in zip(result["answered"], result["cpu_s"], strict=True)]
                found.append(len(each) * min(each))
                costs = " ".join(f"{1e6 / one:.2f}" for one in each)
                front = 1e6 * result["front_cpu_s"] / sum(result["answered"])
                if shards > 1:
                    fronts.append(front)
                rate = f"{result['rate']:9,.0f} replies/s, {result['lost']} lost"
                print(f"shards {shards}: {rate}, µs of CPU a request {costs}, front {front:.3f}")
    if given.dialect != "auto":
        one = 1e6 / statistics.median(capacity[1])
        print(f"µs of CPU a request, medians: {one:.1f} of one process, {statistics.median(fronts):.1f} of the front")
        return
    one, several = (statistics.median(found) for found in capacity.values())
    print(f"capacity, requests/s: {one:,.0f} of one process, {several:,.0f} of {given.shards} shards: {several / one:.2f} times")


if __name__ == "__main__":
    main()
