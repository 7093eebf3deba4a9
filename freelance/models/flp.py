"""Frames of the Freelance Protocol (RFC 10), after the routing id. Pure.

    PING     client to server   ["PING"]            exactly one frame
    PONG     server to client   ["PONG"]            exactly one frame
    request  client to server   [CCF][body...]      two frames or more
    reply    server to client   [CCF][body...]      two frames or more, the CCF as it came

The client control frame (CCF) is opaque to the server: empty, `PING` or any other bytes (FLP-03). So the number of frames is checked
before the content of the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from freelance.errors import MalformedMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

PING: Final = b"PING"
PONG: Final = b"PONG"


class FlpMessage(NamedTuple):
    """A request or its reply."""

    control: bytes  # the client control frame
    body: list[bytes]  # at least one frame


def control_frame(number: int) -> bytes:
    """Return the CCF of request `number`: decimal digits, from 1 (FLP-08)."""
    return b"%d" % number


def decode_request(frames: Sequence[bytes]) -> FlpMessage | None:
    """Decode a message from a client; None is a PING. Raises MalformedMessage for any other single frame, or none."""
    return _decode(frames, PING)


def decode_reply(frames: Sequence[bytes]) -> FlpMessage | None:
    """Decode a message from a server; None is a PONG, which answers no request (FLP-09). Raises MalformedMessage."""
    return _decode(frames, PONG)


def _decode(frames: Sequence[bytes], alone: bytes) -> FlpMessage | None:
    if len(frames) > 1:
        return FlpMessage(frames[0], list(frames[1:]))
    if not frames or frames[0] != alone:
        raise MalformedMessage(f"one frame, and not {alone.decode()}" if frames else "no frames")
    return None
