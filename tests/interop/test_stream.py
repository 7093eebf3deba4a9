"""STREAM sockets with raw sockets and with libzmq's STREAM: STM-01 to STM-08 of specs/sockets.md."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import zmq

import core
import core.blocking
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ANY = "tcp://127.0.0.1:*"
MIB = 2**20

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made, asyncio.timeout(PATIENCE_S):
        yield made


class Dialler:
    """Raw ends of a STREAM's connections, which are closed with the test."""

    def __init__(self, context: core.Context) -> None:
        self.context = context
        self.writers: list[asyncio.StreamWriter] = []

    async def dial(self, socket: core.Socket) -> Ends:
        host, _, port = socket.last_endpoint.removeprefix("tcp://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self.writers.append(writer)
        return reader, writer

    async def accepted(self, **options: int) -> tuple[core.Socket, bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a bound STREAM, and its one connection from both ends."""
        stream = self.context.socket(core.STREAM, linger=0, **options)
        stream.bind(ANY)
        reader, writer = await self.dial(stream)
        peer, empty = await stream.recv_multipart()
        assert empty == b""
        return stream, peer, reader, writer


@pytest.fixture
async def dialler(context: core.Context) -> AsyncIterator[Dialler]:
    made = Dialler(context)
    yield made
    for writer in made.writers:
        writer.transport.abort()


async def test_stm_01_a_connection_and_its_end_are_empty_messages(dialler: Dialler) -> None:
    stream, peer, _, writer = await dialler.accepted()
    assert len(peer) == 5
    assert peer[0] == 0
    writer.write(b"last words")
    writer.close()
    assert await stream.recv_multipart() == [peer, b"last words"]
    assert await stream.recv_multipart() == [peer, b""]
    await dialler.dial(stream)
    other, empty = await stream.recv_multipart()
    assert other != peer
    assert empty == b""


async def test_stm_02_bytes_arrive_as_they_are_and_in_order(dialler: Dialler) -> None:
    stream, peer, reader, writer = await dialler.accepted()
    sent = bytes(range(256)) * 4096
    writer.write(sent)
    received = b""
    while len(received) < len(sent):
        who, piece = await stream.recv_multipart()
        assert who == peer
        assert piece
        received += piece
    assert received == sent
    for piece in (b"a", b"b" * 300, b"c" * 70_000):
        await stream.send_multipart([peer, piece])
    await stream.send(peer, core.SNDMORE)
    await stream.send(b"by parts")
    expected = b"a" + b"b" * 300 + b"c" * 70_000 + b"by parts"
    assert await reader.readexactly(len(expected)) == expected


async def test_stm_03_an_empty_message_closes_the_connection_after_what_was_sent(dialler: Dialler) -> None:
    stream, peer, reader, writer = await dialler.accepted()
    await stream.send_multipart([peer, b"x" * MIB])
    await stream.send_multipart([peer, b""])
    assert await reader.read() == b"x" * MIB
    with pytest.raises(core.HostUnreachable):
        await stream.send_multipart([peer, b"more"])
    writer.close()
    await dialler.dial(stream)
    other, empty = await stream.recv_multipart()  # of the next connection: the end of the first was our own
    assert other != peer
    assert empty == b""


async def test_stm_04_bytes_for_no_connection_are_an_error(context: core.Context) -> None:
    stream = context.socket(core.STREAM)
    with pytest.raises(core.HostUnreachable):
        await stream.send_multipart([b"nobody", b"x"])
    with pytest.raises(core.HostUnreachable):
        await stream.send_many([[b"nobody", b"x"]])


async def test_stm_05_a_peer_that_does_not_read_makes_sends_wait(dialler: Dialler) -> None:
    stream, peer, reader, _ = await dialler.accepted(sndhwm=4)
    body = bytes(256 * 1024)
    sent = 0
    with pytest.raises(core.Again):
        while True:
            await stream.send_multipart([peer, body], core.DONTWAIT)
            sent += 1
    waiting = stream.send_multipart([peer, body])
    assert not waiting.done()
    received = 0
    while received < (sent + 1) * len(body):
        received += len(await reader.read(MIB))
    await waiting


async def test_stm_05_a_full_inbox_stops_the_peer(dialler: Dialler) -> None:
    stream, _, _, writer = await dialler.accepted(rcvhwm=2, max_ahead_bytes=0)
    total = 0
    while total < 64 * MIB:
        writer.write(bytes(MIB))
        total += MIB
        try:
            await asyncio.wait_for(writer.drain(), 0.05)
        except TimeoutError:
            break
    assert total < 64 * MIB
    received = 0
    while received < total:
        received += len((await stream.recv_multipart())[1])


async def test_stm_06_a_connecting_socket_gets_its_id_with_the_connection_and_connects_again(context: core.Context) -> None:
    ends: asyncio.Queue[Ends] = asyncio.Queue()
    async with await asyncio.start_server(lambda *pair: ends.put_nowait(pair), "127.0.0.1") as server:
        stream = context.socket(core.STREAM, linger=0, reconnect_ivl=1)
        stream.connect_routing_id = b"theirs"
        stream.connect(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        reader, writer = await ends.get()
        assert await stream.recv_multipart() == [b"theirs", b""]
        await stream.send_multipart([b"theirs", b"hello"])
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        assert await stream.recv_multipart() == [b"theirs", b""]
        reader, writer = await ends.get()
        assert await stream.recv_multipart() == [b"theirs", b""]
        await stream.send_multipart([b"theirs", b"again"])
        assert await reader.readexactly(5) == b"again"
        await stream.send_multipart([b"theirs", b""])  # closed by us: for good
        assert await reader.read() == b""
        writer.close()
        await eventually(lambda: not any(stream._endpoints._connectors.values()))
        assert ends.empty()


def test_stm_07_libzmq_is_the_other_end() -> None:
    """Each connects to the other, and both say the same of it."""
    theirs = zmq.Context()
    ours = core.blocking.Context()
    try:
        pairs: list[tuple[Any, Any]] = [
            (theirs.socket(zmq.STREAM), ours.socket(core.STREAM)),
            (ours.socket(core.STREAM), theirs.socket(zmq.STREAM)),
        ]
        for listener, dialler in pairs:
            for socket in (listener, dialler):
                socket.linger = 0
                socket.rcvtimeo = int(PATIENCE_S * 1000)
            listener.bind(ANY)
            dialler.connect(listener.getsockopt_string(core.LAST_ENDPOINT).rstrip("\0"))
            first, second = listener.recv_multipart(), dialler.recv_multipart()
            assert [(len(peer), peer[0], empty) for peer, empty in (first, second)] == [(5, 0, b"")] * 2
            listener.send_multipart([first[0], b"from the listener"])
            assert dialler.recv_multipart() == [second[0], b"from the listener"]
            dialler.send_multipart([second[0], b"from the dialler"])
            assert listener.recv_multipart() == [first[0], b"from the dialler"]
            dialler.close()
            assert listener.recv_multipart() == first
            listener.close()
    finally:
        ours.destroy(0)
        theirs.destroy(0)


async def test_stm_08_it_is_neither_secured_nor_in_process(context: core.Context) -> None:
    for options in ({"plain_username": "me", "plain_password": "secret"}, {"zap_domain": "any"}):
        stream = context.socket(core.STREAM, **options)
        with pytest.raises(core.InvalidOption, match="raw TCP"):
            stream.bind(ANY)
        with pytest.raises(core.InvalidOption, match="raw TCP"):
            stream.connect("tcp://127.0.0.1:9")
    async with core.Context(security=core.Curve(server_key=core.curve_keypair()[0])) as secured:
        with pytest.raises(core.InvalidOption, match="raw TCP"):
            secured.socket(core.STREAM).connect("tcp://127.0.0.1:9")
    stream = context.socket(core.STREAM)
    for act in (stream.bind, stream.connect):
        with pytest.raises(core.InvalidEndpoint) as caught:
            act("inproc://here")
        assert caught.value.errno == core.ENOCOMPATPROTO


async def test_a_receiver_gets_what_is_read(dialler: Dialler) -> None:
    stream, peer, _, writer = await dialler.accepted()
    got: list[list[bytes]] = []
    stream.set_receiver(got.extend)
    writer.write(b"abc")
    await eventually(lambda: got == [[peer, b"abc"]])
    writer.close()
    await eventually(lambda: got[1:] == [[peer, b""]])
