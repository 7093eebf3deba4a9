"""core.daemon.command and core.daemon.config: sources of a value, and fault X1: errors name the place and a fix."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

import majordomo_toolkit
import core
import mdp.commands.main
import titanic.commands.main
from core.daemon.command import BIND, CONNECT, Command
from core.daemon.config import CONFIG_BYTES_MAX, toml_text

if TYPE_CHECKING:
    from click.testing import Result

    from core.daemon.command import Group

SCRIPTS = Path(sysconfig.get_path("scripts"))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


program: Group = load(Path(__file__).parents[2] / "scenes" / "daemon_program.py").main


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(program, list(arguments))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "idle.toml"


def test_show_config_names_the_origin_of_each_value(config: Path) -> None:
    config.write_text('# ours\n[serve]\nbind = ["tcp://*:6", "ipc://x"]\nheartbeat-ms = 7\nfactor = 2\n')
    result = run(
        *("serve", "--config", str(config), "--show-config", "--heartbeat-ms", "9", "--secret", "abc"),
        env={"IDLE_SERVE_DRAIN_S": "3", "IDLE_LOG_LEVEL": "debug"},
    )
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "[serve]",
        f'bind = ["tcp://*:6", "ipc://x"]  # file {config}:3',
        "heartbeat_ms = 9  # flag --heartbeat-ms",
        f"factor = 2.0  # file {config}:5",
        'secret = "(hidden)"  # flag --secret',
        'ends = "when-told"  # default',
        "fault = []  # default",
        "drain_s = 3.0  # environment IDLE_SERVE_DRAIN_S",
        "# uvloop is not set",
        'log_format = "text"  # default',
        'log_level = "debug"  # environment IDLE_LOG_LEVEL',
    ]


def test_what_show_config_prints_is_a_config_file(config: Path) -> None:
    printed = run("serve", "--show-config", "--heartbeat-ms", "9").output
    config.write_text(printed)
    again = run("serve", "--show-config", "--config", str(config))
    assert again.exit_code == 0
    assert f"heartbeat_ms = 9  # file {config}:3" in again.output


def test_flags_beat_environment_beats_file_beats_default(config: Path) -> None:
    config.write_text("[serve]\nheartbeat_ms = 1\n")
    shown = "serve", "--show-config"
    file = "--config", str(config)
    env = {"IDLE_SERVE_HEARTBEAT_MS": "2"}
    assert "heartbeat_ms = 2500 " in run(*shown).output
    assert "heartbeat_ms = 1 " in run(*shown, *file).output
    assert "heartbeat_ms = 2 " in run(*shown, *file, env=env).output
    assert "heartbeat_ms = 2 " in run(*shown, *file, env=env | {"IDLE_HEARTBEAT_MS": "5"}).output
    assert "heartbeat_ms = 5 " in run(*shown, *file, env={"IDLE_HEARTBEAT_MS": "5"}).output
    assert "heartbeat_ms = 3 " in run(*shown, *file, "--heartbeat-ms", "3", env=env).output


def test_the_file_itself_may_come_from_the_environment(config: Path) -> None:
    config.write_text("[serve]\nheartbeat_ms = 1\n")
    assert "heartbeat_ms = 1 " in run("serve", "--show-config", env={"IDLE_CONFIG": str(config)}).output


@pytest.mark.parametrize(
    "text,line,said",
    [
        ("[serve]\nheartbeat_m = 7\n", 2, "[serve] has no key heartbeat_m; did you mean heartbeat_ms?"),
        ("[serve]\nxyzzy = 7\n", 2, "[serve] has no key xyzzy; keys are bind, drain_s,"),
        ("[serve]\n\nheartbeat_ms = 0\n", 3, "heartbeat_ms: 0 is not in the range x>=1; write a fitting value"),
        ("[serve]\nheartbeat_ms = 2.5\n", 2, "heartbeat_ms is 2.5; write an integer, such as 2500"),
        ("[serve]\nheartbeat_ms = true\n", 2, "heartbeat_ms is true; write an integer"),
        ('[serve]\nheartbeat_ms = "7"\n', 2, 'heartbeat_ms is "7"; write an integer'),
        ('[serve]\nfactor = "7"\n', 2, 'factor is "7"; write a number, such as 1.5'),
        ("[serve]\nuvloop = 1\n", 2, "uvloop is 1; write true or false"),
        ("[serve]\nlog_level = 1\n", 2, 'log_level is 1; write a text in quotes, such as "info"'),
        ('[serve]\nlog_level = "loud"\n', 2, "log_level: 'loud' is not one of"),
        ('[serve]\nbind = "tcp://*:1"\n', 2, 'bind is "tcp://*:1"; write a list'),
        ('[serve]\n"bind" = ["tcp://*"]\n', 2, "bind: 'tcp://*' has no port; write a fitting value"),
        ('[serve]\nconfig = "other.toml"\n', 2, "[serve] has no key config"),
        ("# x\n[serv]\nheartbeat_ms = 1\n", 2, "no command has a table [serv]; did you mean serve?"),
        ("# x\n[zzz]\n", 2, "no command has a table [zzz]; tables are fail, late, lazy, serve"),
        ("heartbeat_ms = 1\n", 1, "heartbeat_ms is outside any table; write it below [serve]"),
        ("serve.heartbeat_ms = 0\n", 1, "heartbeat_ms: 0 is not in the range"),
        ("[fail]\n[serve]\nbind = [\n", 3, "not TOML"),
        ("[serve]\nheartbeat_ms = \n", 2, "not TOML"),
    ],
)
def test_x1_bad_file_is_78_with_file_line_and_remedy(config: Path, text: str, line: int, said: str) -> None:
    config.write_text(text)
    result = run("serve", "--config", str(config))
    assert result.exit_code == 78
    assert result.stdout == ""
    assert f"{config}:{line}: " in result.stderr or "end of document" in result.stderr
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_tables_of_other_commands_are_left_alone(config: Path) -> None:
    config.write_text("[fail]\nanything = 1\n[serve]\nheartbeat_ms = 5\n")
    assert run("serve", "--config", str(config), "--show-config").exit_code == 0


@pytest.mark.parametrize("octets", [b"[serve]\n\xff\n", b"#" * (CONFIG_BYTES_MAX + 1)])
def test_x1_what_is_no_text_is_78(config: Path, octets: bytes) -> None:
    config.write_bytes(octets)
    result = run("serve", "--config", str(config))
    assert result.exit_code == 78
    assert str(config) in result.stderr


def test_x1_absent_file_is_78() -> None:
    result = run("serve", "--config", "no-such.toml")
    assert result.exit_code == 78
    assert result.stderr == "idle: no-such.toml: No such file or directory; check the path given to --config\n"


@pytest.mark.parametrize(
    "variable,value,said",
    [
        ("IDLE_SERVE_HEARTBEAT_MS", "soon", "'soon' is not a valid integer"),
        ("IDLE_HEARTBEAT_MS", "0", "0 is not in the range"),
        ("IDLE_BIND", "tcp://* tcp://*:5", "'tcp://*' has no port"),
    ],
)
def test_x1_bad_environment_is_78_and_names_the_variable(variable: str, value: str, said: str) -> None:
    result = run("serve", env={variable: value})
    assert result.exit_code == 78
    assert result.stderr.startswith(f"idle: {variable} in the environment: ")
    assert said in result.stderr


@pytest.mark.parametrize("arguments", [["--heartbeat-ms", "soon"], ["--bind", "nowhere"], ["--nonsense"], ["surplus"]])
def test_bad_flags_are_usage_errors(arguments: list[str]) -> None:
    result = run("serve", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize("how,code", [("request", 1), ("disk", 74)])
def test_x3_failures_are_one_printable_line(how: str, code: int) -> None:
    result = run("fail", how)
    assert result.exit_code == code
    assert result.stderr == "idle: the peer said \\x1b[31mno\\nand more\n"


@pytest.mark.parametrize(
    "arguments",
    [
        "titanic fetch W",
        "titanic wait W",
        "titanic close W",
        "titanic submit --key W echo hello",
        "mdp call --key=W echo hello",
        "mdp call W hello",
        "mdp describe W",
        "mdp stub W",
        "mdp mmi W",
    ],
)
def test_x3_an_argument_that_is_needed_as_text_and_is_not_utf_8_is_a_usage_error(arguments: str) -> None:
    program, *rest = arguments.replace("W", "q\udcff").split()  # as Python has such octets
    group = titanic.commands.main.main if program == "titanic" else mdp.commands.main.main
    result = CliRunner().invoke(group, [*rest, "--broker", "tcp://127.0.0.1:1"])
    assert result.exit_code == 2, result.output
    assert "q\\xff" in result.stderr.splitlines()[-1]


def test_interrupted_is_130() -> None:
    assert run("fail", "interrupt").exit_code == 130


def test_help_lists_lazy_commands_without_importing_them() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "Needs what is not there." in result.output
    assert "tests_have_no_such_module" not in sys.modules


def test_a_lazy_command_whose_module_is_absent_names_the_extra() -> None:
    result = run("lazy")
    assert result.exit_code == 78
    assert "needs tests_have_no_such_module, which is not installed" in result.stderr
    assert "majordomo-toolkit[spark]" in result.stderr


def test_a_lazy_command_runs_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("daemon_program_late")
    module.command = Command("late", callback=lambda: click.echo("done"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert run("late").output == "done\n"


def test_without_standalone_errors_are_the_callers() -> None:
    with pytest.raises(click.ClickException):
        program.main(["fail", "disk"], standalone_mode=False)


def test_endpoint_types_accept_what_the_socket_will() -> None:
    assert BIND("tcp://[::1]:*") == "tcp://[::1]:*"
    assert CONNECT("tcp://eth1:0;server:5555") == "tcp://eth1:0;server:5555"
    for check, text in ((BIND, "tcp://*"), (CONNECT, "tcp://*:5")):
        with pytest.raises(click.BadParameter):
            check(text)


@pytest.mark.parametrize(
    "value,text",
    [(True, "true"), (7, "7"), (1.5, "1.5"), ('a"b\\\n', '"a\\"b\\\\\\U0000000a"'), (("a", 1), '["a", 1]'), (Path("x"), '"x"')],
)
def test_toml_text(value: object, text: str) -> None:
    assert toml_text(value) == text


def test_every_program_tells_its_version() -> None:
    for name in majordomo_toolkit.COMMANDS:
        told = subprocess.run([SCRIPTS / name, "--version"], capture_output=True, text=True, check=True)
        assert told.stdout == f"{name} {core.__version__}\n"


def test_h_is_help_for_programs_and_commands() -> None:
    assert run("-h").output == run("--help").output
    assert run("serve", "-h").output == run("serve", "--help").output
    assert "--drain-s" in run("serve", "-h").output


LONG = """
import click
from core.daemon.command import Group

@click.group(cls=Group)
def main(): ...

@main.command()
def long(): click.echo("x" * 200_000)

main(["long"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what waits in a pipe is asked for as Linux has it")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_long_output_is_written_to_its_end_though_a_write_is_cut_short(unbuffered: str) -> None:
    """The process is stopped when the pipe is full, and goes on: its write was a short one."""
    import fcntl
    import termios

    with subprocess.Popen(
        [sys.executable, "-c", LONG], stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ) as program:
        assert program.stdout is not None
        size = fcntl.fcntl(program.stdout, fcntl.F_GETPIPE_SZ)
        while int.from_bytes(fcntl.ioctl(program.stdout, termios.FIONREAD, bytes(4)), sys.byteorder) < size:
            assert program.poll() is None
        program.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED)
        program.send_signal(signal.SIGCONT)
        assert program.stdout.read() == b"x" * 200_000 + b"\n"
    assert program.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("arguments", [("mdp", "--help"), ("zmtp", "keygen", "--help"), ("mdp", "broker", "--show-config")])
def test_an_output_that_cannot_be_written_is_one_line_and_74(arguments: tuple[str, ...]) -> None:
    program, *rest = arguments
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([SCRIPTS / program, *rest], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 74
    assert done.stderr == f"{program}: cannot write the output: No space left on device; free some space or write elsewhere\n"
