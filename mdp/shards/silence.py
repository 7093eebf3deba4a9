"""Shards that are silent: they run, and their event loop does not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# A shard that computes or waits for so long serves no peer meanwhile; a busy machine delays it less.
SILENT_BEATS: Final = 5


class Silence:
    """Counts beats of the front between messages of a shard; a stall of the front is one beat."""

    def __init__(self) -> None:
        self.silent: set[int] = set()
        self._missed: dict[int, int] = {}

    def heard(self, shard: int) -> bool:
        """Note a message of a shard, or its end; return whether it was silent."""
        self._missed.pop(shard, None)
        was_silent = shard in self.silent
        self.silent.discard(shard)
        return was_silent

    def beat(self, serving: Iterable[int]) -> list[int]:
        """Count a beat for the shards that serve; return those that are silent from now on."""
        found = []
        for shard in serving:
            missed = self._missed[shard] = self._missed.get(shard, 0) + 1
            if missed == SILENT_BEATS:
                self.silent.add(shard)
                found.append(shard)
        return found
