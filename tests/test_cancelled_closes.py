"""A close that is cancelled at any of its waits leaves no thread, descriptor, task or lock.

Programs cancel more than once: a timeout in a group of tasks that fails, Ctrl-C during a close, frameworks that cancel at each await.
"""

from __future__ import annotations

import ast
import asyncio
import os
import socket
import threading
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
import freelance
import mdp
import peering
import pirate
import titanic

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

ROOT = Path(__file__).resolve().parents[1]
ANY = "tcp://127.0.0.1:*"
UNREAD = 24_000_000  # octets for a peer that reads nothing: more than the system takes
SETTLE_S = 100.0
OF_THE_LOOP = ("asyncio_", "uvloop_", "ThreadPoolExecutor", "MainThread", "anon_inode", "/dev/null")


class Counted:
    """Run a coroutine, and cancel its task after `leaving`: at the n-th wait, or at each if n is 0."""

    def __init__(self, work: Coroutine[Any, Any, None], nth: int) -> None:
        self._work = work
        self._nth = nth
        self.leaving = False
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        value: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                waited = self._work.send(value) if thrown is None else self._work.throw(thrown)
            except StopIteration:
                return
            self.waits += self.leaving
            if self.leaving and self._nth in (0, self.waits):
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                value, thrown = (yield waited), None
            except BaseException as error:  # goes on into the coroutine
                value, thrown = None, error


async def echo(request: mdp.Request) -> list[bytes]:
    return request.body


async def goes_on(request: mdp.Request) -> list[bytes]:
    await asyncio.Event().wait()
    return request.body


async def unread_socket(at: Path, stack: AsyncExitStack) -> None:
    """A context of its own whose peer says nothing."""
    peer = stack.enter_context(socket.socket(socket.AF_UNIX))
    peer.bind(str(at / "s"))
    peer.listen()
    context = await stack.enter_async_context(core.Context())
    push = context.socket(core.PUSH, linger=200)
    push.connect(f"ipc://{at / 's'}")
    await push.send(b"unsent")


async def broker_of(stack: AsyncExitStack) -> tuple[mdp.Broker, str]:
    broker = await stack.enter_async_context(mdp.Broker())
    return broker, broker.bind(ANY)


async def broker_with_worker(at: Path, stack: AsyncExitStack) -> None:
    _, endpoint = await broker_of(stack)
    await stack.enter_async_context(mdp.Worker(endpoint, "s", handler=goes_on, drain_s=0.05, cancel_s=0.05))
    client = await stack.enter_async_context(mdp.Client(endpoint))
    asked = asyncio.ensure_future(client.request("s", b"x", wait=True))
    stack.callback(asked.cancel)
    await asyncio.sleep(0.02)


async def broker_with_unread_replies(at: Path, stack: AsyncExitStack) -> None:
    _, endpoint = await broker_of(stack)
    context = await stack.enter_async_context(core.Context())
    worker = context.socket(core.DEALER, linger=0, rcvhwm=1)
    worker.connect(endpoint)
    await worker.send_multipart([b"", b"MDPW01", b"\x01", b"s"])
    client = context.socket(core.DEALER, linger=0)
    client.connect(endpoint)
    for _ in range(3):
        await client.send_multipart([b"", b"MDPC01", b"s", bytes(UNREAD)])


async def lending_broker(at: Path, stack: AsyncExitStack) -> None:
    _, endpoint = await broker_of(stack)
    lender = await stack.enter_async_context(mdp.LendingBroker([endpoint]))
    lender.bind(ANY)


async def paired_broker(at: Path, stack: AsyncExitStack) -> None:
    pair = await stack.enter_async_context(make_pair(at, store=True))
    broker = await stack.enter_async_context(mdp.PairedBroker(pair))
    broker.bind(ANY)


def make_pair(at: Path, *, store: bool) -> bstar.Pair:
    where = at / "ballot" if store else None
    return bstar.Pair(bstar.PRIMARY, local=f"ipc://{at / 'a'}", remote=f"ipc://{at / 'b'}", heartbeat_ms=100, store=where)


async def witness(at: Path, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(bstar.Witness(ANY, store=at / "ballot"))


async def store(at: Path, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(titanic.Store(titanic.RealDisk(at / "store")))


async def service(at: Path, stack: AsyncExitStack) -> None:
    _, endpoint = await broker_of(stack)
    await stack.enter_async_context(titanic.Service(endpoint, titanic.Store(titanic.RealDisk(at / "store"))))
    client = await stack.enter_async_context(titanic.Client(endpoint, book=at / "book"))
    await client.submit("none", b"x")


async def mirrored_store(at: Path, stack: AsyncExitStack) -> None:
    mirror = await stack.enter_async_context(titanic.Mirror(titanic.RealDisk(at / "mirror")))
    line = titanic.MirrorLine(mirror.bind(ANY))
    await stack.enter_async_context(titanic.Store(titanic.RealDisk(at / "store"), mirror=line))


async def paired_store(at: Path, stack: AsyncExitStack) -> None:
    _, endpoint = await broker_of(stack)
    pair = await stack.enter_async_context(make_pair(at, store=True))
    options = titanic.PairedOptions(
        brokers=[endpoint], mirror=f"ipc://{at / 'm1'}", mirror_bind=f"ipc://{at / 'm2'}", journal=titanic.JournalOptions(), go_on=True
    )
    await stack.enter_async_context(titanic.PairedTitanic(pair, titanic.HeldDisk(at / "store"), options))
    await asyncio.sleep(0.05)


async def names(at: Path, stack: AsyncExitStack) -> None:
    ends = [f"ipc://{at / 'n1'}", f"ipc://{at / 'n2'}"]
    for end in ends:
        await stack.enter_async_context(freelance.NameServer(end, peers=[other for other in ends if other != end]))
    asker = await stack.enter_async_context(freelance.Names(ends))
    await stack.enter_async_context(asker.lease("s", connect="tcp://127.0.0.1:7"))


async def freelances(at: Path, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(freelance.Server(f"ipc://{at / 'f'}", lambda frames: frames))
    client = await stack.enter_async_context(freelance.Client([f"ipc://{at / 'f'}"]))
    await client.request(b"x")


async def pirates(at: Path, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(pirate.Queue(f"ipc://{at / 'q1'}", f"ipc://{at / 'q2'}"))
    await stack.enter_async_context(pirate.Worker(f"ipc://{at / 'q2'}", lambda frames: frames))
    client = await stack.enter_async_context(pirate.Client(f"ipc://{at / 'q1'}"))
    await client.request(b"x")


async def peers(at: Path, stack: AsyncExitStack) -> None:
    await stack.enter_async_context(peering.Broker("DC1", peers={"DC2": None}, directory=str(at)))


SCENES: dict[str, Callable[[Path, AsyncExitStack], Coroutine[Any, Any, None]]] = {
    made.__name__: made
    for made in (
        unread_socket,
        broker_with_worker,
        broker_with_unread_replies,
        lending_broker,
        paired_broker,
        witness,
        store,
        service,
        mirrored_store,
        paired_store,
        names,
        freelances,
        pirates,
        peers,
    )
}


def held() -> set[str]:
    """Threads and descriptors of this process, without those of the event loop."""
    found = {f"thread {one.name} {one.ident}" for one in threading.enumerate() if not one.name.startswith(OF_THE_LOOP)}
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if not name.startswith(OF_THE_LOOP):
                found.add(f"{descriptor} {name}")
    return found


async def settled(before: set[str], tasks: set[asyncio.Task[Any]]) -> None:
    """Wait until what was held before is held again."""
    end = asyncio.get_running_loop().time() + SETTLE_S
    while left := [*(held() - before), *(one for one in asyncio.all_tasks() - tasks if not one.done())]:
        assert asyncio.get_running_loop().time() < end, left
        await asyncio.sleep(0.005)


async def leave(name: str, at: Path, nth: int) -> int:
    """Enter a scene, leave it by a cancellation and one at the n-th wait or each; return the waits."""
    at.mkdir()
    entered = asyncio.Event()

    async def work() -> None:
        async with AsyncExitStack() as stack:
            await SCENES[name](at, stack)
            entered.set()
            await asyncio.Event().wait()

    counted = Counted(work(), nth)

    async def run() -> None:
        await counted

    task = asyncio.ensure_future(run())
    waiting = asyncio.ensure_future(entered.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert not task.done(), task.exception()
    counted.leaving = True
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task.exception()
    return counted.waits


@pytest.mark.parametrize("name", SCENES)
async def test_a_close_that_is_cancelled_again_at_its_waits_leaves_nothing(name: str, tmp_path: Path) -> None:
    tasks, before = asyncio.all_tasks(), held()
    await leave(name, tmp_path / "each", 0)
    await settled(before, tasks)
    nth = waits = 1
    while nth <= waits:
        waits = await leave(name, tmp_path / str(nth), nth)
        await settled(before, tasks)
        nth += 1


CLOSES = frozenset({"close", "_close", "aclose", "_stop", "_end", "__aexit__"})
FREES = frozenset({"close", "aclose", "__aexit__", "unlock", "let_go", "cancel", "cancel_all"})
WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def has_wait(node: ast.AST) -> bool:
    return any(isinstance(each, WAITS) for each in ast.walk(node))


def frees(node: ast.AST) -> bool:
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr in FREES for call in calls)


def left_out(body: list[ast.stmt]) -> list[int]:
    """Return the lines that a cancellation of a wait before them leaves out although they free something."""
    found: list[int] = []
    waited = False
    for statement in body:
        if waited and frees(statement):
            found.append(statement.lineno)
        if isinstance(statement, ast.For | ast.While) and any(isinstance(each, ast.Await) and frees(each) for each in ast.walk(statement)):
            found.append(statement.lineno)  # the first of them would leave out the others
        waited = waited or (has_wait(statement) and not isinstance(statement, ast.Try))
        for part in ("body", "orelse", "finalbody"):
            found += left_out(getattr(statement, part, []))
    return found


def test_nothing_that_is_freed_follows_a_wait_of_a_close() -> None:
    """It stands in `finally` or on a stack, or the close goes on by `to_the_end`."""
    found = []
    for package in ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.AsyncFunctionDef) and node.name in CLOSES:
                    goes_on = any("to_the_end" in ast.unparse(each) for each in node.decorator_list)
                    found += [] if goes_on else [f"{path.relative_to(ROOT)}:{line}" for line in left_out(node.body)]
    assert found == []
