"""What a session has before its transport is up and after it has gone, and instead of its socket when it is muted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.zmtp.framing import Decoder, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.net.owner import Owner
    from core.pattern.pipe import Pipe

__all__ = ["NO_DECODER", "Muted", "feed_nothing", "write_nothing"]

NO_DECODER = Decoder(on_command=lambda _: None)  # decodes nothing, fails never


def feed_nothing(data: bytes) -> list[Message]:
    """Read and forget."""
    return []


def write_nothing(octets: bytes) -> None:
    """There is no transport."""


class Muted:
    """A socket, for a session whose messages it does not take any more; everything else is the socket's business as before.

    Args:
        owner: the socket.
        dropped: called with the number of messages that came.
    """

    def __init__(self, owner: Owner, dropped: Callable[[int], None]) -> None:
        self._owner = owner
        self._dropped = dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)

    def received(self, pipe: Pipe, messages: list[Message], octets: int) -> None:
        """Drop messages from the wire."""
        self._dropped(len(messages))
