"""Every daemon starts and ends a thousand times, on both loops and by both signals, without a word of warning."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scenes.programs import Programs

CYCLES = 1000
# Daemon, and what it says when it serves. Those that connect find nobody: their way out may not depend on it.
DAEMONS = {
    "mdp broker --bind ipc://b": "broker serves",
    "mdp worker --broker ipc://nobody --service echo": "worker serves",
    "titanic serve --broker ipc://nobody --store store": "titanic serves",
    "titanic mirror --bind ipc://m --store copy": "titanic mirrors",
    "bstar run --primary --local ipc://l --remote ipc://r --frontend ipc://f": "server runs",
    "bstar witness --bind ipc://w": "witness runs",
    "freelance serve --bind ipc://s --identity ipc://s": "server runs",
    "freelance names serve --bind ipc://n --identity ipc://n --peer ipc://nobody": "name server runs",
    "pirate queue --frontend ipc://qf --backend ipc://qb": "queue runs",
    "pirate worker --queue ipc://nobody": "worker runs",
    "peering broker a --directory . --peer b": "broker runs",
    "core proxy --frontend ipc://pf --backend ipc://pb": "proxy forwards",
}
# What debug mode says of a turn that took long is about the machine, which may be busy.
ORDINARY = re.compile(r"\d{4}-\d\d-\d\dT\S+ (?:INFO |WARNING asyncio Executing .* took )")


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("line", DAEMONS)
def test_a_daemon_ends_a_thousand_times_without_a_warning(programs: Programs, line: str) -> None:
    for number in range(CYCLES):
        strict = {"PYTHONWARNINGS": "error", "PYTHONASYNCIODEBUG": "1" if number % 2 else ""}
        program = programs.start(*line.split(), "--uvloop" if number // 2 % 2 else "--no-uvloop", **strict)
        said = program.said(DAEMONS[line])
        ended = program.signal(signal.SIGTERM if number % 3 else signal.SIGINT).end()
        assert ended.code == 0, (number, ended.err)
        assert [one for one in (said + ended.err).splitlines() if not ORDINARY.match(one)] == [], number
