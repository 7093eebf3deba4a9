"""`mdp config check`: every problem of a configuration file, with its line and a fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mdp.commands.main import main
from mdp.commands.settings.config import PROGRAMS

if TYPE_CHECKING:
    from click.testing import Result

EXAMPLES = Path(__file__).parents[4] / "deploy" / "example"


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["config", "check", *arguments])


BAD = """\
x = 1
[broker]
heartbeat_ms = "a"
liveness = 0
bind = ["nope"]
queue_max = true
letters_mx = 3
[cal]
timeout = 1
[ctx.ls]
jsn = true
[worker]
dialect = "0.4"
"""


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(BAD)
    result = check(str(file))
    assert result.exit_code == 78
    lines = result.output.replace(f"mdp: {file}:", "").splitlines()
    assert sorted(lines, key=lambda line: int(line.partition(":")[0])) == [
        "1: x is outside any table; write it below [bench]",
        '3: heartbeat_ms is "a"; write a number, such as 2500',
        "4: liveness: 0 is not in the range x>=1; write a fitting value or remove the line",
        "5: bind: 'nope' is not scheme://address; write a fitting value or remove the line",
        "6: queue_max is true; write an integer, such as 200000",
        "7: [broker] has no key letters_mx; did you mean letters_max?",
        "8: no command has a table [cal]; did you mean call?",
        "11: [ctx.ls] has no key jsn; did you mean json?",
        "13: dialect: '0.4' is not one of 'auto', '0.1', '0.2', '0.3'; write a fitting value or remove the line",
    ]
    found = check(str(file), "--json")
    assert found.exit_code == 78
    assert len(json.loads(found.output)["problems"]) == 9


def test_a_good_file_is_ok_and_its_commands_are_named(tmp_path: Path) -> None:
    file = tmp_path / "good.toml"
    file.write_text('[broker]\nbind = ["tcp://*:5555"]\nheartbeat-ms = 100\n[worker]\nservice = "echo"\n[ctx.ls]\njson = true\n')
    result = check(str(file))
    assert (result.exit_code, result.output) == (0, f"{file}: ok, for mdp broker, mdp ctx ls, mdp worker\n")


def test_a_missing_file_is_reported_with_what_to_do(tmp_path: Path) -> None:
    result = check(str(tmp_path / "none.toml"))
    assert (result.exit_code, result.output) == (
        78,
        f"mdp: {tmp_path}/none.toml: No such file or directory; give the path of the file to check\n",
    )


def test_rules_and_policies_that_a_file_names_are_read_too(tmp_path: Path) -> None:
    rules, policies, file = tmp_path / "rules.toml", tmp_path / "policies.toml", tmp_path / "broker.toml"
    file.write_text(f'[broker]\nrules = "{rules}"\npolicies = "{policies}"\n')
    rules.write_text('[[allow]]\nwho = ["a"]\nserv = ["echo"]\n')
    policies.write_text('[[policy]]\nservices = ["*"]\n\nrate = {per_s = "many"}\n')
    result = check(str(file))
    assert result.exit_code == 78
    first, second = result.output.splitlines()
    assert first == f"mdp: {rules}:3: no key 'serv'; did you mean serve?"
    assert second.startswith(f"mdp: {policies}:4: rate: ")
    policies.write_text("[[policy]\n")
    rules.unlink()
    first, second = check(str(file)).output.splitlines()
    assert first == f"mdp: {rules}: No such file or directory; correct it in {file}:2"
    assert second.startswith(f"mdp: {policies}:1: not TOML")
    assert json.loads(check(str(file), "--json").output)["problems"] == [first.removeprefix("mdp: "), second.removeprefix("mdp: ")]
    rules.write_text('[[allow]]\nwho = ["a"]\nserve = ["echo"]\n')
    policies.write_text('[[policy]]\nservices = ["*"]\nrate = {per_s = 5}\n')
    assert check(str(file)).exit_code == 0


@pytest.mark.parametrize(
    ("name", "program", "command"),
    [
        ("broker-a", "mdp", "mdp broker"),
        ("worker", "mdp", "mdp worker"),
        ("titanic", "titanic", "titanic serve"),
        ("witness", "bstar", "bstar"),
    ],
)
def test_the_files_of_the_deployment_are_ok(name: str, program: str, command: str, tmp_path: Path) -> None:
    file = tmp_path / "installed.toml"
    file.write_text((EXAMPLES / f"{name}.toml").read_text().replace("/etc/majordomo/", f"{EXAMPLES}/"))  # where they are installed
    result = check(str(file), "--program", program)
    assert result.exit_code == 0, result.output
    assert f"ok, for {command}" in result.output


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_can_be_asked_about(program: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.toml"
    file.write_text("")
    assert check(str(file), "--program", program).output == f"{file}: ok, for no command\n"


def test_what_is_no_toml_or_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("[broker]\nbind = tcp\n")
    assert check(str(file)).exit_code == 78
    assert f"{file}:2: not TOML" in check(str(file)).output
    assert check(str(tmp_path / "none.toml")).exit_code == 78
