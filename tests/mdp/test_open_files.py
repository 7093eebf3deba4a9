"""A broker started from a shell serves as many peers as the system allows, not as few as the shell."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import core
from core.daemon.run import OPEN_FILES_MAX
from mdp.wire.commands import client_request
from tests.descriptors import few_descriptors, room_for

if TYPE_CHECKING:
    from tests.scenes.programs import Program, Programs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are read as on Linux")

FEW = 256
CLIENTS = 400


def start(programs: Programs, *options: str) -> tuple[Program, str]:
    """Start a broker where shells allow few files; return it and where it serves."""
    with few_descriptors(FEW):
        broker = programs.start("mdp", "broker", "--bind", "tcp://127.0.0.1:0", *options)
    line = broker.said("serves")
    (endpoint,) = [word.partition("=")[2] for word in line.split() if "tcp://127.0.0.1:" in word]
    return broker, endpoint


async def test_more_clients_are_served_than_a_shell_allows_files(programs: Programs) -> None:
    """All of them stay connected: the last is answered while the first still is."""
    room_for(CLIENTS, ends=1)
    broker, endpoint = start(programs)
    async with core.Context() as context:
        clients = [context.socket(core.DEALER, linger=0) for _ in range(CLIENTS)]
        ask = client_request("0.3", b"mmi.service", [b"nobody"], id=bytes(8))
        for client in clients:
            client.connect(endpoint)
            await client.send_multipart(ask)
        async with asyncio.timeout(60):
            for client in clients:
                assert (await client.recv_multipart())[-1] == b"404"
        assert len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir())) > CLIENTS
        for client in clients:
            client.close()
    ended = broker.stop()
    assert ended.code == 0
    assert "new connections cannot be accepted" not in ended.err


@pytest.mark.parametrize("loop", ["--uvloop", "--no-uvloop"])
def test_the_limit_is_raised_as_far_as_the_system_allows(programs: Programs, loop: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    broker, _ = start(programs, loop)
    assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE) == (max(FEW, wanted), hard)
    assert broker.stop().code == 0
