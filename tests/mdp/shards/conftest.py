"""A front, with sockets of the test in the place of its shards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.scenes.mdp_front import FrontScene
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[FrontScene]:
    async with asyncio.timeout(PATIENCE_S), FrontScene(f"ipc://{tmp_path}/b") as serving:
        yield serving
