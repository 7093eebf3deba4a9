"""Decodes encrypted traffic: each outer frame is one MESSAGE, which contains one frame (CURVE-10..13).

libzmq sends the outer frames without COMMAND bit, the RFC calls them commands: the flags of an outer frame are ignored except LONG.
MORE and COMMAND count inside the box only (CURVE-11, CURVE-12). Sizes are checked on the outer header, before anything is kept or
opened (ZMTP-73).

Opened frames are joined to clear bytes, all of a read at once, and decoded like clear traffic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import RemoteProtocolError
from core.zmtp.frames import LONG
from core.zmtp.mechanism import sealed_too_long
from core.zmtp.scan import COMMAND_BYTES_MAX, NOTHING

if TYPE_CHECKING:
    from core.zmtp.decoder import Decoder
    from core.zmtp.limits import ConnectionLimits
    from core.zmtp.mechanism import Mechanism
    from core.zmtp.scan import Batch

_OVERHEAD: Final = 33  # bytes of a MESSAGE besides the frame: name, nonce, authenticator, flags
_HEADER_BYTES: Final = 2  # flags and size
_LONG_HEADER_BYTES: Final = 9


class SecuredDecoder:
    """Decrypts and decodes; the interface of `Decoder`.

    Args:
        clear: the decoder of the connection, for the opened bytes.
    """

    __slots__ = ("_body_max", "_buffer", "_clear", "_mechanism", "_wanted", "failure")

    def __init__(self, mechanism: Mechanism, clear: Decoder, limits: ConnectionLimits) -> None:
        self._mechanism = mechanism
        self._clear = clear
        frame_max = limits.message_bytes if limits.frame_bytes < 0 else min(limits.frame_bytes, limits.message_bytes)
        self._body_max = max(frame_max, COMMAND_BYTES_MAX) + _OVERHEAD
        self._buffer = bytearray()  # of the outer frame that has begun
        self._wanted = _HEADER_BYTES  # bytes needed before decoding goes on
        self.failure: RemoteProtocolError | None = None  # the rule that the peer broke, as an error; messages before it were returned

    @property
    def progress(self) -> int:
        """Received bytes of the incomplete message."""
        return self._clear.progress

    def feed(self, data: bytes) -> Batch:
        """Return the whole messages in `data` and earlier bytes; check `failure` afterwards."""
        clear = self.open(data)
        decoder = self._clear
        batch = decoder.feed(clear) if clear else NOTHING
        decoder.held_elsewhere(len(self._buffer))
        if decoder.failure is not None:
            self.failure = decoder.failure
        return batch

    def open(self, data: bytes) -> bytes:
        """Return the frames in `data` and earlier bytes, encoded in clear."""
        frames: list[bytes] = []
        try:
            self._open(data, frames)
        except RemoteProtocolError as error:
            self.failure = error
        return b"".join(frames)

    def _open(self, data: bytes, frames: list[bytes]) -> None:
        at, size = 0, len(data)
        mechanism, most = self._mechanism, self._body_max
        while self._buffer:  # append only what this frame needs: the rest of a read is not copied
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
        """Return the end of the frame that has begun, or of its header while that is incomplete."""
        start = _LONG_HEADER_BYTES if octets[0] & LONG else _HEADER_BYTES
        if len(octets) < start:
            return start
        size = int.from_bytes(octets[1:start], "big")
        if size > self._body_max:
            raise sealed_too_long(size, self._body_max)
        return start + size
