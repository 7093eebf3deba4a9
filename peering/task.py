"""Task between its sender and its worker. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.machine.envelope import Envelope


class Side(Enum):
    """Origin of a task, and destination of its reply."""

    LOCAL = auto()  # a client of this broker, on localfe
    CLOUD = auto()  # a peer, on cloudfe


@dataclass(slots=True, eq=False)
class Task:
    """One task."""

    side: Side  # where it came from
    envelope: Envelope  # routing id of the sender, further addresses, the empty frame
    body: list[bytes]
    tries: int = 0  # workers and peers that were lost with it
    wanted: bool = True  # whether its sender is still connected
    peer: bytes | None = None  # the peer it was lent to; None if it is here
    lent_as: Envelope = ()  # the envelope sent to the peer

    @property
    def origin(self) -> tuple[Side, bytes]:
        """Sender: the side, and the routing id there."""
        return self.side, self.envelope[0]

    @property
    def frames(self) -> list[bytes]:
        return [*self.envelope, *self.body]
