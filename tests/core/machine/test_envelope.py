"""core.machine.envelope: requests are split and joined again; messages of workers are recognised by shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.machine.envelope import HEARTBEAT, READY, Control, EnvelopedRequest, read_request, read_worker

FRAMES = st.lists(st.sampled_from([b"", b"\x01", b"\x02", b"READY", b"a", b"body"]) | st.binary(max_size=4), max_size=6)


class WrongShape(Exception):
    """Error of the protocol in these tests."""


@given(FRAMES)
def test_an_enveloped_request_is_all_its_frames_or_the_given_error(frames: list[bytes]) -> None:
    try:
        letter = read_request(frames, WrongShape)
    except WrongShape:
        assert b"" not in frames[1:-1] or frames[0] == b""
    else:
        assert [*letter.envelope, *letter.body] == frames
        assert letter.envelope.index(b"") == len(letter.envelope) - 1 > 0
        assert letter.body


@pytest.mark.parametrize(
    "frame,req,message",
    [
        (READY, True, Control.READY),
        (READY, False, Control.READY),
        (b"READY", True, Control.READY),
        (HEARTBEAT, False, Control.HEARTBEAT),
    ],
)
def test_a_lone_frame_is_a_control_message(frame: bytes, req: bool, message: Control) -> None:
    assert read_worker([frame], WrongShape, req=req) is message


@pytest.mark.parametrize("frame,req", [(b"READY", False), (HEARTBEAT, True), (b"", True), (b"\x03", False)])
def test_any_other_lone_frame_is_refused(frame: bytes, req: bool) -> None:
    with pytest.raises(WrongShape):
        read_worker([frame], WrongShape, req=req)


def test_an_address_may_look_like_a_control_message() -> None:
    assert read_worker([READY, b"", b"body"], WrongShape, req=False) == EnvelopedRequest((READY, b""), [b"body"])
