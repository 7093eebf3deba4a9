"""Daemons start and end a thousand times without a warning; a worker survives a handler that exhausts memory."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from typing import TYPE_CHECKING

import pytest

import mdp

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Programs

# Address space of the worker: its program and its threads' stacks fit, the list its handler makes does not.
ADDRESS_BYTES = 3 * 2**30
GREEDY = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({ADDRESS_BYTES}, {ADDRESS_BYTES}))
import mdp

@mdp.service("eat")
def eat(request: mdp.Request) -> bytes:
    return b"%d" % len(bytearray(int(request.body[0])))
"""
# What debug mode says of a turn that took long is about the machine, which may be busy.
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ (?:INFO |WARNING asyncio Executing .* took )")


def cycle(programs: Programs, loop: str, number: int) -> None:
    """Start a broker and a worker, ask once, end them with a signal.

    Every line they write is an ordinary one.
    """
    strict = {"PYTHONWARNINGS": "error", "PYTHONASYNCIODEBUG": "1" if number % 2 else ""}
    broker = programs.start("mdp", "broker", "--bind", "tcp://127.0.0.1:0", loop, **strict)
    found = re.search(r"tcp://127\.0\.0\.1:\d+", broker.said("serves"))
    assert found is not None
    worker = programs.start("mdp", "worker", "--broker", found[0], "--service", "echo", loop, **strict)
    worker.said("serves")
    for program in (worker, broker):
        ended = program.signal(signal.SIGTERM if number % 3 else signal.SIGINT).end()
        assert ended.code == 0
        assert [line for line in ended.err.splitlines() if not LOG_LINE.match(line)] == []


@pytest.mark.parametrize("loop", ["--uvloop", "--no-uvloop"] if sys.platform != "win32" else ["--no-uvloop"])
def test_daemons_end_without_a_warning(programs: Programs, loop: str) -> None:
    for number in range(3):
        cycle(programs, loop, number)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_daemons_end_a_thousand_times_without_a_warning(programs: Programs) -> None:
    for number in range(1000):
        cycle(programs, "--uvloop" if number % 2 else "--no-uvloop", number)


async def test_a_hundred_brokers_in_one_process_leave_nothing_behind() -> None:
    """Leaked tasks, sockets and unhandled errors fail every test."""
    handles = len(resource_handles())
    for _ in range(100):
        async with mdp.Broker() as broker:
            where = broker.bind("tcp://127.0.0.1:*")
            async with mdp.Client(where) as client:
                assert await client.mmi("protocol", "0.3") == "200"
    assert len(resource_handles()) <= handles + 2


def resource_handles() -> list[int]:
    """Return the open descriptors of this process."""
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096)
    found = []
    for number in range(limit):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return found


def test_p4_a_handler_without_memory_fails_its_request_and_nothing_else(programs: Programs, tmp_path: Path) -> None:
    """Fault P4."""
    (tmp_path / "greedy.py").write_text(GREEDY)
    broker = programs.start("mdp", "broker", "--bind", "tcp://127.0.0.1:0")
    found = re.search(r"tcp://127\.0\.0\.1:\d+", broker.said("serves"))
    assert found is not None
    worker = programs.start("mdp", "worker", "--broker", found[0], "--app", "greedy")
    call = ("mdp", "call", "--broker", found[0], "--wait", "--timeout", "20", "--attempts", "1", "eat")
    assert programs.run(*call, "1000").lines == ["1000"]
    for _ in range(3):
        failed = programs.run(*call, str(4 * ADDRESS_BYTES))
        assert failed.code == 1
        assert "MemoryError" in failed.complaint
    assert programs.run(*call, "1000").lines == ["1000"]
    assert worker.stop().code == 0
