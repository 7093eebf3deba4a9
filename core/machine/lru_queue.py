"""Queue of idle workers: the least recently used worker gets the next request (LRU-01).

Pure. A worker joins at the tail when it becomes idle and is taken from the head; any worker can leave in constant time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["LruQueue"]

W = TypeVar("W", bound="Hashable")


class LruQueue(Generic[W]):
    """First in, first out, each worker at most once."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        # Not a plain dict: its first key is found by skipping every key deleted before it.
        self._waiting: OrderedDict[W, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, worker: object) -> bool:
        return worker in self._waiting

    def __iter__(self) -> Iterator[W]:
        """Iterate from the head; the queue must not change meanwhile."""
        return iter(self._waiting)

    def join(self, worker: W) -> None:
        """Put a worker at the tail; a queued worker moves there."""
        self._waiting[worker] = None
        self._waiting.move_to_end(worker)

    def take(self) -> W:
        """Remove and return the longest idle worker; raises KeyError without one."""
        worker, _ = self._waiting.popitem(last=False)
        return worker

    def leave(self, worker: W) -> bool:
        """Remove a worker; returns whether it was queued."""
        if worker not in self._waiting:
            return False
        del self._waiting[worker]
        return True
