"""core.net.os_sockets: when each address of a name is tried, and a full backlog, in virtual time (OPT-05, RFC 8305)."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from core.address import IpcConnect, TcpConnect, parse_connect
from core.net.os_sockets import open_ipc, open_tcp
from core.options import Options
from core.runtime import runtime
from tests.scenes.scripted_system import System
from tests.scenes.virtual_loop import in_virtual_time

REFUSED = ConnectionRefusedError(111, "Connection refused")


class Tried:
    """A name with addresses that answer, or fail, after some seconds each."""

    def __init__(self, *ends: tuple[float, Exception | None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = {f"127.0.0.{number}": end for number, end in enumerate(ends, 1)}
        self._connect = self._loop.sock_connect
        self._begun = self._loop.time()
        self.tried: list[tuple[str, float]] = []  # and when
        self.system = System()
        self._loop.sock_connect = self.connect  # type: ignore[method-assign, assignment]  # the network of the test

    def now(self) -> float:
        return round(self._loop.time() - self._begun, 9)

    async def connect(self, sock: socket.socket, target: Any) -> None:
        self.tried.append((target[0], self.now()))
        after_s, error = self._ends[target[0]]
        await asyncio.sleep(after_s)
        if error is not None:
            raise error
        await self._connect(sock, target)

    async def open(self, **options: Any) -> str:
        """Return the address that the name is reached at."""
        server = await self._loop.create_server(asyncio.Protocol, "0.0.0.0", 0)
        port = server.sockets[0].getsockname()[1]
        self.system.found = [(socket.AF_INET, 1, 6, "", (host, port)) for host in self._ends]
        reached: list[str] = []

        class Session(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                reached.append(transport.get_extra_info("peername")[0])
                transport.abort()

        try:
            with runtime.scope(self.system):
                await open_tcp(cast("TcpConnect", parse_connect(f"tcp://several.test:{port}")), Options(**options), Session)
        finally:
            server.close()
        await asyncio.sleep(0)
        return reached[0]


@pytest.mark.parametrize(("timeout_ms", "delay_s"), [(0, 0.25), (600, 0.2), (1000, 0.25)])
def test_the_next_address_is_tried_after_a_part_of_the_time_for_all(timeout_ms: int, delay_s: float) -> None:
    @in_virtual_time
    async def scene() -> None:
        several = Tried((100.0, None), (0.0, None))
        assert await several.open(connect_timeout=timeout_ms) == "127.0.0.2"
        assert several.tried == [("127.0.0.1", 0.0), ("127.0.0.2", delay_s)]

    scene()


@in_virtual_time
async def test_the_next_address_is_tried_at_once_when_one_fails() -> None:
    several = Tried((0.1, REFUSED), (0.1, REFUSED), (0.0, None))
    assert await several.open() == "127.0.0.3"
    assert [when for _, when in several.tried] == [0.0, 0.1, 0.2]


@in_virtual_time
async def test_the_last_address_and_those_before_it_have_as_long_as_they_take() -> None:
    several = Tried((50.0, None), (0.1, REFUSED))
    assert await several.open() == "127.0.0.1"
    assert several.now() == 50.0
    alone = Tried((50.0, None))
    assert await alone.open() == "127.0.0.1"


@in_virtual_time
async def test_a_name_refuses_only_if_all_its_addresses_do() -> None:
    for ends, number in (
        ((REFUSED, REFUSED), 111),
        ((REFUSED, OSError(101, "Network is unreachable")), 101),
        ((OSError(5, ""), REFUSED), 5),
    ):
        several = Tried(*((0.1, end) for end in ends))
        with pytest.raises(OSError, match=r"Errno") as failed:
            await several.open()
        assert failed.value.errno == number
        assert [one.fileno() for one in several.system.made] == [-1, -1]


@pytest.mark.faults
@in_virtual_time
async def test_a_fault_in_an_attempt_is_no_answer_of_the_address() -> None:
    several = Tried((0.1, LookupError()))
    with pytest.raises(OSError, match="no address of the name could be tried"):
        await several.open()
    assert [one.fileno() for one in several.system.made] == [-1]


class Busy(socket.socket):
    """A socket whose listener has a full backlog ten times."""

    tries: list[float]

    def connect(self, address: Any) -> None:
        self.tries.append(asyncio.get_running_loop().time())
        if len(self.tries) <= 10:
            raise BlockingIOError
        super().connect(address)


@in_virtual_time
async def test_a_full_backlog_is_asked_again_ever_less_often() -> None:
    system = System()
    made = Busy(socket.AF_UNIX)
    made.tries = []
    system.stream_socket = lambda family: made  # type: ignore[method-assign]  # the one of the test
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")  # an abstract name that the system draws
        listening.listen()
        name = listening.getsockname()[1:].decode()
        with runtime.scope(system):
            session = await open_ipc(cast("IpcConnect", parse_connect(f"ipc://@{name}")), Kept)
    waits = [round(later - earlier, 6) for earlier, later in zip(made.tries, made.tries[1:], strict=False)]
    assert waits == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1, 0.1, 0.1]
    session.transport.abort()
    await asyncio.sleep(0)


class Kept(asyncio.Protocol):
    """Keeps its transport."""

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport
