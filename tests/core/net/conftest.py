"""A context with a limit on every wait, a scripted system, and sockets that are closed after a test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from core.runtime import runtime
from tests.scenes.scripted_system import System
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made, asyncio.timeout(PATIENCE_S):
        yield made


@pytest.fixture
def system() -> Iterator[System]:
    """A system whose calls a test scripts."""
    with runtime.scope(System()) as made:
        assert isinstance(made, System)
        yield made


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    """Sockets that are closed after the test."""
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()
