"""Traffic under a mechanism that encrypts: each outer frame is one MESSAGE, which holds one frame (CURVE-10..13).

libzmq sends the outer frames without COMMAND bit, the RFC says they are commands, and a relay may have its own ideas: what an
outer frame says of itself is ignored but for its size. MORE and COMMAND count inside the box only (CURVE-11, CURVE-12).
Sizes are judged on the outer header, before anything is kept or opened (ZMTP-73).

What is opened is put together again as clear octets, all of a read at once, and goes through the same decoder as they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import RemoteProtocolError
from core.zmtp.decoder import COMMAND_BYTES_MAX, LONG
from core.zmtp.mechanism import sealed_too_long

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.zmtp.decoder import Decoder, Message
    from core.zmtp.limits import ConnectionLimits
    from core.zmtp.mechanism import Mechanism

__all__ = ["SealedDecoder"]

_OVERHEAD: Final = 33  # octets of a MESSAGE besides the frame: name, nonce, authenticator, flags
_HEADER_BYTES: Final = 2  # flags and size
_LONG_HEADER_BYTES: Final = 9


class SealedDecoder:
    """Octets in, messages out, as `framing.Decoder` does it for clear traffic.

    Args:
        mechanism: opens the boxes.
        clear: the decoder of the connection, which takes what was in them.
        limits: of the connection.

    Attributes:
        express: looks at what was opened before it is decoded, takes whole messages off the front and returns how many octets they are.
        failure: what the peer did wrong, once it did; what came before it has been given out.
    """

    __slots__ = ("_body_max", "_buffer", "_clear", "_mechanism", "_wanted", "express", "failure")

    def __init__(self, mechanism: Mechanism, clear: Decoder, limits: ConnectionLimits) -> None:
        self._mechanism = mechanism
        self._clear = clear
        frame_max = limits.message_bytes if limits.frame_bytes < 0 else min(limits.frame_bytes, limits.message_bytes)
        self._body_max = max(frame_max, COMMAND_BYTES_MAX) + _OVERHEAD
        self._buffer = bytearray()  # of the outer frame that has begun
        self._wanted = _HEADER_BYTES  # octets there must be before decoding goes on
        self.express: Callable[[bytes], int] | None = None
        self.failure: RemoteProtocolError | None = None

    @property
    def progress(self) -> int:
        """Octets that are here of the message that has begun."""
        return self._clear.progress

    def feed(self, data: bytes) -> list[Message]:
        """Return the whole messages in `data` and what came before; look at `failure` afterwards."""
        clear = self.open(data)
        decoder = self._clear
        decoder.elsewhere = len(self._buffer)
        if clear and self.express is not None:
            if decoder.begun:
                clear = decoder.take_back() + clear
            if not decoder.begun:
                clear = clear[self.express(clear) :]
        messages = decoder.feed(clear) if clear else []
        if decoder.failure is not None:
            self.failure = decoder.failure
        return messages

    def open(self, data: bytes) -> bytes:
        """Return the frames in `data` and what came before, as they would have come in clear."""
        frames: list[bytes] = []
        try:
            self._open(data, frames)
        except RemoteProtocolError as error:
            self.failure = error
        return b"".join(frames)

    def _open(self, data: bytes, frames: list[bytes]) -> None:
        at, size = 0, len(data)
        mechanism, most = self._mechanism, self._body_max
        while self._buffer:  # only what this frame needs is put to it: the rest of a read is not copied about
            end = at + self._wanted - len(self._buffer)
            self._buffer += data[at:end]
            if size < end:
                return
            at = end
            self._wanted = self._end_of(self._buffer)
            if self._wanted == len(self._buffer):
                octets = bytes(self._buffer)
                self._buffer.clear()
                mechanism.open_frames(octets, 0, most, frames)
        at = mechanism.open_frames(data, at, most, frames)
        if at < size:
            self._buffer += data[at:]
            self._wanted = self._end_of(self._buffer)

    def _end_of(self, octets: bytearray) -> int:
        """Return where the frame that has begun ends; the end of its header while that is not all there."""
        start = _LONG_HEADER_BYTES if octets[0] & LONG else _HEADER_BYTES
        if len(octets) < start:
            return start
        size = int.from_bytes(octets[1:start], "big")
        if size > self._body_max:
            raise sealed_too_long(size, self._body_max)
        return start + size
