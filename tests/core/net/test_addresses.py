"""A host name with several addresses: each of them is tried, however long others do not answer (OPT-05, RFC 8305)."""

from __future__ import annotations

import asyncio
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.runtime import runtime
from tests.scenes.fault_injection import sabotaged
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NAME = "several.test"


class Names(runtime.Runtime):
    """A resolver that knows one name, with one port."""

    def __init__(self, *hosts: str) -> None:
        super().__init__()
        self.hosts = hosts
        self.asked = 0

    def addresses(self, host: str, port: int, family: socket.AddressFamily) -> Iterable[tuple[Any, ...]]:
        if host != NAME:
            return super().addresses(host, port, family)
        self.asked += 1
        if not self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        kinds = [(socket.AF_INET6 if ":" in one else socket.AF_INET, one) for one in self.hosts]
        return [
            (kind, socket.SOCK_STREAM, 6, "", (one, port, 0, 0) if kind == socket.AF_INET6 else (one, port))
            for kind, one in kinds
            if family in (kind, socket.AF_UNSPEC)
        ]


@contextmanager
def silent(*hosts: str, port: int = 0) -> Iterator[int]:
    """Let addresses accept nothing and refuse nothing, as a machine that is off: their backlogs are full."""
    opened: list[socket.socket] = []
    try:
        for host in hosts:
            listening = socket.socket()
            opened.append(listening)
            listening.bind((host, port))
            listening.listen(0)
            port = listening.getsockname()[1]
            for _ in range(4):
                filling = socket.socket()
                opened.append(filling)
                filling.setblocking(False)
                filling.connect_ex((host, port))
        yield port
    finally:
        for one in opened:
            one.close()


async def reached(names: Names, port: int, serving: str, **options: Any) -> bytes:
    """Send something to the name, and return what arrives at the one server of it."""
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        server, client = context.socket(core.PULL, ipv6=1), context.socket(core.PUSH, linger=0, reconnect_ivl=10, **options)
        server.bind(f"tcp://{serving}:{port}")
        with runtime.scope(names):
            client.connect(f"tcp://{NAME}:{port}")
        await client.send(b"here")
        return await server.recv()


@pytest.mark.parametrize("timeout_ms", [2500, 0, 400])
async def test_opt_05_an_address_that_does_not_answer_does_not_hold_up_the_next(timeout_ms: int) -> None:
    with silent("127.0.0.2", "127.0.0.3") as port:
        names = Names("127.0.0.2", "127.0.0.3", "127.0.0.4")
        assert await reached(names, port, "127.0.0.4", connect_timeout=timeout_ms) == b"here"
        assert timeout_ms == 400 or names.asked == 1  # in the first attempt, unless the machine is busy


async def test_opt_05_an_address_that_refuses_is_followed_by_the_next_at_once() -> None:
    with silent("127.0.0.9") as port:
        names = Names("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.4", "127.0.0.9")
        assert await reached(names, port, "127.0.0.4") == b"here"
        assert names.asked == 1


@contextmanager
def counted(accepted: list[str], host: str, port: int) -> Iterator[None]:
    """Let an address accept connections, and note them."""
    with socket.create_server((host, port)) as listening:
        listening.setblocking(False)
        yield
        with suppress(BlockingIOError):
            accepted.append(listening.accept()[1][0])


async def test_opt_05_families_take_turns() -> None:
    accepted: list[str] = []
    with silent("127.0.0.2") as port, counted(accepted, "127.0.0.3", port):
        assert await reached(Names("127.0.0.2", "127.0.0.3", "::1"), port, "[::1]", ipv6=1) == b"here"
    assert not accepted


async def test_opt_05_the_rest_is_not_tried_when_one_has_answered() -> None:
    accepted: list[str] = []
    with silent("127.0.0.2") as port, counted(accepted, "127.0.0.3", port):
        assert await reached(Names("127.0.0.2", "127.0.0.4", "127.0.0.3"), port, "127.0.0.4") == b"here"
    assert not accepted


async def test_opt_05_a_name_without_an_address_and_one_whose_addresses_fail_are_tried_again() -> None:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        for names, reason in ((Names(), "no such name"), (Names("127.0.0.2"), "errno 111"), (Names("::1"), "no address of the name")):
            with silent("127.0.0.9") as port, runtime.scope(names):
                client = context.socket(core.PUSH, linger=0, reconnect_ivl=1)
                events = client.events(core.EVENT_CLOSED)
                client.connect(f"tcp://{NAME}:{port}")
                for _ in range(2):
                    assert reason in (await anext(events)).reason.lower()
                client.close()
                assert names.asked >= 2


@pytest.mark.parametrize(("hosts", "ends"), [(("127.0.0.2", "127.0.0.3"), True), (("127.0.0.2", "127.0.0.9"), False)])
async def test_opt_07_a_name_refuses_when_all_its_addresses_do(hosts: tuple[str, ...], ends: bool) -> None:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        with silent("127.0.0.9") as port, runtime.scope(Names(*hosts)):
            stop = core.RECONNECT_STOP_CONN_REFUSED
            client = context.socket(core.PUSH, linger=0, reconnect_ivl=1, reconnect_stop=stop, connect_timeout=300)
            events = client.events(core.EVENT_CLOSED | core.EVENT_CONNECT_RETRIED)
            client.connect(f"tcp://{NAME}:{port}")
            assert (await anext(events)).event == core.EVENT_CLOSED
            if not ends:
                assert (await anext(events)).event == core.EVENT_CONNECT_RETRIED
            else:
                while any(client._endpoints._connectors.values()):
                    await asyncio.sleep(0.001)


async def test_opt_05_closing_ends_the_attempts_that_run() -> None:
    with silent("127.0.0.2", "127.0.0.3") as port:
        async with core.Context() as context, asyncio.timeout(PATIENCE_S):
            client = context.socket(core.PUSH, linger=0, connect_timeout=400)
            events = client.events(core.EVENT_CLOSED)
            with runtime.scope(Names("127.0.0.2", "127.0.0.3")):
                client.connect(f"tcp://{NAME}:{port}")
            await anext(events)  # one attempt is over, another begins
        assert [task.get_name() for task in asyncio.all_tasks() if "address" in task.get_name()] == []


class Noted(socket.socket):
    """A socket that calls something when it is connected."""

    answered: Callable[[], None]

    def connect(self, address: Any) -> None:
        try:
            super().connect(address)
        finally:
            if address[0] == "127.0.0.4":
                self.answered()


class Watched(Names):
    """Keeps each socket, which the garbage collector would close else, and calls something when one is connected."""

    def __init__(self, answered: Callable[[], None], *hosts: str) -> None:
        super().__init__(*hosts)
        self.answered = answered
        self.made: list[socket.socket] = []

    def stream_socket(self, family: socket.AddressFamily) -> socket.socket:
        made = Noted(family, socket.SOCK_STREAM)
        made.answered = self.answered
        self.made.append(made)
        return made


@pytest.mark.parametrize("iterations", range(12))
async def test_opt_05_an_attempt_that_ends_as_an_address_answers_leaves_no_socket(iterations: int) -> None:
    loop = asyncio.get_running_loop()

    def close_after(left: int) -> None:
        if left:
            loop.call_soon(close_after, left - 1)
        else:
            client.close()

    with silent("127.0.0.2") as port, socket.create_server(("127.0.0.4", port)):
        names = Watched(lambda: close_after(iterations), "127.0.0.2", "127.0.0.4")
        async with core.Context() as context, asyncio.timeout(PATIENCE_S):
            client = context.socket(core.PUSH, linger=0, reconnect_ivl=10, connect_timeout=300)
            with runtime.scope(names):
                client.connect(f"tcp://{NAME}:{port}")
            while not client.closed:
                await asyncio.sleep(0.001)
            await client.wait_closed()
        assert len(names.made) >= 2  # more after an attempt that had no time on a busy machine
        assert {one.fileno() for one in names.made} == {-1}


@pytest.mark.faults
async def test_after_a_fault_in_an_attempt_the_next_address_is_tried() -> None:
    with silent("127.0.0.9") as port, sabotaged("core connector address"):
        assert await reached(Names("127.0.0.4", "127.0.0.4", "127.0.0.5"), port, "127.0.0.5") == b"here"
