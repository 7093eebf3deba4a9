"""The ballot file of a witness or pair whose start is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import bstar

if TYPE_CHECKING:
    from pathlib import Path


def made(kind: str, folder: Path) -> bstar.Witness | bstar.Pair:
    store = folder / "ballot"
    if kind == "witness":
        return bstar.Witness(f"ipc://{folder}/witness", store=store)
    return bstar.Pair(bstar.PRIMARY, local=f"ipc://{folder}/local", remote=f"ipc://{folder}/remote", store=store)


@pytest.mark.parametrize("iterations", range(1, 12))
@pytest.mark.parametrize("kind", ["witness", "pair"])
async def test_a_start_that_is_cancelled_leaves_the_ballot_file_to_the_next(kind: str, iterations: int, tmp_path: Path) -> None:
    """Its lock was held until the garbage was collected, which daemons seldom do."""
    first = made(kind, tmp_path)
    starting = asyncio.ensure_future(first.__aenter__())
    for _ in range(iterations):
        await asyncio.sleep(0)
    if starting.done():
        await first.__aexit__(None, None, None)
    else:
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    async with made(kind, tmp_path):
        pass
