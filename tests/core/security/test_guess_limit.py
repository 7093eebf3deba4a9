"""Wrong passwords: how many an address may try, as a machine and over sockets."""

from __future__ import annotations

import core
from core.security.guess_limit import ADDRESSES_MAX, GuessLimit


def test_an_address_tries_so_many_and_waits_for_the_end_of_its_window() -> None:
    limit = GuessLimit(guesses_max=3, window_s=60)
    for _ in range(3):
        assert limit.may_try("10.0.0.1", 100.0)
        limit.wrong("10.0.0.1", 100.0)
    assert not limit.may_try("10.0.0.1", 159.9)
    assert limit.may_try("10.0.0.2", 159.9)
    assert limit.may_try("10.0.0.1", 160.0)
    limit.wrong("10.0.0.1", 160.0)
    assert limit.may_try("10.0.0.1", 160.0)


def test_many_addresses_are_forgotten_oldest_first() -> None:
    limit = GuessLimit(guesses_max=1, window_s=60)
    for number in range(ADDRESSES_MAX + 1):
        limit.wrong(str(number), 0.0)
    assert limit.may_try("0", 1.0)
    assert not limit.may_try("1", 1.0)
    assert not limit.may_try(str(ADDRESSES_MAX), 1.0)


def test_wrong_passwords_of_others_change_nothing_for_an_address() -> None:
    limit = GuessLimit(guesses_max=2, window_s=60)
    for number in range(2):
        limit.wrong("a", 100.0 + number)
    limit.wrong("b", 110.0)
    assert not limit.may_try("a", 159.9)
    limit.wrong("c", 160.0)
    assert [limit.may_try(address, 160.0) for address in "abc"] == [True, True, True]
    limit.wrong("b", 160.0)
    assert not limit.may_try("b", 169.9)


def test_a_new_window_makes_an_address_the_last_to_be_forgotten() -> None:
    limit = GuessLimit(guesses_max=1, window_s=60)
    limit.wrong("a", 0.0)
    limit.wrong("b", 30.0)
    limit.wrong("a", 60.0)
    for number in range(ADDRESSES_MAX - 1):
        limit.wrong(str(number), 61.0)
    assert [limit.may_try(address, 62.0) for address in "ab"] == [False, True]


def test_the_addresses_of_an_ipv6_network_are_one() -> None:
    """A host with a /64 has 2**64 addresses."""
    limit = GuessLimit(guesses_max=3, window_s=60)
    for number in range(3):
        assert limit.may_try(f"2001:db8:7:1::{number:x}", 1.0)
        limit.wrong(f"2001:db8:7:1:{number:x}::5", 1.0)
    for tried in ("2001:db8:7:1::77", "2001:db8:7:1:ffff:ffff:ffff:ffff", "2001:db8:7:1:5::1%eth0"):
        assert not limit.may_try(tried, 1.0)
    for other in ("2001:db8:7:2::77", "2001:db8::7:1", "fe80::1", "::1", "127.0.0.1"):
        assert limit.may_try(other, 1.0)


def test_an_ipv4_address_within_ipv6_is_counted_alone() -> None:
    limit = GuessLimit(guesses_max=1, window_s=60)
    limit.wrong("::ffff:10.0.0.1", 1.0)
    assert [limit.may_try(address, 1.0) for address in ("::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.2", "10.0.0.2")] == [
        False,
        False,
        True,
        True,
    ]


def test_what_is_no_address_is_counted_as_it_is() -> None:
    limit = GuessLimit(guesses_max=1, window_s=60)
    limit.wrong(":1000:1000:77", 1.0)
    assert [limit.may_try(address, 1.0) for address in (":1000:1000:77", ":1000:1000:78", "", "host")] == [False, True, True, True]


def test_a_network_of_ipv6_gets_300_when_each_of_its_addresses_has_tried_once() -> None:
    judge = core.Authenticator(passwords={"user": "right"}, guesses_max=5, clock=lambda: 0.0)
    statuses = [judge.verdict(request(b"wrong", b"2001:db8:9:9::%x" % number)).status_code for number in range(7)]
    assert statuses == [b"400"] * 5 + [b"300"] * 2
    assert judge.verdict(request(b"right", b"2001:db8:9:8::1")).status_code == b"200"


def request(password: bytes, address: bytes = b"10.0.0.1") -> core.ZapRequest:
    return core.ZapRequest(domain=b"", address=address, mechanism=b"PLAIN", credentials=(b"user", password))


def test_a_password_that_may_not_be_tried_is_not_looked_at() -> None:
    now = [0.0]
    judge = core.Authenticator(passwords={"user": "right"}, guesses_max=5, guesses_window_s=60, clock=lambda: now[0])
    assert [judge.verdict(request(b"wrong")).status_code for _ in range(5)] == [b"400"] * 5
    assert judge.verdict(request(b"right")).status_code == b"300"
    assert judge.guesses_refused == 1
    assert judge.verdict(request(b"right", b"10.0.0.2")).accepted
    now[0] = 60.0
    assert judge.verdict(request(b"right")).accepted


def test_on_one_machine_a_user_is_counted_and_not_each_process() -> None:
    judge = core.Authenticator(passwords={"user": "right"}, guesses_max=2)
    for process in range(2):
        assert judge.verdict(request(b"wrong", b":1000:1000:%d" % process)).status_code == b"400"
    assert judge.verdict(request(b"right", b":1000:1000:77")).status_code == b"300"
    assert judge.verdict(request(b"right", b":1001:1000:78")).accepted
