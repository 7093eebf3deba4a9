"""Daemons that may open hardly any file end with one line, before they begin anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FEW = 12
COMMANDS = {
    "mdp broker": ["--bind", "tcp://127.0.0.1:*"],
    "mdp worker": ["--broker", "tcp://127.0.0.1:9", "--service", "echo", "--handler", "echo"],
    "titanic serve": ["--memory"],
    "titanic mirror": ["--bind", "tcp://127.0.0.1:*", "--store", "never-made"],
    "bstar witness": ["--bind", "tcp://127.0.0.1:*"],
    "freelance serve": ["--bind", "tcp://127.0.0.1:*"],
    "pirate queue": [],
    "peering broker": ["DC1"],
}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_daemon_without_files_to_open_says_so_in_one_line(name: str, tmp_path: Path) -> None:
    program, command = name.split()
    binary = Path(sys.executable).with_name(program)
    limited = ["sh", "-c", f'ulimit -n {FEW}; exec "$@"', "sh", str(binary), command, *COMMANDS[name]]
    ended = subprocess.run(limited, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONUNBUFFERED": "1"}, check=False)
    assert (ended.returncode, ended.stdout) == (78, "")
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "raise the limit of open files" in ended.stderr
    assert not os.listdir(tmp_path)
