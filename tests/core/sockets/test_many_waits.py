"""Many receives and sends of one socket wait, or have ended: each costs the same, and none is kept."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

import core
from tests.scenes.builds import replaces_names
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

WAITS: dict[str, Callable[[core.Socket], Any]] = {
    "recv": core.Socket.recv,
    "recv_multipart": core.Socket.recv_multipart,
    "recv_many": core.Socket.recv_many,
    "send": lambda socket: socket.send(b"x"),
    "send_many": lambda socket: socket.send_many([[b"x"], [b"y"]]),
}


@pytest.fixture
async def alone() -> AsyncIterator[core.Socket]:
    async with core.Context() as context, asyncio.timeout(PATIENCE_S):
        yield context.socket(core.PAIR, linger=0)


def kept() -> int:
    """Return how many waits are in memory."""
    gc.collect()
    return sum(type(each).__name__.startswith("Pending") for each in gc.get_objects())


@pytest.mark.parametrize("kind", WAITS)
async def test_waits_that_have_ended_are_forgotten(alone: core.Socket, kind: str) -> None:
    first = WAITS[kind](alone)
    before = kept()
    for _ in range(500):
        assert WAITS[kind](alone).cancel()
    assert kept() < before + 100
    assert not first.done()


@replaces_names
@pytest.mark.parametrize("kind", WAITS)
async def test_ended_waits_are_looked_for_when_the_waits_have_doubled(
    alone: core.Socket, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at each new one would cost the more the more there are."""
    looks, sweep = [], core.Socket._sweep

    def noted(socket: core.Socket) -> None:
        looks.append(len(socket._receivers) + len(socket._senders.get(b"", ())))
        sweep(socket)

    monkeypatch.setattr(core.Socket, "_sweep", noted)
    for _ in range(300):
        WAITS[kind](alone)
    assert looks == [0, 16, 32, 64, 128, 256]


@pytest.mark.parametrize("kind", WAITS)
async def test_one_wait_of_many_costs_as_much_as_one_alone(alone: core.Socket, kind: str) -> None:
    waits = [WAITS[kind](alone) for _ in range(20_000)]
    alone.close()
    for each in waits:
        with pytest.raises(core.SocketClosed):
            each.result()
