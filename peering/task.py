"""Task between its sender and its worker. Pure."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.machine.envelope import Envelope

__all__ = ["Side", "Task"]


class Side(Enum):
    """Origin of a task, and destination of its reply."""

    LOCAL = auto()  # a client of this broker, on localfe
    CLOUD = auto()  # a peer, on cloudfe


class Task:
    """One task."""

    __slots__ = ("body", "envelope", "lent_as", "peer", "side", "tries", "wanted")

    def __init__(self, side: Side, envelope: Envelope, body: list[bytes]) -> None:
        self.side = side  # where it came from
        self.envelope = envelope  # routing id of the sender, further addresses, the empty frame
        self.body = body
        self.tries = 0  # workers and peers that were lost with it
        self.wanted = True  # whether its sender is still connected
        self.peer: bytes | None = None  # the peer it was lent to; None if it is here
        self.lent_as: Envelope = envelope  # the envelope sent to the peer

    @property
    def origin(self) -> tuple[Side, bytes]:
        """Sender: the side, and the routing id there."""
        return self.side, self.envelope[0]

    @property
    def frames(self) -> list[bytes]:
        return [*self.envelope, *self.body]
