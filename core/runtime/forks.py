"""What a child process must not use: the sockets of its parent, whose connections it shares without knowing.

The interpreter calls `_in_child` after a fork, so that nothing is asked on the way of a message.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from typing import Protocol

    class Forked(Protocol):
        """What is told of a fork."""

        def forked(self, parent: int) -> None:
            """Refuse every call from now on."""


__all__ = ["tell_of_forks"]

_PARENT: Final = [os.getpid()]  # a fork can be seen from its child only
_KNOWN: Final[WeakSet[Forked]] = WeakSet()  # of this process: an interpreter takes no handler back, so there is one for all


def tell_of_forks(one: Forked) -> None:
    """Have `forked` called in every child process, for as long as the object lives."""
    _KNOWN.add(one)


def _in_child() -> None:
    parent, _PARENT[0] = _PARENT[0], os.getpid()
    for one in list(_KNOWN):
        one.forked(parent)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
