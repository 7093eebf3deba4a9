"""Notifications of a daemon to a service manager, on a socket like systemd's: ready, alive, draining."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).parents[2] / "scenes" / "daemon_program.py"
LISTEN_S = 60.0

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="service managers listen on Unix sockets")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(LISTEN_S)
        yield listening


def start(address: str, **environment: str) -> subprocess.Popen[bytes]:
    own = os.environ | {"NOTIFY_SOCKET": address} | environment
    return subprocess.Popen([sys.executable, PROGRAM, "serve"], stderr=subprocess.DEVNULL, env=own)


def test_ready_when_it_serves_and_stopping_when_it_drains(manager: socket.socket) -> None:
    with start(manager.getsockname()) as process:
        assert manager.recv(4096).split(b"\n") == [b"READY=1", b"STATUS=listening"]
        process.send_signal(signal.SIGTERM)
        assert manager.recv(4096).split(b"\n") == [b"STOPPING=1", b"STATUS=draining"]
        assert process.wait() == 0


def test_the_watchdog_is_notified_repeatedly_while_the_loop_runs(manager: socket.socket) -> None:
    with start(manager.getsockname(), WATCHDOG_USEC="50000") as process:
        assert manager.recv(4096).startswith(b"READY=1")
        assert [manager.recv(4096) for _ in range(4)] == [b"WATCHDOG=1"] * 4
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_a_watchdog_of_another_process_is_not_told(manager: socket.socket) -> None:
    with start(manager.getsockname(), WATCHDOG_USEC="50000", WATCHDOG_PID="1") as process:
        assert manager.recv(4096).startswith(b"READY=1")
        process.send_signal(signal.SIGTERM)
        assert manager.recv(4096).startswith(b"STOPPING=1")
        assert process.wait() == 0


def test_a_manager_that_does_not_listen_stops_nothing(tmp_path: Path) -> None:
    own = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "absent")}
    done = subprocess.run([sys.executable, PROGRAM, "serve", "--ends", "at-once"], stderr=subprocess.PIPE, text=True, env=own, check=False)
    assert done.returncode == 0
    assert done.stderr.count("the service manager cannot be notified") == 1
