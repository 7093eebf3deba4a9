"""Every daemon shows itself over HTTP, by one and the same option, and ends as it did before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.command_line import Programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DAEMONS = {
    "mdp broker --bind ipc://b": "mdp_accepted",
    "titanic serve --broker ipc://b --memory": "titanic_requests",
    "bstar run --primary --local ipc://l --remote ipc://r --frontend ipc://f": "bstar_ballot",
    "bstar witness --bind ipc://w": None,
    "freelance serve --bind ipc://s --identity ipc://s": None,
    "freelance names serve --bind ipc://n --identity ipc://n": "freelance_names_names",
    "pirate queue --frontend ipc://qf --backend ipc://qb": "pirate_queue_idle",
    "peering broker a --directory .": "peering_workers",
    "mdp worker --broker ipc://nobody --service echo": "mdp_worker_received",
    "titanic mirror --bind ipc://m --store copy": "titanic_mirror_calls",
}
# Those that serve nobody before somebody else is there, with what they say.
NOT_READY = {"mdp worker": "no broker knows echo\n", "titanic mirror": "no store\n"}


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    running = Programs(tmp_path)
    yield running
    running.close()


def get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("line", DAEMONS)
def test_a_daemon_shows_itself(programs: Programs, line: str) -> None:
    program = programs.start(*line.split(), "--http", "127.0.0.1:0")
    (port,) = re.findall(r"port=(\d+)", program.said("http serves"))
    url = f"http://127.0.0.1:{port}"
    assert get(f"{url}/healthz") == (200, "alive\n")
    missing = NOT_READY.get(" ".join(line.split()[:2]))
    assert get(f"{url}/readyz") == ((200, "ready\n") if missing is None else (503, missing))
    names = {family.name for family in text_string_to_metric_families(get(f"{url}/metrics")[1])}
    wanted = DAEMONS[line]
    assert wanted is None or any(name.startswith(wanted) for name in names), names
    assert '"figures"' in get(f"{url}/snapshot")[1]
    assert program.stop().code == 0


def test_an_address_that_is_taken_is_one_line(programs: Programs) -> None:
    first = programs.start("mdp", "broker", "--bind", "ipc://one", "--http", "127.0.0.1:0")
    (port,) = re.findall(r"port=(\d+)", first.said("http serves"))
    ended = programs.run("mdp", "broker", "--bind", "ipc://two", "--http", f"127.0.0.1:{port}")
    assert ended.code == 69
    assert "choose another --http" in ended.err.splitlines()[-1]


def test_an_event_log_that_cannot_be_written_is_one_line(programs: Programs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = programs.run("mdp", "broker", "--bind", "ipc://b", "--events", "file")
    assert ended.code == 74
    assert "file" in ended.complaint
