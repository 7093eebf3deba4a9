"""SOCK-15: what was sent before `close` arrives within LINGER, also at a peer that is slow in every respect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.raw_octets import GREETING_NULL, command, message, ready
from tests.scenes.waiting import Watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.spec.conftest import Make

COUNT = 900


class SlowPeer:
    """A PULL that greets and says READY late, reads little by little, and judges by what one connection brings.

    Attributes:
        endpoint: where it listens.
        connections: how many came.
        came: octets after the handshake, of the first connection.
        done: the first connection has ended.
    """

    def __init__(self, delay_s: float, pings: bool) -> None:
        self.endpoint = ""
        self.connections = 0
        self.came = b""
        self.done = asyncio.Event()
        self._delay_s = delay_s
        self._pings = pings

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.connections > 1:
            writer.close()
            return
        try:
            await asyncio.sleep(self._delay_s)
            writer.write(GREETING_NULL)
            await reader.readexactly(len(GREETING_NULL))
            await asyncio.sleep(self._delay_s)
            writer.write(ready(b"PULL"))
            await reader.readexactly(len(ready(b"PUSH")))
            while octets := await reader.read(1000):
                self.came += octets
                if self._pings:
                    writer.write(command(b"PING", b"\x00\x00"))
                await asyncio.sleep(0.0005)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.done.set()
            writer.close()


@pytest.fixture(params=["tcp", "ipc"])
async def slow(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SlowPeer]:
    peer = SlowPeer(0.05, pings=True)
    if request.param == "tcp":
        server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        peer.endpoint = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        server = await asyncio.start_unix_server(peer.serve, tmp_path / "s")
        peer.endpoint = f"ipc://{tmp_path / 's'}"
    async with server:
        yield peer


@pytest.mark.parametrize("when", ["at once", "connected", "in the handshake"])
async def test_sock_15_a_handshake_that_has_begun_when_the_socket_is_closed_goes_on(slow: SlowPeer, make: Make, when: str) -> None:
    """All there is comes on the first connection: nothing is cut and begun again."""
    push = make(core.PUSH, connect=slow.endpoint, linger=10_000)
    watch = Watch(push)
    for n in range(COUNT):
        await push.send(b"%d" % n)
    if when != "at once":
        await watch.until(core.EVENT_CONNECTED)
    if when == "in the handshake":
        await asyncio.sleep(0.07)  # between the peer's greeting and its READY; any other moment must do as well
    push.close()
    await push.wait_closed()
    await slow.done.wait()
    assert slow.came == b"".join(message(b"%d" % n) for n in range(COUNT))
    assert slow.connections == 1
    assert push.counters.undelivered == 0


async def test_sock_15_linger_of_close_is_what_counts_after_a_late_handshake(make: Make) -> None:
    """The peer reads nothing after its handshake: close(linger) is over when it said, not when the option says."""

    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING_NULL)
        await asyncio.sleep(0.05)
        writer.write(ready(b"PULL"))
        try:
            await gone.wait()
        finally:
            writer.close()

    gone = asyncio.Event()
    server = await asyncio.start_server(stuck, "127.0.0.1", 0, limit=1000)
    async with server:
        push = make(core.PUSH, connect=f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", linger=-1)
        for _ in range(200):
            await push.send(bytes(100_000))
        push.close(linger=300)
        await push.wait_closed()  # with the option's LINGER it would never end
        gone.set()


async def test_sock_15_what_a_closed_sender_has_sent_is_kept_for_a_receiver_that_is_at_its_mark(make: Make) -> None:
    """Nobody reads for longer than a sign of life takes; the tail is in the systems' buffers all that time."""
    pull = make(core.PULL, bind="tcp://127.0.0.1:*", rcvhwm=10)
    push = make(core.PUSH, connect=pull.last_endpoint, linger=10_000)
    for n in range(COUNT):
        await push.send(b"%d" % n + bytes(3000))
    push.close()
    await asyncio.sleep(1.8)
    assert [(await pull.recv())[:3].rstrip(b"\0") for _ in range(COUNT)] == [b"%d" % n for n in range(COUNT)]


async def test_sock_15_what_a_closed_sender_has_sent_over_ipc_is_kept(make: Make, tmp_path: Path) -> None:
    pull = make(core.PULL, bind=f"ipc://{tmp_path / 'p'}", rcvhwm=10)
    push = make(core.PUSH, connect=pull.last_endpoint, linger=10_000)
    for n in range(COUNT):
        await push.send(b"%d" % n + bytes(300))
    push.close()
    await asyncio.sleep(1.8)
    assert [(await pull.recv())[:3].rstrip(b"\0") for _ in range(COUNT)] == [b"%d" % n for n in range(COUNT)]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_sock_15_heartbeats_end_with_the_stream_and_do_not_cost_what_is_on_its_way(make: Make, size: int) -> None:
    """The peer says nothing and reads nothing for many heartbeats after `close`: LINGER gives it the time (ZMTP-56)."""
    came = bytearray()
    closing = asyncio.Event()
    over = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING_NULL + ready(b"PULL"))
        await reader.readexactly(len(GREETING_NULL) + len(ready(b"PUSH")))
        await closing.wait()
        await asyncio.sleep(0.3)
        while octets := await reader.read(100_000):
            came.extend(octets)
        writer.close()
        over.set()

    server = await asyncio.start_server(late, "127.0.0.1", 0, limit=1000)
    async with server:
        endpoint = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        push = make(core.PUSH, connect=endpoint, linger=20_000, heartbeat_ivl=20, heartbeat_timeout=60)
        watch = Watch(push)
        await watch.until(core.EVENT_HANDSHAKE_SUCCEEDED)
        for n in range(100):
            await push.send(b"%3d" % n + bytes(size))
        push.close()
        closing.set()
        await push.wait_closed()
        await over.wait()
    sent = b"".join(message(b"%3d" % n + bytes(size)) for n in range(100))
    pings = command(b"PING", b"\x00\x00")
    assert bytes(came).replace(pings, b"") == sent
    assert push.counters.undelivered == 0
