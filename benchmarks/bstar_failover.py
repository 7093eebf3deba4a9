"""How long a Binary Star pair is without a master, and whether it ever has two: real processes, killed, suspended and cut off.

    python -m benchmarks.bstar_failover [--schedules 40] [--heartbeat-ms 1000] [--witness] [--seed 1] [--json]

Each schedule waits until the pair is whole, lets a random part of a heartbeat pass, and then does one thing to the active server:
SIGKILL (restarted later), SIGSTOP (resumed later), or isolation of its lines to the peer, the clients and the witness (healed later).
The fail-over time runs from that moment to the first reply of another server to a client that asks without pause.

Two probes ask both servers all the time, behind the client's back. A reply under a ballot lower than one that was *received before
the probe was sent* is a second master. With a witness there must be none. Estimate before the first run, for a heartbeat of 1 s:
half way between one and two heartbeats for kills, two for the rest; nothing above 2.3 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import bstar
import core
from bstar.ballot import NO_BALLOT
from bstar.wire import ReplyKind, RequestHeader, RequestKind, decode_reply_header, encode_request_header

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
PROBE_S = 0.01


class Cable:
    """A Unix socket that leads to another one; pulled out, it carries nothing, and connections stay as they are."""

    def __init__(self, path: Path, target: Path) -> None:
        self.endpoint, self._path, self._target = f"ipc://{path}", path, target
        self._plugged = asyncio.Event()
        self._plugged.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def plug(self, plugged: bool) -> None:
        (self._plugged.set if plugged else self._plugged.clear)()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.ensure_future(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._plugged.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


class Probe:
    """Asks one server again and again, and compares ballots in time."""

    def __init__(self, context: core.Context, endpoint: str, shared: dict[str, Any]) -> None:
        self._socket = context.socket(core.DEALER, immediate=1, linger=0)
        self._socket.connect(endpoint)
        self._socket.set_receiver(self._heard)
        self._shared = shared
        self._sent: dict[int, Any] = {}  # highest ballot received before a probe was sent
        self._number = 0

    async def run(self) -> None:
        while True:
            self._number += 1
            header = RequestHeader(RequestKind.REQUEST, 1, self._number)  # it has seen nothing: it is not to depose anybody
            with suppress(core.Again):
                self._socket.send_multipart([b"", encode_request_header(header), b"probe"], core.NOBLOCK)
                self._sent[self._number] = self._shared["highest"]
            await asyncio.sleep(PROBE_S)

    def _heard(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            header = decode_reply_header(frames[1])
            before = self._sent.pop(header.sequence, NO_BALLOT)
            if header.kind is ReplyKind.REPLY:
                self._shared["answers"] += 1
                self._shared["two masters"] += header.ballot < before
                self._shared["highest"] = max(self._shared["highest"], header.ballot)


class Stage:
    """Two servers, perhaps a witness, the cables between them, a client and the probes."""

    def __init__(self, folder: Path, heartbeat_ms: int, witness: bool) -> None:
        self.folder, self.heartbeat_ms, self.witness = folder, heartbeat_ms, witness
        self.stack = AsyncExitStack()
        self.servers: list[asyncio.subprocess.Process] = []
        self.processes: list[asyncio.subprocess.Process] = []
        self.shared: dict[str, Any] = {"highest": NO_BALLOT, "answers": 0, "two masters": 0}

    async def __aenter__(self) -> Self:
        if self.witness:
            await self._start("witness", "--bind", f"ipc://{self.folder / 'w'}", "--store", str(self.folder / "w.ballot"))
        # Per server: what it hears of its peer, its way to the witness, and the clients' way to it.
        self.cables: list[list[Cable]] = []
        for name, peer in (("p", "b"), ("b", "p")):
            ends = ((f"{name}.hears", f"{peer}.state"), (f"{name}.w", "w"), (f"{name}.clients", f"{name}.front"))
            self.cables.append([await self.stack.enter_async_context(Cable(self.folder / a, self.folder / b)) for a, b in ends])
        for i in (0, 1):
            self.servers.append(await self._server(i))
        context = await self.stack.enter_async_context(core.Context())
        fronts = [cables[2].endpoint for cables in self.cables]
        beat_s = self.heartbeat_ms / 1000
        self.client = await self.stack.enter_async_context(
            bstar.Client(fronts[0], fronts[1], timeout=beat_s, settle=2 * beat_s, patience=60.0, context=context)
        )
        self.probes = [asyncio.ensure_future(Probe(context, front, self.shared).run()) for front in fronts]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for probe in self.probes:
            probe.cancel()
        await asyncio.gather(*self.probes, return_exceptions=True)
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self.stack.aclose()

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bstar", *arguments, "--heartbeat-ms", str(self.heartbeat_ms), "--log-level", "error", cwd=ROOT
        )
        self.processes.append(process)
        return process

    async def _server(self, i: int) -> asyncio.subprocess.Process:
        name = "pb"[i]
        ends = ["--local", f"ipc://{self.folder / name}.state", "--remote", self.cables[i][0].endpoint]
        ends += ["--frontend", f"ipc://{self.folder / name}.front", "--store", str(self.folder / f"{name}.ballot")]
        if self.witness:
            ends += ["--witness", self.cables[i][1].endpoint]
        return await self._start("run", ("--primary", "--backup")[i], *ends)

    async def whole(self) -> int:
        """Wait until one server is active and the other passive; return which is active."""
        while True:
            await self.client.request(b"are you there")
            seen = await asyncio.gather(*(self._state(i) for i in (0, 1)))
            if sorted(seen) == ["active", "passive"]:
                return seen.index("active")

    async def _state(self, i: int) -> str:
        from bstar import operator

        try:
            message = await operator.look(f"ipc://{self.folder / 'pb'[i]}.state", 2.0)
        except TimeoutError:
            return "silent"
        return message.state.name.lower()

    def isolate(self, i: int, isolated: bool) -> None:
        for cable in (*self.cables[i], self.cables[1 - i][0]):
            cable.plug(not isolated)

    async def strike(self, what: str, active: int, chance: random.Random) -> float:
        """Do it, and return the seconds until somebody else answers; then undo it."""
        server = self.servers[active]
        before = self.client.ballot
        began = time.monotonic()
        if what == "isolate":
            self.isolate(active, True)
        else:
            server.send_signal(signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        while self.client.ballot.node == before.node:
            await self.client.request(b"x")
        took = time.monotonic() - began
        await asyncio.sleep(chance.random() * self.heartbeat_ms / 1000)
        if what == "isolate":
            self.isolate(active, False)
        elif what == "pause":
            server.send_signal(signal.SIGCONT)
        else:
            await server.wait()
            self.servers[active] = await self._server(active)
        return took


async def measure(schedules: int, heartbeat_ms: int, witness: bool, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    times: list[float] = []
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        async with Stage(Path(folder), heartbeat_ms, witness) as stage:
            for number in range(schedules):
                active = await stage.whole()
                await asyncio.sleep(chance.random() * heartbeat_ms / 1000)
                what = chance.choice(["kill", "pause", "isolate"])
                times.append(await stage.strike(what, active, chance))
                kinds[what] += 1
                print(f"{number + 1}: {what} {times[-1]:.3f} s", file=sys.stderr)
            shared = stage.shared
    ordered = sorted(times)
    return {
        "schedules": dict(kinds),
        "heartbeat_ms": heartbeat_ms,
        "guard": "witness" if witness else "fenced",
        "p50_s": round(statistics.median(ordered), 3),
        "p99_s": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        "max_s": round(ordered[-1], 3),
        "probe_answers": shared["answers"],
        "answers_of_a_second_master": shared["two masters"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=40)
    parser.add_argument("--heartbeat-ms", type=int, default=1000)
    parser.add_argument("--witness", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.schedules, options.heartbeat_ms, options.witness, options.seed))
    print(json.dumps(figures) if options.json else "\n".join(f"{name}: {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
