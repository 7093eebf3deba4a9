"""The cost of a message does not grow with the nesting of a peer's topics, which changes nothing else."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from core.pattern import subscriptions
from core.pattern.subscriptions import PublisherSubscriptions
from core.pattern.topic_trie import TopicMap
from tests.scenes.builds import replaces_names

DEEP = 400


class Watched(TopicMap[Any]):
    """Counts the topics that matched, one by one."""

    __slots__ = ()
    seen: list[int]

    def prefixes(self, octets: bytes) -> list[Any]:
        found = super().prefixes(octets)
        self.seen.append(len(found))
        return found


@replaces_names
@pytest.mark.parametrize("peers", [1, 2, 5])
@pytest.mark.parametrize("order", [1, -1, 0], ids=["shortest-first", "longest-first", "mixed"])
def test_s6_nested_topics_of_a_peer_are_not_visited_one_by_one(order: int, peers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "TopicMap", Watched)
    Watched.seen = []
    publisher: PublisherSubscriptions[str] = PublisherSubscriptions()
    lengths = list(range(1, DEEP + 1))
    if order:
        lengths = lengths[::order]
    else:
        Random(1).shuffle(lengths)
    names = [f"nesting {number}" for number in range(peers)]
    for name in ("plain", *names):
        publisher.attach(name)
    publisher.receive("plain", True, b"aa")
    for number, length in enumerate(lengths):
        publisher.receive(names[number % peers], True, b"a" * length)
    assert set(publisher.match(b"a" * DEEP)) == {"plain", *names}
    Watched.seen.clear()
    assert sorted(publisher.match(b"a" * DEEP)) == sorted(["plain", *names])
    assert publisher.match(b"b") == ()
    assert max(Watched.seen) <= 1  # the topic of the plain one


@pytest.mark.parametrize("seed", range(30))
def test_s6_a_table_apart_is_seen_by_nobody(seed: int) -> None:
    """ZMTP-68: the same as a plain relation of peers and topics: matches, and reports of the first and last holder."""
    random = Random(seed)
    publisher: PublisherSubscriptions[int] = PublisherSubscriptions()
    held: dict[int, set[bytes]] = {}
    for _ in range(1500):
        peer = random.randrange(4)
        topic = random.choice([b"a", b"b"]) * random.choice([*range(1, 40), 300, 301])
        others = set().union(*(topics for other, topics in held.items() if other != peer))
        match random.random():
            case chance if chance < 0.02:
                reports = publisher.detach(peer)
                assert sorted(reports) == sorted(b"\x00" + topic for topic in held.pop(peer, set()) - others)
            case chance if chance < 0.7:
                publisher.attach(peer)
                new = topic not in held.setdefault(peer, set()) | others
                assert publisher.receive(peer, True, topic) == (b"\x01" + topic if new else None)
                held[peer].add(topic)
            case chance if chance < 0.9:
                mine = held.get(peer, set())
                last = topic not in mine or topic not in others
                report = publisher.receive(peer, False, topic)
                assert report == (b"\x00" + topic if peer in held and last else None)
                mine.discard(topic)
            case _:
                matching = publisher.match(topic)
                assert len(set(matching)) == len(matching)
                assert set(matching) == {other for other, topics in held.items() if any(topic.startswith(one) for one in topics)}
    for peer in list(held):
        publisher.detach(peer)
    assert publisher.match(b"a" * 500) == ()
