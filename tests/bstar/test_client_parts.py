"""bstar.Client with servers that a test writes: its limits, its connections, what is no reply, and stock servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
from bstar.client import LOG_AFTER_S, PROBES
from bstar.machine.ballot import Ballot
from bstar.machine.wire import ReplyHeader, ReplyKind, decode_request_header, encode_reply_header
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NOWHERE = "tcp://127.0.0.1:9"
LONG: Any = {"timeout": 3600.0, "patience": 7200.0}


class Server:
    """A ROUTER in the place of a server."""

    def __init__(self, context: core.Context) -> None:
        self.socket = context.socket(core.ROUTER, linger=0)
        self.socket.bind("tcp://127.0.0.1:*")

    @property
    def endpoint(self) -> str:
        return self.socket.last_endpoint

    async def asked(self) -> list[bytes]:
        """Return the next request."""
        frames: list[bytes] = await self.socket.recv_multipart()
        return frames

    async def serve(self) -> None:
        """Answer each request."""
        while True:
            name, empty, header, _ = await self.asked()
            await self.socket.send_multipart([name, empty, encode_reply(decode_request_header(header).sequence), b"y"])


@pytest.fixture
async def servers() -> AsyncIterator[list[Server]]:
    async with core.Context() as context:
        yield [Server(context) for _ in range(2)]


def client_of(servers: list[Server], **options: Any) -> bstar.Client:
    return bstar.Client(servers[0].endpoint, servers[1].endpoint, **{**LONG, **options})


@pytest.mark.parametrize(("name", "value"), [("timeout", 0), ("settle", -1), ("patience", -1), ("window", 0), ("waiting_max", 0)])
def test_options_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        bstar.Client(NOWHERE, NOWHERE, **{name: value})


async def test_what_a_client_is_asked_outside_of_its_block() -> None:
    client = bstar.Client(NOWHERE, NOWHERE)
    for ask in (lambda: client.server, lambda: client.ballot, lambda: client.counters, lambda: client.request(b"x")):
        with pytest.raises(RuntimeError, match="within its block"):
            ask()
    async with client:
        with pytest.raises(ValueError, match="patience"):
            client.request(b"x", patience=-1)


@pytest.mark.parametrize(("timeout", "probed_ms"), [(2.0, 2000), (0.0001, 1)])
async def test_connections_are_probed_as_often_as_replies_are_due(servers: list[Server], timeout: float, probed_ms: int) -> None:
    async with client_of(servers, timeout=timeout) as client:
        for socket in client._engine._open_sockets():
            options = socket.options
            assert (options.heartbeat_ivl, options.heartbeat_timeout) == (probed_ms, PROBES * probed_ms)
            assert (options.immediate, options.linger) == (1, 0)


async def test_a_body_may_be_of_other_octets_than_bytes(servers: list[Server]) -> None:
    """Later changes of it are not sent."""
    changed = bytearray(b"before")
    async with client_of(servers) as client:
        reply = client.request(changed, memoryview(b"view"), b"bytes")  # type: ignore[arg-type]
        changed[:] = b"after!"
        assert (await servers[0].asked())[3:] == [b"before", b"view", b"bytes"]
        reply.cancel()


async def test_what_is_no_reply_is_counted(servers: list[Server]) -> None:
    """A reply behind it, in the same read, is received."""
    async with client_of(servers) as client:
        reply = client.request(b"x")
        name, empty, header, _ = await servers[0].asked()
        sequence = decode_request_header(header).sequence
        valid = encode_reply(sequence)
        for frames in ([b"not empty", valid, b"x"], [b""], [b"", b"no header", b"y"], [b"", valid, b"y"]):
            await servers[0].socket.send_multipart([name, *frames])
        assert await reply == [b"y"]
        assert client.counters["reply_malformed"] == 3
        assert empty == b""


def encode_reply(sequence: int) -> bytes:
    return encode_reply_header(ReplyHeader(ReplyKind.REPLY, sequence, Ballot(1, 1)))


async def test_a_stock_server_gets_no_header_and_the_other_one_a_connection_of_its_own(servers: list[Server]) -> None:
    """One at a time; the old connection is closed."""
    told = list[str]()
    async with client_of(servers, stock=True, timeout=0.8, settle=0.01, on_switch=told.append) as client:
        (first,) = client._engine._open_sockets()
        reply = client.request(b"x")
        assert (await servers[0].asked())[1:] == [b"", b"x"]
        name, *request = await servers[1].asked()
        assert request == [b"", b"x"]
        assert client.server == "backup"
        (second,) = client._engine._open_sockets()
        assert (first.closed, second.closed) == (True, False)
        await servers[1].socket.send_multipart([name, b"", b"y"])
        assert await reply == [b"y"]
        again = client.request(b"again")
        name, *_ = await servers[1].asked()
        await servers[1].socket.send_multipart([name, b"", b"z"])
        assert await again == [b"z"]
        assert told == ["backup"]
        back = client.request(b"back")
        await servers[1].asked()
        name, *_ = await servers[0].asked()
        await servers[0].socket.send_multipart([name, b"", b"w"])
        assert await back == [b"w"]
        assert told == ["backup", "primary"]


async def test_a_stock_request_goes_on_without_a_time_to_settle(servers: list[Server]) -> None:
    """The connection to the silent server ends with all that waits for it."""

    async def serve() -> None:
        while True:
            name, *request = await servers[1].asked()
            await servers[1].socket.send_multipart([name, *request])

    async with (
        core.Context() as context,
        bstar.Client(NOWHERE, servers[1].endpoint, timeout=0.8, settle=0, stock=True, context=context) as client,
    ):
        (first,) = client._engine._open_sockets()
        serving = asyncio.ensure_future(serve())
        assert await client.request(b"x") == [b"x"]
        await first.wait_closed()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_requests_that_cannot_be_sent_are_counted_once_each(servers: list[Server]) -> None:
    async with client_of(servers, socket_options={"sndhwm": 1}) as client:
        await eventually(lambda: client._engine._sockets[0].writable())  # type: ignore[union-attr]
        replies = [client.request(b"x" * 100_000) for _ in range(100)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        blocked = client.counters["send_blocked"]
        assert client.counters["sent"] == 100
        for _ in range(100 - blocked):
            name, empty, header, _ = await servers[0].asked()
            await servers[0].socket.send_multipart([name, empty, encode_reply(decode_request_header(header).sequence)])
        await eventually(lambda: sum(reply.done() for reply in replies) == 100 - blocked)
        assert 0 < client.counters["send_blocked"] == blocked < 100


async def test_a_request_that_cannot_be_sent_is_counted_and_sent_again(servers: list[Server]) -> None:
    async with client_of(servers, timeout=0.05, socket_options={"sndhwm": 1, "rcvhwm": 1}) as client:
        await eventually(lambda: client._engine._sockets[0].writable())  # type: ignore[union-attr]
        replies = [client.request(b"x" * 100_000) for _ in range(100)]
        await eventually(lambda: client.counters["send_blocked"] > 0)
        serving = [asyncio.ensure_future(server.serve()) for server in servers]
        assert await asyncio.gather(*replies) == [[b"y"]] * 100
        for one in serving:
            one.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def test_that_neither_server_can_be_reached_is_said_after_a_while(
    servers: list[Server], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection begins the while anew."""
    now_s = 100.0
    async with client_of(servers) as client:
        engine = client._engine
        monkeypatch.setattr(engine, "clock", lambda: now_s)

        def troubled(*troubled: int) -> int:
            for server in troubled:
                engine._not_connected(core.MonitorEvent(core.EVENT_CLOSED, 0, engine._endpoints[server], reason="refused"))
            return len([record for record in caplog.records if "neither server can be reached" in record.getMessage()])

        assert troubled(0, 1) == 0
        now_s += LOG_AFTER_S / 2
        engine._on_connection(0, True)
        assert troubled(0, 1) == 0
        now_s += LOG_AFTER_S - 0.001
        assert troubled(0, 1) == 0
        engine._on_connection(0, True)
        assert troubled(0) == 0
        now_s += LOG_AFTER_S
        assert troubled(0) == 0
        assert troubled(1) == 0
        now_s += LOG_AFTER_S
        assert troubled(1) == 1
