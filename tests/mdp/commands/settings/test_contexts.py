"""`mdp ctx`: named contexts, and what comes before and after their values."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from mdp.commands.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

BROKER = "tcp://10.0.0.1:5555"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MDP_CONTEXT", raising=False)
    monkeypatch.delenv("MDP_BROKER", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mdp(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(main, arguments, auto_envvar_prefix="MDP")


def shown(*arguments: str, **environment: str) -> dict[str, str]:
    """Return what --show-config says about a call, by option."""
    result = mdp("call", *arguments, "--show-config", "echo", **environment)
    assert result.exit_code == 0, result.output
    return {line.split(" = ")[0]: line.split(" = ")[1] for line in result.output.splitlines() if " = " in line}


def test_the_first_context_is_used_and_says_where_its_values_come_from(home: Path) -> None:
    assert mdp("ctx", "ls").output == ""
    added = mdp("ctx", "add", "prod", "--broker", BROKER, "--timeout", "1.5")
    assert added.exit_code == 0, added.output
    file = home / "config" / "majordomo" / "contexts" / "prod.toml"
    assert str(file) in added.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    values = shown()
    assert values["broker"] == f'["{BROKER}"]  # context prod {file}:2'
    assert values["timeout"] == f"1.5  # context prod {file}:3"
    assert values["attempts"] == "3  # default"
    assert mdp("ctx", "ls").output == f'* prod  broker = ["{BROKER}"], timeout = 1.5\n'


def test_flag_environment_context_file_default_in_this_order(home: Path) -> None:
    mdp("ctx", "add", "prod", "--timeout", "4")
    (home / "mdp.toml").write_text("[call]\ntimeout = 5.0\nattempts = 7\n")
    config = ("--config", "mdp.toml")
    assert shown("--timeout", "1", *config, MDP_TIMEOUT="2")["timeout"].startswith("1.0  # flag")
    assert shown(*config, MDP_TIMEOUT="2")["timeout"].startswith("2.0  # environment")
    assert shown(*config)["timeout"].startswith("4.0  # context prod")
    assert shown(*config)["attempts"] == "7  # file mdp.toml:3"
    assert shown(*config, MDP_CONTEXT="")["timeout"] == "5.0  # file mdp.toml:2"
    assert shown(MDP_CONTEXT="")["timeout"] == "2.5  # default"


def test_another_context_can_be_used_once_for_good_or_not_at_all() -> None:
    mdp("ctx", "add", "prod", "--broker", BROKER)
    mdp("ctx", "add", "test", "--broker", "ipc://test.sock")
    assert shown()["broker"].startswith(f'["{BROKER}"]')
    assert shown(MDP_CONTEXT="test")["broker"].startswith('["ipc://test.sock"]')
    assert mdp("ctx", "use", "test").output == "test is used\n"
    assert shown()["broker"].startswith('["ipc://test.sock"]')
    assert json.loads(mdp("ctx", "ls", "--json").output)["contexts"] == [
        {"name": "prod", "used": False, "broker": [BROKER]},
        {"name": "test", "used": True, "broker": ["ipc://test.sock"]},
    ]
    assert mdp("ctx", "use", "prod", MDP_CONTEXT="test").output == "prod is used\nMDP_CONTEXT in the environment comes first: test\n"
    assert mdp("ctx", "rm", "prod").output == "prod is removed\n"
    assert shown()["broker"].endswith("# default")
    assert mdp("ctx", "use").output == "no context is used\n"
    assert "test" in mdp("ctx", "ls").output


def test_paths_of_files_are_stored_for_every_folder(home: Path) -> None:
    (home / "password").write_text("secret\n")
    (home / "password").chmod(0o600)
    added = mdp("ctx", "add", "prod", "--plain-user", "anna", "--plain-password", "password")
    assert added.exit_code == 0, added.output
    assert shown()["plain_password"].startswith(f'"{home}/password"')
    assert "secret" not in (home / "config" / "majordomo" / "contexts" / "prod.toml").read_text()


def test_a_context_applies_to_workers_and_not_to_the_broker() -> None:
    mdp("ctx", "add", "prod", "--broker", BROKER, "--timeout", "4")
    worker = mdp("worker", "--show-config", "--service", "echo")
    assert f'broker = ["{BROKER}"]  # context prod' in worker.output
    assert "context prod" not in mdp("broker", "--show-config").output
    assert "context prod" not in mdp("ctx", "add", "other", "--show-config").output


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("ctx", "add", "../up", "--broker", BROKER), 2, "cannot be a name"),
        (("ctx", "add", "prod", "--broker", BROKER), 2, "there is a context 'prod'; give --replace"),
        (("ctx", "add", "empty"), 2, "a context of nothing?"),
        (("ctx", "add", "bad", "--broker", "nowhere"), 2, "is not scheme://address"),
        (("ctx", "use", "missing"), 2, "there is no context 'missing'; there are: prod"),
        (("ctx", "rm", "missing"), 2, "there is no context 'missing'; there are: prod"),
        (("ctx", "add", "prod", "--replace", "--attempts", "1"), 0, "prod is stored"),
    ],
)
def test_mistakes_are_usage_errors(arguments: tuple[str, ...], code: int, text: str) -> None:
    mdp("ctx", "add", "prod", "--broker", BROKER)
    result = mdp(*arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_a_missing_or_damaged_context_ends_a_command_with_78(home: Path) -> None:
    mdp("ctx", "add", "prod", "--broker", BROKER)
    missing = mdp("call", "echo", MDP_CONTEXT="missing")
    assert (missing.exit_code, missing.output.strip()) == (
        78,
        "mdp: MDP_CONTEXT in the environment: there is no context 'missing'; there are: prod",
    )
    file = home / "config" / "majordomo" / "contexts" / "prod.toml"
    file.write_text("[context]\ntimeout = -1\nbrocker = []\n")
    damaged = mdp("call", "echo")
    assert (damaged.exit_code, damaged.output.strip()) == (78, f"mdp: {file}:3: [context] has no key brocker; did you mean broker?")
    file.write_text("[context]\ntimeout = -1\n")
    wrong = mdp("call", "echo")
    assert wrong.exit_code == 78
    assert f"{file}:2: timeout: -1" in wrong.output


def test_one_command_can_choose_its_context() -> None:
    mdp("ctx", "add", "prod", "--timeout", "1")
    mdp("ctx", "add", "test", "--timeout", "2")

    def timeout(*flags: str, **environment: str) -> str:
        output = mdp(*flags, "call", "--show-config", "echo", **environment).output
        return next(line for line in output.splitlines() if line.startswith("timeout"))

    assert timeout().startswith("timeout = 1.0  # context prod")
    assert timeout("--context", "test").startswith("timeout = 2.0  # context test")
    assert timeout("--context", "test", MDP_CONTEXT="prod").startswith("timeout = 2.0  # context test")
    assert timeout("--context", "") == "timeout = 2.5  # default"
    assert "* test  " in mdp("--context", "test", "ctx", "ls").output
    refused = mdp("--context", "tset", "call", "echo")
    assert (refused.exit_code, "there is no context 'tset'; there are: prod, test" in refused.output) == (78, True)


def test_names_of_contexts_and_a_contexts_broker_serve_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    async def ask(brokers: list[str], security: object) -> list[str]:
        asked.append([*brokers])
        return ["echo"]

    monkeypatch.setattr("mdp.commands.settings.completion._ask", ask)
    mdp("ctx", "add", "prod", "--broker", BROKER)
    mdp("ctx", "add", "test", "--broker", "tcp://10.0.0.2:5555")
    shell = BashComplete(main, {}, "mdp", "_MDP_COMPLETE")
    assert [one.value for one in shell.get_completions(["--context"], "t")] == ["test"]
    assert [one.value for one in shell.get_completions(["call"], "e")] == ["echo"]
    assert [one.value for one in shell.get_completions(["--context", "test", "call"], "e")] == ["echo"]
    assert asked == [[BROKER], ["tcp://10.0.0.2:5555"]]
