"""Ways of a request to its service: through the broker alone, or through a store that another package installs."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from mdp.spark.dispatch_choices import SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.spark.flow.windows import RequestClient, RequestSender

# The usual way, without a store.
BROKER = "broker"


class Route(Protocol):
    """Function that opens the requests of one partition; executors find it by its name in a module."""

    def __call__(
        self, client: RequestClient, service: str, on_end: Callable[[], None], *, timeout_s: float, attempts: int
    ) -> RequestSender: ...


def route_of(via: str | Route) -> Route | None:
    """Return the route of a data source of this name, None for the broker alone; raises ValueError without one."""
    if not isinstance(via, str):
        return via
    if via == BROKER:
        return None
    found = [entry.load() for entry in entry_points(group=SOURCES, name=via)]
    route: Route | None = getattr(found[0], "route", None) if found else None
    if route is None:
        raise ValueError(f"via is {BROKER!r} or the name of an installed store such as 'titanic', not {via!r}")
    return route
