"""A place for a mirror and a disk for a store, in whose connection nothing is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scenes.titanic_octets import GatedDisk

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/mirror"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatedDisk:
    monkeypatch.setattr("titanic.mirror.replica_link.RETRY_S", 0.01)
    monkeypatch.setattr("titanic.mirror.mirrored_disk.WAIT_S", 1000.0)  # the line says when something has changed
    return GatedDisk(tmp_path / "a")
