"""Checks of messages before they are sent: announced limits, and directions that a socket does not have (SOCK-12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.errors import OperationNotSupported
from core.options import Options
from core.pattern.base import Counters, Pattern
from core.pattern.pair import Pair
from core.pattern.pipe import Pipe
from core.pattern.pipeline import Balanced, Pull, Push
from core.pattern.reqrep import Dealer, Rep, Req
from core.zmtp.limits import PeerLimits
from tests.scenes.patterns import joined

if TYPE_CHECKING:
    from core.option_table import OptionValue


def peer(pattern: Pattern, limits: PeerLimits | None, identity: bytes = b"") -> Pipe:
    pipe = Pipe()
    pipe.identity = identity
    joined(pattern, pipe)
    pipe.limits = limits
    return pipe


def refused(pattern: Pattern, *sizes: int) -> tuple[int, int] | None:
    """(size, limit) of why a message of frames of these sizes is not taken."""
    error = pattern.judge([bytes(size) for size in sizes])
    return None if error is None else (error.size, error.limit)


@pytest.mark.parametrize("kind", [Push, Dealer])
def test_any_peer_may_get_the_next_message_so_the_lowest_limits_of_all_count(kind: type[Balanced]) -> None:
    pattern = kind(Options(), Counters())
    assert (pattern.limits(), refused(pattern, 10**6)) == (None, None)
    peer(pattern, None)
    assert (pattern.limits(), refused(pattern, 10**6)) == (None, None)
    peer(pattern, PeerLimits(parts=3, message_bytes=100))
    assert [refused(pattern, 100), refused(pattern, 101)] == [None, (101, 100)]
    peer(pattern, PeerLimits(parts=5, message_bytes=50))
    assert pattern.limits() == PeerLimits(parts=3, message_bytes=50)
    assert [refused(pattern, 0, 0, 50), refused(pattern, 0, 0, 51), refused(pattern, 0, 0, 0, 0)] == [None, (51, 50), (4, 3)]


def test_a_pair_asks_its_peer() -> None:
    pair = Pair(Options(), Counters())
    peer(pair, PeerLimits(parts=1))
    assert [refused(pair, 1), refused(pair, 1, 1)] == [None, (2, 1)]


@pytest.mark.parametrize(("options", "parts", "octets"), [({}, 1, 0), ({"req_correlate": 1}, 2, 4)])
def test_the_envelope_of_a_request_counts(options: dict[str, OptionValue | str], parts: int, octets: int) -> None:
    req = Req(Options(**options), Counters(), 1)
    assert refused(req, 10**6) is None
    peer(req, None)
    assert refused(req, 10**6) is None
    peer(req, PeerLimits(parts=2 + parts, message_bytes=20 + octets))
    assert [refused(req, 1, 19), refused(req, 1, 20)] == [None, (21 + octets, 20 + octets)]
    assert refused(req, 1, 1, 1) == (3 + parts, 2 + parts)


def test_the_envelope_of_a_reply_counts() -> None:
    rep = Rep(Options(), Counters())
    assert refused(rep, 10**6) is None
    for limits in (None, PeerLimits(parts=4, message_bytes=10)):
        pipe = peer(rep, limits)
        rep.inbound.push(pipe, rep.deliver(pipe, [[b"via", b"", b"?"]]))
        assert rep.recv() == [b"?"]
        if limits is None:
            assert refused(rep, 10**6) is None
        else:
            assert [refused(rep, 1, 6), refused(rep, 1, 7), refused(rep, 1, 1, 1)] == [None, (11, 10), (5, 4)]
        rep.send([b"!"])
        assert refused(rep, 10**6) is None


def test_req_07_over_inproc_a_reply_without_a_delimiter_is_left_out_and_the_next_one_taken() -> None:
    req = Req(Options(), Counters(), 1)
    pipe = Pipe()
    line = joined(req, pipe)
    assert req.send([b"?"])
    pipe.takes_octets = False
    assert req.deliver(pipe, [[b"malformed"], [b"", b"!"], [b"malformed", b"too"]]) == [[b"!"]]
    assert (req.counters.malformed, line.cuts) == (2, [])


def test_a_peer_is_found_by_the_identity_it_announced_while_it_is_connected() -> None:
    pull = Pull(Options(), Counters())
    one, other = peer(pull, None, b"one"), peer(pull, None, b"other")
    assert [pull.peer(b"one"), pull.peer(b"other"), pull.peer(b"none")] == [one, other, None]
    one.connected = False
    assert pull.peer(b"one") is None


def test_sock_12_there_is_no_way_back() -> None:
    pull, push = Pull(Options(), Counters()), Push(Options(), Counters())
    pipe = peer(pull, None)
    with pytest.raises(OperationNotSupported):
        pull.send([b"x"])
    assert not pull.writable()
    pull.inbound.push(pipe, pull.deliver(pipe, [[b"1"], [b"2"]]))
    assert (pull.readable(), pull.recv()) == (True, [b"1"])
    pull.put_back(pipe, [b"1"])
    assert (pull.recv_many(), pull.readable(), pull.recv()) == ([[b"1"], [b"2"]], False, None)
    back = peer(push, None)
    with pytest.raises(OperationNotSupported):
        push.recv()
    with pytest.raises(OperationNotSupported):
        push.recv_many()
    assert push.deliver(back, [[b"1"], [b"2"]]) == []
    assert push.counters.unexpected == 2


def test_each_kind_of_cut_has_its_counter() -> None:
    counters = Counters()
    assert set(counters.as_dict().values()) == {0}
    for _ in range(2):
        counters.count_limit("frame_bytes")
    counters.count_limit("progress")
    assert {name: count for name, count in counters.as_dict().items() if count} == {"cut_frame_bytes": 2, "cut_progress": 1}


def test_what_a_pipe_is_before_anything_has_happened() -> None:
    pipe = Pipe()
    assert (pipe.routing_id, pipe.identity, pipe.local_name, pipe.metadata, pipe.limits) == (b"", b"", b"", {}, None)
    assert (pipe.connected, pipe.connecting, pipe.waiting_for_capacity, pipe.throttled, pipe.listed, pipe.in_parts) == (False,) * 6
    assert (pipe.unread_bytes, pipe.takes_octets) == (0, True)
