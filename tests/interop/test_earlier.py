"""Files that an earlier version wrote, opened by this one: stores of a pair, ballots and an event log.

`earlier.tar.xz` was written by the commands of that version: a pair of Titanics, a broker of a pair with its witness, and seventeen
requests with keys. Both stores were killed. `tickets` names the requests: eleven answered, the second one closed, four waiting for the
service `later`, one dead.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from bstar.cli import main as bstar
from mdp.commands.main import main as mdp
from titanic.commands.main import main as titanic

if TYPE_CHECKING:
    import click

    from tests.scenes.programs import Programs

HERE = Path(__file__).parent
CENTURY_MS = "3155760000000"  # the files have the date of the day on which they were written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(HERE / "earlier.tar.xz") as files:
        for name in files.getnames():  # one by one: 3.11.3 and earlier have no `filter`, and later ones ask for it
            member = files.extractfile(name)
            if member is not None:
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(member.read())
    return tmp_path


def lines(command: click.Command, *arguments: str | Path) -> list[str]:
    done = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.mark.parametrize("store", ["p.store", "b.store"])
def test_store_and_mirror_are_whole(folder: Path, store: str) -> None:
    assert lines(titanic, "verify", "--store", folder / store)[0].startswith("32 records, 65536 bytes read")
    tickets = (folder / "tickets").read_text().split()
    del tickets[1]
    stored = [json.loads(line) for line in lines(titanic, "export", "--store", folder / store)]
    assert [entry["uuid"] for entry in stored] == tickets
    assert [entry["state"] for entry in stored] == ["answered"] * 11 + ["waiting"] * 4 + ["dead"]
    assert [entry["key"] for entry in stored[:11]] == [f"k-{n}" for n in range(1, 13) if n != 2]


@pytest.mark.parametrize(
    ("ballot", "said"),
    [
        ("p.ballot", {"owner: server", "node: e1a105414cc9dcf9", "counter: 1"}),
        ("broker.ballot", {"owner: server", "node: f71d7dc5eb923e9f", "counter: 1"}),
        ("witness.ballot", {"owner: witness", "highest: 1.f71d7dc5eb923e9f"}),
    ],
)
def test_ballots_are_read(folder: Path, ballot: str, said: set[str]) -> None:
    assert said <= set(lines(bstar, "ballot", "show", folder / ballot))


def test_the_event_log_is_read(folder: Path) -> None:
    events = lines(mdp, "events", "show", folder / "events")
    assert len(events) == 66
    assert events[0].split()[1:3] == ["worker_ready", "echo"]


def test_the_pair_goes_on_where_it_was(folder: Path, programs: Programs) -> None:
    """The files stand in the folder of the programs: `programs` and `folder` share the test's own."""
    tickets = (folder / "tickets").read_text().split()
    broker = ("--broker", "ipc://bk")
    programs.start("bstar", "witness", "--bind", "ipc://wit", "--store", "witness.ballot").said("witness runs")
    programs.start(
        *("mdp", "broker", "--bind", "ipc://bk", "--events", "events", "--bstar", "primary", "--bstar-local", "ipc://bp"),
        *("--bstar-remote", "ipc://bb", "--bstar-witness", "ipc://wit", "--bstar-store", "broker.ballot"),
    ).said("broker serves")
    for role, own, other in (("primary", "p", "b"), ("backup", "b", "p")):
        programs.start(
            *("titanic", "serve", *broker, "--store", f"{own}.store", "--bstar", role, "--bstar-store", f"{own}.ballot"),
            *("--bstar-local", f"ipc://{own}.state", "--bstar-remote", f"ipc://{other}.state", "--mirror", f"ipc://{other}.mirror"),
            *("--mirror-bind", f"ipc://{own}.mirror", "--mirror-away", "go-on", "--segment-bytes", "65536", "--key-age-ms", CENTURY_MS),
        )
    assert programs.run("titanic", "wait", *broker, tickets[2]).lines == ["order 3"]
    repeated = programs.run("titanic", "submit", *broker, "--key", "k-2", "echo", "order 2")
    assert repeated.lines == [tickets[1]], repeated.err  # the key of a closed request is known
    assert programs.run("titanic", "fetch", *broker, tickets[1]).code == 1
    assert programs.run("titanic", "submit", *broker, "--key", "k-7", "echo", "order 8").code == 1
    programs.start("mdp", "worker", *broker, "--service", "later", "--handler", "echo")
    assert programs.run("titanic", "wait", *broker, tickets[15]).lines == ["late 4"]
