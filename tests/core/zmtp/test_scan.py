"""The frame loop: starts and ends of messages, the incomplete one, and batches (ZMTP-22..29, 72, 73)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import LimitExceeded
from core.zmtp.frames import decode_frames, encode_command, encode_frame, encode_message
from core.zmtp.scan import NOTHING, Batch, Begun, ScanLimits, scan

FRAMES = st.one_of(st.binary(max_size=8), st.integers(250, 300).map(lambda size: b"x" * size))
MESSAGES = st.lists(st.lists(FRAMES, min_size=1, max_size=6), max_size=6)
WIDE = ScanLimits(-1, 2**63 - 1, 1024)


def scanned(octets: bytes, limits: ScanLimits = WIDE) -> tuple[list[tuple[int, int]], int, Begun, list[int]]:
    starts: list[int] = []
    ends: list[int] = []
    begun = Begun()
    taken = scan(octets, starts, ends, begun, limits)
    return list(zip(starts, ends, strict=True)), taken, begun, begun.commands or []


@given(MESSAGES, st.lists(FRAMES, min_size=1, max_size=4), st.integers(0, 1200))
def test_every_whole_message_is_found_and_what_begins_after_them_is_described(
    messages: list[list[bytes]], last: list[bytes], cut_at: int
) -> None:
    whole = b"".join(encode_message(message) for message in messages)
    tail = encode_message(last)[:-1][:cut_at]
    found, taken, begun, commands = scanned(whole + tail)
    assert [decode_frames((whole + tail)[start:end]) for start, end in found] == messages
    assert (taken, commands) == (len(whole), [])
    held = decode_frames((whole + tail)[taken : begun.at])
    assert held == last[: len(held)]
    assert (begun.parts, begun.size) == (len(held), sum(map(len, held)))
    rest = encode_frame(last[len(held)], len(held) < len(last) - 1)
    have = len(whole + tail) - begun.at
    assert rest.startswith((whole + tail)[begun.at :])
    header = 9 if len(last[len(held)]) > 255 else 2
    assert begun.frame == (0 if not have else len(rest) if have >= header else header)


def test_limits_that_exceed_64_bits_are_taken() -> None:
    octets = encode_message([b"a", b"b"])
    assert scanned(octets, ScanLimits(2**70, 2**70, 2**70))[:2] == ([(0, 6)], 6)


def test_a_message_goes_on_in_the_next_bytes() -> None:
    begun = Begun()
    starts: list[int] = []
    ends: list[int] = []
    octets = encode_message([b"a", b"b", b"c"])
    assert scan(octets[:6], starts, ends, begun, WIDE) == 0
    assert (starts, ends, begun.parts, begun.at) == ([], [], 2, 6)
    assert scan(octets[6:] + encode_message([b"d"]), starts, ends, begun, WIDE) == 6
    assert (starts, ends, begun.parts, begun.size) == ([0, 3], [3, 6], 0, 0)
    assert (begun.at, begun.frame) == (6, 0)
    assert (scan(octets[:1], starts, ends, begun, WIDE), begun.at, begun.frame) == (0, 0, 2)
    assert (scan(octets, starts, ends, begun, WIDE), begun.at, begun.frame) == (9, 9, 0)


def test_between_two_frames_of_a_message_nothing_has_begun() -> None:
    octets = encode_message([b"a", b"b"])[:3]
    _, taken, begun, _ = scanned(octets)
    assert (taken, begun.at, begun.parts, begun.size, begun.frame) == (0, 3, 1, 1, 0)


def test_an_incomplete_header_of_a_long_frame_says_no_size() -> None:
    octets = encode_message([b"a"]) + encode_frame(b"x" * 300)
    for cut in range(4, 12):
        found, taken, begun, _ = scanned(octets[:cut])
        assert (found, taken, begun.at, begun.frame) == ([(0, 3)], 3, 3, 9)
    _, _, begun, _ = scanned(octets[:12])
    assert begun.frame == 309


def test_commands_are_named_with_the_message_they_stand_in() -> None:
    ping = encode_command(b"\x04PING\0\0")
    octets = ping + encode_frame(b"a", more=True) + ping + encode_frame(b"b") + ping
    _, _, _, commands = scanned(octets)
    last = len(octets) - len(ping)
    assert commands == [0, 0, 0, len(ping) + 3, last, last]


@pytest.mark.parametrize(
    ("limits", "kind", "good", "bad"),
    [
        (ScanLimits(-1, 1000, 3), "message_parts", [b""] * 3, [b""] * 4),
        (ScanLimits(-1, 1000, 1024), "message_bytes", [b"x" * 250] * 4, [b"x" * 250] * 5),
        (ScanLimits(5, 1000, 1024), "frame_bytes", [b"x" * 5], [b"x" * 6]),
    ],
)
def test_a_limit_is_judged_on_the_header_and_the_messages_before_it_are_kept(
    limits: ScanLimits, kind: str, good: list[bytes], bad: list[bytes]
) -> None:
    octets = encode_message(good)
    starts: list[int] = []
    ends: list[int] = []
    with pytest.raises(LimitExceeded) as caught:
        scan(octets + encode_message(bad), starts, ends, Begun(), limits)
    assert caught.value.kind == kind
    assert (starts, ends) == ([0], [len(octets)])
    header = encode_frame(bad[-1])[: -len(bad[-1]) or None]
    with pytest.raises(LimitExceeded):
        scan(encode_message(bad)[: -len(encode_frame(bad[-1]))] + header, [], [], Begun(), limits)


def test_a_batch_is_a_sequence_of_messages_however_they_came() -> None:
    octets = encode_message([b"c"]) + encode_message([b"d", b"e" * 300])
    batch = Batch([b"id"], octets, [0, 3], [3, len(octets)], [[b"id", b"a", b"b"]])
    expected = [[b"id", b"a", b"b"], [b"id", b"c"], [b"id", b"d", b"e" * 300]]
    assert ([*batch], len(batch), batch.messages()) == (expected, 3, expected)
    assert [batch[0], batch[1], batch[-1]] == expected
    with pytest.raises(IndexError):
        batch[3]
    encoded = batch.encode()
    assert (encoded.made, [*encoded], encoded.octets) == ([], expected, encode_message([b"a", b"b"]) + octets)
    assert encoded.encode() is encoded
    assert Batch.of([b"id"], expected).encode().octets == encoded.octets
    assert (batch.peer, NOTHING.peer, len(NOTHING)) == (b"id", b"", 0)
    assert Batch([b"id", b""], octets, [0], [3]).peer == b"id"
