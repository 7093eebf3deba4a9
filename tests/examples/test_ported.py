"""Programs of pyzmq and Celery on this toolkit; those of pyzmq print the same with pyzmq."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mdp.testing
from examples.ported import newsletter

ROOT = Path(__file__).parents[2]
PORTED = ROOT / "examples" / "ported"
# What a program of pyzmq has in the place of each import of ours.
IMPORTS = (
    ("import core.blocking as zmq\n", "import zmq\n"),
    ("import core.asyncio as zmq_asyncio\n", "import zmq.asyncio as zmq_asyncio\n"),
    ("import core as zmq\n", "import zmq\n"),
    ("from core.auth import", "from zmq.auth import"),
    ("from core.auth.thread import", "from zmq.auth.thread import"),
    ("from core.utils.monitor import", "from zmq.utils.monitor import"),
)
PRINTS = {
    "pipeline": "100 squares, sum 328350\n",
    "cache": "last of air, last of rain, last of wind\n",
    "house": "hello, answered at attempt 2\n",
}


def printed(file: Path) -> str:
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PRINTS)
def test_a_program_of_pyzmq_runs_with_another_import(name: str, tmp_path: Path) -> None:
    source = (PORTED / f"{name}.py").read_text()
    before = source
    for ours, theirs in IMPORTS:
        before = before.replace(ours, theirs)
    assert not re.search(r"^(import|from) core", before, re.MULTILINE)
    (tmp_path / "before.py").write_text(before)
    assert printed(tmp_path / "before.py") == printed(PORTED / f"{name}.py") == PRINTS[name]


async def test_the_newsletter_retries_what_is_busy_and_not_what_is_refused() -> None:
    async with mdp.testing.broker(newsletter.app) as local:
        said = await newsletter.publish(local.client, 7, ["ada@example.org", "bob@example.org", "nobody"])
        assert said == "issue 7: 2 sent in 4 attempts, 1 refused"
        with pytest.raises(newsletter.Refused):
            await local.client.call("newsletter.send", "nobody", 8)
        # The same key again: no mail is sent twice.
        again = await newsletter.publish(local.client, 7, ["ada@example.org"])
        assert again == "issue 7: 1 sent in 2 attempts, 0 refused"
        done: list[float | None] = []
        await local.client.request("newsletter.render", b"9", progress=lambda progress: done.append(progress.done))
        assert done[0] == 0.25
