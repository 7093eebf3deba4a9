"""core.runtime.cold_files: files are read and written in another thread, and cancelling leaves nothing half written."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from typing import TYPE_CHECKING

import pytest

from core.runtime import cold_files

if TYPE_CHECKING:
    from pathlib import Path


async def test_text_and_status_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ü\n", encoding="utf-8")
    assert await cold_files.read_text(path) == "ü\n"
    assert (await cold_files.status(path)).st_size == 3
    path.write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        await cold_files.read_text(path)
    for missing in (cold_files.read_text(tmp_path / "none"), cold_files.status(tmp_path / "none")):
        with pytest.raises(FileNotFoundError):
            await missing


async def test_a_file_grows_by_whole_pieces_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    await asyncio.gather(*(cold_files.append(path, b"%03d\n" % number) for number in range(50)))
    assert sorted(path.read_bytes().split()) == [b"%03d" % number for number in range(50)]
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(IsADirectoryError):
        await cold_files.append(tmp_path, b"x")


async def test_a_cancelled_call_completes_off_the_loop() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work(*, by: int) -> int:
        begun.set()
        may_end.wait()
        ended.set()
        return by

    waiting = asyncio.ensure_future(cold_files.off_loop(work, by=1))
    while not begun.is_set():
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not ended.is_set(), "the loop runs while the call waits"
    may_end.set()
    assert await asyncio.to_thread(ended.wait)
    assert await cold_files.off_loop(work, by=2) == 2
