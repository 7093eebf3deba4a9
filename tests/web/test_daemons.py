"""Every daemon is operated the same way: shown over HTTP, configured, secured, told to read its configuration again, and ended."""

from __future__ import annotations

import json
import re
import signal
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.authenticator import curve_keypair
from core.exits import BadConfig
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


def called(line: str) -> tuple[list[str], click.Command]:
    """Return the names of the commands that a line calls, and the last of them itself."""
    program, *words = line.split()
    names = [program]
    command: click.Command = import_module(f"{program}.cli").main
    for word in words:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
        names.append(word)
    return names, command


@pytest.mark.parametrize("line", DAEMONS)
def test_a_daemon_shows_itself_reads_its_configuration_again_and_ends(programs: Programs, line: str, tmp_path: Path) -> None:
    command = called(line)[0][-1]
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[{command}]\nlog_level = "info"\n')
    program = programs.start(*line.split(), "--http", "127.0.0.1:0", "--config", str(settings))
    (port,) = re.findall(r"port=(\d+)", program.said("http serves"))
    url = f"http://127.0.0.1:{port}"
    assert get(f"{url}/healthz") == (200, "alive\n")
    missing = NOT_READY.get(" ".join(line.split()[:2]))
    assert get(f"{url}/readyz") == ((200, "ready\n") if missing is None else (503, missing))
    names = {family.name for family in text_string_to_metric_families(get(f"{url}/metrics")[1])}
    wanted = DAEMONS[line]
    assert wanted is None or any(name.startswith(wanted) for name in names), names
    assert '"figures"' in get(f"{url}/snapshot")[1]
    settings.write_text(f'[{command}]\nlog_levle = "info"\n')
    refused = program.signal(signal.SIGHUP).said("reload refused")
    assert f"{settings}:2: [{command}] has no key log_levle; did you mean log_level?" in refused
    settings.write_text(f'[{command}]\nlog_level = "info"\nlog_format = "json"\ndrain_s = 2.0\n')
    reloaded = json.loads(program.signal(signal.SIGHUP).said("reloaded"))
    assert (reloaded["applied"], reloaded["need_restart"]) == ("log_format", "drain_s")
    assert get(f"{url}/healthz") == (200, "alive\n")
    assert program.stop().code == 0


@pytest.mark.parametrize("line", DAEMONS)
def test_a_daemon_has_its_values_from_flag_environment_file_and_default(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = called(line)[0]
    program, *words = line.split()
    (tmp_path / "settings.toml").write_text(f'[{names[-1]}]\nlog_level = "error"\nlog_format = "json"\ndrain_s = 3.0\n')
    variable = "_".join([*names, "log_format"]).upper()
    monkeypatch.setenv(variable, "text")
    monkeypatch.setenv("_".join([*names, "drain_s"]).upper(), "4")
    main = import_module(f"{program}.cli").main
    main([*words, "--config", str(tmp_path / "settings.toml"), "--drain-s", "5", "--show-config"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert f'log_level = "error"  # file {tmp_path}/settings.toml:2' in shown
    assert f'log_format = "text"  # environment {variable}' in shown
    assert "drain_s = 5.0  # flag --drain-s" in shown
    assert "# http is not set" in shown


@pytest.mark.parametrize("line", DAEMONS)
def test_a_daemon_takes_no_secret_that_others_can_read(line: str, tmp_path: Path) -> None:
    public, secret = (key.decode() for key in curve_keypair())
    (tmp_path / "open.key").write_text(secret)
    (tmp_path / "open.key").chmod(0o644)
    program, *words = line.split()
    names = {option.name for option in called(line)[1].params}
    flags = ["--curve-secret", str(tmp_path / "open.key")]
    flags += ["--curve-any-key"] if "curve_any_key" in names else []
    flags += ["--curve-server-key", public] if "curve_server_keys" in names else []
    with pytest.raises(BadConfig, match=r"open\.key"):
        import_module(f"{program}.cli").main([*words, *flags], standalone_mode=False)


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
