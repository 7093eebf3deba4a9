"""Commands that start Spark show their help without PySpark, and name the package to install when they run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
for name in ("pyspark", "pyarrow", "pandas", "numpy", "matplotlib"):
    sys.modules[name] = None  # as if it were not installed
from mdp.commands.main import main
main(sys.argv[1:], prog_name="mdp")
"""


def mdp(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("verb", "option"), [("demo", "--kill"), ("dispatch", "--on-error"), ("report", "--html")])
def test_help_needs_no_spark(verb: str, option: str) -> None:
    shown = mdp(verb, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert option in shown.stdout


def test_a_run_says_what_to_install(tmp_path: Path) -> None:
    refused = mdp("demo", "--output", tmp_path)
    assert refused.returncode == 78
    assert refused.stderr.splitlines()[-1].endswith("which is not installed; fix: pip install 'majordomo-toolkit[spark]'")
