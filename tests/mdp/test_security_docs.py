"""docs/security.md: its commands are run as they stand, in one shell session, and print what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
MARK = "@@end of output@@"


def examples() -> list[tuple[str, str]]:
    """Return (command, expected output) of every example, in order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            found.append((command, expected))
    return found


def session() -> str:
    lines = ["set -m"]
    for command, _ in examples():
        # The jobs are known to the shell by number, as on the page; what they say besides is not looked at.
        lines += [command, f'echo "{MARK}"']
    lines.append("kill $(jobs -p) 2>/dev/null; wait 2>/dev/null")
    return "\n".join(lines)


def test_the_page_is_true(tmp_path: Path) -> None:
    for program, package in (("mdp", "mdp"), ("zmtp", "core")):
        script = tmp_path / program
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {package} "$@"\n')
        script.chmod(0o755)
    (tmp_path / "rules.toml").write_text(re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0])
    where = "ipc://default.sock"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "MDP_BIND": where,
        "MDP_BROKER": where,
        "MDP_WORKER_LOG_LEVEL": "error",
        "MDP_TIMEOUT": "20",
    }
    shell = subprocess.run(
        ["bash", "-c", session()],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = shell.stdout.split(f"{MARK}\n")
    for (command, expected), said in zip(examples(), printed, strict=False):
        pattern = re.escape(expected).replace("…", ".*")
        assert re.fullmatch(pattern, said), f"{command}\n{said}\n-- the page says --\n{expected}"
    assert len(printed) == len(examples()) + 1
