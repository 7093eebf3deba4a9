"""Send and receive text, JSON and other forms, like ZeroMQ's Python binding. No pickle."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.sockets.results.futures import Awaitable
    from core.zmtp.frames import Message


def _writable(buffer: Any, nbytes: int) -> memoryview:
    view = memoryview(buffer)
    if view.readonly or not view.contiguous:
        raise BufferError("the buffer must be writable and contiguous")
    if not 0 <= nbytes <= view.nbytes:
        raise ValueError(f"nbytes is {nbytes}, the buffer has {view.nbytes}")
    return view.cast("B")[: nbytes or view.nbytes] if view.nbytes else view


class Serialization:
    """Derived verbs of a socket."""

    __slots__ = ()

    @abstractmethod
    def send(self, data: bytes, flags: int = 0, copy: bool = True, track: bool = False) -> Awaitable[None]: ...
    @abstractmethod
    def send_multipart(self, msg_parts: Sequence[bytes], flags: int = 0, copy: bool = True, track: bool = False) -> Awaitable[None]: ...
    @abstractmethod
    def receive_as(self, shape: Callable[[Message], Any], flags: int, single: bool) -> Awaitable[Any]: ...

    def send_string(self, u: str, flags: int = 0, copy: bool = True, encoding: str = "utf-8") -> Awaitable[None]:
        """Send text as one frame."""
        return self.send(u.encode(encoding), flags, copy)

    def recv_string(self, flags: int = 0, encoding: str = "utf-8") -> Awaitable[str]:
        """Receive one frame as text; the awaitable raises UnicodeDecodeError if it is not."""
        return self.receive_as(lambda frames: frames[0].decode(encoding), flags, True)

    def send_json(self, obj: Any, flags: int = 0, **kwargs: Any) -> Awaitable[None]:
        """Send an object as one frame of JSON."""
        kwargs.setdefault("separators", (",", ":"))
        return self.send(json.dumps(obj, **kwargs).encode(), flags)

    def recv_json(self, flags: int = 0, **kwargs: Any) -> Awaitable[Any]:
        """Receive one frame of JSON."""
        return self.receive_as(lambda frames: json.loads(frames[0], **kwargs), flags, True)

    def send_serialized(
        self, msg: Any, serialize: Callable[[Any], Sequence[bytes]], flags: int = 0, copy: bool = True, **kwargs: Any
    ) -> Awaitable[None]:
        """Send an object as the frames that `serialize` returns."""
        return self.send_multipart(serialize(msg), flags, copy, **kwargs)

    def recv_serialized(self, deserialize: Callable[[Message], Any], flags: int = 0, copy: bool = True) -> Awaitable[Any]:
        """Receive a message, converted by `deserialize`."""
        return self.receive_as(deserialize, flags, False)

    def recv_into(self, buffer: Any, /, *, nbytes: int = 0, copy: bool = True, track: bool = False, flags: int = 0) -> Awaitable[int]:
        """Receive one frame into a buffer; returns the length of the frame, of which only the beginning may fit.

        Args:
            buffer: writable, contiguous bytes, such as a `bytearray`.
            nbytes: fill at most so many bytes; 0 for all of the buffer.
            copy: accepted and ignored.
            track: accepted and ignored.
            flags: NOBLOCK, or 0.

        Raises:
            BufferError, TypeError, ValueError: it cannot be written, is no buffer, or is smaller than `nbytes`.
            Again: as for `recv`.
        """
        target = _writable(buffer, nbytes)

        def fill(message: Message) -> int:
            frame = message[0]
            count = min(len(frame), len(target))
            target[:count] = frame[:count]
            return len(frame)

        return self.receive_as(fill, flags, True)

    send_unicode = send_string
    recv_unicode = recv_string
