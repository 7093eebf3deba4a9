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
    """One task.

    Attributes:
        side: where it came from.
        envelope: routing id of the sender, further addresses, the empty frame.
        body: its frames.
        tries: workers and peers that were lost with it.
        wanted: whether its sender is still connected.
        peer: the peer it was lent to; None if it is here.
        lent_as: the envelope sent to the peer.
    """

    __slots__ = ("body", "envelope", "lent_as", "peer", "side", "tries", "wanted")

    def __init__(self, side: Side, envelope: Envelope, body: list[bytes]) -> None:
        self.side = side
        self.envelope = envelope
        self.body = body
        self.tries = 0
        self.wanted = True
        self.peer: bytes | None = None
        self.lent_as: Envelope = envelope

    @property
    def origin(self) -> tuple[Side, bytes]:
        """Sender: the side, and the routing id there."""
        return self.side, self.envelope[0]

    @property
    def frames(self) -> list[bytes]:
        """Return `[address…][""][body…]`."""
        return [*self.envelope, *self.body]
