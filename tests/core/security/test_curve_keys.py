"""core.security.curve_keys: keys as given, weak ones, and the keys of cookies."""

from __future__ import annotations

import pytest

from core.errors import HandshakeError, LocalProtocolError
from core.security.curve_keys import CookieKeys, check_key, is_low_order, parse_key, public_key, shared_key
from core.zmtp import z85

SECRET = bytes(range(1, 33))
PUBLIC = public_key(SECRET)
HALF = bytes(32)


def test_curve_17_a_key_is_taken_raw_or_as_z85() -> None:
    text = z85.encode(PUBLIC)
    assert parse_key(PUBLIC) == parse_key(text) == parse_key(text.decode()) == PUBLIC


@pytest.mark.parametrize("wrong", [b"", bytes(31), bytes(33), "a" * 32, "a" * 39, "a" * 41, "~" * 40, b"~" * 40, "#" * 40, "a" * 45])
def test_anything_else_is_no_key(wrong: bytes | str) -> None:
    assert parse_key(wrong) is None


def test_weak_keys_and_keys_of_another_length_are_refused() -> None:
    assert [is_low_order(key) for key in (bytes(32), b"\x01" + bytes(31), PUBLIC)] == [True, True, False]
    assert shared_key(PUBLIC, SECRET) == shared_key(PUBLIC, SECRET) != SECRET
    with pytest.raises(HandshakeError, match="low order"):
        shared_key(bytes(32), SECRET)
    check_key("secret key", SECRET)
    for key in (b"", bytes(31), bytes(33)):
        with pytest.raises(LocalProtocolError, match=f"secret key of {len(key)} bytes, not 32"):
            public_key(key)


@pytest.mark.parametrize(("age_s", "opens"), [(29.9, True), (30.0, True), (59.9, True), (60.0, False), (70.0, False), (1000.0, False)])
def test_curve_07_a_half_opens_cookies_for_its_lifetime_at_most(age_s: float, opens: bool) -> None:
    keys = CookieKeys(bytes, 100.0, lifetime_s=60.0)
    assert keys.cookie_key(-1, HALF) is None, "there was none before the first"
    first = keys.cookie_key(0, HALF)
    assert first is not None
    keys.rotate(100.0 + age_s)
    assert keys.generation == (age_s >= 30.0)
    assert keys.cookie_key(0, HALF) == (first if opens else None)
    assert keys.cookie_key(keys.generation + 1, HALF) is None
