from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.pattern import topic_trie
from core.pattern.topic_trie import TopicMap

# Few octets and short strings make prefixes of each other likely; long runs reach the trie and split its labels.
TOPICS = st.text(alphabet="ab", max_size=6).map(str.encode) | st.integers(200, 300).map(lambda n: b"a" * n)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "drop"]), TOPICS), max_size=60)


class Model:
    """The same map, slow and obvious."""

    def __init__(self) -> None:
        self.values: dict[bytes, int] = {}

    def prefixes(self, octets: bytes) -> list[int]:
        return sorted(value for topic, value in self.values.items() if octets.startswith(topic))


def check(subject: TopicMap[int], model: Model, probes: list[bytes]) -> None:
    for probe in probes:
        assert sorted(subject.prefixes(probe)) == model.prefixes(probe)
        assert subject.get(probe) == model.values.get(probe)
        assert subject.covers(probe) is bool(model.prefixes(probe))


@pytest.mark.parametrize("tables", [0, 1, 2, 16])
@given(steps=STEPS, probes=st.lists(TOPICS, min_size=1, max_size=10))
def test_agrees_with_a_list_of_topics_whichever_store_holds_them(tables: int, steps: list[tuple[str, bytes]], probes: list[bytes]) -> None:
    """ZMTP-68."""
    subject: TopicMap[int] = TopicMap()
    model = Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_trie, "_TABLES_MAX", tables)
        for number, (verb, topic) in enumerate(steps):
            if verb == "put":
                subject.put(topic, number)
                model.values[topic] = number
            else:
                subject.drop(topic)
                model.values.pop(topic, None)
            check(subject, model, [topic])
        check(subject, model, [*probes, *model.values])
        for topic in list(model.values):
            subject.drop(topic)
            del model.values[topic]
        check(subject, model, probes)
    assert not subject._tables
    assert not subject._table_of_length
    assert not subject._trie


def check_memory(subject: TopicMap[int]) -> None:
    """No node is there that is of no use: it has a value, or ways part at it."""
    pending = [*subject._trie._root.children.values()]
    while pending:
        node = pending.pop()
        assert node.value is not None or len(node.children) > 1
        pending += node.children.values()


def some_topic(rng: random.Random) -> bytes:
    """Topics that begin alike, of few lengths and of many, around the length from which on there are no tables."""
    if rng.random() < 0.7:
        return bytes(rng.choice(b"ab") for _ in range(rng.randrange(7)))
    return b"a" * rng.choice((0, 250, 254)) + bytes(rng.choice(b"ab") for _ in range(rng.randrange(6))) + b"c" * rng.choice((0, 0, 3))


@pytest.mark.parametrize("tables", [0, 2, 16])
@pytest.mark.parametrize("seed", range(10))
def test_a_walk_ends_with_what_was_put_and_not_dropped(seed: int, tables: int) -> None:
    rng = random.Random(seed)
    subject: TopicMap[int] = TopicMap()
    model = Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_trie, "_TABLES_MAX", tables)
        for number in range(120):
            topic = rng.choice(list(model.values)) if model.values and rng.random() < 0.4 else some_topic(rng)
            if rng.random() < 0.6:
                subject.put(topic, number)
                model.values[topic] = number
            else:
                subject.drop(topic)
                model.values.pop(topic, None)
            check(subject, model, [topic, topic + b"tail", some_topic(rng)])
            check_memory(subject)
        check(subject, model, list(model.values))
        for topic in list(model.values):
            subject.drop(topic)
            del model.values[topic]
            check(subject, model, list(model.values))
    assert not subject._tables
    assert not subject._table_of_length
    assert not subject._trie
    assert not subject._trie._root.children


def test_a_topic_stays_in_the_trie_when_a_table_for_its_length_appears_later() -> None:
    subject: TopicMap[int] = TopicMap()
    for length in range(1, topic_trie._TABLES_MAX + 1):
        subject.put(b"x" * length, length)
    late = b"y" * (topic_trie._TABLES_MAX + 1)
    subject.put(late, 99)
    subject.drop(b"x")  # frees one table
    subject.put(b"z" * len(late), 1)
    subject.put(late, 100)
    assert subject.prefixes(late + b"tail") == [100]
    subject.drop(late)
    assert subject.prefixes(late) == []
    assert subject.get(b"z" * len(late)) == 1


def test_psb_15_a_message_costs_so_many_look_ups_and_none_in_long_topics() -> None:
    subject: TopicMap[int] = TopicMap()
    for length in (257, 256, 300, *range(1, 40)):
        subject.put(b"x" * length, length)
    assert [length for length, _ in subject._tables] == [256, *range(1, 16)]


def test_psb_15_nested_topics_need_no_recursion_and_give_their_memory_back() -> None:
    subject: TopicMap[int] = TopicMap()
    depth = 2_000  # twice what the interpreter allows for recursion
    for length in range(1, depth + 1):
        subject.put(b"n" * length, length)
    assert len(subject.prefixes(b"n" * depth)) == depth
    assert len(subject.prefixes(b"n" * 100 + b"m" * depth)) == 100
    order = list(range(1, depth + 1))
    random.Random(7).shuffle(order)
    for length in order:
        subject.drop(b"n" * length)
    assert not subject._trie
    assert not subject._tables
    assert subject.prefixes(b"n" * depth) == []


def test_dropping_what_is_not_there_changes_nothing() -> None:
    subject: TopicMap[int] = TopicMap()
    subject.put(b"abc", 1)
    subject.put(b"q" * 300, 2)
    for topic in (b"", b"ab", b"abd", b"abcd", b"q" * 299, b"q" * 301, b"r" * 300):
        subject.drop(topic)
        assert subject.get(topic) is None
    assert subject.prefixes(b"abcd") == [1]
    assert subject.prefixes(b"q" * 400) == [2]
