"""HAR-03: CURVE through a relay that changes the flags of the outer MESSAGE frames (CURVE-10, CURVE-11)."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from core.security.authenticator import curve_keypair
from tests.interop.ends import PATIENCE_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interop.ends import Foreign, Ours

ANY = "tcp://127.0.0.1:*"
GREETING_OCTETS = 64
LONG = 2
MESSAGE = b"\x07MESSAGE"


def carry(source: socket.socket, sink: socket.socket, flags: int) -> None:
    """Carry a greeting and frames until either end closes; MESSAGE frames get flags besides their own."""
    with source.makefile("rb") as octets, suppress(OSError):
        sink.sendall(octets.read(GREETING_OCTETS))
        while head := octets.read(1):
            own = head[0]
            size = octets.read(8 if own & LONG else 1)
            body = octets.read(int.from_bytes(size, "big"))
            if body.startswith(MESSAGE):
                own |= flags
            sink.sendall(bytes((own,)) + size + body)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def relay(target: str, *, there: int = 0, back: int = 0) -> Iterator[str]:
    """Relay one connection to `target`; frames on the way there and back get these flags."""
    host, _, port = target.removeprefix("tcp://").rpartition(":")
    lines: list[socket.socket] = []
    ways: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):  # nobody came
            near, _ = listener.accept()
            far = socket.create_connection((host, int(port)))
            lines.extend((near, far))
            for arguments in ((near, far, there), (far, near, back)):
                ways.append(threading.Thread(target=carry, args=arguments))
                ways[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_MS / 1000)
        waiting = threading.Thread(target=accept)
        waiting.start()
        try:
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            waiting.join()
            for line in lines:
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
            for way in ways:
                way.join()
            for line in lines:
                line.close()


@pytest.mark.parametrize("outer", [0, 1, 4, 5])
async def test_har_03_libzmqs_messages_arrive_whatever_their_outer_flags(foreign: Foreign, ours: Ours, outer: int) -> None:
    public, secret = curve_keypair()
    client_public, client_secret = curve_keypair()
    router = foreign("ROUTER", curve_server=1, curve_secretkey=secret)
    with relay(router.bind(ANY), back=outer) as endpoint:
        keys = {"curve_serverkey": public, "curve_publickey": client_public, "curve_secretkey": client_secret}
        dealer = ours("DEALER", identity=b"us", **keys)
        dealer.connect(endpoint)
        for frames in ([b"one"], [b"two", b"", b"three"], [b"x" * 300, b"y" * 70_000]):
            await dealer.send(*frames)
            assert await router.recv() == [b"us", *frames]
            await router.send(b"us", *frames)
            async with asyncio.timeout(PATIENCE_MS / 1000):
                assert await dealer.recv() == frames
        dealer.close()


@pytest.mark.parametrize("outer", [0, 1, 4, 5])
async def test_har_03_libzmqs_messages_arrive_at_our_server_too(foreign: Foreign, ours: Ours, outer: int) -> None:
    public, secret = curve_keypair()
    client_public, client_secret = curve_keypair()
    router = foreign("ROUTER")
    dealer = ours("DEALER", identity=b"us", curve_server=1, curve_secretkey=secret)
    router.set(curve_serverkey=public, curve_publickey=client_public, curve_secretkey=client_secret)
    target = dealer.bind(ANY)
    with relay(target, there=outer) as endpoint:
        router.connect(endpoint)
        await dealer.send(b"hello")
        name, body = await router.recv()
        assert body == b"hello"
        for frames in ([b"one"], [b"two", b"", b"three"]):
            await router.send(name, *frames)
            async with asyncio.timeout(PATIENCE_MS / 1000):
                assert await dealer.recv() == frames
        router.close()
