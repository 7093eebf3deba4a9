"""Limits of what is read of one peer, and of many, in one iteration of the event loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import pytest

import core
from core.runtime.write_scheduler import READERS_AT_ONCE
from tests.scenes.raw_octets import GREETING_NULL, message, ready

READ_BYTES = 2**18 + 100  # what an event loop reads at once, 256,000 bytes or 256 KiB, and what came before of a message
BODY = bytes(60)


class Iterations:
    """Counts the bytes of the messages that a socket takes in each iteration of the event loop."""

    def __init__(self) -> None:
        self.bytes = [0]
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.bytes.append(0)
        self._handle = self._loop.call_soon(self._next)

    def take(self, messages: list[Any]) -> None:
        self.bytes[-1] += len(messages) * len(message(BODY))

    def stop(self) -> None:
        self._handle.cancel()


def flood(endpoint: str) -> tuple[socket.socket, int]:
    """Connect, and send as many messages as the system holds; returns how many bytes of them."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    peer = socket.create_connection((host, int(port)))
    peer.setblocking(False)
    peer.sendall(GREETING_NULL + ready(b"PUSH"))
    octets = message(BODY) * (16 * 2**20 // len(message(BODY)))
    sent = peer.send(octets)
    while True:
        try:
            sent += peer.send(octets[sent % len(message(BODY)) :])
        except BlockingIOError:
            return peer, sent - sent % len(message(BODY))


@pytest.mark.parametrize("peers", [1, 12])
async def test_a_flood_is_read_in_many_iterations(peers: int) -> None:
    async with core.Context() as context:
        pull = context.socket(core.PULL, linger=0, rcvhwm=0)
        seen = Iterations()
        pull.set_receiver(seen.take)
        pull.bind("tcp://127.0.0.1:*")
        with ExitStack() as open_peers:
            expected = 0
            for _ in range(peers):
                peer, sent = flood(pull.last_endpoint)
                open_peers.enter_context(peer)
                expected += sent
            assert expected > peers * 4 * READ_BYTES  # else there is nothing to be divided
            while sum(seen.bytes) < expected:
                await asyncio.sleep(0)
        seen.stop()
        in_turn = min(peers, READERS_AT_ONCE) * READ_BYTES
        out_of_turn = peers * READ_BYTES  # the first read of each
        assert sum(max(0, read - in_turn) for read in seen.bytes) < out_of_turn
