from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.zmtp import z85

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def test_z85_01_the_example_of_the_rfc() -> None:
    octets = bytes.fromhex("864FD26FB559F75B")
    assert z85.encode(octets) == b"HelloWorld"
    assert z85.decode("HelloWorld") == octets
    assert z85.decode(b"HelloWorld") == octets


def test_z85_01_alphabet_is_in_the_order_of_the_rfc() -> None:
    assert [z85.encode(value.to_bytes(4, "big")).decode() for value in range(85)] == ["0000" + c for c in ALPHABET]


@pytest.mark.parametrize(
    "octets,text",
    [(b"", b""), (bytes(4), b"00000"), (b"\xff\xff\xff\xff", b"%nSc0"), (b"\x00\x00\x00\x01" * 2, b"0000100001")],
)
def test_fixed_points(octets: bytes, text: bytes) -> None:
    assert z85.encode(octets) == text
    assert z85.decode(text) == octets


@given(st.binary(max_size=64).map(lambda b: b[: len(b) // 4 * 4]))
def test_round_trip(octets: bytes) -> None:
    text = z85.encode(octets)
    assert len(text) == len(octets) // 4 * 5
    assert z85.decode(text) == octets
    assert z85.decode(text.decode("ascii")) == octets


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 33])
def test_z85_01_octets_not_a_multiple_of_four(length: int) -> None:
    with pytest.raises(z85.Z85Error) as caught:
        z85.encode(bytes(length))
    assert caught.value.offset == length


@pytest.mark.parametrize(
    "text,offset",
    [
        ("0", 1),
        ("000000", 6),
        ("0000 ", 4),
        ("00000\\0000", 5),
        ('0000"', 4),
        (b"0000\xff", 4),
        (b"0000\x00", 4),
        ("%nSc1", 0),  # one above 2^32 - 1
        ("00000#####", 5),
        ("000é", 3),  # five octets of UTF-8
        ("00\ud800", 2),
    ],
)
def test_z85_01_text_that_is_none(text: str | bytes, offset: int) -> None:
    with pytest.raises(z85.Z85Error) as caught:
        z85.decode(text)
    assert caught.value.offset == offset


@given(st.binary(max_size=45) | st.text(max_size=45))
def test_any_text_decodes_or_is_refused(text: str | bytes) -> None:
    try:
        octets = z85.decode(text)
    except z85.Z85Error:
        return
    assert z85.encode(octets) == (text if isinstance(text, bytes) else text.encode())
