"""Distribution of the tests among test processes, as by pytest-xdist, at one price for each test.

pytest-xdist counts through all tests that a process has had, and searches the list of all, for each test that ends: of 18,000 tests that
is a quarter of a minute of CPU time, and each process waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdist.workermanage import WorkerController

__all__ = ["Spreading"]


class _Names(list[str]):
    """Names of all tests in their order, with a place that is looked up and not searched for."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._places = {name: place for place, name in enumerate(names)}

    def index(self, name: str, *_: SupportsIndex) -> int:
        return self._places[name]


class Spreading(LoadGroupScheduling):  # type: ignore[misc]
    """Gives each process one test after another, and all tests of a group to one."""

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Keep the names of the tests that a process has found."""
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = _Names(collection)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget a group as soon as its last test has ended."""
        work = self.assigned_work[node]
        name = self.registered_collections[node][item_index]
        group = self._split_scope(name)
        work[group][name] = True
        if all(work[group].values()):
            del work[group]
        self._reschedule(node)


def spreading(config: Any, log: Any) -> Spreading | None:
    """Return the distribution for `--dist loadgroup`, None for another."""
    return Spreading(config, log) if config.getvalue("dist") == "loadgroup" else None
