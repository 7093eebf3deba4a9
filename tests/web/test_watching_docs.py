"""docs/watching.md: its shell session and its program do what the page says."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
MARK = "@@end@@"


def examples() -> list[tuple[str, str]]:
    """Return (command, expected output) of every example, in order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            found.append((command, expected))
    return found


@pytest.mark.timeout(120)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    python = shlex.quote(sys.executable)
    tool = tmp_path / "bin" / "mdp"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {python} -m mdp "$@"\n', encoding="utf-8")
    tool.chmod(0o755)
    lines = []
    for command, _ in examples():
        text = command.replace("9391", port)
        lines += [text.replace("&", "2>/dev/null &") if text.endswith("&") else text, f'echo "{MARK}"']
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    # Ended in this order, and with the broker's last events on the disk, the program can read them.
    lines += ["kill $(jobs -p); wait", f"{python} program.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", "\n".join(lines)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    *outputs, events = done.stdout.split(f"{MARK}\n")
    for (command, expected), output in zip(examples(), outputs, strict=True):
        pattern = re.escape(expected).replace("…", ".*")
        assert re.fullmatch(pattern, output, re.DOTALL), f"{command} printed\n{output}\nnot\n{expected}\n{done.stderr}"
    assert "answered echo 1" in events.splitlines()


def test_the_picture_is_there() -> None:
    assert (ROOT / "docs" / "watching.png").read_bytes().startswith(b"\x89PNG")
