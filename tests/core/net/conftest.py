"""A context for sockets that connect, with a limit on every wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def context() -> AsyncIterator[core.Context]:
    async with core.Context() as made, asyncio.timeout(PATIENCE_S):
        yield made
