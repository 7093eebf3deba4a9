"""freelance.models.flp: the number of frames decides about the kind of a message."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freelance.errors import MalformedMessage
from freelance.models.flp import PING, PONG, FlpMessage, control_frame, decode_reply, decode_request

FRAMES = st.lists(st.binary(max_size=8) | st.sampled_from([PING, PONG, b""]), max_size=5)


@pytest.mark.parametrize("control", [b"", PING, PONG, b"\0", b"\xff" * 300])
def test_any_control_frame_comes_back(control: bytes) -> None:
    """FLP-03."""
    assert decode_request([control, b"body"]) == FlpMessage(control, [b"body"])
    assert decode_reply([control, b"", b"x"]) == FlpMessage(control, [b"", b"x"])


def test_ping_and_pong_are_one_frame() -> None:
    assert decode_request([PING]) is None
    assert decode_reply([PONG]) is None


@pytest.mark.parametrize("frames", [[], [b""], [PONG], [b"ping"]])
def test_malformed_request(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessage):
        decode_request(frames)


@pytest.mark.parametrize("frames", [[], [b""], [PING], [b"1"]])
def test_malformed_reply(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessage):
        decode_reply(frames)


@pytest.mark.parametrize(("frames", "reason"), [([], "no frames"), ([b"x"], "one frame, and not PING")])
def test_the_reason_says_what_was_there(frames: list[bytes], reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        decode_request(frames)


def test_control_frames_are_decimal() -> None:
    """FLP-08."""
    assert [control_frame(n) for n in (1, 10, 2**40)] == [b"1", b"10", b"1099511627776"]


@given(FRAMES)
def test_a_peer_causes_no_other_error(frames: list[bytes]) -> None:
    for decode in (decode_request, decode_reply):
        with suppress(MalformedMessage):
            found = decode(frames)
            assert found is None or [found.control, *found.body] == frames
