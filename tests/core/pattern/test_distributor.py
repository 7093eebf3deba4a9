"""One message to many pipes: each has its own capacity and limits, and every drop is counted once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from core.pattern.base import Counters
from core.pattern.distributor import distribute
from core.zmtp.frames import encode_message
from core.zmtp.limits import PeerLimits
from tests.scenes.builds import stands_in

pytestmark = stands_in


def pipe(held: int = 0, limit: int = 10, limits: PeerLimits | None = None, *, octets: bool = True, flushes: bool = False) -> Any:
    """Return a pipe that keeps what is written to it."""
    outbox: list[Any] = [b"before"] * held
    made = SimpleNamespace(outbox=outbox, limit=limit, limits=limits, takes_octets=octets, written=[])
    made.engine = SimpleNamespace(flush=lambda: flushes)
    made.write = made.write_octets = made.written.append
    return made


def test_a_pipe_takes_messages_up_to_its_limit_and_counts_the_rest() -> None:
    pipes = [pipe(9), pipe(10), pipe(11), pipe(10, flushes=True)]
    counters = Counters()
    distribute(pipes, [b"a", b"b"], counters)
    assert [len(one.written) for one in pipes] == [1, 0, 0, 1]
    assert (counters.peer_full, counters.beyond_peer) == (2, 0)


@pytest.mark.parametrize(("size", "fits"), [(10, True), (100, True), (101, False), (5000, False)])
def test_what_a_peer_does_not_take_is_counted_and_the_others_get_it(size: int, fits: bool) -> None:
    pipes = [pipe(), pipe(limits=PeerLimits(message_bytes=100)), pipe(limits=PeerLimits(frame_bytes=100)), pipe()]
    counters = Counters()
    distribute(pipes, [bytes(size)], counters)
    assert [len(one.written) for one in pipes] == [1, fits, fits, 1]
    assert (counters.peer_full, counters.beyond_peer) == (0, 0 if fits else 2)


def test_who_takes_no_octets_gets_frames() -> None:
    pipes = [pipe(), pipe(octets=False), pipe(octets=False)]
    distribute(pipes, [b"a", b"", b"c" * 300], Counters())
    assert [one.written for one in pipes] == [[encode_message([b"a", b"", b"c" * 300])], *[[[b"a", b"", b"c" * 300]]] * 2]
