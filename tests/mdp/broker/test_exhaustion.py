"""A broker without free descriptors or memory serves its present peers, and new ones when there is capacity again."""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
from typing import TYPE_CHECKING

import pytest

import mdp
from tests.scenes.mdp_handlers import echo

if TYPE_CHECKING:
    from tests.scenes.programs import Programs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set and read as on Linux")


@pytest.mark.parametrize("loop", ["--uvloop", "--no-uvloop"])
async def test_p5_a_broker_without_descriptors_serves_who_is_here_and_newcomers_later(programs: Programs, loop: str) -> None:
    broker = programs.start("mdp", "broker", "--bind", "tcp://127.0.0.1:0", loop)
    found = re.search(r"tcp://127\.0\.0\.1:(\d+)", broker.said("serves"))
    assert found is not None
    async with mdp.Worker(found[0], "echo", handler=echo), mdp.Client(found[0], timeout=100) as client:
        assert await client.request("echo", b"before", wait=True) == [b"before"]
        pid = broker.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 4, hard))
        crowd = [socket.create_connection(("127.0.0.1", int(found[1]))) for _ in range(30)]  # the kernel takes them all
        for _ in range(20):
            assert await client.request("echo", b"meanwhile") == [b"meanwhile"]
        for member in crowd:
            member.close()
        async with mdp.Client(found[0], timeout=100) as newcomer:
            assert await newcomer.request("echo", b"after") == [b"after"]
    ended = broker.stop()
    assert ended.code == 0
    assert "Traceback" not in ended.err
    told = [line for line in ended.err.splitlines() if "new connections cannot be accepted" in line]
    assert len(told) == 1, ended.err
    assert 'reason="Too many open files"' in told[0]
