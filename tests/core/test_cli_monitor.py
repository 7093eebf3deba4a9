"""`zmtp monitor` names the peer and what it calls itself, and says why a connection ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.scenes.programs import Programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    running = Programs(tmp_path)
    yield running
    running.close()


def send(programs: Programs, identity: str) -> int:
    return programs.run("core", "send", "--type", "dealer", "--connect", "ipc://x.sock", "--option", f"identity={identity}", "x").code


def test_json_has_peer_identity_and_reason(programs: Programs) -> None:
    monitor = programs.start("core", "monitor", "--type", "router", "--bind", "ipc://x.sock", "--count", "4", "--json")
    assert monitor.process.stdout is not None
    monitor.process.stdout.readline()
    assert send(programs, "till-7") == 0
    events = [json.loads(line) for line in monitor.end().lines]
    assert [event["event"] for event in events] == ["ACCEPTED", "HANDSHAKE_SUCCEEDED", "DISCONNECTED"]
    _, ready, gone = events
    assert ready["peer"]
    assert ready["identity"] == "till-7"
    assert (gone["peer"], gone["identity"]) == (ready["peer"], "till-7")
    assert gone["reason"]


def test_a_line_has_them_as_words(programs: Programs) -> None:
    monitor = programs.start("core", "monitor", "--type", "router", "--bind", "ipc://x.sock", "--count", "3")
    assert monitor.process.stdout is not None
    monitor.process.stdout.readline()
    assert send(programs, "till-7") == 0
    accepted, ready = monitor.end().lines
    assert "identity" not in accepted
    assert " peer=" in ready
    assert " identity=till-7" in ready


def test_a_peer_that_speaks_something_else_is_named_with_the_reason(programs: Programs) -> None:
    monitor = programs.start("core", "monitor", "--type", "rep", "--bind", "ipc://x.sock", "--count", "3", "--json")
    assert monitor.process.stdout is not None
    monitor.process.stdout.readline()
    programs.run("core", "send", "--type", "push", "--connect", "ipc://x.sock", "--timeout", "0.5", "x")
    failed = json.loads(monitor.end().lines[-1])
    assert failed["event"].startswith("HANDSHAKE_FAILED")
    assert "PUSH" in failed["reason"]
    assert failed["peer"]
