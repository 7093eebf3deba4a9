"""Watching a socket: typed events with reason and peer (MON-01, MON-03)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.constants import Event

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MonitorEvent", "Monitors"]


@dataclass(frozen=True, slots=True)
class MonitorEvent:
    """Something that happened to an endpoint or connection.

    Attributes:
        event: what.
        value: descriptor, delay in ms, errno or code, as libzmq defines for the event.
        endpoint: where.
        reason: one clause for people, may be empty.
    """

    event: Event
    value: int
    endpoint: str
    reason: str = ""


class Monitors:
    """Those who watch one socket."""

    __slots__ = ("_sinks",)

    def __init__(self) -> None:
        self._sinks: list[tuple[int, Callable[[MonitorEvent], None]]] = []

    def add(self, sink: Callable[[MonitorEvent], None], events: int) -> None:
        """Have `sink` called for each of the events."""
        self._sinks.append((events, sink))

    def remove(self, sink: Callable[[MonitorEvent], None]) -> None:
        """Have it called no more."""
        self._sinks = [entry for entry in self._sinks if entry[1] is not sink]

    def emit(self, event: int, value: int, endpoint: str, reason: str) -> None:
        """Tell those who asked for it."""
        for events, sink in self._sinks:
            if events & event:
                sink(MonitorEvent(Event(event), value, endpoint, reason))
