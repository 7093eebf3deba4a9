"""Frames: how they are encoded, and that octets split in any way decode to the same (ZMTP-22 to 29, HAR-02)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import RemoteProtocolError
from core.zmtp.decoder import Decoder
from core.zmtp.frames import Encoded, decode_frames, encode_command, encode_frame, encode_message, encode_pair, encode_prefix, split_frames
from core.zmtp.scan import COMMAND_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

FRAMES = st.one_of(st.binary(max_size=8), st.integers(250, 300).map(lambda size: b"x" * size))
MESSAGES = st.lists(st.lists(FRAMES, min_size=1, max_size=6), max_size=6)


def decoder(commands: list[bytes] | None = None, **limits: int) -> Decoder:
    noted = [] if commands is None else commands

    def note(body: bytes) -> None:
        noted.append(body)

    return Decoder(on_command=note, **limits)


def fed(made: Decoder, chunks: Iterable[bytes]) -> list[list[bytes]]:
    return [message for chunk in chunks for message in made.feed(chunk)]


def cut(octets: bytes, at: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({place for place in at if place < len(octets)}), len(octets)]
    return [octets[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize(
    ("size", "more", "header"),
    [
        (0, False, "0000"),
        (0, True, "0100"),
        (255, False, "00ff"),
        (255, True, "01ff"),
        (256, False, "020000000000000100"),
        (70_000, True, "030000000000011170"),
    ],
)
def test_zmtp_22_the_short_form_up_to_255_octets(size: int, more: bool, header: str) -> None:
    body = b"b" * size
    assert encode_frame(body, more) == bytes.fromhex(header) + body


@pytest.mark.parametrize(("size", "flags"), [(0, 4), (255, 4), (256, 6)])
def test_zmtp_26_commands_never_say_more(size: int, flags: int) -> None:
    assert encode_command(b"c" * size)[0] == flags


@given(st.lists(FRAMES, min_size=1, max_size=6))
def test_a_message_is_its_frames_and_all_but_the_last_say_more(frames: list[bytes]) -> None:
    expected = encode_prefix(frames[:-1]) + encode_frame(frames[-1])
    assert encode_message(frames) == expected
    assert encode_message([b"routing id", *frames], 1) == expected
    assert decode_frames(expected) == frames
    assert Encoded.of(frames).frames() == frames
    assert encode_message([b"head", Encoded(expected)]) == encode_prefix([b"head"]) + expected


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_what_could_change_is_copied_and_text_is_refused(kind: type) -> None:
    assert encode_message([kind(b"a"), kind(b"b")]) == encode_message([b"a", b"b"])
    assert encode_pair(b"a", kind(b"b")) == encode_message([b"a", b"b"])
    with pytest.raises(TypeError):
        encode_message(["text"])


@pytest.mark.parametrize("octets", ["00", "0005", "0105616263", "02000000000000", "0200000000000000ff00"])
def test_octets_that_are_no_whole_frames_are_the_peers_fault(octets: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_frames(bytes.fromhex(octets))


def test_split_takes_frames_off_the_front() -> None:
    octets = encode_message([b"a", b"b", b"c"])
    assert split_frames(octets, 2) == ([b"a", b"b"], encode_message([b"c"]))
    assert split_frames(octets, 9) == ([b"a", b"b", b"c"], b"")


@settings(max_examples=300)
@given(
    MESSAGES,
    st.lists(st.integers(0, 3000), max_size=12),
    st.booleans(),
    st.lists(st.integers(0, 30), max_size=4),
)
def test_zmtp_27_zmtp_28_any_cut_and_commands_between_frames(
    messages: list[list[bytes]], edges: list[int], routed: bool, pings: list[int]
) -> None:
    pieces = [encode_frame(frame, index < len(message) - 1) for message in messages for index, frame in enumerate(message)]
    for place in pings:
        pieces.insert(min(place, len(pieces)), encode_command(b"\x04PING\0\0"))
    commands: list[bytes] = []
    made = decoder(commands)
    made.head = [b"id"] if routed else []
    found = fed(made, cut(b"".join(pieces), edges))
    assert made.failure is None
    assert commands == [b"\x04PING\0\0"] * len(pings)
    for message, expected in zip(found, messages, strict=True):
        frames = message[len(made.head) :]
        assert message[: len(made.head)] == made.head
        assert frames == expected


def test_zmtp_23_zmtp_25_a_long_header_for_few_octets_and_reserved_bits_are_taken() -> None:
    made = decoder()
    assert [*made.feed(bytes.fromhex("0200000000000000 03") + b"abc")] == [[b"abc"]]
    assert [*made.feed(b"\xf9\x01a\xf8\x01b")] == [[b"a", b"b"]]
    assert made.failure is None


@pytest.mark.parametrize("size", [2**63, 2**64 - 1])
def test_zmtp_24_absurd_sizes_are_refused_on_the_header(size: int) -> None:
    made = decoder()
    assert [*made.feed(encode_message([b"before"]) + b"\x02" + size.to_bytes(8, "big"))] == [[b"before"]]
    assert made.failure is not None


@pytest.mark.parametrize("whole", [True, False])
def test_zmtp_72_zmtp_73_zmtp_81_the_frame_limit_counts_frames_and_looks_at_the_size_field(whole: bool) -> None:
    made = decoder(frame_bytes_max=100)
    assert [*made.feed(encode_message([b"x" * 64, b"x" * 64, b"x" * 100]))] == [[b"x" * 64, b"x" * 64, b"x" * 100]]
    octets = encode_message([b"x" * 101])
    assert [*made.feed(octets if whole else octets[:2])] == []
    assert made.failure is not None


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_limits_on_parts_and_octets_of_a_message(step: int) -> None:
    for limits, good, bad in (
        ({"parts_max": 3}, [b""] * 3, [b""] * 4),
        ({"message_bytes_max": 1000}, [b"x" * 300] * 3, [b"x" * 300] * 4),
    ):
        made = decoder(None, **limits)
        octets = encode_message(good)
        assert len(fed(made, cut(octets, range(0, len(octets), step)))) == 1
        assert made.failure is None
        octets = encode_message(bad)
        for chunk in cut(octets, range(0, len(octets), step)):
            made.feed(chunk)
            if made.failure is not None:
                break
        assert made.failure is not None


@pytest.mark.parametrize("step", [1000, 4096, 9999, 65_536])
def test_large_frames_are_put_together_from_any_reads(step: int) -> None:
    messages = [[b"a" * 20_000, b"b", b"c" * 30_000], [b"d" * 50_000], [b"e"], [b"f", b"g" * 8192]]
    octets = b"".join(encode_message(message) for message in messages)
    made = decoder()
    assert fed(made, cut(octets, range(0, len(octets), step))) == messages


def test_a_command_longer_than_any_is_refused_before_it_is_held() -> None:
    made = decoder()
    made.feed(b"\x06" + (COMMAND_BYTES_MAX + 1).to_bytes(8, "big"))
    assert made.failure is not None


@pytest.mark.parametrize("cut_at", [2, 9, 10, 70_000])
def test_the_longest_command_is_taken_whole_or_in_pieces(cut_at: int) -> None:
    commands: list[bytes] = []
    made = decoder(commands)
    body = b"\x01A" + bytes(COMMAND_BYTES_MAX - 2)
    octets = encode_command(body)
    assert fed(made, (octets[:cut_at], octets[cut_at:] + encode_message([b"next"]))) == [[b"next"]]
    assert made.failure is None
    assert commands == [body]


@pytest.mark.parametrize("rest", [0, 2, 3, 9])
def test_a_frame_that_was_lent_counts_until_it_is_whole(rest: int) -> None:
    made = decoder()
    octets = encode_message([b"a", b"b" * 5000, b"c"]) + encode_message([b"next"])
    lent_ends = 3 + 9 + 5000
    assert [*made.feed(octets[: lent_ends - 4000])] == []
    assert (made.begun_frame, made.progress) == (5009, 1 + 1009)
    assert b"".join(made.detach_frame()) == octets[3 : lent_ends - 4000]
    assert (made.begun_frame, made.progress) == (0, 1 + 1009)
    made.received(1500)
    assert made.progress == 1 + 2509
    messages = [*made.end_frame(b"b" * 5000, octets[lent_ends : lent_ends + rest])]
    if rest < 3:
        assert (messages, made.begun, made.progress) == ([], True, 5001 + rest)
    else:
        assert (messages[0], made.begun) == ([b"a", b"b" * 5000, b"c"], False)
    messages += made.feed(octets[lent_ends + rest :])
    assert messages == [[b"a", b"b" * 5000, b"c"], [b"next"]]
    assert not made.begun


def test_zmtp_86_what_is_not_whole_is_never_delivered() -> None:
    made = decoder()
    octets = encode_message([b"a", b"b" * 500])
    assert [*made.feed(octets[:-1])] == []
    assert made.wanted == 1


@settings(max_examples=300)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_har_07_no_octets_cause_anything_but_messages_or_a_failure(octets: bytes, edges: list[int]) -> None:
    made = decoder(message_bytes_max=10_000, parts_max=20)
    for chunk in cut(octets, edges):
        for message in made.feed(chunk):
            assert all(isinstance(frame, bytes) for frame in message)
        if made.failure is not None:
            assert isinstance(made.failure, RemoteProtocolError)
            break
