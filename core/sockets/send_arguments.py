"""What callers give to be sent: looked at when it waits or has failed already, so that good messages cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import EINVAL, ZMQError
from core.zmtp.decoder import Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.zmtp.decoder import Message

__all__ = ["refuse_bad"]


def refuse_bad(messages: Sequence[Message]) -> None:
    """Raise for what is no message.

    Raises:
        ZMQError: EINVAL, a message without any frame.
        TypeError: a frame is not bytes-like.
    """
    for message in messages:
        if not message:
            raise ZMQError(EINVAL, "a message has one frame at least")
        for frame in message:
            if not isinstance(frame, bytes | Encoded):
                try:
                    memoryview(frame)
                except TypeError:
                    raise TypeError(f"a frame is bytes-like, not {type(frame).__name__}") from None
