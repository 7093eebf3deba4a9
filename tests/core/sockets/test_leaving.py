"""Endpoints that are left while their connections begin, fail or stand still (TRN-08, SOCK-15)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import core
from tests.scenes.raw_octets import GREETING_NULL, message, ready
from tests.scenes.waiting import PATIENCE_S, Watch, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

BAD = b"\x06\x7f" + bytes(7)  # the head of a command of 2**62 bytes and more


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made, asyncio.timeout(PATIENCE_S):
        yield made


@asynccontextmanager
async def listening(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """Serve connections on octets; yield the endpoint."""
    writers: list[asyncio.StreamWriter] = []

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize(("kind", "peer"), [(core.PUSH, core.PULL), (core.DEALER, core.DEALER), (core.PAIR, core.PAIR)])
async def test_trn_08_an_endpoint_that_was_left_before_it_was_connected_gets_what_waited_and_no_more(
    context: core.Context, free_port: int, kind: int, peer: int
) -> None:
    """Messages sent later went there too, and were lost."""
    socket, left, other = context.socket(kind, linger=-1), context.socket(peer), context.socket(peer)
    endpoint = f"tcp://127.0.0.1:{free_port}"
    socket.connect(endpoint)
    await socket.send(b"first")
    socket.disconnect(endpoint)
    left.bind(endpoint)
    assert await left.recv() == b"first"
    other.bind("tcp://127.0.0.1:*")
    socket.connect(other.last_endpoint)
    await eventually(lambda: not left.pattern.pipes)
    for number in range(4):
        await socket.send(b"%d" % number)
        assert await other.recv() == b"%d" % number


async def test_trn_08_what_an_endpoint_sends_after_it_was_left_is_dropped_and_counted(context: core.Context) -> None:
    dealer = context.socket(core.DEALER, linger=-1)
    got = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING_NULL + ready(b"DEALER") + message(b"late"))
        await reader.readuntil(message(b"first"))
        got.set()

    async with listening(serve) as endpoint:
        dealer.connect(endpoint)
        await dealer.send(b"first")
        dealer.disconnect(endpoint)
        await got.wait()
        assert not dealer.readable()
        assert dealer.counters.unexpected == 1


@pytest.mark.parametrize("closes", [False, True], ids=["disconnect", "close"])
async def test_sock_15_what_is_sent_while_a_connection_fails_goes_by_the_next(context: core.Context, closes: bool) -> None:
    """Also where the endpoint is left in that moment; it was lost, and not counted."""
    dealer = context.socket(core.DEALER, linger=-1, reconnect_ivl=1)
    loop = asyncio.get_running_loop()
    connections = 0
    got = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(GREETING_NULL + ready(b"DEALER"))
        if connections == 1:
            writer.write(message(b"go") + BAD)
        else:
            await reader.readuntil(message(b"late"))
            got.set()

    def leave() -> None:
        assert dealer.counters.protocol_errors == 1
        dealer.send(b"late")
        if closes:
            dealer.close()
        else:
            dealer.disconnect(endpoint)

    async with listening(serve) as endpoint:
        dealer.set_receiver(lambda batch: loop.call_soon(leave))
        dealer.connect(endpoint)
        await got.wait()
        dealer.close()
        await dealer.wait_closed()
    assert (connections, dealer.counters.undelivered) == (2, 0)


async def test_sock_15_a_close_without_linger_drops_what_waits_for_an_endpoint_that_was_left(context: core.Context, free_port: int) -> None:
    """It waited as long as LINGER was when the endpoint was left, here for ever."""
    push = context.socket(core.PUSH, linger=-1)
    endpoint = f"tcp://127.0.0.1:{free_port}"
    push.connect(endpoint)
    await push.send(b"x")
    push.disconnect(endpoint)
    push.close(linger=0)
    await push.wait_closed()
    assert push.counters.undelivered == 1


async def test_sock_15_a_close_does_not_prolong_the_time_of_an_endpoint_that_was_left(context: core.Context, free_port: int) -> None:
    push = context.socket(core.PUSH, linger=1)
    endpoint = f"tcp://127.0.0.1:{free_port}"
    push.connect(endpoint)
    await push.send(b"x")
    push.disconnect(endpoint)
    push.close(linger=-1)
    await push.wait_closed()
    assert push.counters.undelivered == 1


@pytest.mark.parametrize("kind", [core.PUSH, core.STREAM])
async def test_sock_15_a_close_without_linger_ends_a_connection_that_was_left_and_is_not_read(context: core.Context, kind: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING_NULL + ready(b"PULL"))
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    async with listening(serve) as endpoint:
        socket = context.socket(kind, linger=-1, sndhwm=1)
        watch = Watch(socket)
        socket.connect(endpoint)
        await watch.peers()
        head = [(await socket.recv_multipart())[0]] if kind == core.STREAM else []
        for _ in range(100):
            waits = socket.send_multipart([*head, bytes(1_000_000)])
            if not waits.done():
                waits.cancel()
                break
        if kind == core.STREAM:
            await socket.send_multipart([*head, b""])
        else:
            socket.disconnect(endpoint)
        assert socket._endpoints.sessions
        socket.close(linger=0)
        await socket.wait_closed()


async def test_sock_15_an_endpoint_that_was_left_and_is_given_up_is_not_waited_for(context: core.Context, free_port: int) -> None:
    """OPT-07: the only attempt is refused."""
    push = context.socket(core.PUSH, linger=-1, reconnect_stop=core.RECONNECT_STOP_CONN_REFUSED)
    push.connect(f"tcp://127.0.0.1:{free_port}")
    await push.send(b"x")
    push.close()
    await push.wait_closed()
    assert push.counters.undelivered == 1


@pytest.mark.parametrize("event", [core.EVENT_CONNECTED, core.EVENT_HANDSHAKE_SUCCEEDED])
@pytest.mark.parametrize("closes", [False, True], ids=["disconnect", "close"])
async def test_an_endpoint_may_be_left_as_its_connection_is_reported(context: core.Context, event: int, closes: bool) -> None:
    """It stayed connected."""
    pull, push = context.socket(core.PULL), context.socket(core.PUSH, linger=0)
    pull.bind("tcp://127.0.0.1:*")
    watch = Watch(pull)
    push.on_event(lambda _: push.close() if closes else push.disconnect(pull.last_endpoint), event)
    push.connect(pull.last_endpoint)
    await watch.until(core.EVENT_ACCEPTED)
    await eventually(lambda: not pull._endpoints.sessions and not push._endpoints.sessions)


async def test_a_socket_may_be_closed_as_its_connection_is_accepted(context: core.Context) -> None:
    """The peer stayed connected to nothing."""
    pull = context.socket(core.PULL, linger=0)
    pull.bind("tcp://127.0.0.1:*")
    pull.on_event(lambda _: pull.close(), core.EVENT_ACCEPTED)
    host, _, port = pull.last_endpoint.removeprefix("tcp://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        while await reader.read(100):
            pass
    except ConnectionResetError:
        pass
    writer.close()
    await pull.wait_closed()


async def test_trn_12_an_inproc_peer_that_has_gone_is_not_disconnected_in_place_of_the_next(context: core.Context) -> None:
    pair, first, second = (context.socket(core.PAIR) for _ in range(3))
    first.bind("inproc://name")
    pair.connect("inproc://name")
    first.close()
    second.bind("inproc://name")
    with pair.connect("inproc://name"):
        await pair.send(b"x")
        assert await second.recv() == b"x"
    assert not pair.pattern.pipes
    with pytest.raises(core.EndpointNotFound):
        pair.disconnect("inproc://name")
    with pair.connect("inproc://name"):
        second.close()  # which has left the endpoint already


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "ipc://*", "inproc://name"])
async def test_trn_08_a_disconnect_leaves_every_connection_to_its_endpoint(context: core.Context, endpoint: str) -> None:
    """As with libzmq; one of two stayed, and got half of the messages."""
    push, pull, other = context.socket(core.PUSH), context.socket(core.PULL), context.socket(core.PULL)
    pull.bind(endpoint)
    other.bind("inproc://other")
    for _ in range(2):
        push.connect(pull.last_endpoint)
    for body in (b"1", b"2"):
        await push.send(body)
    assert {await pull.recv(), await pull.recv()} == {b"1", b"2"}
    push.disconnect(pull.last_endpoint)
    with pytest.raises(core.EndpointNotFound):
        push.disconnect(pull.last_endpoint)
    assert not push.writable()
    push.connect("inproc://other")
    for _ in range(2):
        await push.send(b"x")
        assert await other.recv() == b"x"


@pytest.mark.parametrize("leaves", ["close", "disconnect"])
async def test_sock_15_what_an_inproc_peer_that_has_gone_did_not_receive_is_not_waited_for(context: core.Context, leaves: str) -> None:
    push, pull = context.socket(core.PUSH, linger=-1), context.socket(core.PULL)
    push.connect("inproc://name")
    pull.bind("inproc://name")
    await push.send(b"x")
    pull.close()
    if leaves == "disconnect":
        push.disconnect("inproc://name")
    push.close()
    await push.wait_closed()
    assert push.counters.undelivered == 0
