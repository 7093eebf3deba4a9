"""Memory that a broker gives back to the system after a burst of requests.

What stays are single objects in the MiB around them. Most are in the interpreter's lists of free objects, which a whole collection empties.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any, Final

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
