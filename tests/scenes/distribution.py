"""Distribution of 17,000 tests to the processes of pytest-xdist.

After each test it counts all that its process has done, and it looks for the next one in the list of all: half a minute in a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler.loadgroup import LoadGroupScheduling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdist.workermanage import WorkerController

__all__ = ["Distribution"]


class Distribution(LoadGroupScheduling):  # type: ignore[misc]  # it has no annotations
    """`--dist loadgroup` that forgets what is done."""

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = _Tests(collection)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


class _Tests(list[str]):
    """Names of tests that know their places."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._places = {name: place for place, name in enumerate(names)}

    def index(self, name: str, *_: Any) -> int:
        return self._places[name]
