"""core.pattern.stream: raw connections by routing id, without sockets (STM of specs/sockets.md). Over TCP: `interop/test_stream.py`."""

from __future__ import annotations

import pytest

from core.errors import HostUnreachable
from core.options import Options
from core.pattern.base import Counters
from core.pattern.pipe import Pipe
from core.pattern.stream import RawConnection, Stream
from core.zmtp.connection import State
from core.zmtp.frames import encode_message
from core.zmtp.limits import ConnectionLimits
from core.zmtp.mechanism import NullMechanism
from tests.scenes.patterns import Line, joined


def connection(stream: Stream, *, sndhwm: int = 0, takes: bool = False) -> tuple[Line, bytes]:
    pipe = Pipe()
    line = joined(stream, pipe, takes=takes, holds=True)
    pipe.set_marks(sndhwm, 0, 0, 0)
    return line, pipe.routing_id


def test_bytes_go_to_the_connection_of_their_routing_id() -> None:
    stream = Stream(Options(), Counters(), 1)
    (one, first), (other, second) = connection(stream), connection(stream)
    assert first != second
    assert stream.send_many([[first, b"a"], [second, b"b"], [first, b"c", b"d"], [first, b"", b"e"]]) == 4
    assert one.sent() == [[b"a"], [b"c", b"d"], [b"", b"e"]]
    assert other.sent() == [[b"b"]]


def test_an_empty_frame_ends_a_connection_after_what_is_queued() -> None:
    stream = Stream(Options(), Counters(), 1)
    line, name = connection(stream)
    assert stream.send([name, b"last"])
    assert stream.send([name, b""])
    assert (line.cuts, line.sent()) == (["finished"], [[b"last"]])
    with pytest.raises(HostUnreachable):
        stream.send([name, b"more"])


def test_an_unknown_routing_id_and_a_lost_connection_are_refused() -> None:
    stream = Stream(Options(), Counters(), 1)
    line, name = connection(stream)
    line.pipe.connected = False
    for unknown in (b"nobody", name):
        with pytest.raises(HostUnreachable, match="no peer has this routing id") as caught:
            stream.send([unknown, b"x"])
        assert caught.value.routing_id == unknown
        with pytest.raises(HostUnreachable):
            stream.has_capacity_for(bytearray(unknown))
    assert line.sent() == []


def test_the_first_part_of_a_message_finds_out_whether_its_connection_has_capacity() -> None:
    """As of bytes that can change, which have no hash."""
    stream = Stream(Options(), Counters(), 1)
    line, name = connection(stream, sndhwm=1)
    assert stream.has_capacity_for(bytearray(name))
    assert stream.send([bytearray(name), b"1"])
    assert not stream.has_capacity_for(name)
    assert line.sent() == [[b"1"]]


def test_a_full_queue_makes_a_send_wait_unless_the_transport_takes_some() -> None:
    stream = Stream(Options(), Counters(), 1)
    line, name = connection(stream, sndhwm=2)
    assert stream.send_many([[name, b"1"], [name, b"2"], [name, b"3"]]) == 2
    assert (line.sent(), line.pipe.waiting_for_capacity) == ([[b"1"], [b"2"]], True)
    assert stream.send([name, b""]), "an end needs no capacity"
    other, known = connection(stream, sndhwm=2, takes=True)
    assert stream.send_many([[known, b"1"], [known, b"2"], [known, b"3"]]) == 3
    assert (other.came(), other.sent(), other.pipe.waiting_for_capacity) == ([[b"1"], [b"2"]], [[b"3"]], False)


def test_every_read_is_a_message_and_the_bodies_of_frames_are_sent() -> None:
    begun: list[bool] = []
    raw = RawConnection(b"STREAM", NullMechanism(b"", metadata_bytes_max=0), ConnectionLimits(), lambda: begun.append(True))
    raw.decoder.head = [b"id"]
    assert (raw.greet(), begun, raw.state is State.TRAFFIC) == (b"", [], False)
    assert [*raw.begin()] == [[b"id", b""]]
    assert (begun, raw.state) == ([True], State.TRAFFIC)
    for octets in (b"x", b"\x00\x05hello", b"y" * 300):
        assert [*raw.receive(octets)] == [[b"id", octets]]
    assert [*raw.notice()] == [[b"id", b""]]
    assert raw.translates
    assert raw.translate(encode_message([b"a", b"", b"b" * 300]) + encode_message([b"c"])) == b"a" + b"b" * 300 + b"c"
    assert raw.translate(b"") == b""
