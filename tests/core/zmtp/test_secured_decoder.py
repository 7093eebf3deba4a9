from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from core.constants import ProtocolErrorCode
from core.errors import LimitExceeded, RemoteProtocolError
from core.zmtp.commands import command
from core.zmtp.decoder import Decoder
from core.zmtp.frames import LONG, Message, encode_frame, encode_message
from core.zmtp.limits import ConnectionLimits
from core.zmtp.secured_decoder import SecuredDecoder
from tests.core.security.test_curve import connected
from tests.scenes.damaged_commands import mutations

if TYPE_CHECKING:
    from core.security.curve import CurveClient

MESSAGES = [[b"one"], [b""], [b"", b"a", b""], [b"x" * 255, b"y" * 256, b"z" * 70_000], [b"last"]]


def pair(limits: ConnectionLimits | None = None, head: Message | None = None) -> tuple[CurveClient, SecuredDecoder]:
    ours, theirs = connected()

    def on_command(body: bytes) -> Message | None:
        return [b"\x01" + body[10:]] if body.startswith(b"\x09SUBSCRIBE") else None

    limits = limits or ConnectionLimits()
    clear = Decoder(
        on_command=on_command,
        frame_bytes_max=limits.frame_bytes,
        message_bytes_max=limits.message_bytes,
        parts_max=limits.parts,
    )
    clear.head = head or []
    return ours, SecuredDecoder(theirs, clear, limits)


def frames_of(octets: bytes) -> list[tuple[int, bytes]]:
    """Take sealed octets apart: (flags without LONG, body)."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(octets):
        start = at + (9 if octets[at] & LONG else 2)
        end = start + int.from_bytes(octets[at + 1 : start], "big")
        found.append((octets[at] & ~LONG, octets[start:end]))
        at = end
    return found


def reframed(octets: bytes, flags: int) -> bytes:
    """The same MESSAGEs under other outer flags, as a relay may have it."""
    rebuilt = b""
    for _, body in frames_of(octets):
        plain = encode_frame(body)
        rebuilt += bytes((plain[0] | flags,)) + plain[1:]
    return rebuilt


def test_curve_10_each_frame_is_a_frame_of_its_own_without_flags() -> None:
    ours, _ = connected()
    octets = ours.seal_frames(b"".join(encode_message(message) for message in MESSAGES))
    found = frames_of(octets)
    assert [flags for flags, _ in found] == [0] * sum(map(len, MESSAGES))
    assert [len(body) - 33 for _, body in found] == [len(frame) for message in MESSAGES for frame in message]


@pytest.mark.parametrize("outer", [0, 1, 4, 5, 0xF8])
@pytest.mark.parametrize("cut", [1, 2, 7, 1000, 10**9])
def test_curve_11_outer_flags_mean_nothing_however_the_octets_come(outer: int, cut: int) -> None:
    ours, decoder = pair()
    octets = reframed(ours.seal_frames(b"".join(encode_message(message) for message in MESSAGES)), outer)
    found: list[Message] = []
    for at in range(0, len(octets), cut):
        found += decoder.feed(octets[at : at + cut])
    assert found == MESSAGES


def test_zmtp_28_a_command_between_frames_leaves_the_message_whole() -> None:
    ours, decoder = pair()
    octets = b"".join(
        encode_frame(ours.seal(flags, body))
        for flags, body in ((1, b"a"), (2, command(b"PING", b"\0\0")), (1, b"b"), (2, command(b"SUBSCRIBE", b"t")), (0, b"c"))
    )
    found = decoder.feed(octets)
    assert [*found] == [[b"\x01t"], [b"a", b"b", b"c"]]


def test_the_head_is_that_of_the_clear_decoder() -> None:
    ours, decoder = pair(head=[b"id"])
    found = decoder.feed(ours.seal_frames(encode_message([b"a", b"b", b"c"]) + encode_message([b"d"])))
    assert [*found] == [[b"id", b"a", b"b", b"c"], [b"id", b"d"]]


def test_messages_before_a_forged_one_are_delivered() -> None:
    ours, decoder = pair()
    octets = ours.seal_frames(encode_message([b"good"]) + encode_message([b"bad"]))
    found = decoder.feed(octets[:-1] + bytes((octets[-1] ^ 1,)))
    assert [*found] == [[b"good"]]
    assert isinstance(decoder.failure, RemoteProtocolError)


@pytest.mark.parametrize(
    "limits,message",
    [
        (ConnectionLimits(frame_bytes=10), [b"x" * 11]),
        (ConnectionLimits(frame_bytes=100_000), [b"x" * 100_001]),
        (ConnectionLimits(message_bytes=100), [b"x" * 60, b"y" * 60]),
        (ConnectionLimits(parts=3), [b""] * 4),
    ],
)
def test_limits_hold_inside_the_boxes(limits: ConnectionLimits, message: Message) -> None:
    ours, decoder = pair(limits)
    found = decoder.feed(ours.seal_frames(encode_message(message)))
    assert [*found] == []
    assert isinstance(decoder.failure, RemoteProtocolError)


@pytest.mark.parametrize("size", [64 * 1024 + 34, 2**31, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("flags", [2, 6])
def test_zmtp_73_an_outer_size_above_the_limit_is_refused_on_its_header(size: int, flags: int) -> None:
    _, decoder = pair(ConnectionLimits(frame_bytes=10))
    assert [*decoder.feed(bytes((flags,)) + size.to_bytes(8, "big"))] == []
    assert isinstance(decoder.failure, RemoteProtocolError)


@pytest.mark.parametrize(("limits", "most"), [(ConnectionLimits(frame_bytes=0), 65_536), (ConnectionLimits(frame_bytes=100_000), 100_000)])
@pytest.mark.parametrize("cut", [1, 5, 9])
def test_zmtp_73_the_limit_is_that_of_a_frame_or_a_command_and_what_seals_it(limits: ConnectionLimits, most: int, cut: int) -> None:
    for size, fits in ((most + 33, True), (most + 34, False)):
        _, decoder = pair(limits)
        octets = b"\x02" + size.to_bytes(8, "big")
        decoder.feed(octets[:cut])
        decoder.feed(octets[cut:])
        assert (decoder.failure is None) is fits
        assert fits or isinstance(decoder.failure, LimitExceeded)


@pytest.mark.parametrize(("size", "fits"), [(100_000, True), (100_001, False)])
def test_zmtp_73_a_whole_frame_of_the_limit_is_opened_and_a_longer_one_is_not(size: int, fits: bool) -> None:
    ours, decoder = pair(ConnectionLimits(frame_bytes=100_000))
    found = decoder.feed(ours.seal_frames(encode_message([bytes(size)])))
    assert [*found] == ([[bytes(size)]] if fits else [])
    assert fits or str(decoder.failure).startswith("sealed frame")


def test_curve_04_what_was_opened_is_not_opened_again_in_the_same_read_or_a_later_one() -> None:
    for later in (False, True):
        ours, decoder = pair()
        octets = ours.seal_frames(encode_message([b"once"]))
        found = [*decoder.feed(octets), *decoder.feed(octets)] if later else [*decoder.feed(octets + octets)]
        assert found == [[b"once"]]
        assert decoder.failure is not None
        assert decoder.failure.code == ProtocolErrorCode.ZMTP_INVALID_SEQUENCE


@pytest.mark.parametrize("body", [b"", b"x" * 32, b"x" * 40, b"\x07MESSAGE" + bytes(24), b"\x07MESSAGF" + bytes(40)])
def test_curve_13_what_is_no_message_is_refused(body: bytes) -> None:
    _, decoder = pair()
    assert [*decoder.feed(encode_frame(body))] == []
    assert decoder.failure is not None
    assert decoder.failure.code == ProtocolErrorCode.ZMTP_MALFORMED_COMMAND_MESSAGE


def test_damaged_streams_raise_protocol_errors_only() -> None:
    rng = random.Random(11)
    refused = 0
    for seed in range(100):
        ours, decoder = pair(ConnectionLimits(frame_bytes=10_000))
        octets = ours.seal_frames(b"".join(encode_message(message) for message in MESSAGES[:3]))
        for damaged in mutations(octets, seed, 1):
            cut = rng.randrange(len(damaged) + 1)
            decoder.feed(damaged[:cut])
            if decoder.failure is None:
                decoder.feed(damaged[cut:])
            refused += decoder.failure is not None
    assert refused


def test_what_waits_sealed_counts_as_progress() -> None:
    """W7: a message with a long, slow frame makes progress."""
    ours, decoder = pair()
    octets = ours.seal_frames(encode_message([b"head", b"x" * 5000]))
    assert [*decoder.feed(octets[:1000])] == []
    first = decoder.progress
    assert [*decoder.feed(octets[1000:3000])] == []
    assert decoder.progress - first == 2000
    assert [*decoder.feed(octets[3000:])] == [[b"head", b"x" * 5000]]
