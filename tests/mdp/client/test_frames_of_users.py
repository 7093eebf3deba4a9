"""mdp.Client: frames whose `len` is not that of their bytes are sent whole, or refused before anything is written."""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from mdp import Client, Worker
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp import Request

WIDE = array("d", [1.5, 2.5, 3.5])
OTHERS: dict[str, tuple[Any, bytes | None]] = {
    "bytearray": (bytearray(b"xyz"), b"xyz"),
    "wide view": (memoryview(WIDE), WIDE.tobytes()),
    "view with gaps": (memoryview(bytes(range(64)))[::2], bytes(range(0, 64, 2))),
    "view of two dimensions": (memoryview(bytes(range(12))).cast("B", (3, 4)), bytes(range(12))),
    "subclass of bytes": (type("Octets", (bytes,), {})(b"sub"), b"sub"),
    "array": (WIDE, None),
    "text": ("text", None),
    "number": (7, None),
}


async def by_request(client: Client, frames: list[Any]) -> list[bytes]:
    return await client.request("echo", *frames)


async def by_callback(client: Client, frames: list[Any]) -> list[bytes]:
    ended: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def done(about: None, reply: list[bytes] | None, error: Exception | None) -> None:
        if reply is not None:
            ended.set_result(reply)

    client.ask("echo", frames, done, None)
    return await ended


async def by_window(client: Client, frames: list[Any]) -> list[bytes]:
    ended = asyncio.Event()
    window = client.open_window("echo", ended.set)
    with pytest.raises(TypeError):
        window.send([b"first", [object()]])  # type: ignore[list-item]
    first = window.send([frames])
    await ended.wait()
    outcome = window.take()[0]
    assert (outcome.index, outcome.error) == (first, None) == (0, None)
    return outcome.reply or []


async def by_stream(client: Client, frames: list[Any]) -> list[bytes]:
    return [frame async for part in client.stream("echo", *frames) for frame in part]


@pytest.mark.parametrize("send", [by_request, by_callback, by_window, by_stream])
async def test_each_frame_is_sent_whole_or_refused(endpoint: str, send: Callable[[Client, list[Any]], Any]) -> None:
    """An array of three doubles was announced as 3 bytes, and its 24 bytes made the connection useless."""

    async def echo(request: Request) -> list[bytes]:
        return request.body

    async with Worker(endpoint, "echo", handler=echo) as worker, Client(endpoint) as client, asyncio.timeout(100):
        await eventually(lambda: worker.connected)
        for frame, octets in OTHERS.values():
            for frames in ([frame], [b"a", frame], [frame, b"z"]):
                if octets is None:
                    with pytest.raises(TypeError):
                        await send(client, frames)
                else:
                    assert await send(client, frames) == [octets if one is frame else one for one in frames]
            assert await client.request("echo", b"after") == [b"after"]
        assert client.connections == 1
