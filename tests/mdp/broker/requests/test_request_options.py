"""Wishes of a request, as the broker keeps them."""

from __future__ import annotations

from math import inf

from mdp.broker.requests.request_options import extras_of, key_extras, owner_prefix
from mdp.wire.options import NO_REQUEST_OPTIONS, decode_request_options, encode_options


def test_options_that_ask_for_nothing_take_no_memory() -> None:
    assert extras_of(NO_REQUEST_OPTIONS, b"", 0.0) is None


def test_every_wish_is_kept() -> None:
    octets = encode_options({"deadline_ms": 1500, "key": b"k", "once": True, "wait": True, "priority": "high", "progress": True})
    extras = extras_of(decode_request_options(octets), octets, 10.0)
    assert extras is not None
    assert (extras.deadline, extras.key, extras.once, extras.wait, extras.priority, extras.progress) == (11.5, b"k", True, True, 1, True)
    assert extras.options == octets
    octets = encode_options({"wait": True})
    extras = extras_of(decode_request_options(octets), octets, 10.0)
    assert extras is not None
    assert (extras.deadline, extras.key, extras.once, extras.priority, extras.progress) == (inf, None, False, 0, False)


def test_options_of_a_key_alone_are_known_without_decoding() -> None:
    octets = encode_options({"key": b"order-17"})
    extras = key_extras(octets)
    assert extras is not None
    assert (extras.key, extras.options) == (b"order-17", octets)
    assert key_extras(encode_options({"key": b"k", "wait": True})) is None


def test_no_prefix_of_a_user_begins_with_that_of_another() -> None:
    """IDM-05: the keys of a user are its own."""
    assert [owner_prefix(name) for name in ("", "a", "ä", "x" * 300)] == [b"\0\0", b"\0\x01a", "\0\x02ä".encode(), b"\x01\x2c" + b"x" * 300]
