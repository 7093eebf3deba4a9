"""`mdp broker --policies` of shards and of pairs, in real processes; the file is read again at SIGHUP (POL-04)."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Program, Programs

pytestmark = [
    pytest.mark.timeout(240),  # many processes, on a machine that may be busy
    pytest.mark.skipif(sys.platform == "win32", reason="processes of one command need POSIX"),
]
SERVICES = ("first", "second", "third")
LIMITED = '[[policy]]\nservices = ["*"]\nrate = {per_s = 0.0001}\n'
FREE = '[[policy]]\nservices = ["*"]\nrate = false\n'


def call(programs: Programs, at: tuple[str, ...], service: str, *more: str) -> str:
    """Ask a service; return what it answers, or why it does not."""
    ended = programs.run("mdp", "call", *at, "--timeout", "60", "--wait", *more, service, "x")
    return ended.out.decode().strip() or ended.err


def limits(programs: Programs, at: tuple[str, ...], service: str) -> None:
    """Check that a service is given one request and no second one."""
    assert call(programs, at, service) == "x"
    assert "DEADLINE_EXCEEDED" in call(programs, at, service, "--deadline", "0.3")


def read_again(policies: Path, content: str, *brokers: Program) -> None:
    policies.write_text(content)
    for broker in brokers:
        broker.signal(signal.SIGHUP)
        broker.said("reloaded")


def test_each_shard_has_the_policies_and_reads_them_again(programs: Programs, tmp_path: Path) -> None:
    policies = tmp_path / "policies.toml"
    policies.write_text(LIMITED)
    at = ("--broker", "ipc://broker.sock")
    broker = programs.start("mdp", "broker", "--bind", "ipc://broker.sock", "--shards", "2", "--policies", str(policies))
    broker.said("shards=2")
    for service in SERVICES:  # of both shards
        programs.start("mdp", "worker", *at, "--service", service, "--handler", "mdp.worker.builtin_handlers:echo").said("registered")
    for service in SERVICES:
        limits(programs, at, service)
    read_again(policies, FREE, broker)
    for service in SERVICES:
        assert [call(programs, at, service) for _ in range(2)] == ["x", "x"]
    assert broker.stop().code == 0


def test_both_brokers_of_a_pair_have_the_policies(programs: Programs, tmp_path: Path) -> None:
    policies = tmp_path / "policies.toml"
    policies.write_text(LIMITED)
    at = ("--broker", "ipc://p.front", "--broker", "ipc://b.front")
    brokers = []
    for role, mine, its in (("primary", "p", "b"), ("backup", "b", "p")):
        ends = ("--bstar-local", f"ipc://{mine}.state", "--bstar-remote", f"ipc://{its}.state", "--bstar-heartbeat-ms", "200")
        program = programs.start("mdp", "broker", "--bind", f"ipc://{mine}.front", "--bstar", role, *ends, "--policies", str(policies))
        program.said("broker serves")
        brokers.append(program)
    primary, backup = brokers
    primary.said("active")
    programs.start("mdp", "worker", *at, "--service", "echo", "--heartbeat-ms", "200").said("registered")
    limits(programs, at, "echo")
    primary.signal(signal.SIGKILL)
    limits(programs, at, "echo")
    backup.said("active")
    read_again(policies, FREE, backup)
    assert [call(programs, at, "echo") for _ in range(2)] == ["x", "x"]
