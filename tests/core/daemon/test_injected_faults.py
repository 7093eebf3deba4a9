"""Faults injected into the timers of a daemon and a listener: signals, drain and watchdog still work."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

import core
from core.net import acceptor
from tests.core.daemon.conftest import Start, line_with
from tests.scenes.fault_injection import sabotaged

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.faults

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


def test_a_drain_is_over_when_its_time_is_also_when_that_fails(start: Start) -> None:
    process = start("--ends", "never", "--drain-s", "0", "--fault", "daemon drain")
    line_with(process, "listening")
    process.send_signal(signal.SIGTERM)
    line_with(process, "daemon drain: Broken")
    line_with(process, "drain time is over")
    assert process.wait() == 0


def test_what_is_to_be_read_again_can_be_read_again_after_a_fault(start: Start) -> None:
    process = start("--fault", "daemon reload")
    line_with(process, "listening")
    process.send_signal(signal.SIGHUP)
    line_with(process, "daemon reload: Broken")
    process.send_signal(signal.SIGHUP)
    line_with(process, "reloaded")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="service managers listen on Unix sockets")
def test_the_service_manager_hears_of_a_daemon_whose_watchdog_failed_once(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(LISTEN_S)
        process = start("--fault", "daemon watchdog", NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC="50000")
        line_with(process, "daemon watchdog: Broken")
        assert manager.recv(4096).startswith(b"READY=1")
        assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
