"""Fault P4: a broker without memory refuses peers that send too much, and goes on.

Or it ends with a code that says so.
"""

from __future__ import annotations

import re
import resource
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from socket import create_connection, socket
from typing import TYPE_CHECKING

import pytest

from tests.scenes.raw_octets import GREETING_NULL, ready

if TYPE_CHECKING:
    from tests.scenes.programs import Program, Programs

MIB = 2**20
# What the broker may have more than at its start; a wave of peers brings twice as much of messages that never end.
ROOM_BYTES = 192 * MIB
PEERS = 32
BEGUN_BYTES = 12 * MIB


def narrow(broker: Program) -> None:
    """Leave a process its address space and `ROOM_BYTES` more."""
    pid = broker.process.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + ROOM_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (most, most))


def bring(peer: socket) -> None:
    """Bring most of a message, or as much of it as the broker takes."""
    with suppress(OSError):
        peer.sendall(GREETING_NULL + ready(b"DEALER", b"") + b"\x02" + (BEGUN_BYTES + 1).to_bytes(8, "big"))
        peer.sendall(bytes(BEGUN_BYTES))


def wait_for_a_cut(peers: list[socket]) -> None:
    """Wait until the broker has closed one of the connections.

    What a peer has sent may still be in the kernel, and be read later.
    """
    with DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer, EVENT_READ)
        while True:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket)
                try:
                    came = key.fileobj.recv(65536)  # its greeting comes first
                except OSError:
                    return
                if not came:
                    return


@pytest.mark.skipif(sys.platform != "linux", reason="Linux limits another process's memory, and tells how much it has")
@pytest.mark.parametrize("loop", ["--uvloop", "--no-uvloop"])
def test_p4_waves_of_messages_that_never_end_leave_a_broker_that_answers(programs: Programs, loop: str) -> None:
    broker = programs.start("mdp", "broker", "--bind", "tcp://127.0.0.1:0", loop)
    found = re.search(r"tcp://127\.0\.0\.1:(\d+)", broker.said("serves"))
    assert found is not None
    narrow(broker)
    for _ in range(3):
        with ExitStack() as stack:
            peers = [stack.enter_context(create_connection(("127.0.0.1", int(found[1])))) for _ in range(PEERS)]
            for peer in peers:
                bring(peer)
            wait_for_a_cut(peers)  # there is no memory for all
        answer = programs.run("mdp", "mmi", "--broker", found[0], "--timeout", "10", "protocol", "0.3")
        assert (answer.code, answer.lines) == (0, ["200"])
    ended = broker.stop()
    assert ended.code == 0
    # One line a minute, whatever ran out of memory.
    assert ended.err.count("out of memory what=") in (1, 2)
    assert "Traceback" not in ended.err
