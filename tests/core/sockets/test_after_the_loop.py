"""Sockets that are closed when their event loop has ended, as programs do after `asyncio.run`."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

import core

if TYPE_CHECKING:
    from pathlib import Path

# The system's sockets are closed with the last reference to them: their event loop can close nothing.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("transport", ["tcp", "ipc", "inproc"])
@pytest.mark.parametrize("linger", [0, None])
def test_a_socket_can_be_closed_after_its_loop(tmp_path: Path, transport: str, linger: int | None) -> None:
    endpoint = {"tcp": "tcp://127.0.0.1:*", "ipc": f"ipc://{tmp_path}/s", "inproc": "inproc://after"}[transport]
    bound = close_after_the_loop(endpoint, f"ipc://{tmp_path}/absent", linger)
    gc.collect()  # nothing refers to the sockets now, so the port or path is free again, and no later test meets their warnings
    asyncio.run(bind_again(bound))


def close_after_the_loop(endpoint: str, absent: str, linger: int | None) -> str:
    """Close three sockets and their context after their loop; return the endpoint that was bound."""
    context = core.Context()
    server, client, alone = (context.socket(core.DEALER) for _ in range(3))

    async def talk() -> None:
        server.bind(endpoint)
        client.connect(server.last_endpoint)
        await client.send(b"hello")
        assert await server.recv() == b"hello"
        alone.connect(absent)
        await alone.send(b"no peer takes this")

    asyncio.run(talk())
    for socket in (server, client, alone):
        socket.close(linger)
        assert socket.closed
    assert alone.counters.undelivered == 1
    context.term()
    return server.last_endpoint


async def bind_again(endpoint: str) -> None:
    async with core.Context() as context:
        context.socket(core.DEALER).bind(endpoint)
