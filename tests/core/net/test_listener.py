"""Closing a listener while a connection is being accepted."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from contextlib import suppress

import pytest

import core


def until_it_ends(newcomer: socket.socket) -> None:
    """Read to the end of the stream, or to a reset."""
    newcomer.settimeout(10)
    with suppress(ConnectionResetError):
        while newcomer.recv(100):
            pass


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_as_the_listener_closes_is_ended_and_leaves_nothing(turns: int) -> None:
    """Close the listener in each loop iteration between the kernel's accept and the session."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        async with core.Context() as context:
            router = context.socket(core.ROUTER, linger=0)
            router.bind("tcp://127.0.0.1:*")
            dealer = context.socket(core.DEALER, linger=0)
            dealer.connect(router.last_endpoint)
            await dealer.send(b"listening")
            await router.recv_multipart()
            host, _, port = router.last_endpoint.removeprefix("tcp://").rpartition(":")
            with socket.create_connection((host, int(port))) as newcomer:
                for _ in range(turns):
                    await asyncio.sleep(0)
                endpoint = router.last_endpoint
                router.close()
                again = context.socket(core.ROUTER, linger=0)
                again.bind(endpoint)  # the port is free at once
                await router.wait_closed()
                await asyncio.to_thread(until_it_ends, newcomer)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
