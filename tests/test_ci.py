"""The parts of `make test` run side by side.

Every failure is shown, and is a failure of the whole; a signal ends all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "test.py"
PROGRAM = f"""
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("ci", {str(SCRIPT)!r})
ci = sys.modules["ci"] = module_from_spec(spec)
spec.loader.exec_module(ci)
Part, py = ci.Part, sys.executable
sys.exit(ci.Run([
{{parts}}
]).go())
"""


def begun(parts: str, folder: Path) -> subprocess.Popen[str]:
    """Begin a run of parts, each a line."""
    lines = "\n".join(f"Part({line.strip()})," for line in parts.strip().splitlines())
    return subprocess.Popen([sys.executable, "-c", PROGRAM.format(parts=lines)], cwd=folder, stdout=subprocess.PIPE, text=True)


def ended(parts: str, folder: Path) -> tuple[int, str]:
    with begun(parts, folder) as run:
        printed, _ = run.communicate(timeout=100)
    return run.returncode, printed


def test_tests_in_the_background_are_shown_in_the_end(tmp_path: Path) -> None:
    """The second one ends first: the first waits for a file that the third makes when the second has ended."""
    status, printed = ended(
        """
        "slow", (py, "-c", "open('pipe').read(); print('slow')"), needs=("pipe",), shows=True, tests=True
        "quick", (py, "-c", "print('quick')"), needs=("pipe",), tests=True
        "after", (py, "-c", "open('pipe', 'w').close()"), needs=("quick",)
        "pipe", ("mkfifo", "pipe")
        """,
        tmp_path,
    )
    assert (status, printed) == (0, "slow\nquick\n")


def test_tests_that_fail_are_shown_and_the_others_go_on(tmp_path: Path) -> None:
    status, printed = ended(
        """
        "first", (py, "-c", "print('first'); raise SystemExit(3)"), tests=True
        "second", (py, "-c", "print('second')"), needs=("first",), shows=True, tests=True
        """,
        tmp_path,
    )
    assert (status, printed) == (1, "first\n==> first failed\nsecond\n")


def test_what_cannot_run_here_is_said_in_the_end_and_nothing_that_needs_it_runs(tmp_path: Path) -> None:
    status, printed = ended(
        """
        "first", (py, "-c", "print('long'); print('No compiler.'); raise SystemExit(3)")
        "second", (py, "-c", "print('second')"), needs=("first",), shows=True, tests=True
        "third", (py, "-c", "print('third')"), shows=True, tests=True
        """,
        tmp_path,
    )
    assert (status, printed) == (0, "third\nNo compiler.\n")


# A process that starts another one, which never ends by itself. It writes its line in one step: a signal could end `print` in the middle.
ENDLESS_CODE = (
    "import os, subprocess; tail = subprocess.Popen(['tail', '-f', '/dev/null']); os.write(1, b'go' + os.linesep.encode()); tail.wait()"
)
ENDLESS = f'"endless", (py, "-c", "{ENDLESS_CODE}"), shows=True, tests=True'


def test_another_failure_ends_all(tmp_path: Path) -> None:
    status, printed = ended(
        f"""
        {ENDLESS}
        "broken", (py, "-c", "print('no'); raise SystemExit(2)")
        "never", (py, "-c", "print('never')"), needs=("broken",), shows=True
        """,
        tmp_path,
    )
    # The standard output that all of them have was closed.
    assert status == 1
    assert printed.replace("go\n", "") == "no\n==> broken failed\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all(number: signal.Signals, tmp_path: Path) -> None:
    with begun(ENDLESS, tmp_path) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "go\n"
        os.kill(run.pid, number)
        assert run.stdout.read() == ""  # and no process has it any more
    assert run.returncode == 128 + number
