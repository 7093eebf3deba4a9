"""freelance.names.messages and freelance.names.registry: messages of the name service and their answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freelance.errors import MalformedMessage
from freelance.names.catalog import TTL_MS_MAX, CatalogLimits, Entry, Key
from freelance.names.messages import PAGE, decode_entry, decode_record, decode_request, encode_entry, encode_record
from freelance.names.registry import Answer, Registry, Wait

WORDS = st.from_regex(r"[A-Za-z0-9._/-]{1,128}", fullmatch=True)
ENDPOINTS = st.text(min_size=1, max_size=100).filter(lambda text: text.isprintable() and "\ud800" > max(text))
ENTRIES = st.builds(
    Entry,
    st.builds(Key, WORDS, WORDS, st.sampled_from(["bind", "connect"]), ENDPOINTS),
    st.tuples(st.integers(0, 2**53), WORDS),
    st.booleans(),
    st.integers(0, 10**9),
)
SET = [b"SET", b"test", b"shop", b"connect", b"0", b"tcp://a:1"]


def ask(registry: Registry, *frames: bytes, now: float = 0.0) -> list[bytes]:
    answer = registry.receive(frames, wall_ms=1000, now=now)
    assert isinstance(answer, Answer)
    return answer.reply


@given(ENTRIES)
def test_records_and_entries_come_back(entry: Entry) -> None:
    assert decode_record(encode_record(entry)) == entry
    assert decode_entry(encode_entry(entry)) == (entry.key.role, entry.ttl_ms, entry.key.endpoint)


def test_the_last_word_of_a_line_may_have_spaces_and_the_longest_line_is_read() -> None:
    spaced = Entry(Key("test", "shop", "bind", "ipc:///tmp/a b  c"), (1, "a"), False, 5)
    assert encode_entry(spaced) == b"bind 5 ipc:///tmp/a b  c"
    assert encode_record(spaced) == b"1 a - 5 bind test shop ipc:///tmp/a b  c"
    assert decode_entry(encode_entry(spaced)) == ("bind", 5, "ipc:///tmp/a b  c")
    assert decode_record(encode_record(spaced)) == spaced
    longest = Entry(Key("e" * 128, "n" * 128, "connect", "x" * 512), (2**53, "i" * 128), True, TTL_MS_MAX)
    assert decode_record(encode_record(longest)) == longest


@given(st.lists(st.one_of(st.binary(max_size=20), st.sampled_from([b"GET", b"SET", b"WATCH", b"0", b"test", b"bind"])), min_size=1))
def test_nam_05_whatever_is_asked_is_answered(body: list[bytes]) -> None:
    answer = Registry("a").receive(body, wall_ms=1, now=0)
    assert isinstance(answer, Wait) or answer.reply[0] in (b"200", b"400", b"404")


@pytest.mark.parametrize(
    "octets", [b"", b"connect", b"connect 1", b"client 1 tcp://a:1", b"bind -1 x", b"bind x x", b"bind \xb2 x", b"\xff 1 x"]
)
def test_no_entry(octets: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_entry(octets)


@pytest.mark.parametrize(
    "body",
    [
        [b"GET"],
        [b"get", b"test", b"shop"],
        [b"GET", b"test", b"shop", b"x"],
        [b"GET", b"", b"shop"],
        [b"GET", b"test", b"\xff"],
        [b"WATCH", b"test", b"shop", b"", b"30001"],
        [b"WATCH", b"test", b"shop", b"x" * 33, b"1"],
        [b"SET", b"test", b"shop", b"connect", b"1.5", b"tcp://a:1"],
        [b"SET", b"test", b"shop", b"connect", b"9" * 5000, b"tcp://a:1"],
        [b"SET", b"test", b"shop", b"both", b"1", b"tcp://a:1"],
        [b"LIST", b"test", b"a b"],
        [b"DUMP", b"nonsense"],
        [b"DUMP", b"1 a + 0 both test shop x"],
        [b"MERGE", b"1 a ! 0 bind test shop x"],
        [b"MERGE", *[b"1 a + 0 bind test shop x"] * (PAGE + 1)],
    ],
)
def test_nam_05_what_is_not_valid_is_400_and_counted(body: list[bytes]) -> None:
    registry = Registry("a")
    assert ask(registry, *body)[0] == b"400"
    assert registry.counters["refused_malformed"] == 1
    with pytest.raises(MalformedMessage):
        decode_request(body)


def test_nam_06_the_largest_page_is_merged() -> None:
    registry = Registry("a")
    assert ask(registry, b"MERGE", *[b"1 a + 0 bind test shop x"] * PAGE) == [b"200"]
    assert registry.counters["record_merged"] == 1


def test_nam_01_set_get_list_drop() -> None:
    registry = Registry("a")
    assert ask(registry, *SET) == [b"200"]
    assert ask(registry, b"GET", b"test", b"shop")[2:] == [b"connect 0 tcp://a:1"]
    assert ask(registry, b"LIST", b"test", b"") == [b"200", b"shop"]
    assert ask(registry, b"DROP", b"test", b"shop", b"connect", b"tcp://a:1") == [b"200"]
    assert ask(registry, b"DROP", b"test", b"shop", b"connect", b"tcp://a:1") == [b"404"]
    code, _, *entries = ask(registry, b"GET", b"test", b"shop")
    assert (code, entries) == (b"404", [])


def test_nam_01_names_after_one() -> None:
    registry = Registry("a")
    for name in (b"zoo", b"shop", b"bank"):
        ask(registry, *SET[:2], name, *SET[3:])
    assert ask(registry, b"LIST", b"test", b"bank") == [b"200", b"shop", b"zoo"]
    assert ask(registry, b"LIST", b"test", b"zoo") == [b"200"]


def test_nam_05_the_longest_endpoint_is_taken_and_a_longer_one_is_answered_with_the_limit() -> None:
    registry = Registry("a")
    assert ask(registry, *SET[:5], b"x" * 512) == [b"200"]
    assert ask(registry, *SET[:5], b"x" * 513) == [b"400", b"more than 512 bytes"]
    assert ask(registry, b"GET", b"test", b"s" * 513) == [b"400", b"more than 512 bytes"]


def test_each_request_is_counted_by_its_verb() -> None:
    registry = Registry("a")
    for body in (SET, [b"GET", b"test", b"shop"], [b"WATCH", b"test", b"shop", b"", b"0"], [b"DROP", *SET[1:4], SET[5]]):
        ask(registry, *body)
    assert registry.counters == {"set": 1, "get": 1, "watch": 1, "drop": 1}


def test_nam_04_a_drop_is_a_change_and_one_of_nothing_is_none() -> None:
    registry = Registry("a")
    ask(registry, *SET)
    registry.changed.clear()
    ask(registry, b"DROP", *SET[1:4], SET[5])
    assert registry.changed == {("test", "shop")}
    registry.changed.clear()
    ask(registry, b"DROP", *SET[1:4], SET[5])
    assert registry.changed == set()


def test_nam_04_the_longest_wait_is_taken() -> None:
    registry = Registry("a")
    _, nothing = ask(registry, b"GET", b"test", b"shop")
    waiting = registry.receive([b"WATCH", b"test", b"shop", nothing, b"30000"], wall_ms=1, now=2.0)
    assert waiting == Wait(("test", "shop"), nothing, 32.0)


def test_nam_04_a_watch_waits_while_the_digest_is_the_same() -> None:
    registry = Registry("a")
    _, nothing = ask(registry, b"GET", b"test", b"shop")
    waiting = registry.receive([b"WATCH", b"test", b"shop", nothing, b"5000"], wall_ms=1, now=2.0)
    assert waiting == Wait(("test", "shop"), nothing, 7.0)
    ask(registry, *SET, now=3.0)
    assert registry.changed == {("test", "shop")}
    assert ask(registry, b"WATCH", b"test", b"shop", nothing, b"5000", now=3.0) == registry.listing_reply(("test", "shop"), 3.0)
    assert ask(registry, b"WATCH", b"test", b"shop", nothing, b"0", now=3.0)[0] == b"200"


def test_nam_04_the_end_of_an_endpoint_is_a_change() -> None:
    registry = Registry("a")
    ask(registry, *SET[:4], b"1000", SET[5])
    registry.changed.clear()
    assert registry.deadline() == 1.0
    registry.tick(1.0)
    assert registry.changed == {("test", "shop")}
    ask(registry, *SET[:4], b"1000", SET[5], now=1.0)
    registry.changed.clear()
    assert ask(registry, b"GET", b"test", b"bank", now=2.0)[0] == b"404"
    assert registry.changed == {("test", "shop")}, "any request finds it"


def test_nam_06_records_of_one_server_are_taken_by_the_other() -> None:
    one, two = Registry("a"), Registry("b")
    told = one.receive(SET, wall_ms=1000, now=0)
    assert isinstance(told, Answer)
    assert ask(two, b"MERGE", *told.tell) == [b"200"]
    assert (two.counters["record_merged"], two.changed) == (1, {("test", "shop")})
    two.changed.clear()
    assert ask(two, b"MERGE", *told.tell) == [b"200"]
    assert (two.counters["record_merged"], two.changed) == (1, set())
    assert ask(two, b"STATE") == ask(one, b"STATE") == [b"200", one.catalog.state()]
    assert ask(two, b"DUMP", b"")[1:] == told.tell
    assert ask(two, b"DUMP", told.tell[0]) == [b"200"]


def test_a_full_catalog_is_507_and_a_record_too_many_is_counted() -> None:
    registry = Registry("a", CatalogLimits(names_max=0))
    assert ask(registry, *SET)[0] == b"507"
    told = Registry("b").receive(SET, wall_ms=1000, now=0)
    assert isinstance(told, Answer)
    assert ask(registry, b"MERGE", *told.tell) == [b"200"]
    assert ask(registry, b"MERGE", b"999999999999 z + 0 bind test shop x") == [b"200"]
    assert registry.counters == {"refused_full": 1, "record_overflow": 1, "record_malformed": 1, "set": 1}
