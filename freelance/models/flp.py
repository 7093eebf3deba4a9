"""Messages of the Freelance Protocol (RFC 10), as frames after the routing id; Pure.

    PING     client to server   ["PING"]            exactly one frame
    PONG     server to client   ["PONG"]            exactly one frame
    request  client to server   [CCF][body...]      two frames or more
    reply    server to client   [CCF][body...]      two frames or more, the CCF as it came

The client control frame (CCF) is opaque to the server: empty, `PING` or any octets (FLP-03). So what a message is shows in its
number of frames before it shows in its first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from freelance.errors import MalformedMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PING", "PONG", "Exchange", "control_frame", "decode_reply", "decode_request", "encode_request"]

PING: Final = b"PING"
PONG: Final = b"PONG"


class Exchange(NamedTuple):
    """A request or its reply.

    Attributes:
        control: the client control frame.
        body: at least one frame.
    """

    control: bytes
    body: list[bytes]


def control_frame(number: int) -> bytes:
    """Return the CCF of our client's n-th request: decimal digits, from 1 (FLP-08)."""
    return b"%d" % number


def encode_request(control: bytes, body: Sequence[bytes]) -> list[bytes]:
    """Return `[CCF][body...]`.

    Raises:
        ValueError: there is no body, so the server would take the CCF alone for something else.
    """
    if not body:
        raise ValueError("a request has at least one body frame")
    return [control, *body]


def decode_request(frames: Sequence[bytes]) -> Exchange | None:
    """Return what a client sent; None is a PING.

    Raises:
        MalformedMessage: no frames, or a single one that is not `PING`.
    """
    return _decode(frames, PING)


def decode_reply(frames: Sequence[bytes]) -> Exchange | None:
    """Return what a server sent; None is a PONG, which is no reply to any request (FLP-09).

    Raises:
        MalformedMessage: no frames, or a single one that is not `PONG`.
    """
    return _decode(frames, PONG)


def _decode(frames: Sequence[bytes], alone: bytes) -> Exchange | None:
    if len(frames) > 1:
        return Exchange(frames[0], list(frames[1:]))
    if not frames or frames[0] != alone:
        raise MalformedMessage(f"one frame, and not {alone.decode()}" if frames else "no frames")
    return None
