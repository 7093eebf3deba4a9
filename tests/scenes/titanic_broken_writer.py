"""A program: `titanic` with a mistake in what its writer thread calls.

MISTAKE=LookupError python -m tests.scenes.titanic_broken_writer serve --broker ENDPOINT --store DIRECTORY
"""

from __future__ import annotations

import os
import threading
from asyncio import CancelledError

from titanic.commands.main import main
from titanic.journal.disk import RealDisk

_sync = RealDisk.sync
MISTAKES: dict[str, type[BaseException]] = {one.__name__: one for one in (LookupError, CancelledError, SystemExit)}


def broken(self: RealDisk, handle: int) -> None:
    """Fail in the writer thread, as no disk does."""
    if "writer" in threading.current_thread().name:
        raise MISTAKES[os.environ["MISTAKE"]]("a mistake")
    _sync(self, handle)


if __name__ == "__main__":
    RealDisk.sync = broken  # type: ignore[method-assign]
    main(prog_name="titanic")
