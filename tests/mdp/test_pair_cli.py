"""`mdp broker --bstar`: two brokers in processes of their own, and what is done to them by signals and by operators."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.command_line import Program, Programs

pytestmark = pytest.mark.timeout(240)  # many processes, on a machine that may be busy

BEAT = ("--bstar-heartbeat-ms", "200")
FRONTS = ("--broker", "ipc://p.front", "--broker", "ipc://b.front")
CALL = ("mdp", "call", *FRONTS, "--timeout", "20", "--attempts", "1", "--wait")


def broker(programs: Programs, role: str, *more: str) -> Program:
    mine, its = ("p", "b") if role == "primary" else ("b", "p")
    ends = ("--bstar-local", f"ipc://{mine}.state", "--bstar-remote", f"ipc://{its}.state", "--bstar-control", f"ipc://{mine}.control")
    program = programs.start("mdp", "broker", "--bind", f"ipc://{mine}.front", "--bstar", role, *ends, *BEAT, *more)
    program.said("broker serves")
    return program


def pair(programs: Programs, *more: str) -> tuple[Program, Program]:
    primary, backup = broker(programs, "primary", *more), broker(programs, "backup", *more)
    primary.said("active")
    backup.said("passive")
    programs.start("mdp", "worker", *FRONTS, "--service", "echo", "--heartbeat-ms", "200").said("registered")
    return primary, backup


def ask(programs: Programs, body: str) -> None:
    ended = programs.run(*CALL, "echo", body)
    assert (ended.code, ended.lines) == (0, [body]), ended.err


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=lambda s: s.name)
def test_the_other_broker_takes_over_and_keeps_the_role(programs: Programs, stop: signal.Signals) -> None:
    primary, backup = pair(programs)
    ask(programs, "before")
    primary.signal(stop)
    ask(programs, "after")
    backup.said("active")
    if stop is signal.SIGSTOP:
        primary.signal(signal.SIGCONT)
        primary.said("passive")
    else:
        assert primary.end().code == (0 if stop is signal.SIGTERM else -stop)
        broker(programs, "primary").said("passive")
    ask(programs, "at last")


def test_status_and_switchover_of_brokers_with_a_witness(programs: Programs) -> None:
    """BST-36, BST-37, BEY-12."""
    # Nobody is killed here: with intervals so long a busy machine does not make the backup take over by itself.
    programs.start("bstar", "witness", "--bind", "ipc://w", "--heartbeat-ms", "1000").said("witness runs")
    primary, backup = pair(programs, "--bstar-witness", "ipc://w", "--bstar-heartbeat-ms", "1000")
    ask(programs, "before")
    status = json.loads(programs.run("bstar", "status", "--control", "ipc://p.control", "--json").out)
    assert {"state": "active", "serving": True, "guard": "witness", "safe": True}.items() <= status.items()
    assert status["lease_left_s"] > 0
    assert status["peer"]["age_s"] >= 0
    done = programs.run("bstar", "switchover", "--control", "ipc://p.control", "--json")
    assert json.loads(done.out)["state"] == "passive"
    primary.said("passive")
    backup.said("active")
    ask(programs, "after")
    assert [program.stop().code for program in (primary, backup)] == [0, 0]


def test_titanic_follows_a_pair_of_brokers(programs: Programs) -> None:
    """What was acknowledged before the broker was killed is answered and fetched after."""
    primary, backup = pair(programs)
    programs.start("titanic", "serve", *FRONTS, "--memory", "--heartbeat-ms", "200").said("titanic serves")
    patient = (*FRONTS, "--timeout", "10")
    early = programs.run("titanic", "submit", *patient, "echo", "before")
    assert early.code == 0, early.err
    primary.signal(signal.SIGKILL)
    late = programs.run("titanic", "submit", *patient, "echo", "after")
    assert late.code == 0, late.err
    backup.said("active")
    for ended, body in ((early, "before"), (late, "after")):
        reply = programs.run("titanic", "wait", *patient, *ended.lines)
        assert (reply.code, reply.lines) == (0, [body]), reply.err


@pytest.mark.parametrize(
    "options, words",
    [
        (("--bstar-local", "ipc://a"), "--bstar-local needs --bstar primary or backup"),
        (("--bstar", "primary", "--bstar-local", "ipc://a"), "one of a pair needs --bstar-remote"),
        (("--bstar", "both"), "'both' is not one of"),
    ],
)
def test_half_a_pair_is_2(programs: Programs, options: tuple[str, ...], words: str) -> None:
    ended = programs.run("mdp", "broker", "--bind", "ipc://f", *options)
    assert ended.code == 2
    assert words in ended.err


def test_two_primaries_are_78(programs: Programs) -> None:
    """BST-08."""
    names = (("a", "b"), ("b", "a"))
    started = [
        programs.start(
            "mdp",
            "broker",
            "--bind",
            f"ipc://{mine}.f",
            "--bstar",
            "primary",
            "--bstar-local",
            f"ipc://{mine}",
            "--bstar-remote",
            f"ipc://{its}",
            *BEAT,
        )
        for mine, its in names
    ]
    code, err = next((ended.code, ended.err) for ended in [_first_to_end(started).end()])
    assert code == 78
    assert "both servers are configured as primary: start one of them as backup" in err


def _first_to_end(programs: list[Program]) -> Program:
    while True:
        for program in programs:
            if program.process.poll() is not None:
                return program
