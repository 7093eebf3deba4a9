"""core.zmtp.frames: frames of every size as octets, and whole ones taken apart again."""

from __future__ import annotations

import array
from typing import Any

import pytest

from core.errors import RemoteProtocolError
from core.zmtp.frames import (
    LONG,
    LONG_HEADER,
    MORE,
    Encoded,
    decode_frames,
    encode_command,
    encode_frame,
    encode_message,
    encode_pair,
    encode_parts,
    encode_prefix,
    frame_at,
    long_header,
    long_size,
    octets_of,
    split_frames,
)

SIZES = [0, 1, 254, 255, 256, 257, 511, 512, 65_535, 65_536, 65_537, 70_000]


class ForeignFrame:
    """As other bindings have it."""

    buffer = memoryview(b"abc")


def header(flags: int, size: int) -> bytes:
    """ZMTP-22: the short form up to 255 octets."""
    return bytes((flags, size)) if size < 256 else bytes((flags | 2,)) + size.to_bytes(8, "big")


def frame(flags: int, body: bytes) -> bytes:
    return header(flags, len(body)) + body


@pytest.mark.parametrize("size", SIZES)
def test_zmtp_22_the_form_of_a_frame_is_that_of_its_size(size: int) -> None:
    body = b"x" * size
    assert encode_frame(body) == encode_message([body]) == frame(0, body)
    assert encode_frame(body, more=True) == encode_prefix([body]) == frame(1, body)
    assert encode_command(body) == frame(4, body)
    if size > 255:
        assert long_header(size) == header(0, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("head", [b"", b"h", b"h" * 255, b"h" * 256, bytearray(b"h"), memoryview(b"h" * 300)])
def test_a_message_of_two_frames(head: bytes, size: int) -> None:
    body = b"x" * size
    octets = frame(1, bytes(head)) + frame(0, body)
    assert encode_pair(head, body) == encode_message([head, body]) == encode_message([b"left out", head, body], 1) == octets
    assert encode_pair(head, bytearray(body)) == encode_pair(head, memoryview(body)) == octets
    assert encode_pair(head, Encoded(octets)) == frame(1, bytes(head)) + octets


@pytest.mark.parametrize("size", SIZES)
def test_messages_of_any_number_of_frames_and_an_encoded_end(size: int) -> None:
    body = b"x" * size
    tail = Encoded.of([b"t", body])
    assert tail == frame(1, b"t") + frame(0, body)
    assert tail.frames() == [b"t", body]
    for frames, end in (([body, bytearray(b"a"), body], frame(0, body)), ([body, bytearray(b"a"), bytearray(body)], frame(0, body))):
        octets = frame(1, body) + frame(1, b"a") + end
        assert encode_message(frames) == b"".join(encode_parts(frames)) == octets
        assert encode_message([b"no", b"no", *frames], 2) == b"".join(encode_parts([b"no", b"no", *frames], 2)) == octets
        assert encode_message([*frames, tail]) == frame(1, body) + frame(1, b"a") + frame(1, body) + tail
    assert encode_message([tail]) == encode_message([b"no", tail], 1) == tail
    assert encode_message([memoryview(body)]) == frame(0, body)
    assert encode_prefix([b"a", body, b"b"]) == frame(1, b"a") + frame(1, body) + frame(1, b"b")


def test_a_large_frame_is_a_piece_of_its_own_and_not_copied() -> None:
    body = b"x" * 70_000
    assert any(piece is body for piece in encode_parts([b"a", body]))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_changes_after_its_encoding_is_as_it_was(place: int) -> None:
    numbers = array.array("H", [1, 2])
    frames: list[Any] = [b"a", b"b", b"c"]
    frames[place] = memoryview(numbers)
    pieces = encode_parts(frames)
    numbers[0] = 7
    bodies = [b"a", b"b", b"c"]
    bodies[place] = array.array("H", [1, 2]).tobytes()
    assert decode_frames(b"".join(pieces)) == bodies


def test_what_could_change_is_copied() -> None:
    given = bytearray(b"abc")
    for changeable in (given, memoryview(given), ForeignFrame()):
        copied = octets_of(changeable)
        assert (type(copied), copied) == (bytes, b"abc")
    kept = b"abc"
    assert octets_of(kept) is kept
    assert octets_of(array.array("H", [1, 2])) == array.array("H", [1, 2]).tobytes()
    for text in ("abc", 3, None):
        with pytest.raises(TypeError, match=f"bytes-like, not {type(text).__name__}"):
            octets_of(text)


@pytest.mark.parametrize("flags", [0, 1, 4, 5])
@pytest.mark.parametrize("size", [0, 5, 255, 256, 70_000])
def test_a_frame_is_found_by_its_header_alone(flags: int, size: int) -> None:
    octets = b"before" + header(flags, size)
    start = len(octets)
    assert frame_at(octets, 6) == (flags | (2 if size > 255 else 0), start, start + size)
    for cut in range(6, start):
        with pytest.raises(IndexError):
            frame_at(octets[:cut], 6)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 65_537, 1 << 32, (1 << 63) + 5, (1 << 64) - 1])
@pytest.mark.parametrize("flags", [LONG, LONG | MORE])
@pytest.mark.parametrize("before", [b"", b"\xff" * 9])
def test_the_size_of_a_long_frame_is_read_from_all_eight_bytes(size: int, flags: int, before: bytes) -> None:
    assert long_size(before + LONG_HEADER(flags, size) + b"\xff", len(before)) == size


def test_frames_are_taken_off_the_front() -> None:
    bodies = [b"", b"x", b"y" * 300]
    octets = frame(1, bodies[0]) + frame(1, bodies[1]) + frame(0, bodies[2])
    assert decode_frames(octets) == bodies
    assert decode_frames(b"") == []
    assert split_frames(octets, 0) == ([], octets)
    assert split_frames(octets, 1) == (bodies[:1], octets[2:])
    assert split_frames(octets, 2) == (bodies[:2], octets[5:])
    assert split_frames(octets, 3) == split_frames(octets, 9) == (bodies, b"")
    for cut in (1, 3, 4, 6, 13, 14, len(octets) - 1):
        with pytest.raises(RemoteProtocolError, match="not whole frames"):
            decode_frames(octets[:cut])
