"""pirate.ppp: valid and invalid messages (PPP-02, LRU-04, LRU-05)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.machine.envelope import HEARTBEAT, READY, Control, EnvelopedRequest
from pirate.errors import MalformedMessage
from pirate.ppp import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN, checked_heartbeat_s, decode, split_envelope

FRAMES = st.lists(st.sampled_from([b"", b"\1", b"\2", b"READY", b"a", b"\1a", b"\xff\0"]), max_size=6)


@pytest.mark.parametrize(
    ("frames", "simple", "message"),
    [
        ([READY], False, Control.READY),
        ([HEARTBEAT], False, Control.HEARTBEAT),
        ([b"", READY], True, Control.READY),
        ([b"", b"READY"], True, Control.READY),
        ([b"c", b"", b"x"], False, EnvelopedRequest((b"c", b""), [b"x"])),
        ([b"", b"c", b"", b"x"], True, EnvelopedRequest((b"c", b""), [b"x"])),
        ([b"\1", b"", b"x"], False, EnvelopedRequest((b"\1", b""), [b"x"])),
        ([b"", b"READY", b"", b"x"], True, EnvelopedRequest((b"READY", b""), [b"x"])),
        ([b"a", b"b", b"", b"", b"x", b""], False, EnvelopedRequest((b"a", b"b", b""), [b"", b"x", b""])),
        ([b"c", b"", b""], False, EnvelopedRequest((b"c", b""), [b""])),
    ],
)
def test_messages(frames: list[bytes], simple: bool, message: Control | EnvelopedRequest) -> None:
    assert decode(frames, simple=simple) == message


@pytest.mark.parametrize(
    ("frames", "simple"),
    [
        ([], False),
        ([b""], False),
        ([b"READY"], False),
        ([b"\1\1"], False),
        ([b"\3"], False),
        ([b"", READY], False),
        ([b"c", b"x"], False),
        ([b"c", b""], False),
        ([b"", b"x"], False),
        ([], True),
        ([READY], True),
        ([b""], True),
        ([b"", HEARTBEAT], True),
        ([b"", b""], True),
        ([b"", b"c", b"x"], True),
        ([b"c", b"", b"x"], True),
    ],
)
def test_noise(frames: list[bytes], simple: bool) -> None:
    with pytest.raises(MalformedMessage):
        decode(frames, simple=simple)


@given(FRAMES, st.booleans())
def test_anything_is_a_message_or_refused(frames: list[bytes], simple: bool) -> None:
    try:
        message = decode(frames, simple=simple)
    except MalformedMessage:
        return
    head = [b""] if simple else []
    if isinstance(message, EnvelopedRequest):
        assert [*head, *message.envelope, *message.body] == frames
        assert message.body
        assert all(message.envelope[:-1])
        assert message.envelope[-1] == b""
    else:
        assert frames[:-1] == head


@given(FRAMES)
def test_an_envelope_and_its_body_are_the_message(frames: list[bytes]) -> None:
    try:
        letter = split_envelope(frames)
    except MalformedMessage:
        assert b"" not in frames[1:-1] or not frames[0]
    else:
        assert [*letter.envelope, *letter.body] == frames


def test_ppp_03_an_interval_is_given_in_milliseconds_within_its_limits() -> None:
    assert (HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX) == (10, 30_000)
    assert [checked_heartbeat_s(heartbeat_ms) for heartbeat_ms in (10, 1000, 30_000)] == [0.01, 1.0, 30.0]
    for heartbeat_ms in (9.9, 30_001, float("nan"), 0, -1000):
        with pytest.raises(ValueError, match="heartbeat_ms is"):
            checked_heartbeat_s(heartbeat_ms)
