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


@pytest.mark.parametrize("bound_first", [True, False])
def test_a_socket_over_inproc_that_is_closed_after_its_loop_is_no_peer_any_longer(bound_first: bool) -> None:
    """A socket of the context that goes on, on another loop, sent to it."""
    context = core.Context()
    push, first, second = context.socket(core.PUSH), context.socket(core.PULL), context.socket(core.PULL)

    async def begin() -> None:
        if bound_first:
            push.bind("inproc://after")
        first.connect("inproc://after")
        assert not first.readable()

    async def go_on() -> None:
        if not bound_first:
            push.bind("inproc://after")
        second.connect("inproc://after")
        for body in (b"1", b"2"):
            await push.send(body)
            assert await second.recv() == body
        await context.aclose()

    asyncio.run(begin())
    first.close()
    asyncio.run(go_on())
