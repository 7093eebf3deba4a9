"""Attempts to connect: what they meet, and how they end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import core

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenes.waiting import Watch

TCP = "tcp://127.0.0.1:*"


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a connector decides, which has no event."""
    while not condition():
        await asyncio.sleep(0.001)


def given_up(socket: core.Socket) -> bool:
    """Tell whether a socket has no endpoint left that it tries to reach."""
    return not any(socket._endpoints._connectors.values())


def dealer(context: core.Context, **options: Any) -> core.Socket:
    return context.socket(core.DEALER, linger=0, **options)


def values(watch: Watch, event: int) -> list[int]:
    return [one.value for one in watch.events if one.event == event]


class Proxy:
    """A SOCKS 5 proxy that wants a name and a password."""

    def __init__(self, *, refuses: int = 0) -> None:
        self.asked: list[tuple[str, int]] = []
        self._refuses = refuses

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, count = await reader.readexactly(2)
        assert 2 in await reader.readexactly(count)
        writer.write(b"\5\2")
        _, length = await reader.readexactly(2)
        user = await reader.readexactly(length)
        password = await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\1\0" if (user, password) == (b"ann", b"secret") else b"\1\1")
        *_, kind, length = await reader.readexactly(5)
        assert kind == 3
        host, port = (await reader.readexactly(length)).decode(), int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append((host, port))
        writer.write(bytes((5, self._refuses, 0, 1)) + bytes(6))
        if self._refuses:
            writer.close()
            return
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        writer.write(await back.readexactly(10))  # may come with the answer of the proxy

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(65536):
                    target.write(data)
            target.close()

        await asyncio.gather(copy(reader, forth), copy(back, writer))
