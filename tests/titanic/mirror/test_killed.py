"""A mirror that is killed (SIGKILL) at each call of its disk while it puts the store's files in place.

Real files, real processes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

import titanic
from tests.scenes.programs import ROOT
from tests.titanic.mirror.test_replica_server import OPTIONS, in_step, submitted
from titanic.mirror.replica_link import MirrorLine
from titanic.store.repair import read_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(240)  # some thirty processes, on a machine that may be busy
async def test_a_mirror_killed_anywhere_in_a_swap_comes_in_step_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BEY-08: its status is true after each death, and acknowledged records are there once it is in step."""
    monkeypatch.setattr("titanic.mirror.replica_link.RETRY_S", 0.01)
    one, two, endpoint = tmp_path / "a", tmp_path / "b", f"ipc://{tmp_path}/mirror"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.scenes.titanic_killed_mirror", str(two), endpoint,
        cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    deaths: list[str] = []
    line = MirrorLine(endpoint, timeout_s=20.0)
    async with titanic.Store(titanic.RealDisk(one), OPTIONS, mirror=line, go_on=True) as stored:
        tickets = [(await submitted(stored, b"first"))[1]]
        while (said := (await process.stdout.readline()).decode().strip()) != "ended":
            word, _, step = said.split(" ", 2)
            assert word == "killed"
            deaths.append(step)
            await in_step(stored)
            tickets.append((await submitted(stored, b"%d" % len(tickets)))[1])
            _, index = read_store(titanic.RealDisk(two))
            assert {entry.uuid.hex().upper().encode() for entry in index.entries.values()} == set(tickets)
            process.stdin.write(b"next\n")
            while line.state == "in step":
                await asyncio.sleep(0.001)
            tickets.append((await submitted(stored, b"alone" * 100))[1])  # so that there is something to put in place
    assert await process.wait() == 0
    assert len(deaths) > 10
    assert set(deaths) == {"empty", "behind", "changing", "in step"}
