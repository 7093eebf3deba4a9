"""A pair of which one member is a stock one.

The guide's machine on libzmq, written from its table (BST-01, BST-38).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Self

import pytest
import zmq
import zmq.asyncio

import bstar
from bstar.machine.fsm import GUIDE, Event, State, Verdict

if TYPE_CHECKING:
    from types import TracebackType

HEARTBEAT_MS = 800  # what stands still for two of them gives up its role, as a busy machine may for one
PATIENCE_S = 100.0


class StockMember:
    """PUB, SUB to everything, ROUTER that echoes; states as digits, expiry of two heartbeats."""

    def __init__(self, role: State) -> None:
        self.state = role
        self.heard: list[bytes] = []
        self.fault = ""
        self.context = zmq.asyncio.Context()
        self.pub, self.sub, self.front = (self.context.socket(kind) for kind in (zmq.PUB, zmq.SUB, zmq.ROUTER))
        for socket in (self.pub, self.sub, self.front):
            socket.linger = 0
        self.local = self._bind(self.pub)
        self.frontend = self._bind(self.front)
        self.sub.subscribe(b"")
        self.expires_at = time.monotonic() + 2 * HEARTBEAT_MS / 1000

    @staticmethod
    def _bind(socket: zmq.asyncio.Socket) -> str:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        return f"tcp://127.0.0.1:{port}"

    def connect(self, remote: str) -> None:
        self.sub.connect(remote)

    async def __aenter__(self) -> Self:
        self.tasks = [asyncio.ensure_future(work()) for work in (self._publish, self._listen, self._serve)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.context.destroy(linger=0)

    def _happens(self, event: Event) -> Verdict | None:
        cell = GUIDE[self.state][event]
        if cell.fault:
            self.fault = cell.fault.value
            for task in self.tasks:
                task.cancel()
        self.state = cell.state
        return cell.verdict

    async def _publish(self) -> None:
        while True:
            await self.pub.send(b"%d" % self.state)
            await asyncio.sleep(HEARTBEAT_MS / 1000)

    async def _listen(self) -> None:
        while True:
            message = await self.sub.recv()
            self.heard.append(message)
            self.expires_at = time.monotonic() + 2 * HEARTBEAT_MS / 1000
            self._happens(Event(int(message)))

    async def _serve(self) -> None:
        while True:
            frames = await self.front.recv_multipart()
            event = Event.REQUEST if time.monotonic() < self.expires_at else Event.VOTE
            if self._happens(event) is Verdict.ACCEPT:
                await self.front.send_multipart(frames)


async def until(condition: object, what: str) -> None:
    assert callable(condition)
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.005)


def ours(role: State, stock: StockMember, *, compatible: bool) -> bstar.Pair:
    return bstar.Pair(role, local="tcp://127.0.0.1:*", remote=stock.local, heartbeat_ms=HEARTBEAT_MS, compatible=compatible)


MODES = pytest.mark.parametrize("compatible", [False, True], ids=["ballot", "compatible"])


@MODES
@pytest.mark.parametrize("role", [bstar.PRIMARY, bstar.BACKUP])
async def test_mixed_pair_finds_its_roles_and_speaks_digits_only(role: State, compatible: bool) -> None:
    """BST-09, BST-38."""
    other = bstar.BACKUP if role is bstar.PRIMARY else bstar.PRIMARY
    stock = StockMember(other)
    async with stock, ours(role, stock, compatible=compatible) as pair:
        stock.connect(pair.endpoint)
        wanted = (State.ACTIVE, State.PASSIVE) if role is bstar.PRIMARY else (State.PASSIVE, State.ACTIVE)
        await until(lambda: (pair.state, stock.state) == wanted, "roles")
        heard = len(stock.heard)
        await until(lambda: len(stock.heard) >= heard + 3, "heartbeats")
        assert set(stock.heard) <= {b"1", b"2", b"3", b"4"}
        assert pair.guard == "none"
        assert pair.counters["state_malformed"] == 0


@MODES
async def test_we_take_over_from_a_stock_primary(compatible: bool) -> None:
    """BST-10, seen by a stock client of libzmq."""
    stock = StockMember(bstar.PRIMARY)
    async with ours(bstar.BACKUP, stock, compatible=compatible) as pair:
        frontend = pair.voter("tcp://127.0.0.1:*", handler=lambda request: [b"ours", *request.body])
        async with stock:
            stock.connect(pair.endpoint)
            await until(lambda: (pair.state, stock.state) == (State.PASSIVE, State.ACTIVE), "roles")
        with zmq.asyncio.Context() as context, context.socket(zmq.REQ) as client:
            client.linger = 0
            client.connect(frontend)
            client.req_relaxed = 1
            await until(lambda: pair.status()["peer"]["state"] == "silent", "silence")
            asked = False
            while not asked or not await client.poll(1000):  # a request may be dropped: after a stall of ours, a vote waits (BST-18)
                await client.send(b"1")
                asked = True
            assert await client.recv_multipart() == [b"ours", b"1"]


@MODES
async def test_stock_backup_takes_over_from_us_and_keeps_the_role(compatible: bool) -> None:
    """BST-10, BST-11: and our client, told that the servers are stock, finds it."""
    stock = StockMember(bstar.BACKUP)
    async with stock:
        async with ours(bstar.PRIMARY, stock, compatible=compatible) as pair:
            frontend = pair.voter("tcp://127.0.0.1:*", handler=lambda request: request.body)
            stock.connect(pair.endpoint)
            endpoint = pair.endpoint
            await until(lambda: (pair.state, stock.state) == (State.ACTIVE, State.PASSIVE), "roles")
        async with bstar.Client(frontend, stock.frontend, stock=True, timeout=0.1, settle=0.3) as client:
            assert await client.request(b"1") == [b"1"]
            assert client.server == "backup"
        assert stock.state is State.ACTIVE
        again = bstar.Pair(bstar.PRIMARY, local=endpoint, remote=stock.local, heartbeat_ms=HEARTBEAT_MS, compatible=compatible)
        async with again:
            await until(lambda: again.state is State.PASSIVE, "no fail-back")


async def test_stock_peer_survives_what_would_kill_it() -> None:
    """A passive server without an active peer would be fatal to a passive stock member.

    It gets the message that we wait, and takes over.
    """
    stock = StockMember(bstar.BACKUP)
    ahead = 0.0

    def clock() -> float:
        return time.monotonic() + ahead

    pair = bstar.Pair(bstar.PRIMARY, local="tcp://127.0.0.1:*", remote=stock.local, heartbeat_ms=HEARTBEAT_MS, clock=clock)
    async with stock, pair:
        stock.connect(pair.endpoint)
        await until(lambda: (pair.state, stock.state) == (State.ACTIVE, State.PASSIVE), "roles")
        ahead = 10.0  # we stood still
        await until(lambda: (pair.state, stock.state) == (State.PASSIVE, State.ACTIVE), "handed over")
        assert stock.fault == ""


@MODES
@pytest.mark.parametrize("order", ["ours first", "stock first", "together"])
@pytest.mark.parametrize("role", [bstar.PRIMARY, bstar.BACKUP])
async def test_every_start_order_ends_with_the_primary_serving_a_stock_client(role: State, order: str, compatible: bool) -> None:
    """BST-09, BST-38: a REQ client of libzmq, sending again to the other server as the guide's does, is answered."""
    stock = StockMember(bstar.BACKUP if role is bstar.PRIMARY else bstar.PRIMARY)
    pair = ours(role, stock, compatible=compatible)
    started = asyncio.Event()

    async def start_ours() -> str:
        await pair.__aenter__()
        stock.connect(pair.endpoint)
        return pair.voter("tcp://127.0.0.1:*", handler=lambda request: request.body)

    try:
        if order == "stock first":
            await stock.__aenter__()
            frontend = await start_ours()
        else:
            frontend = await start_ours()
            if order == "ours first":
                asyncio.get_running_loop().call_later(HEARTBEAT_MS / 1000, started.set)
                await started.wait()
            await stock.__aenter__()
        fronts = [frontend, stock.frontend] if role is bstar.PRIMARY else [stock.frontend, frontend]
        assert await ask_as_the_guide_does(fronts) == b"hello"
        wanted = (State.ACTIVE, State.PASSIVE) if role is bstar.PRIMARY else (State.PASSIVE, State.ACTIVE)
        await until(lambda: (pair.state, stock.state) == wanted, "roles")
        assert stock.fault == ""
    finally:
        await pair.__aexit__(None, None, None)
        if hasattr(stock, "tasks"):
            await stock.__aexit__(None, None, None)


async def ask_as_the_guide_does(fronts: list[str]) -> bytes:
    """BST-21, BST-22: the primary first; on silence a new REQ socket to the other one."""
    with zmq.asyncio.Context() as context:
        for attempt in range(40):
            with context.socket(zmq.REQ) as client:
                client.linger = 0
                client.connect(fronts[attempt % 2])
                await client.send(b"hello")
                if await client.poll(2 * HEARTBEAT_MS):
                    return bytes(await client.recv())
    raise AssertionError("nobody answered")
