"""Memory of a broker: what it gives back after a burst of requests, and its end where there is none.

What stays are single objects in the MiB around them. Most are in the interpreter's lists of free objects, which a whole collection empties.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

log = logging.getLogger("mdp.broker")

# A collection looks at all objects that are not frozen: a millisecond for some hundred peers.
PEERS_MAX: Final = 1000


def _trimmer() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


# Found once: what looking for it leaves behind would itself keep memory in use.
_TRIM: Final = _trimmer()


def give_back(peers: int) -> None:
    """Return free memory of the C library (glibc) to the system, after a collection if that is quick.

    It is where the program has frozen what it has loaded, as our daemons do, and has few peers.
    """
    if peers <= PEERS_MAX and gc.get_freeze_count():
        gc.collect()
    if _TRIM is not None:
        _TRIM(0)


class WholeRecords:
    """A block in which records change; without memory in it their owner ends, as they may be changed by half."""

    def __init__(self, end: Callable[[MemoryError], None]) -> None:
        self._end = end
        self._are_lost = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, MemoryError):
            self.lost()

    def lost(self) -> None:
        """End the owner."""
        if self._are_lost:
            return
        self._are_lost = True
        error = MemoryError("out of memory in the middle of a change: the broker has ended, as its records may be changed by half")
        self._end(error)
        with suppress(MemoryError):
            log.critical("%s", error)

    def kept_by(self, call: Callable[[], object]) -> Callable[[], None]:
        """Return a function that makes a call within the block."""

        def run() -> None:
            with self:
                call()

        return run
