"""The rules of sharded brokers: vectors for other implementations.

Rules of specs/mdp.md: SHD-01 to SHD-03.
"""

from __future__ import annotations

from collections import Counter

import pytest

from mdp.wire.shards import SHARDS_MAX, greeting, parse_greeting, shard_endpoint, shard_of

# Service -> its shard among 1, 2, 3, 4 and 8.
VECTORS = {
    "echo": (0, 0, 0, 0, 5),
    "total": (0, 0, 2, 2, 2),
    "geo.nearest": (0, 1, 1, 1, 1),
    "größe": (0, 1, 2, 2, 4),
    "a": (0, 0, 0, 0, 7),
}


@pytest.mark.parametrize("service", VECTORS)
def test_the_shard_of_a_service(service: str) -> None:
    assert tuple(shard_of(service.encode(), count) for count in (1, 2, 3, 4, 8)) == VECTORS[service]


def test_services_are_spread_evenly_and_one_shard_more_takes_its_share_only() -> None:
    names = [b"service-%d" % number for number in range(4000)]
    before, after = ([shard_of(name, count) for name in names] for count in (4, 5))
    assert all(900 < count < 1100 for count in Counter(before).values())
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {4}


@pytest.mark.parametrize(
    ("endpoint", "first", "third"),
    [
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556", "tcp://127.0.0.1:5558"),
        ("tcp://*:5555", "tcp://*:5556", "tcp://*:5558"),
        ("tcp://[::1]:80", "tcp://[::1]:81", "tcp://[::1]:83"),
        ("ipc:///run/mdp", "ipc:///run/mdp.0", "ipc:///run/mdp.2"),
        ("tcp://*:*", None, None),
        ("tcp://*:0", None, None),
        ("tcp://a:65533", "tcp://a:65534", None),
        ("tcp://a:65535", None, None),
        ("inproc://x", None, None),
        ("", None, None),
    ],
)
def test_the_endpoints_of_shards(endpoint: str, first: str | None, third: str | None) -> None:
    assert (shard_endpoint(endpoint, 0), shard_endpoint(endpoint, 2)) == (first, third)


def test_the_greeting_and_what_is_none() -> None:
    assert greeting(3) == [b"200", b"shards", b"3"]
    assert parse_greeting(greeting(3)) == 3
    assert parse_greeting(greeting(SHARDS_MAX)) == SHARDS_MAX
    for body in ([], [b"200"], [b"200", b"shards"], [b"300", b"shards", b"2"], [b"200", b"x", b"2"], [b"200", b"shards", b"-2"]):
        assert parse_greeting(body) == 0
    for number in (b"", b"x", b"2 ", b"65", b"9" * 5000, "²".encode()):
        assert parse_greeting([b"200", b"shards", number]) == 0
