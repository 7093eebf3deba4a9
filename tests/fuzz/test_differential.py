"""Ten thousand conversations made up by chance, heard by libzmq and by us.

Both hear the same messages, to the octet.

libzmq's PULL is at the other end of a real TCP connection for each; ours is the connection without transport, fed in random pieces.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import zmq

from core.zmtp.commands import encode_metadata
from core.zmtp.connection import Connection
from core.zmtp.limits import ConnectionLimits
from core.zmtp.mechanism import NullMechanism
from tests.fuzz.conversations import MARK, SENTINEL, Conversation, conversation

if TYPE_CHECKING:
    from collections.abc import Iterator

CONVERSATIONS = int(os.environ.get("FUZZ_CONVERSATIONS", "10000"))
AT_ONCE = 100
PARTS = 4  # one test each, so that two processes share them
PATIENCE_S = 100.0
GREETING_OCTETS = 64

Heard = list[list[bytes]]


def ours(spoken: Conversation, chance: random.Random) -> Heard:
    """Feed a conversation in random pieces to a PULL's connection."""
    mechanism = NullMechanism(encode_metadata([(b"Socket-Type", b"PULL")]), metadata_bytes_max=1000)
    connection = Connection(b"PULL", mechanism, ConnectionLimits(), lambda: None)
    heard: Heard = []
    octets = spoken.octets
    pieces = chance.choice((1, 1, 2, 5, 30))
    cuts = sorted(chance.randrange(len(octets) + 1) for _ in range(pieces - 1))
    for begin, end in zip([0, *cuts], [*cuts, len(octets)], strict=True):
        if connection.failure is None:
            heard += connection.receive(octets[begin:end])
            connection.take_output()
    return heard


class Libzmq:
    """A PULL of libzmq that listens, and the raw connections to it."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.linger = 0
        self._pull.rcvhwm = 0
        self._port = self._pull.bind_to_random_port("tcp://127.0.0.1")

    def close(self) -> None:
        self._pull.close()
        self._context.term()

    def hear(self, spoken: dict[bytes, Conversation]) -> dict[bytes, Heard]:
        """Say all conversations at once, each on its own connection; return what was heard of each, by its name."""
        with selectors.DefaultSelector() as selector:
            lines = [(socket.create_connection(("127.0.0.1", self._port)), one.octets) for one in spoken.values()]
            for line, octets in lines:
                line.sendall(octets[:GREETING_OCTETS])
            for line, octets in lines:
                selector.register(line, selectors.EVENT_READ)
                with suppress(OSError):  # it may have had enough before we are through
                    if len(octets) > GREETING_OCTETS:
                        self._hear_ready(line)
                        line.sendall(octets[GREETING_OCTETS:])
                    line.shutdown(socket.SHUT_WR)
            until = time.monotonic() + PATIENCE_S
            while selector.get_map():
                assert time.monotonic() < until, "libzmq keeps a connection open whose other end has closed"
                for key, _ in selector.select(0.1):
                    if self._has_ended(key.fileobj):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
        heard: dict[bytes, Heard] = {name: [] for name in spoken}
        for frames in self._messages():
            heard[frames[0].partition(MARK)[0]].append(frames)
        return heard

    @staticmethod
    def _hear_ready(line: socket.socket) -> None:
        """Wait for its READY.

        It takes one that comes before it has sent its own for an error; ours does not mind.
        """
        heard = b""
        while len(heard) <= GREETING_OCTETS and (more := line.recv(4096)):
            heard += more

    @staticmethod
    def _has_ended(line: socket.socket) -> bool:
        """Read what it answers; its messages are there when it has closed the connection."""
        try:
            return not line.recv(65536)
        except ConnectionError:
            return True  # it closed with something of ours unread

    def _messages(self) -> Iterator[list[bytes]]:
        while self._pull.poll(20):
            yield self._pull.recv_multipart()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
def test_libzmq_and_we_hear_the_same(part: int) -> None:
    libzmq = Libzmq()
    complete = messages = 0
    try:
        for first in range(part * AT_ONCE, CONVERSATIONS, PARTS * AT_ONCE):
            spoken = {b"%d" % seed: conversation(seed) for seed in range(first, first + AT_ONCE)}
            theirs = libzmq.hear(spoken)
            for (name, one), seed in zip(spoken.items(), range(first, first + AT_ONCE), strict=True):
                mine = ours(one, random.Random(-1 - seed))
                assert mine == theirs[name], f"conversation {seed}, {one.kind}"
                complete += [name + MARK + SENTINEL] in mine
                messages += len(mine)
    finally:
        libzmq.close()
    # Most conversations are correct: agreement about nothing at all would be easy.
    assert complete > CONVERSATIONS / PARTS / 2
    assert messages > CONVERSATIONS / PARTS
