"""Scene of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import core
from tests.scenes.peering_brokers import Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Brokers, workers and clients that are closed after each test."""
    async with core.Context() as context, Scene(context, tmp_path) as made:
        yield made
