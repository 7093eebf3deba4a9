"""What a session has before its transport is up and after it has gone: nothing is decoded, nothing is written."""

from __future__ import annotations

from core.zmtp.framing import Decoder, Message

__all__ = ["NO_DECODER", "feed_nothing", "write_nothing"]

NO_DECODER = Decoder(on_command=lambda _: None)  # decodes nothing, fails never


def feed_nothing(data: bytes) -> list[Message]:
    """Read and forget."""
    return []


def write_nothing(octets: bytes) -> None:
    """There is no transport."""
