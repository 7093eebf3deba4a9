"""Shared parts of tests with real sockets: connections that can be broken, clocks that can jump, pairs on loopback."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

import bstar
import core
from bstar.net.boot_clock import boot_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

# Where a test waits for silence. A server that gets no processor for twice as long steps down, as it should, and spoils the test.
QUICK_MS = 400  # a pause of a busy machine is shorter than two
# Where nobody is ever silent.
CALM_MS = 2000
PATIENCE_S = 100.0
PATIENT = 10.0  # a client's timeout where none is to happen


async def until(condition: Callable[[], bool], what: str = "") -> None:
    """Poll until a condition holds, with a time limit."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"never came true: {what or condition}")
        await asyncio.sleep(0.004)


async def vote_until_it_serves(pair: bstar.Pair) -> None:
    """Vote as clients do, again and again.

    On a busy machine a claim may end unwritten, and a pause of our own puts off the verdict.
    """
    end = time.monotonic() + PATIENCE_S
    while not pair.serving:
        assert time.monotonic() < end, "it never serves"
        await pair.vote()
        await asyncio.sleep(QUICK_MS / 1000)


async def settled(primary: bstar.Pair, backup: bstar.Pair) -> None:
    """Wait until the primary is active and the backup passive, and both know it of each other.

    Where intervals are short and the machine is busy, the backup may have heard nothing for so long that it is active: then it hands over.
    Or a pause of the primary has ended its term, and nobody serves before a client asks.
    """
    end = time.monotonic() + PATIENCE_S
    while (primary.status()["peer"]["state"], backup.status()["peer"]["state"]) != ("passive", "active") or not primary.serving:
        if time.monotonic() > end:
            raise AssertionError(f"the pair did not settle: {primary.status()}, {backup.status()}")
        with suppress(bstar.errors.NotActive):
            await backup.switchover()
        if not primary.serving and not backup.serving:
            await primary.vote()
        await asyncio.sleep(0.004)


class Line:
    """A TCP proxy: `cut` breaks every connection and refuses new ones, `hole` keeps them and lets nothing through."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.cut_off = False
        self._through = asyncio.Event()
        self._through.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.endpoint = f"tcp://{host}:{port}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        self._break()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        self.cut_off = True
        self._break()

    def heal(self) -> None:
        self.cut_off = False
        self._through.set()

    def hole(self) -> None:
        self._through.clear()

    def _break(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.target.removeprefix("tcp://").split(":")
        if self.cut_off:
            writer.transport.abort()
            return
        try:
            out_reader, out_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        for source, sink in ((reader, out_writer), (out_reader, writer)):
            task = asyncio.ensure_future(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._writers |= {writer, out_writer}

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._through.wait()
                if sink.is_closing():
                    break
                sink.write(data)
                await sink.drain()
        sink.close()
        self._writers.discard(sink)


class Clock:
    """The real clock, and jumps: what a process sees after it stood still."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return boot_clock() + self.ahead_s


def echo(request: bstar.Request) -> list[bytes]:
    return request.body


class Scene:
    """Two servers on loopback with a connection in each direction, and optionally a witness connected to both."""

    def __init__(self, *, witness: bool = False, heartbeat_ms: int = CALM_MS, **options: Any) -> None:
        self.heartbeat_ms = heartbeat_ms
        self.options = options
        self.with_witness = witness
        self.clocks = (Clock(), Clock())
        self.frontends = ["", ""]
        self.pairs: list[bstar.Pair] = []
        self._stacks: list[AsyncExitStack] = []

    async def __aenter__(self) -> Self:
        self.stack = AsyncExitStack()
        self.context = await self.stack.enter_async_context(core.Context())
        self.lines = [await self.stack.enter_async_context(Line()) for _ in range(2)]  # what server i hears
        self.witness: bstar.Witness | None = None
        self.witness_lines: list[Line] = []
        if self.with_witness:
            self.witness = bstar.Witness("tcp://127.0.0.1:*", heartbeat_ms=self.heartbeat_ms, context=self.context)
            await self.stack.enter_async_context(self.witness)
            self.witness_lines = [await self.stack.enter_async_context(Line(self.witness.endpoint)) for _ in range(2)]
        for i in (0, 1):
            await self.start(i)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for stack in self._stacks:
            await stack.aclose()
        await self.stack.aclose()

    async def start(self, i: int, handler: Callable[[bstar.Request], Any] = echo, **options: Any) -> bstar.Pair:
        """Start a server, again on the same frontend."""
        stack = AsyncExitStack()
        witness = {"witness": self.witness_lines[i].endpoint} if self.witness_lines else {}
        usual: dict[str, Any] = {
            "local": "tcp://127.0.0.1:*",
            "remote": self.lines[i].endpoint,
            "heartbeat_ms": self.heartbeat_ms,
            "context": self.context,
            "clock": self.clocks[i],
        }
        pair = bstar.Pair((bstar.PRIMARY, bstar.BACKUP)[i], **{**usual, **witness, **self.options, **options})
        await stack.enter_async_context(pair)
        self.frontends[i] = pair.voter(self.frontends[i] or "tcp://127.0.0.1:*", handler=handler)
        self.lines[1 - i].target = pair.endpoint
        if i < len(self.pairs):
            self.pairs[i], self._stacks[i] = pair, stack
        else:
            self.pairs.append(pair)
            self._stacks.append(stack)
        return pair

    async def stop(self, i: int) -> None:
        """End a server as a crash does: nothing is drained or handed over."""
        await self._stacks[i].aclose()

    async def settle(self) -> None:
        """Wait until the primary is active and the backup passive, and both know it of each other."""
        await settled(*self.pairs)

    def client(self, **options: Any) -> bstar.Client:
        beat_s = self.heartbeat_ms / 1000
        return bstar.Client(
            *self.frontends, **{"timeout": 4 * beat_s, "settle": 2 * beat_s, "patience": PATIENCE_S, "context": self.context, **options}
        )

    def isolate(self) -> None:
        """Break the state channel both ways."""
        for line in self.lines:
            line.cut()

    def heal(self) -> None:
        for line in (*self.lines, *self.witness_lines):
            line.heal()

    def serving(self) -> list[bool]:
        return [pair.serving for pair in self.pairs]
