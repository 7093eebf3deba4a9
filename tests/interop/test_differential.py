"""Seeded programmes of socket operations on libzmq and on `core`.

Whatever differs is a row of the table in `docs/core.md`, or a fault.

On the sources as they are a tenth of the 2,000. A failure prints its seed and the programme with every step left out that does not matter.
To run it again: `python -m tests.interop.differential SEED 1`, with `--uvloop` on the other loop. `DIFFERENTIAL=100000` asks for that many
programmes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from tests.interop.differential import libzmq
from tests.interop.differential.differences import ROWS
from tests.interop.differential.libzmq import died_here
from tests.scenes.hunts import examples

ROOT = Path(__file__).parents[2]
PROGRAMMES = int(os.environ.get("DIFFERENTIAL") or examples(2000))
LOOPS = ("asyncio", "uvloop") if sys.platform != "win32" else ("asyncio",)
CHUNK = min(200, PROGRAMMES // len(LOOPS))  # of one process: each spends a third of a second on imports
# A habit shows each time. What does not is the order in which peers of one routing id, or of one endpoint, happened to come.
TRIES = 3
# Programmes that libzmq 4.3.5 does not survive, of a chunk: an assertion of its own ends the process, or a pipe that is gone.
ENDS_MAX = CHUNK // 20


def results(first: int, count: int, loop: str) -> tuple[list[dict[str, object]], list[int]]:
    """Differences in the programmes from seed `first` on, and the seeds at which libzmq ended the process."""
    found: list[dict[str, object]] = []
    ended: list[int] = []
    at = first
    while at < first + count:
        command = [sys.executable, "-m", "tests.interop.differential", str(at), str(first + count - at), f"--{loop}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found += [line for line in lines if "row" in line]
        if lines and "done" in lines[-1]:
            break
        assert died_here(done.stderr), f"the process ended with {done.returncode}: {done.stderr}"
        at = max(line["begun"] for line in lines if "begun" in line)
        ended.append(at)
        at += 1
    return found, ended


def shows_each_time(one: dict[str, object], loop: str) -> bool:
    """Run the programme of a difference again; tell whether one without a row shows every time."""
    seed = int(str(one["seed"]))
    return all(any(again["row"] is None for again in results(seed, 1, loop)[0]) for _ in range(TRIES - 1))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(PROGRAMMES // CHUNK))
def test_what_differs_from_libzmq_is_in_the_table(number: int) -> None:
    found, ended = results(number * CHUNK, CHUNK, LOOPS[number % len(LOOPS)])
    unexplained = [str(one["text"]) for one in found if one["row"] is None and shows_each_time(one, LOOPS[number % len(LOOPS)])]
    assert not unexplained, "\n\n".join(unexplained)
    assert len(ended) <= ENDS_MAX


def test_the_table_has_these_rows() -> None:
    text = (ROOT / "docs" / "core.md").read_text()
    table = text.partition("## Differences from libzmq")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ") and not line.startswith("| subject |")]
    assert [row for row in rows if not row.startswith("also:")] == [row.name for row in ROWS]


FAULT = """
import ctypes, faulthandler
faulthandler.enable()
exec(compile("def send(): raise_signal(11)\\nsend()", {file!r}, "exec"), {{"raise_signal": ctypes.CDLL(None)["raise"]}})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the C library is found in another way there")
@pytest.mark.parametrize(
    ("file", "theirs"),
    [
        (libzmq.__file__, True),
        (str(Path(zmq.__file__).parent / "sugar" / "socket.py"), True),
        (str(ROOT / "core" / "sockets" / "socket.py"), False),
        (str(Path(libzmq.__file__).with_name("ends.py")), False),
    ],
)
def test_a_process_that_a_signal_ended_tells_in_whose_code(file: str, theirs: bool) -> None:
    done = subprocess.run([sys.executable, "-c", FAULT.format(file=file)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert died_here(done.stderr) is theirs


@pytest.mark.parametrize(
    ("errors", "theirs"),
    [
        ("Assertion failed: !_terminating (src/pipe.cpp:1)\nFatal Python error: Aborted\n", True),
        ('Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):\n  File "select.py", line 1 in run\n', True),
        ("", False),
        ("Traceback (most recent call last):\n", False),
    ],
)
def test_who_died_by_what_was_written(errors: str, theirs: bool) -> None:
    assert died_here(errors) is theirs
