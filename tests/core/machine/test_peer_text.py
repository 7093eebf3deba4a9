"""Numbers and JSON of peers: read, or refused with the one error that is documented."""

from __future__ import annotations

import pytest

from core.machine.peer_text import DIGITS_MAX, BadJson, decimal, read_json


@pytest.mark.parametrize(("octets", "number"), [(b"0", 0), (b"007", 7), (b"9" * DIGITS_MAX, 10**DIGITS_MAX - 1)])
def test_digits_are_a_number(octets: bytes, number: int) -> None:
    assert decimal(octets) == number


@pytest.mark.parametrize(
    "octets", [b"", b"-1", b"+1", b" 1", b"1 ", b"1_0", b"0x1", b"\xb2", "²".encode(), b"1.0", b"9" * (DIGITS_MAX + 1), b"1" * 5000]
)
def test_everything_else_is_no_number(octets: bytes) -> None:
    assert decimal(octets) is None


def test_the_number_of_digits_is_the_callers() -> None:
    assert decimal(b"999", 3) == 999
    assert decimal(b"1000", 3) is None


def test_json_is_read() -> None:
    assert read_json(b'{"a": [1, null, "\xc3\xa9"]}') == {"a": [1, None, "é"]}


@pytest.mark.parametrize("octets", [b"", b"{", b"\xff\xfe", b'"\xff"', b"[1] 2", b"1" * 5000, b"[" * 100_000, b'{"a":' * 100_000])
def test_everything_else_is_bad_json(octets: bytes) -> None:
    with pytest.raises(BadJson):
        read_json(octets)
