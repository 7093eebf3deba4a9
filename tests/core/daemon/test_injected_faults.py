"""Faults injected into the timers of a daemon and a listener: signals, drain and watchdog still work."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import core
from core.net import acceptor
from tests.scenes.fault_injection import sabotaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.faults

PROGRAM = Path(__file__).parents[2] / "scenes" / "daemon_program.py"
LISTEN_S = 60.0


async def test_connections_are_accepted_again_after_a_fault_of_the_clock_that_waits_for_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, refused = socket.socket.accept, 0

    def without_descriptors(listening: socket.socket) -> tuple[socket.socket, object]:
        nonlocal refused
        if not refused:
            refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", without_descriptors)
    monkeypatch.setattr(acceptor, "RETRY_S", 0.01)
    ours = isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)  # uvloop accepts by itself
    with sabotaged(*["core accept clock"] * ours):
        async with core.Context() as context:
            server, client = context.socket(core.PULL), context.socket(core.PUSH, reconnect_ivl=1)
            server.bind(f"ipc://{tmp_path}/s")
            client.connect(server.last_endpoint)
            await client.send(b"x")
            assert await server.recv() == b"x"
    assert refused == ours


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), "serve", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def said(process: subprocess.Popen[str], word: str) -> str:
    """Return the next line of the log with a word in it."""
    assert process.stderr is not None
    return next(line for line in process.stderr if word in line)


def test_a_drain_is_over_when_its_time_is_also_when_that_fails(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("--ends", "never", "--drain-s", "0", "--fault", "daemon drain")
    said(process, "listening")
    process.send_signal(signal.SIGTERM)
    said(process, "daemon drain: Broken")
    said(process, "drain time is over")
    assert process.wait() == 0


def test_what_is_to_be_read_again_can_be_read_again_after_a_fault(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("--fault", "daemon reload")
    said(process, "listening")
    process.send_signal(signal.SIGHUP)
    said(process, "daemon reload: Broken")
    process.send_signal(signal.SIGHUP)
    said(process, "reloaded")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="service managers listen on Unix sockets")
def test_the_service_manager_hears_of_a_daemon_whose_watchdog_failed_once(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(LISTEN_S)
        process = start("--fault", "daemon watchdog", NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC="50000")
        said(process, "daemon watchdog: Broken")
        assert manager.recv(4096).startswith(b"READY=1")
        assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
