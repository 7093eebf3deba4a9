"""Security and rules on the command line, in real processes: access, SIGHUP, and refused files."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from core.security.authenticator import curve_keypair

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Program, Programs

pytestmark = pytest.mark.timeout(240)  # many processes, on a machine that may be busy

RULES = """\
[[allow]]
who = ["web"]
call = ["echo"]

[[allow]]
who = ["desk"]
serve = ["echo"]
"""


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def endpoint_of(line: str) -> str:
    found = re.search(r"tcp://127\.0\.0\.1:\d+", line)
    assert found is not None
    return found[0]


@pytest.fixture(params=["CURVE", "PLAIN"])
def flags(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, list[str]]:
    """Flags of broker, worker and client; the file that says who may connect is `clients` in both cases."""
    found: dict[str, list[str]] = {}
    users = ("web", "desk")
    if request.param == "PLAIN":
        found["broker"] = ["--plain-users", write(tmp_path / "clients", "web w\ndesk d\n")]
        for user in users:
            found[user] = ["--plain-user", user, "--plain-password", write(tmp_path / user, user[0])]
        return found
    keys = {user: tuple(key.decode() for key in curve_keypair()) for user in ("broker", *users)}
    clients = write(tmp_path / "clients", "".join(f"{keys[user][0]} {user}\n" for user in users))
    found["broker"] = ["--curve-secret", write(tmp_path / "broker.key", keys["broker"][1]), "--curve-authorized", clients]
    public = write(tmp_path / "broker.pub", keys["broker"][0], 0o644)
    for user, key in zip(users, (public, keys["broker"][0]), strict=True):  # a file with it, and the key itself
        found[user] = ["--curve-secret", write(tmp_path / f"{user}.key", keys[user][1]), "--curve-server-key", key]
    return found


def started(programs: Programs, flags: dict[str, list[str]], tmp_path: Path) -> tuple[Program, str]:
    """Start a broker with rules, and a worker."""
    rules = write(tmp_path / "rules.toml", RULES)
    broker = programs.start("mdp", "broker", "--bind", "tcp://127.0.0.1:0", "--rules", rules, *flags["broker"])
    where = endpoint_of(broker.said("serves"))
    programs.start("mdp", "worker", "--broker", where, "--service", "echo", *flags["desk"])
    return broker, where


def test_who_may_and_who_may_not_and_what_sighup_changes(programs: Programs, flags: dict[str, list[str]], tmp_path: Path) -> None:
    broker, where = started(programs, flags, tmp_path)
    call = ["mdp", "call", "--broker", where, "--timeout", "5", "--wait"]
    assert programs.run(*call, *flags["web"], "echo", "hello").lines == ["hello"]

    refused = programs.run(*call, *flags["web"], "secret", "hello")
    assert refused.code == 1
    assert "not allowed" in refused.complaint
    assert "user=web verb=call service=secret" in broker.said("refused by the rules")

    (tmp_path / "rules.toml").write_text(RULES.replace("call", "cal"))
    assert "did you mean call" in broker.signal(signal.SIGHUP).said("reload refused")
    assert programs.run(*call, *flags["web"], "echo", "as before").lines == ["as before"]

    (tmp_path / "rules.toml").write_text(RULES.replace('["echo"]', '["other"]', 1))
    broker.signal(signal.SIGHUP).said("reloaded")
    assert programs.run(*call, *flags["web"], "echo", "x").code == 1

    (tmp_path / "rules.toml").write_text(RULES)
    good = (tmp_path / "clients").read_text()
    (tmp_path / "clients").write_text("nonsense\n" + good)
    refused_line = broker.signal(signal.SIGHUP).said("reload refused")
    assert "clients:1: " in refused_line
    assert ("the keys in it count as soon as they are there" in refused_line) == ("--curve-authorized" in flags["broker"])
    (tmp_path / "clients").write_text(good.splitlines()[1] + "\n")
    broker.signal(signal.SIGHUP).said("reloaded")
    assert programs.run(*call[:-3], "--timeout", "1", "--attempts", "1", *flags["web"], "echo", "x").code == 69
    assert "peer refused" in broker.said("peer refused")
    assert broker.stop().code == 0


def test_no_access_without_credentials(programs: Programs, flags: dict[str, list[str]], tmp_path: Path) -> None:
    """Fault C4."""
    _, where = started(programs, flags, tmp_path)
    alone = programs.run("mdp", "call", "--broker", where, "--timeout", "0.5", "--attempts", "1", "echo", "x")
    assert alone.code == 69


@pytest.mark.parametrize(
    "arguments,code,words",
    [
        (["broker", "--curve-any-key"], 2, "give --curve-secret FILE"),
        (["broker", "--curve-secret", "open.key", "--curve-any-key"], 78, "chmod 600 open.key"),
        (["broker", "--curve-secret", "none.key", "--curve-any-key"], 78, "none.key: No such file"),
        (["broker", "--curve-secret", "good.key", "--plain-users", "users"], 2, "CURVE or PLAIN?"),
        (["broker", "--plain-users", "users"], 78, "users:1: a user without a password"),
        (["broker", "--rules", "rules.toml"], 78, "rules.toml:2: no key 'calls'; did you mean call?"),
        (["worker", "--service", "echo", "--curve-secret", "good.key"], 2, "give --curve-server-key KEY"),
        (["call", "--plain-user", "ann", "echo"], 2, "--plain-password FILE"),
        (["call", "--curve-server-key", "nowhere", "echo"], 78, "nowhere: No such file"),
    ],
)
def test_half_a_security_and_bad_files_are_refused_before_anything_begins(
    programs: Programs, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    """Fault X1."""
    secret = curve_keypair()[1].decode()
    write(tmp_path / "open.key", secret, 0o644)
    write(tmp_path / "good.key", secret)
    write(tmp_path / "users", "ann\n")
    write(tmp_path / "rules.toml", "[[allow]]\ncalls = ['x']\n")
    ended = programs.run("mdp", *arguments)
    assert ended.code == code
    assert words in ended.err
    assert secret not in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_gets_its_completion_script(programs: Programs, shell: str) -> None:
    told = programs.run("mdp", _MDP_COMPLETE=f"{shell}_source")
    assert told.code == 0
    assert b"_MDP_COMPLETE" in told.out


def test_commands_flags_and_choices_are_completed(programs: Programs) -> None:
    def completed(*words: str) -> list[str]:
        line = " ".join(("mdp", *words))
        ended = programs.run("mdp", _MDP_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)))
        return [entry.split(",")[-1] for entry in ended.lines]

    assert completed("bro") == ["broker"]
    assert "--curve-server-key" in completed("call", "--curve")
    assert completed("dlq", "re") == ["retry"]
