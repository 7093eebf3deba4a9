"""Traffic under a mechanism that encrypts: each outer frame is one MESSAGE, which holds one frame (CURVE-10..13).

libzmq sends the outer frames without COMMAND bit, the RFC says they are commands, and a relay may have its own ideas: what an
outer frame says of itself is ignored but for its size. MORE and COMMAND count inside the box only (CURVE-11, CURVE-12).
Sizes are judged on the outer header, before anything is kept or opened (ZMTP-73).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import RemoteProtocolError
from core.zmtp.framing import COMMAND_BYTES_MAX, LAST_HEADERS, LONG, LONG_HEADER, MORE, Encoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.zmtp.connection import Limits
    from core.zmtp.framing import Decoder, Message
    from core.zmtp.mechanism import Mechanism

__all__ = ["SealedDecoder", "seal"]

_OVERHEAD: Final = 33  # octets of a MESSAGE besides the frame: name, nonce, authenticator, flags
_INNER_COMMAND: Final = 2
_HEADER_BYTES: Final = 2  # flags and size
_LONG_HEADER_BYTES: Final = 9


def seal(mechanism: Mechanism, octets: bytes) -> bytes:
    """Turn encoded messages into sealed ones: each frame one MESSAGE with a clear COMMAND bit (CURVE-10)."""
    at, size = 0, len(octets)
    sealed: list[bytes] = []
    while at < size:
        flags = octets[at]
        start = at + (9 if flags & LONG else 2)
        at = start + int.from_bytes(octets[at + 1 : start], "big")
        head, box = mechanism.seal_parts(flags & MORE, octets[start:at])
        length = len(head) + len(box)
        sealed += (LAST_HEADERS[length] if length < 256 else LONG_HEADER(LONG, length), head, box)
    return b"".join(sealed)


class SealedDecoder:
    """Octets in, messages out, as `framing.Decoder` does it for clear traffic.

    Args:
        mechanism: opens the boxes.
        clear: the decoder of the connection, whose `head` and `split` count here too.
        on_command: takes a command body; a message it returns takes its place.
        limits: of the connection.
    """

    __slots__ = ("_assembly", "_assembly_bytes", "_body_max", "_buffer", "_clear", "_limits", "_mechanism", "_on_command", "_wanted")

    def __init__(self, mechanism: Mechanism, clear: Decoder, on_command: Callable[[bytes], Message | None], limits: Limits) -> None:
        self._mechanism = mechanism
        self._clear = clear
        self._on_command = on_command
        self._limits = limits
        frame_max = limits.message_bytes if limits.frame_bytes < 0 else min(limits.frame_bytes, limits.message_bytes)
        self._body_max = max(frame_max, COMMAND_BYTES_MAX) + _OVERHEAD
        self._buffer = bytearray()  # of the outer frame that has begun
        self._wanted = _HEADER_BYTES  # octets there must be before decoding goes on
        self._assembly: Message = []  # frames of a message whose last frame has not come
        self._assembly_bytes = 0

    def feed(self, data: bytes, messages: list[Message]) -> None:
        """Append the whole messages in `data` and what came before.

        Raises:
            RemoteProtocolError: too long, forged or replayed; the messages before it have been appended.
        """
        at, size = 0, len(data)
        while self._buffer:  # only what this frame needs is put to it: the rest of a read is not copied about
            end = at + self._wanted - len(self._buffer)
            self._buffer += data[at:end]
            if size < end:
                return
            at = end
            start, self._wanted = self._bounds(self._buffer, 0)
            if self._wanted == len(self._buffer):
                body = bytes(memoryview(self._buffer)[start:])
                self._buffer.clear()
                self._open(body, messages)
        while at < size:
            start, end = self._bounds(data, at)
            if size < end:
                self._wanted = end - at
                self._buffer += data[at:]
                return
            self._open(data[start:end], messages)
            at = end

    def _bounds(self, octets: bytes | bytearray, at: int) -> tuple[int, int]:
        """Return where the body of the frame at `at` begins and ends; the end of the header while that is not all there."""
        start = at + (_LONG_HEADER_BYTES if octets[at] & LONG else _HEADER_BYTES)
        if len(octets) < start:
            return start, start
        size = int.from_bytes(octets[at + 1 : start], "big")
        if size > self._body_max:
            raise RemoteProtocolError(f"sealed frame of {size} octets, at most {self._body_max} are taken")
        return start, start + size

    def _open(self, body: bytes, messages: list[Message]) -> None:
        flags, frame = self._mechanism.open(body)
        head = self._clear.head
        if flags & _INNER_COMMAND:
            message = self._on_command(frame)
            if message is not None:
                messages.append(head + message)
            return
        self._assembly.append(frame)
        self._assembly_bytes += len(frame)
        limits = self._limits
        if len(self._assembly) > limits.parts or self._assembly_bytes > limits.message_bytes:
            raise RemoteProtocolError(f"message of {len(self._assembly)} frames and {self._assembly_bytes} octets")
        if 0 <= limits.frame_bytes < len(frame):
            raise RemoteProtocolError(f"frame of {len(frame)} octets, at most {limits.frame_bytes} are taken")
        if flags & MORE:
            return
        message = head + self._assembly
        split = self._clear.split
        if split is not None and len(message) > split:
            message[split:] = [Encoded.of(message[split:])]
        messages.append(message)
        self._assembly = []
        self._assembly_bytes = 0
