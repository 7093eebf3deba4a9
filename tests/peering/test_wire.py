from __future__ import annotations

import pytest

from core.machine.envelope import Control, EnvelopedRequest
from peering.errors import MalformedMessage
from peering.wire import StateMessage, decode_state, decode_worker, encode_state, split_envelope


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([b"\x01"], (Control.READY, False)),
        ([b"\x02"], (Control.HEARTBEAT, False)),
        ([b"", b"\x01"], (Control.READY, True)),
        ([b"", b"READY"], (Control.READY, True)),
        ([b"c", b"", b"x"], (EnvelopedRequest((b"c", b""), [b"x"]), False)),
        ([b"", b"DC2", b"c", b"", b"x", b""], (EnvelopedRequest((b"DC2", b"c", b""), [b"x", b""]), True)),
        ([b"\x01", b"", b"x"], (EnvelopedRequest((b"\x01", b""), [b"x"]), False)),
    ],
)
def test_what_workers_say(frames: list[bytes], expected: object) -> None:
    assert decode_worker(frames) == expected


@pytest.mark.parametrize(
    "frames",
    [[], [b""], [b"READY"], [b"\x03"], [b"", b"\x02"], [b"", b""], [b"c", b"x"], [b"c", b""], [b"", b"", b"x"], [b"", b"c", b""]],
)
def test_what_no_worker_says(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessage):
        decode_worker(frames)


def test_an_envelope_ends_with_the_first_empty_frame() -> None:
    assert split_envelope([b"a", b"b", b"", b"", b"x"]) == EnvelopedRequest((b"a", b"b", b""), [b"", b"x"])


def test_a_state_is_read_as_it_was_written() -> None:
    assert encode_state(StateMessage(b"DC1", 17)) == [b"DC1", b"17"]
    assert decode_state([b"DC1", b"17"]) == StateMessage(b"DC1", 17)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"DC1"],
        [b"DC1", b"1", b""],
        [b"", b"1"],
        [b"DC1", b""],
        [b"DC1", b"-1"],
        [b"DC1", b"1.0"],
        [b"DC1", b"+1"],
        [b"DC1", b"\xb2"],
        [b"DC1", b"0x1"],
        [b"DC1", b"1" * 10],
        [b"DC1", b" 1"],
    ],
)
def test_peer_13_malformed_states_are_reported(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessage):
        decode_state(frames)
