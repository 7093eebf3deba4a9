"""An XPUB whose application does not receive its reports: it serves every subscriber, and the reports stay true (PSB-05)."""

from __future__ import annotations

import random

import pytest

from core.options import Options
from core.pattern.base import Counters
from core.pattern.pipe import Pipe
from core.pattern.pubsub import XPub
from tests.scenes.patterns import joined


def publisher(mark: int, **options: int) -> tuple[XPub, list[Pipe]]:
    """Return an XPUB with three subscribers and this receive high-water mark."""
    pattern = XPub(Options(rcvhwm=mark, **options), Counters())
    pipes = [Pipe() for _ in range(3)]
    for pipe in pipes:
        pipe.set_marks(0, mark, 0, 0)
        joined(pattern, pipe)
    return pattern, pipes


def test_subscriptions_beyond_the_mark_are_served_and_reported_in_order() -> None:
    pattern, (one, *_) = publisher(5)
    for number in range(23):
        pattern.deliver(one, [[b"\x01%02d" % number]])
    assert not one.throttled, "the peer is read on"
    assert list(pattern.subscriptions.match(b"22")) == [one]
    assert len(pattern._arrivals.inbox) == 5
    found = []
    while (message := pattern.recv()) is not None:
        found += message
    assert found == [b"\x01%02d" % number for number in range(23)]
    assert pattern._asker is one


def test_what_begins_and_ends_before_it_is_received_takes_no_memory() -> None:
    pattern, (one, *_) = publisher(2)
    for number in range(1_000):
        pattern.deliver(one, [[b"\x01%04d" % number]])
        pattern.deliver(one, [[b"\x00%04d" % number]])
    assert len(pattern._put_off) == 0
    assert pattern.recv_many() == [[b"\x010000"], [b"\x000000"]]
    assert pattern.recv_many() == []


@pytest.mark.parametrize("options", [{"xpub_verbose": 1}, {"xpub_verboser": 1}, {"xpub_manual": 1}])
def test_where_reports_do_not_alternate_the_peer_is_not_read_beyond_the_mark(options: dict[str, int]) -> None:
    pattern, (one, *_) = publisher(3, **options)
    for number in range(3):
        pattern.deliver(one, [[b"\x01%d" % number]])
    assert one.throttled
    assert not pattern._put_off


def test_reports_that_were_put_off_are_queued_when_the_mode_changes() -> None:
    pattern, (one, *_) = publisher(2)
    for number in range(6):
        pattern.deliver(one, [[b"\x01%d" % number]])
    pattern.options.xpub_verbose = 1
    pattern.follow_options()
    pattern.deliver(one, [[b"\x016"]])
    assert pattern.recv_many() == [[b"\x01%d" % number] for number in range(7)]


def test_ends_of_topics_that_nobody_wanted_are_bounded_in_memory() -> None:
    pattern, (one, other, _) = publisher(1, max_subscription_bytes=1_000)
    pattern.deliver(one, [[b"\x01a"]])
    for number in range(4):
        assert not one.throttled
        pattern.deliver(one, [[b"\x00%d" % number]])
    assert one.throttled
    assert not other.throttled
    assert pattern.recv_many() == [[b"\x01a"]]
    found = []
    while messages := pattern.recv_many():
        found += messages
    assert found == [[b"\x00%d" % number] for number in range(4)]
    assert not one.throttled


def test_messages_of_peers_stop_them_at_the_mark() -> None:
    pattern, (one, *_) = publisher(2)
    pattern.deliver(one, [[b"hello"], [b"hello"]])
    assert one.throttled
    assert pattern.recv_many() == [[b"hello"], [b"hello"]]
    assert not one.throttled


@pytest.mark.parametrize("seed", range(40))
def test_the_reports_say_which_topics_are_subscribed_whenever_they_are_received(seed: int) -> None:
    rng = random.Random(seed)
    mark = rng.choice((1, 2, 5))
    pattern, pipes = publisher(mark)
    topics = [b"", b"a", b"b", b"ab", b"c"]
    held: dict[Pipe, set[bytes]] = {pipe: set() for pipe in pipes}
    told: set[bytes] = set()

    def receive(messages: list[list[bytes]]) -> None:
        for (report,) in messages:
            assert (report[1:] in told) != (report[:1] == b"\x01"), "begin and end of a topic alternate"
            told.symmetric_difference_update({report[1:]})

    for _ in range(200):
        pipe, topic = rng.choice(pipes), rng.choice(topics)
        if rng.random() < 0.8:
            begins = topic not in held[pipe]
            held[pipe].symmetric_difference_update({topic})
            pattern.deliver(pipe, [[b"%c" % begins + topic]])
        elif rng.random() < 0.5:
            receive([message] if (message := pattern.recv()) is not None else [])
        else:
            receive(pattern.recv_many())
        assert len(pattern._arrivals.inbox) <= 2 * mark
        assert pattern._put_off_octets == sum(len(kept) * (len(topic) + 256) for topic, kept in pattern._put_off.items())
        assert all(0 < len(kept) <= 2 for kept in pattern._put_off.values())
        assert not any(pipe.throttled for pipe in pipes)
    while messages := pattern.recv_many():
        receive(messages)
    assert told == set().union(*held.values())
