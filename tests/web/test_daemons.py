"""Every daemon is operated the same way: HTTP page, configuration, security, reload, end."""

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

from core.daemon.exit_codes import BadConfig
from core.security.authenticator import curve_keypair
from tests.scenes.programs import command_module

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Programs

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
# Values to try where an option has no default.
SAMPLES = ("1", "text", "ipc://x", "127.0.0.1:0", "b", "name=ipc://c,ipc://s")
NOT_CONFIGURED = ("config", "show_config", "help")
# Daemons that are not ready without another process, with the reason they give.
NOT_READY = {
    "mdp worker": "no broker knows echo\n",
    "titanic serve": "no broker knows titanic.request, titanic.reply, titanic.close, titanic.wait, titanic.batch, titanic.look\n",
    "titanic mirror": "no store\n",
}


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
    command: click.Command = import_module(command_module(program)).main
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
    command = ".".join(called(line)[0][1:])
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
    (tmp_path / "settings.toml").write_text(f'[{".".join(names[1:])}]\nlog_level = "error"\nlog_format = "json"\ndrain_s = 3.0\n')
    variable = "_".join([*names, "log_format"]).upper()
    monkeypatch.setenv(variable, "text")
    monkeypatch.setenv("_".join([*names, "drain_s"]).upper(), "4")
    main = import_module(command_module(program)).main
    main([*words, "--config", str(tmp_path / "settings.toml"), "--drain-s", "5", "--show-config"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert f'log_level = "error"  # file {tmp_path}/settings.toml:2' in shown
    assert f'log_format = "text"  # environment {variable}' in shown
    assert "drain_s = 5.0  # flag --drain-s" in shown
    assert "# http is not set" in shown


def value_for(option: click.Option, context: click.Context) -> str:
    """Return a value an option takes, as the environment gives it."""
    if option.is_flag:
        return "true"
    if isinstance(option.type, click.Choice):
        return str(option.type.choices[0])
    default = option.get_default(context)
    for value in (*(default if isinstance(default, tuple | list) else [default]), *SAMPLES):
        try:
            option.type_cast_value(context, [str(value)] if option.multiple else str(value))
        except click.BadParameter:
            continue
        if value not in (None, ""):  # an empty variable is none
            return str(value)
    raise AssertionError(f"what does {option.name} take?")


@pytest.mark.parametrize("line", DAEMONS)
def test_every_flag_of_a_daemon_has_its_variables_and_its_key(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable of the command, of each group above it and of the program; the key in the command's table."""
    names, command = called(line)
    words = [*names[1:], *(["a"] if any(isinstance(one, click.Argument) for one in command.params) else [])]
    main = import_module(command_module(names[0])).main
    context = click.Context(command)
    options = [one for one in command.params if isinstance(one, click.Option) and one.name not in NOT_CONFIGURED]
    assert len(options) > 10
    keys = {max(one.opts, key=len).removeprefix("--").replace("-", "_"): one for one in options}
    values = {key: value_for(option, context) for key, option in keys.items()}
    shown = ""
    for depth in range(len(names), 0, -1):
        prefix = "_".join(names[:depth]).upper()
        with monkeypatch.context() as patch:
            for key, value in values.items():
                patch.setenv(f"{prefix}_{key.upper()}", value)
            main([*words, "--show-config"], standalone_mode=False)
        shown = capsys.readouterr().out
        assert {key for key in keys if f"  # environment {prefix}_{key.upper()}\n" in shown} == set(keys)
    # What is shown is a file that says the same.
    file = tmp_path / "settings.toml"
    file.write_text(shown)
    main([*words, "--config", str(file), "--show-config"], standalone_mode=False)
    again = capsys.readouterr().out
    assert re.sub(r" # .*", "", again) == re.sub(r" # .*", "", shown)
    assert set(re.findall(rf"^(\w+) = .*  # file {re.escape(str(file))}:\d+$", again, re.MULTILINE)) == set(keys)


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
        import_module(command_module(program)).main([*words, *flags], standalone_mode=False)


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
