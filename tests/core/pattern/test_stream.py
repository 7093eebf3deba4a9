"""core.pattern.stream: raw connections by routing id, without sockets (STM of specs/sockets.md). Over TCP: `interop/test_stream.py`."""

from __future__ import annotations

import pytest

from core.errors import HostUnreachable
from core.options import Options
from core.pattern.base import Counters
from core.pattern.pipe import Passive, Pipe
from core.pattern.stream import RawConnection, Stream
from core.zmtp.connection import State
from core.zmtp.frames import encode_message
from core.zmtp.limits import ConnectionLimits
from core.zmtp.mechanism import NullMechanism
from tests.scenes.patterns import joined


class Transport(Passive):
    """Takes nothing; its outbox has capacity again after a flush if `flushes`."""

    def __init__(self, flushes: bool = False) -> None:
        self.flushes = flushes
        self.finished = 0

    def flush(self) -> bool:
        return self.flushes

    def finish(self) -> None:
        self.finished += 1


def connection(stream: Stream, transport: Transport, sndhwm: int = 0) -> tuple[Pipe, bytes]:
    pipe = Pipe()
    joined(stream, pipe)
    pipe.engine = transport
    pipe.set_marks(sndhwm, 0, 0, 0)
    return pipe, pipe.routing_id


def written(pipe: Pipe) -> list[bytes]:
    return [*pipe.outbox]


def test_bytes_go_to_the_connection_of_their_routing_id() -> None:
    stream = Stream(Options(), Counters(), 1)
    (one, first), (other, second) = connection(stream, Transport()), connection(stream, Transport())
    assert first != second
    assert stream.send_many([[first, b"a"], [second, b"b"], [first, b"c", b"d"], [first, b"", b"e"]]) == 4
    assert written(one) == [encode_message([b"a"]), encode_message([b"c", b"d"]), encode_message([b"", b"e"])]
    assert written(other) == [encode_message([b"b"])]


def test_an_empty_frame_ends_a_connection_after_what_is_queued() -> None:
    transport = Transport()
    stream = Stream(Options(), Counters(), 1)
    pipe, name = connection(stream, transport)
    assert stream.send([name, b"last"])
    assert stream.send([name, b""])
    assert (transport.finished, written(pipe)) == (1, [encode_message([b"last"])])
    with pytest.raises(HostUnreachable):
        stream.send([name, b"more"])


def test_an_unknown_routing_id_and_a_lost_connection_are_refused() -> None:
    stream = Stream(Options(), Counters(), 1)
    pipe, name = connection(stream, Transport())
    pipe.connected = False
    for unknown in (b"nobody", name):
        with pytest.raises(HostUnreachable, match="no peer has this routing id") as caught:
            stream.send([unknown, b"x"])
        assert caught.value.routing_id == unknown
    assert written(pipe) == []


def test_a_full_queue_makes_a_send_wait_unless_the_transport_takes_some() -> None:
    stream = Stream(Options(), Counters(), 1)
    pipe, name = connection(stream, Transport(), sndhwm=2)
    assert stream.send_many([[name, b"1"], [name, b"2"], [name, b"3"]]) == 2
    assert (len(written(pipe)), pipe.waiting_for_capacity) == (2, True)
    assert stream.send([name, b""]), "an end needs no capacity"
    flushing, known = connection(stream, Transport(flushes=True), sndhwm=2)
    assert stream.send_many([[known, b"1"], [known, b"2"], [known, b"3"]]) == 3
    assert (len(written(flushing)), flushing.waiting_for_capacity) == (3, False)


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
