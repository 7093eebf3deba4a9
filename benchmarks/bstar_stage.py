"""Binary Star pair in real processes, with TCP proxies on all connections, a steady client, and faults to inject.

Used by `benchmarks.bstar_failover` and by the tests of random schedules. Two kinds of servers: `bstar run`, asked by `bstar.Client`, and
`mdp broker --bstar` with two `mdp worker`s, asked by `mdp.Client`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import bstar
import core
import mdp
from benchmarks.process import free_port
from bstar import operator
from bstar.machine.ballot import NO_BALLOT
from bstar.machine.wire import ReplyKind, RequestHeader, RequestKind, decode_reply_header, encode_request_header
from mdp.wire.commands import client_request
from mdp.wire.failover import parse_membership

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from bstar.machine.ballot import Ballot

__all__ = ["ACTS", "Cable", "Stage"]

ROOT: Final = Path(__file__).resolve().parents[1]
PROBE_S: Final = 0.01
ASK_S: Final = 0.005
# Longest time of a request; a pair that recovers within a second or two answers long before.
PATIENCE_S: Final = 60.0
LISTENING: Final = ("p.state", "b.state", "p.front", "b.front", "w")
# Faults to inject. The first three remove the active server, the others must not be visible to clients.
ACTS: Final = ("kill", "pause", "isolate", "kill passive", "pause passive", "cut link", "flap link", "witness away")


class Cable:
    """TCP proxy. When held, it carries nothing and connections stay; when broken, it resets them and refuses new ones."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._plugged = asyncio.Event()
        self._plugged.set()
        self._broken = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def pull(self) -> None:
        """Carry nothing; data on the way comes out when the proxy is released."""
        self._plugged.clear()

    def snap(self) -> None:
        """Reset every connection, and each new one."""
        self._broken = True
        for writer in self._writers:
            writer.transport.abort()

    def restore(self) -> None:
        """Carry again."""
        self._broken = False
        self._plugged.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._broken:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._writers.add(sink)
            task = asyncio.ensure_future(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._plugged.wait()
                sink.write(data)
                await sink.drain()
        # A reset on one side is one on the other: peers of a killed process notice.
        sink.transport.abort()
        self._writers.discard(sink)


class Probe:
    """Client of one server that compares ballots in time, independently of the steady client.

    A server is a second master if it answers under a ballot lower than one that was *received before the question was sent*.
    """

    def __init__(self, context: core.Context, endpoint: str, kind: str, shared: dict[str, Any]) -> None:
        self._socket = context.socket(core.DEALER, immediate=1, linger=0)
        self._socket.connect(endpoint)
        self._socket.set_receiver(self._heard)
        self._brokers = kind == "mdp"
        self._shared = shared
        self._number = 0
        self._sent: dict[int, Ballot] = {}
        self._highest_before: Ballot | None = None  # when the current question to a broker was sent

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            with suppress(core.Again):
                if not self._brokers:
                    self._number += 1
                    # Without a ballot: it must not depose a server.
                    header = encode_request_header(RequestHeader(RequestKind.REQUEST, 1, self._number))
                    self._socket.send_multipart([b"", header, b"probe"], core.NOBLOCK)
                    self._sent[self._number] = self._shared["highest"]
                elif self._highest_before is None:
                    self._socket.send_multipart(client_request("0.1", b"mmi.protocol", [b"0.3"]), core.NOBLOCK)
                    self._highest_before = self._shared["highest"]
            await asyncio.sleep(PROBE_S)

    def _heard(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            if self._brokers:
                before, self._highest_before = self._highest_before, None
                member = parse_membership(frames[3:])
                if member is not None and member.active and before is not None:
                    self._note(member.ballot, before)
            else:
                header = decode_reply_header(frames[1])
                sent_after = self._sent.pop(header.sequence, NO_BALLOT)
                if header.kind is ReplyKind.REPLY:
                    self._note(header.ballot, sent_after)

    def lost(self) -> None:
        """Drop the current question: its server was killed."""
        self._highest_before = None

    def _note(self, ballot: Ballot, before: Ballot) -> None:
        self._shared["answers"] += 1
        self._shared["two masters"] += ballot < before
        self._shared["highest"] = max(self._shared["highest"], ballot)


class Steady:
    """Client that asks continuously, with a different body each time, and checks the replies.

    Attributes:
        asked: requests sent.
        answered: replies that match their requests.
        wrong: errors, as text.
    """

    def __init__(self, request: Callable[[bytes], Awaitable[list[bytes]]]) -> None:
        self.asked = self.answered = 0
        self.wrong: list[str] = []
        self._request = request
        self._open: set[asyncio.Future[None]] = set()
        self._after: list[tuple[float, asyncio.Future[float]]] = []

    def first_after(self, moment: float) -> asyncio.Future[float]:
        """Return a future of the time of the first reply to a request that was sent after a given time."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._after.append((moment, future))
        return future

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            task = asyncio.ensure_future(self._ask(b"%d" % self.asked))
            self.asked += 1
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            await asyncio.sleep(ASK_S)

    async def finish(self) -> None:
        """Wait for outstanding replies."""
        await asyncio.gather(*self._open)

    async def _ask(self, body: bytes) -> None:
        sent_at = time.monotonic()
        try:
            reply = await self._request(body)
        except (bstar.errors.BinaryStarError, mdp.RequestError) as error:
            self.wrong.append(f"{body.decode()}: {error}")
            return
        if reply != [body]:
            self.wrong.append(f"{body.decode()} was answered {reply}")
            return
        self.answered += 1
        now = time.monotonic()
        for waiting in [*self._after]:
            if waiting[0] <= sent_at and not waiting[1].done():
                waiting[1].set_result(now)
                self._after.remove(waiting)


class Stage:
    """Two servers, perhaps a witness, proxies between them, a steady client and the probes.

    Args:
        folder: for the ballot files.
        kind: `bstar` or `mdp`.
        heartbeat_ms: of the pair.
        witness: whether there is one.
        seed: of the schedule.

    Attributes:
        steady: the client.
        times: by act, the seconds until a request sent after it was answered.
        shared: results of the probes.
    """

    def __init__(self, folder: Path, kind: str, heartbeat_ms: int, witness: bool, seed: int) -> None:
        self.folder, self.kind, self.heartbeat_ms, self.witness = folder, kind, heartbeat_ms, witness
        self.chance = random.Random(seed)
        self.times: dict[str, list[float]] = {}
        self.shared: dict[str, Any] = {"highest": NO_BALLOT, "answers": 0, "two masters": 0}
        self.counters: Counter[str] = Counter()
        self._stack = AsyncExitStack()
        self._servers: list[asyncio.subprocess.Process] = []
        self._processes: list[asyncio.subprocess.Process] = []
        ports: dict[int, None] = {}
        while len(ports) < len(LISTENING):
            ports[free_port()] = None
        self._ports = dict(zip(LISTENING, ports, strict=True))

    async def __aenter__(self) -> Self:
        # Per server: state from its peer, its connection to the witness, and the one of clients and workers to it.
        self._cables: list[list[Cable]] = []
        for name, peer in (("p", "b"), ("b", "p")):
            ends = (f"{peer}.state", "w", f"{name}.front")
            self._cables.append([await self._stack.enter_async_context(Cable(self._ports[end])) for end in ends])
        if self.witness:
            self._witness_process = await self._start_witness()
        for i in (0, 1):
            self._servers.append(await self._start_server(i))
        fronts = [cables[2].endpoint for cables in self._cables]
        if self.kind == "mdp":
            for _ in range(2):
                brokers = [word for front in fronts for word in ("--broker", front)]
                await self._start("mdp", "worker", *brokers, "--service", "echo", *self._mdp_beats(), "--log-level", "error")
        context = await self._stack.enter_async_context(core.Context())
        self.steady = Steady(await self._client(context, fronts))
        self.probes = [Probe(context, self._at(f"{name}.front"), self.kind, self.shared) for name in "pb"]
        self._tasks = [*(asyncio.ensure_future(probe.run()) for probe in self.probes), asyncio.ensure_future(self.steady.run())]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self._stack.aclose()

    async def finish(self) -> None:
        """Stop asking and wait for outstanding replies."""
        self._tasks[-1].cancel()
        await self.steady.finish()

    # --- the schedule ---------------------------------------------------------------------------------------------------------

    async def whole(self) -> int:
        """Wait until one server is active, the other passive, the witness there, and clients are answered; return which is active."""
        while self.witness and not await self._witness_is_there():
            pass
        while True:
            seen = await asyncio.gather(*(self._state(name) for name in "pb"))
            if sorted(seen) == ["active", "passive"]:
                await asyncio.wait_for(self.steady.first_after(time.monotonic()), PATIENCE_S)
                return seen.index("active")

    async def schedule(self, acts: tuple[str, ...] = ACTS) -> str:
        """Do one act at a random time, measure the clients' wait, undo the act later; return it."""
        active = await self.whole()
        beat_s = self.heartbeat_ms / 1000
        await asyncio.sleep(self.chance.random() * beat_s)
        act = self.chance.choice([act for act in acts if self.witness or act != "witness away"])
        self.counters[act] += 1
        began = time.monotonic()
        answered = self.steady.first_after(began)
        undo = self._do(act, active)
        if act.endswith("link"):
            await self._flap(act, beat_s)
        self.times.setdefault(act, []).append(await asyncio.wait_for(answered, PATIENCE_S) - began)
        await asyncio.sleep(self.chance.random() * 3 * beat_s)
        await undo()
        return act

    def _do(self, act: str, active: int) -> Callable[[], Awaitable[None]]:
        struck = 1 - active if act.endswith("passive") else active
        server = self._servers[struck]

        async def restart() -> None:
            await server.wait()
            self._servers[struck] = await self._start_server(struck)

        async def resume() -> None:
            server.send_signal(signal.SIGCONT)

        async def restore() -> None:
            for cable in (*self._cables[0], *self._cables[1]):
                cable.restore()

        if act.startswith("kill"):
            server.send_signal(signal.SIGKILL)
            self.probes[struck].lost()
            return restart
        if act.startswith("pause"):
            server.send_signal(signal.SIGSTOP)
            return resume
        if act == "witness away":
            self._witness_process.send_signal(signal.SIGKILL)
            return self._restart_witness
        how = self.chance.choice((Cable.pull, Cable.snap))
        lines = [*self._cables[active], self._cables[1 - active][0]] if act == "isolate" else [cables[0] for cables in self._cables]
        for line in lines:
            how(line)
        return restore

    async def _flap(self, act: str, beat_s: float) -> None:
        """Break and restore the connections between the two servers several times, at random, if that is the act."""
        lines = [cables[0] for cables in self._cables]
        for _ in range(self.chance.randrange(4, 12) if act == "flap link" else 0):
            await asyncio.sleep(self.chance.random() * beat_s)
            line = self.chance.choice(lines)
            self.chance.choice((Cable.pull, Cable.snap, Cable.restore))(line)

    # --- processes ------------------------------------------------------------------------------------------------------------

    def _at(self, name: str) -> str:
        return f"tcp://127.0.0.1:{self._ports[name]}"

    def _mdp_beats(self) -> tuple[str, ...]:
        # A broker that is suspended is noticed by its workers in three heartbeats of the pair: one more than the pair itself takes.
        return ("--heartbeat-ms", str(self.heartbeat_ms), "--liveness", "3")

    async def _client(self, context: core.Context, fronts: list[str]) -> Callable[[bytes], Awaitable[list[bytes]]]:
        beat_s = self.heartbeat_ms / 1000
        if self.kind == "mdp":
            client = mdp.Client(
                fronts,
                timeout=PATIENCE_S,
                attempts=10,  # connections on which it may be sent: a pause of a busy machine ends one, as the act does
                heartbeat_ms=self.heartbeat_ms / 2,
                liveness=2,
                reconnect_ms=self.heartbeat_ms,
                context=context,
            )
            await self._stack.enter_async_context(client)
            return lambda body: client.request("echo", body, wait=True)
        asker = bstar.Client(fronts[0], fronts[1], timeout=beat_s, settle=2 * beat_s, patience=PATIENCE_S, context=context)
        await self._stack.enter_async_context(asker)
        return asker.request

    async def _state(self, name: str) -> str:
        try:
            message = await operator.look(self._at(f"{name}.state"), 2.0)
        except TimeoutError:
            return "silent"
        return message.state.name.lower()

    async def _witness_is_there(self) -> bool:
        # Without it no server starts serving: the start of a Python program would be measured.
        with suppress(TimeoutError):
            await operator.look_at_witness(self._at("w"), 2.0)
            return True
        return False

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, cwd=self.folder, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        self._processes.append(process)
        return process

    async def _start_witness(self) -> asyncio.subprocess.Process:
        beat = ("--heartbeat-ms", str(self.heartbeat_ms), "--log-level", "error")
        return await self._start("bstar", "witness", "--bind", self._at("w"), "--store", "w.ballot", *beat)

    async def _restart_witness(self) -> None:
        await self._witness_process.wait()
        self._witness_process = await self._start_witness()

    async def _start_server(self, i: int) -> asyncio.subprocess.Process:
        name, role = "pb"[i], ("primary", "backup")[i]
        options = {"local": self._at(f"{name}.state"), "remote": self._cables[i][0].endpoint, "store": f"{name}.ballot"}
        options["heartbeat-ms"] = str(self.heartbeat_ms)
        if self.witness:
            options["witness"] = self._cables[i][1].endpoint
        front = self._at(f"{name}.front")
        if self.kind == "mdp":
            words = [word for option, value in options.items() for word in (f"--bstar-{option}", value)]
            return await self._start("mdp", "broker", "--bind", front, "--bstar", role, *words, *self._mdp_beats(), "--log-level", "error")
        words = [word for option, value in options.items() for word in (f"--{option}", value)]
        return await self._start("bstar", "run", f"--{role}", "--frontend", front, *words, "--log-level", "error")
