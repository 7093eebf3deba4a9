from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from core.errors import RemoteProtocolError
from core.pattern.subscriptions import (
    TOPIC_OVERHEAD_OCTETS,
    PublisherSubscriptions,
    SubscriberTopics,
    SubscriptionLimit,
    parse_subscription,
)

TOPICS = st.sampled_from([b"", b"a", b"ab", b"abc", b"b", b"ba", b"a" * 300])
PIPES = st.integers(0, 40)
FRAMES = [b"", b"a", b"ab", b"abcd", b"b", b"bab", b"c", b"a" * 299, b"a" * 301]


def publisher(*pipes: str, **limits: int) -> PublisherSubscriptions[str]:
    subject: PublisherSubscriptions[str] = PublisherSubscriptions(**limits)
    for pipe in pipes:
        subject.attach(pipe)
    return subject


@pytest.mark.parametrize(
    "frame,expected",
    [
        (b"\x01", (True, b"")),
        (b"\x01topic", (True, b"topic")),
        (b"\x00", (False, b"")),
        (b"\x00topic", (False, b"topic")),
        (b"", None),
        (b"\x02topic", None),
        (b"topic", None),
    ],
)
def test_zmtp_62_subscriptions_in_message_form(frame: bytes, expected: tuple[bool, bytes] | None) -> None:
    assert parse_subscription(frame) == expected


def test_zmtp_65_a_publisher_keeps_a_set() -> None:
    subject = publisher("p")
    assert subject.receive("p", True, b"t") == b"\x01t"
    assert subject.receive("p", True, b"t") is None
    assert subject.match(b"topic") == ("p",)
    assert subject.receive("p", False, b"t") == b"\x00t"
    assert subject.match(b"topic") == ()
    assert subject.topics("p") == []


def test_zmtp_68_prefix_match_on_octets_each_peer_once() -> None:
    subject = publisher("p", "q", "r")
    for topic in (b"", b"a", b"ab"):
        subject.receive("p", True, topic)
    subject.receive("q", True, b"ab")
    subject.receive("r", True, b"b")
    assert subject.match(b"abc") == ("p", "q")
    assert subject.match(b"a") == ("p",)
    assert subject.match(b"b") == ("p", "r")
    assert subject.match(b"") == ("p",)


def test_psb_05_xpub_reports_first_and_last_only() -> None:
    subject = publisher("p", "q")
    assert subject.receive("p", True, b"t") == b"\x01t"
    assert subject.receive("q", True, b"t") is None
    assert subject.receive("p", False, b"t") is None
    assert subject.receive("q", False, b"t") == b"\x00t"


def test_psb_05_verbose_reports_every_subscribe() -> None:
    subject = publisher("p", "q")
    subject.report_all_subscribes = True
    assert subject.receive("p", True, b"t") == b"\x01t"
    assert subject.receive("p", True, b"t") == b"\x01t"
    assert subject.receive("q", True, b"t") == b"\x01t"
    assert subject.receive("p", False, b"t") is None
    assert subject.receive("q", False, b"t") == b"\x00t"


def test_psb_05_verboser_reports_every_cancel_too() -> None:
    subject = publisher("p", "q")
    subject.report_all_subscribes = subject.report_all_cancels = True
    subject.receive("p", True, b"t")
    subject.receive("q", True, b"t")
    assert subject.receive("p", False, b"t") == b"\x00t"
    assert subject.detach("q") == [b"\x00t"]
    subject.receive("p", True, b"t")
    subject.attach("q")
    subject.receive("q", True, b"t")
    assert subject.detach("q") == [b"\x00t"]  # though "p" still holds it


def test_psb_06_a_vanished_subscriber_is_reported_for_topics_nobody_else_holds() -> None:
    subject = publisher("p", "q")
    for topic in (b"one", b"two", b"three"):
        subject.receive("p", True, topic)
    subject.receive("q", True, b"two")
    assert subject.detach("p") == [b"\x00one", b"\x00three"]
    assert subject.match(b"two") == ("q",)
    assert subject.detach("q") == [b"\x00two"]
    assert subject.detach("q") == []


def test_psb_07_a_cancel_of_an_unknown_topic_is_reported() -> None:
    subject = publisher("p", "q")
    assert subject.receive("p", False, b"never") == b"\x00never"
    subject.receive("q", True, b"t")
    assert subject.receive("p", False, b"t") == b"\x00t"
    assert subject.match(b"t") == ("q",)


def test_psb_11_manual_applies_only_what_the_application_grants() -> None:
    subject = publisher("p", "q")
    subject.manual = True
    assert subject.receive("p", True, b"asked") == b"\x01asked"
    assert subject.match(b"asked") == ()
    subject.grant("p", b"given")
    subject.grant("p", b"given")
    assert subject.match(b"given") == ("p",)
    assert subject.receive("p", True, b"asked") == b"\x01asked"
    assert subject.receive("p", False, b"given") == b"\x00given"
    assert subject.match(b"given") == ("p",)
    subject.revoke("p", b"given")
    subject.revoke("p", b"given")
    assert subject.match(b"given") == ()
    subject.grant("p", b"given")
    assert subject.detach("p") == [b"\x00asked"]
    assert subject.match(b"given") == ()
    subject.grant("p", b"given")  # too late: the peer has gone
    assert subject.match(b"given") == ()


def test_psb_13_inverted_matching() -> None:
    subject = publisher("p", "q", "r")
    subject.inverted = True
    subject.receive("p", True, b"a")
    subject.receive("q", True, b"")
    assert subject.match(b"abc") == ("r",)
    assert subject.match(b"x") == ("p", "r")
    subject.detach("r")
    assert subject.match(b"x") == ("p",)


def test_a_popular_topic_keeps_its_holders_in_order_while_they_come_and_go() -> None:
    subject: PublisherSubscriptions[int] = PublisherSubscriptions()
    for pipe in range(100):
        subject.attach(pipe)
        subject.receive(pipe, True, b"news")
        assert subject.match(b"newsflash") == tuple(range(pipe + 1))
    for pipe in range(100):
        report = subject.receive(pipe, False, b"news")
        assert report == (b"\x00news" if pipe == 99 else None)
        assert subject.match(b"newsflash") == tuple(range(pipe + 1, 100))


def test_input_of_a_peer_that_is_gone_leaves_nothing_behind() -> None:
    subject = publisher()
    assert subject.receive("p", True, b"t") is None
    assert subject.match(b"t") == ()
    assert subject.topics("p") == []


def test_psb_15_a_peer_cannot_subscribe_without_limit() -> None:
    subject = publisher("p", "q", subscription_octets_max=3 * (1 + TOPIC_OVERHEAD_OCTETS))
    for topic in (b"a", b"b", b"c", b"a"):  # a repetition is not one more
        subject.receive("p", True, topic)
    with pytest.raises(SubscriptionLimit) as caught:
        subject.receive("p", True, b"d")
    assert caught.value.limit == 3 * (1 + TOPIC_OVERHEAD_OCTETS)
    assert isinstance(caught.value, RemoteProtocolError)
    assert subject.match(b"d") == ()
    subject.receive("p", False, b"a")
    subject.receive("p", True, b"d")
    subject.receive("q", True, b"a")
    assert subject.match(b"d") == ("p",)


@pytest.mark.parametrize(
    ("limit", "taken"), [(0, 0), (TOPIC_OVERHEAD_OCTETS + 2, 0), (TOPIC_OVERHEAD_OCTETS + 3, 1), (2 * TOPIC_OVERHEAD_OCTETS + 6, 2)]
)
def test_psb_15_the_cap_is_exact_from_the_first_topic_on(limit: int, taken: int) -> None:
    subject = publisher("p", subscription_octets_max=limit)
    for number in range(taken):
        assert subject.receive("p", True, b"t%d." % number) is not None
    with pytest.raises(SubscriptionLimit):
        subject.receive("p", True, b"not")


def test_psb_15_topic_octets_are_capped_one_by_one_and_together() -> None:
    limit = 15 + 2 * TOPIC_OVERHEAD_OCTETS
    subject = publisher("p", topic_octets_max=10, subscription_octets_max=limit)
    subject.receive("p", True, b"x" * 10)
    with pytest.raises(SubscriptionLimit) as caught:
        subject.receive("p", True, b"y" * 11)
    assert caught.value.limit == 10
    with pytest.raises(SubscriptionLimit) as caught:
        subject.receive("p", True, b"z" * 6)
    assert caught.value.limit == limit
    subject.receive("p", False, b"x" * 10)
    assert subject.receive("p", True, b"z" * 6) == b"\x01zzzzzz"


def test_psb_15_the_cap_holds_in_manual_mode_and_does_not_count_what_the_application_grants() -> None:
    subject = publisher("p", subscription_octets_max=1 + TOPIC_OVERHEAD_OCTETS)
    subject.manual = True
    subject.receive("p", True, b"a")
    with pytest.raises(SubscriptionLimit):
        subject.receive("p", True, b"b")
    subject.grant("p", b"b")
    subject.grant("p", b"c")
    assert subject.match(b"b") == ("p",)


def test_w9_a_subscription_storm_of_one_peer_ends_in_a_typed_error_and_returns_its_memory() -> None:
    subject: PublisherSubscriptions[str] = PublisherSubscriptions()
    subject.attach("storm")
    with pytest.raises(SubscriptionLimit):
        for number in range(1_000_000):
            subject.receive("storm", True, b"topic-%d" % number)
    held = len(subject.topics("storm"))
    assert 60_000 < held < 65_536
    with pytest.raises(SubscriptionLimit):
        subject.receive("storm", True, bytes(1024 * 1024))
    for _ in range(1_000):
        subject.receive("storm", False, b"topic-1")
        subject.receive("storm", True, b"topic-1")
    assert len(subject.detach("storm")) == held
    assert not subject._applied._by_pipe
    assert not subject._applied._cost
    assert not subject._applied._by_topic._tables
    assert not subject._applied._by_topic._trie


class Publisher(RuleBasedStateMachine):
    """The publisher's table against a set of (pipe, topic)."""

    def __init__(self) -> None:
        super().__init__()
        self.subject: PublisherSubscriptions[int] = PublisherSubscriptions()
        self.attached: set[int] = set()
        self.wanted: set[tuple[int, bytes]] = set()

    @rule(pipe=PIPES, topic=TOPICS)
    def subscribe(self, pipe: int, topic: bytes) -> None:
        self.subject.attach(pipe)
        self.attached.add(pipe)
        first = all(held != topic for _, held in self.wanted)
        assert self.subject.receive(pipe, True, topic) == (b"\x01" + topic if first else None)
        self.wanted.add((pipe, topic))

    @rule(topic=TOPICS, count=st.integers(1, 40))
    def crowd(self, topic: bytes, count: int) -> None:
        for pipe in range(count):
            self.subscribe(pipe, topic)

    @rule(pipe=PIPES, topic=TOPICS)
    def cancel(self, pipe: int, topic: bytes) -> None:
        held = (pipe, topic) in self.wanted
        self.wanted.discard((pipe, topic))
        last = not held or all(other != topic for _, other in self.wanted)
        expected = b"\x00" + topic if last and pipe in self.attached else None
        assert self.subject.receive(pipe, False, topic) == expected

    @rule(first=PIPES, count=st.integers(1, 40))
    def detach(self, first: int, count: int) -> None:
        for pipe in range(first, first + count):
            mine = {topic for holder, topic in self.wanted if holder == pipe}
            self.wanted = {(holder, topic) for holder, topic in self.wanted if holder != pipe}
            others = {topic for _, topic in self.wanted}
            self.attached.discard(pipe)
            assert sorted(self.subject.detach(pipe)) == sorted(b"\x00" + topic for topic in mine - others)

    @invariant()
    def same_pipes_for_every_frame(self) -> None:
        for frame in FRAMES:
            matched = self.subject.match(frame)
            assert len(matched) == len(set(matched))
            assert set(matched) == {pipe for pipe, topic in self.wanted if frame.startswith(topic)}


TestPublisher: Any = Publisher.TestCase


def test_zmtp_66_a_subscriber_counts_and_cancels_at_zero() -> None:
    subject = SubscriberTopics()
    subject.subscribe(b"t")
    subject.subscribe(b"t")
    assert list(subject) == [b"t"]
    assert subject.unsubscribe(b"t") is False
    assert subject.matches(b"topic")
    assert subject.unsubscribe(b"t") is True
    assert not subject.matches(b"topic")
    assert subject.unsubscribe(b"t") is False


def test_psb_09_an_unsubscribe_for_an_unknown_topic_is_swallowed() -> None:
    assert SubscriberTopics().unsubscribe(b"never") is False


def test_zmtp_67_each_distinct_topic_is_resent_once() -> None:
    subject = SubscriberTopics()
    for topic in (b"b", b"a", b"b", b""):
        subject.subscribe(topic)
    assert list(subject) == [b"b", b"a", b""]
    assert len(subject) == 3


def test_psb_10_no_subscription_no_match() -> None:
    assert not SubscriberTopics().matches(b"")
    assert not SubscriberTopics().matches(b"anything")


def test_a_subscriber_of_many_topics_matches_as_one_of_few() -> None:
    subject = SubscriberTopics()
    for number in range(100):
        subject.subscribe(b"topic-%02d" % number)
        assert subject.matches(b"topic-00 and so on")
        assert not subject.matches(b"topic")
    for number in range(1, 100):
        subject.unsubscribe(b"topic-%02d" % number)
        assert subject.matches(b"topic-00 and so on")
        assert not subject.matches(b"topic-%02d" % number)


@given(
    steps=st.lists(st.tuples(st.booleans(), TOPICS | st.integers(0, 30).map(lambda n: b"t%02d" % n)), max_size=80),
    frame=st.sampled_from([*FRAMES, b"t07x", b"t"]),
)
def test_a_subscriber_agrees_with_a_counter(steps: list[tuple[bool, bytes]], frame: bytes) -> None:
    subject = SubscriberTopics()
    counts: Counter[bytes] = Counter()
    for subscribe, topic in steps:
        if subscribe:
            subject.subscribe(topic)
            counts[topic] += 1
        else:
            assert subject.unsubscribe(topic) is (counts[topic] == 1)
            counts[topic] = max(0, counts[topic] - 1)
        assert subject.matches(frame) == any(frame.startswith(topic) for topic in +counts)
    assert sorted(subject) == sorted(+counts)
