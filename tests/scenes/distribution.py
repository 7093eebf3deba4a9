"""Distribution of 19,000 tests to the processes of pytest-xdist.

After each test it counts all that its process has done, and it looks for the next one in the list of all: half a minute in a run. And its
processes send six messages for each test, of which three say nothing that is shown: two fifths of what the distribution itself costs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from xdist.scheduler.loadgroup import LoadGroupScheduling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest
    from xdist.workermanage import WorkerController

__all__ = ["Distribution", "say_less"]

SHOWN_S: Final = 0.005  # `--durations` leaves out what took less


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


def say_less(config: pytest.Config) -> None:
    """Let this process of pytest-xdist send what is shown: calls, what did not pass, and what took its time."""
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "sendevent"):
            plugin.sendevent = partial(_send_shown, plugin.sendevent)


def _send_shown(send: Callable[..., None], name: str, **fields: Any) -> None:
    """Send an event unless nobody would see it."""
    if name in ("logstart", "logfinish"):
        return
    if name == "testreport":
        report = fields["data"]
        if report["when"] != "call" and report["outcome"] == "passed" and report["duration"] < SHOWN_S:
            return
    send(name, **fields)


class _Tests(list[str]):
    """Names of tests that know their places."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._places = {name: place for place, name in enumerate(names)}

    def index(self, name: str, *_: Any) -> int:
        return self._places[name]
