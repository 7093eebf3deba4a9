"""core.daemon.logs: a daemon whose log is not read goes on, and says how many lines it left out."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest

import mdp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def full_pipe() -> tuple[int, int, Callable[[], None]]:
    """Return both ends of a pipe that takes nothing more, and what makes room in it."""
    reader, writer = os.pipe()
    os.write(writer, b"." * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))
    return reader, writer, lambda: None


def stopped_terminal() -> tuple[int, int, Callable[[], None]]:
    """Return both ends of a terminal that Ctrl-S has stopped, and the Ctrl-Q."""
    reader, writer = pty.openpty()
    termios.tcflow(writer, termios.TCOOFF)
    return reader, writer, lambda: termios.tcflow(writer, termios.TCOON)


async def answer(endpoint: str) -> list[bytes]:
    async with mdp.Worker(endpoint, "echo", handler=lambda request: request.body), mdp.Client(endpoint) as client:
        return await client.request("echo", b"here")


@pytest.mark.faults
@pytest.mark.parametrize("log", [full_pipe, stopped_terminal])
def test_p3_a_broker_whose_log_is_not_read_serves_on(log: Callable[[], tuple[int, int, Callable[[], None]]], tmp_path: Path) -> None:
    reader, writer, go_on = log()
    endpoint = f"ipc://{tmp_path}/broker"
    broker = subprocess.Popen([sys.executable, "-m", "mdp", "broker", "--bind", endpoint], stderr=writer)
    try:
        assert asyncio.run(answer(endpoint)) == [b"here"]
        go_on()
        os.set_blocking(reader, False)
        while True:  # what was written before
            try:
                os.read(reader, 65536)
            except BlockingIOError:
                break
        os.set_blocking(reader, True)
        broker.send_signal(signal.SIGTERM)
        assert broker.wait() == 0
        os.close(writer)
        lines = os.read(reader, 65536).decode()
        assert "WARNING core.daemon the log was not read, lines were left out left_out=1" in lines
        assert "draining" in lines
    finally:
        broker.kill()
        broker.wait()
        os.close(reader)
