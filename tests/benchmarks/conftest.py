"""Roles of the benchmarks as forks: they are some eighty processes, each of which would import everything anew."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import process
from tests.scenes.prefork import Forked, can_fork


@pytest.fixture(autouse=True)
def roles_as_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: list[str], **given: Any) -> Forked:
        return Forked(command, env={**os.environ}, **given)

    if can_fork({}):
        monkeypatch.setattr(process, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start}))
