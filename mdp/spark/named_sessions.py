"""Sessions by name: each is kept while a request runs in it, and for a while after that."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession


@dataclass(slots=True)
class _Named:
    """A session, how many requests run in it, and when the last one began or ended."""

    session: SparkSession
    users: int = 0
    used_at: float = 0.0


class NamedSessions:
    """Sessions by name; any thread may use one. Iterating yields the names, the least recently used first.

    Args:
        make: makes a session; it may block.
        most: maximum number; beyond it the least recently used one without a request is dropped.
        idle_s: seconds after the last request's end, after which a session is dropped.
        clock: monotonic seconds.
    """

    def __init__(self, make: Callable[[], SparkSession], most: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._most = most
        self._idle_s = idle_s
        self._clock = clock
        self._named: OrderedDict[str, _Named] = OrderedDict()
        self._making = threading.Lock()  # two requests of one name have one session

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._named))

    @contextmanager
    def use(self, name: str) -> Iterator[SparkSession]:
        """Lend the session of a name, or a new unnamed one, to a request; blocks while Java makes it."""
        if not name:
            yield self._make()
            return
        with self._making:
            self._drop()
            named = self._named.get(name) or _Named(self._make())
            self._named[name] = named
            self._note(name, named, 1)
        try:
            yield named.session
        finally:
            with self._making:
                self._note(name, named, -1)

    def _note(self, name: str, named: _Named, users: int) -> None:
        """Note that a request begins (1) or ends (-1)."""
        named.users += users
        named.used_at = self._clock()
        self._named.move_to_end(name)
        self._drop()

    def _drop(self) -> None:
        """Drop what is unused for too long, or too many; never one with a request."""
        over_at = self._clock() - self._idle_s
        for name, named in list(self._named.items()):
            if not named.users and (named.used_at < over_at or len(self._named) > self._most):
                del self._named[name]
