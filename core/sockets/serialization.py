"""Send and receive text, JSON and other forms, like ZeroMQ's Python binding. No pickle."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.sockets.futures import Awaitable
    from core.zmtp.decoder import Message

__all__ = ["Serialization"]


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
