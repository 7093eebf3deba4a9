"""A mirror that may open few files, and connections that say nothing to its endpoint and its page."""

from __future__ import annotations

import re
import resource
import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.titanic.mirror.test_replica_server import store, submitted

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Programs

FEW = 64


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set as on Linux")
@pytest.mark.parametrize("loop", ["--uvloop", "--no-uvloop"])
async def test_p5_a_mirror_serves_its_store_in_a_silent_crowd(programs: Programs, tmp_path: Path, loop: str) -> None:
    """They take no file that the copy needs, and the store finds a place among them."""
    options = ("--bind", "tcp://127.0.0.1:*", "--store", "copy", "--http", "127.0.0.1:0")
    mirror = programs.start("titanic", "mirror", *options, loop)
    page = re.search(r"port=(\d+)", mirror.said("http serves"))
    endpoint = re.search(r"tcp://127\.0\.0\.1:(\d+)", mirror.said("titanic mirrors"))
    assert page is not None
    assert endpoint is not None
    resource.prlimit(mirror.process.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
    with ExitStack() as crowd:
        for port in [page[1], endpoint[1]] * 150:
            member = crowd.enter_context(socket.socket())
            member.setblocking(False)
            member.connect_ex(("127.0.0.1", int(port)))
        mirror.said("new connections cannot be accepted")
        async with store(tmp_path / "store", endpoint[0]) as stored:
            await stored.wait_for_mirror()
            assert (await submitted(stored, b"x" * 1000))[0] == b"200"
    ended = mirror.stop()
    said = "".join(mirror.read) + ended.err
    assert ended.code == 0
    assert "Traceback" not in said
    assert "out of system resource" not in said
    assert "No such file" not in said
    assert said.count("Too many open files") == 1, said
