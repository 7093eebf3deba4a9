"""core.net.writing: the end of a stream, within LINGER; large messages in parts."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

import core
from core.net import writing
from core.net.writing import Ending
from tests.scenes.builds import replaces_names
from tests.scenes.raw_octets import GREETING_NULL, message, ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class Transport:
    """A transport with bytes to write."""

    def __init__(self, waiting: int, fault: bool = False) -> None:
        self.waiting = waiting
        self.fault = fault
        self.calls: list[str] = []

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def get_extra_info(self, name: str) -> None:
        return None

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.fault:
            raise OSError
        self.calls.append("eof")

    def abort(self) -> None:
        self.calls.append("abort")


def ending(transport: Transport, linger_s: float | None) -> Ending:
    loop = asyncio.get_running_loop()

    def later(delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return loop.call_later(delay_s, call)

    return Ending(loop.time, later, cast("Any", transport), linger_s, transport.get_write_buffer_size)


@replaces_names
@pytest.mark.parametrize(
    ("waiting", "linger_s", "calls"),
    [
        (0, None, ["eof", "abort"]),  # everything was sent
        (9, None, ["eof"]),  # no limit
        (9, 0.0, ["eof", "abort"]),  # the limit is over
        (9, 30.0, ["eof"]),
    ],
)
async def test_sock_15_a_stream_ends_when_everything_was_sent_or_linger_is_over(
    waiting: int, linger_s: float | None, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LAST_WORDS_S", 0.01)
    transport = Transport(waiting)
    end = ending(transport, linger_s)
    end.end_stream()
    await asyncio.sleep(0.1)
    end.cancel()
    assert transport.calls == calls


async def test_a_stream_that_was_reset_is_aborted() -> None:
    transport = Transport(0, fault=True)
    end = ending(transport, None)
    end.end_stream()
    end.cancel()
    assert transport.calls == ["abort"]


@replaces_names
async def test_parts_are_written_one_by_one_where_writelines_does_not_pause(context: core.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with CPython 3.13.0, where `test_kept_alive` sees what waits without a bound otherwise."""
    monkeypatch.setattr(writing, "WRITELINES_PAUSES", False)
    pull, push = context.socket(core.PULL, linger=0), context.socket(core.PUSH, linger=0)
    pull.bind("tcp://127.0.0.1:*")
    push.connect(pull.last_endpoint)
    frames = [b"head", bytes(range(256)) * 4096, b"", bytes(2**18)]
    for _ in range(3):
        await push.send_multipart(frames)
    for _ in range(3):
        assert await pull.recv_multipart() == frames


async def received(peer: socket.socket, count: int) -> bytes:
    octets = b""
    while len(octets) < count:
        octets += await asyncio.get_running_loop().sock_recv(peer, count - len(octets))
    return octets


async def shaken(server: socket.socket) -> socket.socket:
    """Accept a PUSH socket as a PULL socket does."""
    loop = asyncio.get_running_loop()
    peer, _ = await loop.sock_accept(server)
    peer.setblocking(False)
    await loop.sock_sendall(peer, GREETING_NULL + ready(b"PULL"))
    await received(peer, len(GREETING_NULL + ready(b"PUSH")))
    return peer


@asynccontextmanager
async def reset(context: core.Context) -> AsyncIterator[tuple[core.Socket, socket.socket]]:
    """Yield a PUSH socket whose peer has just reset the connection, and where it connects again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        push = context.socket(core.PUSH, linger=0, reconnect_ivl=1)
        push.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        peer = await shaken(server)
        await push.send(b"first")
        await received(peer, len(message(b"first")))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()  # the socket learns of it when it writes: nothing is read before
        yield push, server


@pytest.mark.parametrize(("size", "count"), [(2**13, 100), (2**19, 6)], ids=["as a whole", "in parts"])
async def test_what_is_sent_after_a_write_has_failed_waits_for_the_next_connection(context: core.Context, size: int, count: int) -> None:
    """The transport tells in the next iteration of the event loop that it is lost; many messages are written before."""
    async with reset(context) as (push, server):
        sent = [[b"%03d" % number, bytes(size)] for number in range(count)]
        for frames in sent:
            await push.send_multipart(frames)
        with await shaken(server) as peer:
            await push.send(b"last")
            head = await received(peer, len(message(b"000", b"")) - 2)
            assert head != message(b"last")[: len(head)]
            kept = sent[int(head[-3:]) :]
            assert len(kept) > count // 2
            expected = b"".join(message(*frames) for frames in kept) + message(b"last")
            assert head + await received(peer, len(expected) - len(head)) == expected


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("body", [b"kept", bytes(2**19)], ids=["as a whole", "in parts"])
async def test_what_is_sent_after_the_write_at_the_end_of_an_iteration_has_failed_waits_too(context: core.Context, body: bytes) -> None:
    """With uvloop both are one write."""
    async with reset(context) as (push, server):
        await push.send(b"lost")  # written at the end of the iteration, before what is called next
        asyncio.get_running_loop().call_soon(push.send, body)
        with await shaken(server) as peer:
            assert await received(peer, len(message(body))) == message(body)
