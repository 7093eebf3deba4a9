"""PAIR: one peer, both directions (RFC 31; PAIR-01..03)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from core.pattern.pipeline import Balanced

if TYPE_CHECKING:
    from core.pattern.pipe import Pipe


class Pair(Balanced):
    """Exclusive pair; a second peer is refused until the first is gone (PAIR-02)."""

    type_name: ClassVar[bytes] = b"PAIR"

    def attach(self, pipe: Pipe) -> bool:
        if self.pipes:
            self.counters.extra_peer += 1
            return False
        return super().attach(pipe)

    def ready(self, pipe: Pipe) -> bool:
        """Make the peer available; the peer of a second connect() is accepted once the first is gone."""
        return (pipe in self.pipes or self.attach(pipe)) and super().ready(pipe)
