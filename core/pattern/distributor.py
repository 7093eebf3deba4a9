"""Distribution of one encoded message to many peers; a full peer misses it (PSB-01, ZMTP-68)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.zmtp.frames import Encoded, encode_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.pattern.base import Counters
    from core.pattern.pipe import Pipe
    from core.zmtp.frames import Given, Message


def has_capacity(pipe: Pipe) -> bool:
    return len(pipe.outbox) < pipe.limit or pipe.engine.flush()


def distribute(pipes: Iterable[Pipe], frames: Given, counters: Counters) -> None:
    """Send one message to every pipe with capacity; count the full pipes, and those whose limits it exceeds."""
    piece = encode_message(frames)
    decoded: Message | None = None
    for pipe in pipes:
        if pipe.limits is not None and len(piece) > pipe.limits.small and pipe.limits.judge([Encoded(piece)]) is not None:
            counters.beyond_peer += 1
        elif not has_capacity(pipe):
            counters.peer_full += 1
        elif pipe.takes_octets:
            pipe.write_octets(piece)
        else:
            if decoded is None:
                decoded = Encoded(piece).frames()
            pipe.write(decoded)
