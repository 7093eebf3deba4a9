"""A program: `titanic` with a mistake in what its writer thread calls.

python -m tests.titanic.broken_writer serve --broker ENDPOINT --store DIRECTORY
"""

from __future__ import annotations

import threading

from titanic.cli import main
from titanic.disk import RealDisk

_sync = RealDisk.sync


def broken(self: RealDisk, handle: int) -> None:
    """Fail in the writer thread, as no disk does."""
    if "writer" in threading.current_thread().name:
        raise LookupError("a mistake")
    _sync(self, handle)


if __name__ == "__main__":
    RealDisk.sync = broken  # type: ignore[method-assign]
    main(prog_name="titanic")
