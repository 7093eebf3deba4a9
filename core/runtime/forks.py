"""Notice of forks: a child process must not use its parent's sockets, whose connections it shares.

The interpreter calls `_in_child` after a fork, so that messages need no check.
"""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakSet


class Forked(Protocol):
    """An object that has to know of forks."""

    def forked(self, parent: int) -> None: ...  # refuse every call from now on


_PID: Final = [os.getpid()]  # of this process; a fork changes it
_KNOWN: Final[WeakSet[Forked]] = WeakSet()  # one handler for all, because handlers cannot be unregistered


def process_id() -> int:
    """Return the number of this process, as `os.getpid`, without a system call."""
    return _PID[0]


def tell_of_forks(one: Forked) -> None:
    """Call `forked` in every child process, as long as the object lives."""
    _KNOWN.add(one)


def _in_child() -> None:
    parent, _PID[0] = _PID[0], os.getpid()
    for one in list(_KNOWN):
        one.forked(parent)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_in_child)
