"""Faults injected into what the supervisor runs: the probe of a `Supervisor` that raises once under each of some names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from core.runtime import supervision
from core.runtime.supervision import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Broken", "Saboteur", "sabotaged"]


class Broken(Exception):
    """An unforeseen error."""


class Saboteur:
    """Raises once under each of some names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.left = set(names)

    def __call__(self, name: str) -> None:
        if name in self.left:
            self.left.discard(name)
            raise Broken(name)


@contextmanager
def sabotaged(*names: str) -> Iterator[Supervisor]:
    """Have what is made within the block fail once under each name.

    In the end each must have failed once, and nothing else.
    """
    with supervision.scope(Supervisor(Saboteur(names))) as supervisor:
        yield supervisor
    assert supervisor.faults == dict.fromkeys(names, 1)
