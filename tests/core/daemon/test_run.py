"""core.daemon.run: faults P3 and X1, in real processes with real signals."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.core.daemon.conftest import Start, line_with

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

LOOPS = ["--uvloop", "--no-uvloop"] if sys.platform != "win32" else ["--no-uvloop"]


def text_of(process: subprocess.Popen[str]) -> str:
    """Return all the program writes until it ends."""
    assert process.stderr is not None
    text = process.stderr.read()
    process.wait()
    return text


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_p3_first_signal_drains_and_exits_0(start: Start, loop: str, number: int) -> None:
    process = start(loop)
    line_with(process, "listening")
    process.send_signal(number)
    line_with(process, "draining")
    assert process.wait() == 0


@pytest.mark.parametrize("loop", LOOPS)
def test_p3_drain_ends_at_its_deadline_with_0(start: Start, loop: str) -> None:
    process = start(loop, "--ends", "never", "--drain-s", "0.05")
    line_with(process, "listening")
    process.send_signal(signal.SIGTERM)
    assert "WARNING" in line_with(process, "drain time is over")
    assert process.wait() == 0


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_p3_second_signal_ends_at_once_with_130(start: Start, loop: str, number: int) -> None:
    process = start(loop, "--ends", "never", "--drain-s", "50")
    line_with(process, "listening")
    process.send_signal(signal.SIGTERM)
    line_with(process, "draining")
    process.send_signal(number)
    line_with(process, "ending at once")
    assert process.wait() == 130


@pytest.mark.parametrize("loop", LOOPS)
def test_p3_second_signal_ends_even_a_blocked_loop(start: Start, loop: str) -> None:
    process = start(loop, "--ends", "blocked")
    line_with(process, "listening")
    while process.poll() is None:  # two signals at the same time are one to the kernel: send until two were seen
        process.send_signal(signal.SIGTERM)
    assert process.wait() == 130


def test_a_daemon_may_stop_itself(start: Start) -> None:
    assert start("--ends", "at-once").wait() == 0


def test_x1_port_in_use_is_69_and_names_the_remedy(start: Start) -> None:
    process = start("--ends", "in-use")
    stderr = text_of(process)
    assert process.returncode == 69
    assert stderr == ("idle: cannot listen on tcp://x:1: address in use; another program listens there; stop it or choose another port\n")


@pytest.mark.parametrize("loop", LOOPS)
def test_p4_callbacks_without_memory_are_one_line_and_the_daemon_goes_on(start: Start, loop: str) -> None:
    process = start(loop, "--ends", "no-memory")
    lines = text_of(process).splitlines()
    assert process.returncode == 0
    (line,) = [line for line in lines if "out of memory" in line]
    assert "left_out=0" in line
    assert not any("Traceback" in line for line in lines)


def test_p4_no_memory_for_the_loop_itself_is_one_line_and_the_end(start: Start) -> None:
    process = start("--ends", "no-memory-at-all")
    stderr = text_of(process)
    assert process.returncode == 1
    assert stderr.splitlines()[-1] == "idle: out of memory; give the daemon more, or lower its limits"
    assert "Traceback" not in stderr


@pytest.mark.parametrize("where", ["timer", "receiver", "thread"])
def test_p4_no_memory_in_the_middle_of_a_change_ends_the_daemon_as_if_killed(start: Start, where: str) -> None:
    process = start("--ends", f"no-memory-for-{where}")
    stderr = text_of(process)
    assert process.returncode == 1
    assert "out of memory; give the daemon more, or lower its limits" in stderr.splitlines()[-1]
    assert "an orderly end" not in stderr  # what is half changed is neither sent nor stored
    assert "Traceback" not in stderr


def test_other_errors_are_not_hidden(start: Start) -> None:
    process = start("--ends", "failed")
    stderr = text_of(process)
    assert process.returncode == 1
    assert "something else" in stderr


def test_x3_logs_are_one_printable_line_each(start: Start) -> None:
    process = start("--ends", "at-once")
    stderr = text_of(process)
    assert "\x1b" not in stderr
    assert "line\\nbreak \\u001b[31mred" in stderr.splitlines()[0]


def test_p3_hup_applies_what_it_can_and_names_the_rest(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "idle.toml"
    config.write_text("[serve]\nheartbeat_ms = 1000\n")
    process = start("--config", str(config))
    line_with(process, "listening")
    config.write_text('[serve]\nheartbeat_ms = 2000\nfactor = 3.5\nlog_format = "json"\n')
    process.send_signal(signal.SIGHUP)
    line = line_with(process, "reloaded")
    assert '"applied": "factor,log_format", "need_restart": "heartbeat_ms"' in line
    process.send_signal(signal.SIGHUP)
    assert '"applied": "", "need_restart": "heartbeat_ms"' in line_with(process, "reloaded")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_p3_a_disk_that_hangs_while_files_are_read_again_does_not_stop_the_loop(start: Start, tmp_path: Path) -> None:
    pipe = tmp_path / "idle.toml"
    os.mkfifo(pipe)
    process = start("--config", str(pipe))
    pipe.write_text("[serve]\n")
    line_with(process, "listening")
    process.send_signal(signal.SIGHUP)
    with pipe.open("w"):  # returns when the daemon reads, and makes it wait for more
        process.send_signal(signal.SIGTERM)
        line_with(process, "draining")
        assert process.wait() == 0


@pytest.mark.parametrize("what", ["bind", "page"])
def test_the_first_signal_ends_a_daemon_that_resolves_the_name_it_is_to_listen_on(start: Start, what: str) -> None:
    process = start("--ends", what)
    line_with(process, "resolving slow.test")
    process.send_signal(signal.SIGTERM)
    line_with(process, "draining")
    assert process.wait() == 0


def test_p3_hup_with_a_bad_file_keeps_the_old_values(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "idle.toml"
    config.write_text("[serve]\n")
    process = start("--config", str(config))
    line_with(process, "listening")
    config.write_text("[serve]\nheartbeat_ms = 0\n")
    process.send_signal(signal.SIGHUP)
    line = line_with(process, "reload refused")
    assert "idle.toml:2: heartbeat_ms: 0 is not in the range" in line
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
