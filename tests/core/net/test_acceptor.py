"""core.net.acceptor: one connection a turn, and what happens when none can be accepted (W8, P5)."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any, cast

import pytest

from core.net import acceptor
from core.net.acceptor import Acceptor
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable


class Connection:
    def __init__(self) -> None:
        self.blocking = True
        self.closed = False

    def setblocking(self, blocking: bool) -> None:
        self.blocking = blocking

    def close(self) -> None:
        self.closed = True


class Listening:
    """A listening socket, and the part of a loop that an acceptor uses."""

    def __init__(self, *results: Connection | OSError) -> None:
        self.results = [*results]
        self.readers: list[Callable[[], None]] = []
        self.closed = False
        self.made: list[Connection] = []
        self.failures: list[OSError] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken = False
        self.acceptor = Acceptor(cast("Any", self), cast("Any", self), asyncio.Protocol, self.failures.append)

    def add_reader(self, sock: object, call: Callable[[], None]) -> None:
        assert sock is self
        self.readers.append(call)

    def remove_reader(self, sock: object) -> None:
        assert sock is self
        assert not self.closed
        self.readers.pop()

    def accept(self) -> tuple[Connection, str]:
        result = self.results.pop(0)
        if isinstance(result, OSError):
            raise result
        return result, "address"

    def close(self) -> None:
        self.closed = True

    async def connect_accepted_socket(self, factory: Callable[[], asyncio.Protocol], connection: Connection) -> None:
        await self.gate.wait()
        if self.broken:
            raise ConnectionResetError
        assert isinstance(factory(), asyncio.Protocol)
        self.made.append(connection)

    def readable(self) -> None:
        (call,) = self.readers
        call()


async def test_w8_one_connection_is_accepted_a_turn_and_the_last_one_can_be_waited_for() -> None:
    one, two = Connection(), Connection()
    listening = Listening(one, two)
    listening.gate.clear()
    assert listening.acceptor.task is None
    listening.readable()
    first = listening.acceptor.task
    assert first is not None
    assert (one.blocking, listening.results) == (False, [two])
    listening.readable()
    last = listening.acceptor.task
    assert last not in (None, first)
    listening.gate.set()
    await asyncio.gather(first, cast("asyncio.Task[None]", last))
    assert listening.made == [one, two]
    assert listening.acceptor.task is None
    listening.acceptor.close()
    assert (listening.readers, listening.closed, one.closed) == ([], True, False)


@pytest.mark.parametrize("error", [BlockingIOError, InterruptedError, ConnectionAbortedError])
async def test_a_peer_that_has_gone_already_is_no_failure(error: type[OSError]) -> None:
    listening = Listening(error())
    listening.readable()
    assert (len(listening.readers), listening.failures, listening.acceptor.task) == (1, [], None)
    listening.acceptor.close()


async def test_p5_without_descriptors_accepting_pauses_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "RETRY_S", 0.001)
    error = OSError(errno.EMFILE, "none left")
    listening = Listening(error, Connection())
    listening.readable()
    assert (listening.readers, listening.failures, listening.acceptor.task) == ([], [error], None)
    await eventually(lambda: len(listening.readers) == 1)
    listening.readable()
    await eventually(lambda: len(listening.made) == 1)
    listening.acceptor.close()


async def test_the_port_is_free_after_a_close_in_such_a_pause() -> None:
    listening = Listening(OSError(errno.EMFILE, "none left"))
    listening.readable()
    listening.acceptor.close()
    assert (listening.readers, listening.closed) == ([], True)
    assert listening.acceptor._retry.when is None


@pytest.mark.faults
async def test_a_connection_that_gets_no_transport_is_closed() -> None:
    connection = Connection()
    listening = Listening(connection)
    listening.broken = True
    listening.readable()
    await eventually(lambda: connection.closed)
    assert (listening.made, listening.acceptor.task) == ([], None)
    listening.acceptor.close()
