"""A program: mirrors of one directory, each killed at another call of its disk while placing files.

    python -m tests.scenes.titanic_killed_mirror DIRECTORY ENDPOINT

Each that was killed is followed by one that lives until a line comes in. It says `killed K STEP`, and `ended` when one got through alive.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

from titanic.journal.disk import RealDisk
from titanic.journal.ownership import read_mark
from titanic.mirror.replica_directory import Replica
from titanic.mirror.replica_server import Mirror

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from titanic.wire.mirror_frames import Swap

CALLS = ("create", "write", "sync", "truncate", "preallocate", "rename", "unlink", "sync_directory")


class MortalDisk(RealDisk):
    """Kills its process before a certain call."""

    def __init__(self, directory: str | os.PathLike[str], dies_at: int) -> None:
        super().__init__(directory)
        self.armed = False
        self.left = dies_at
        for name in CALLS:
            setattr(self, name, self._mortal(getattr(self, name)))

    def _mortal(self, call: Any) -> Any:
        def called(*arguments: Any) -> Any:
            if self.armed:
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return called


class MortalReplica(Replica):
    """Arms its disk for the time of a swap."""

    swapped = False

    def _swap(self, swap: Swap) -> None:
        disk = self.disk
        assert isinstance(disk, MortalDisk)
        disk.armed = True
        super()._swap(swap)
        disk.armed = False
        self.swapped = True


async def mirror(directory: str | Path, endpoint: str, dies_at: int) -> None:
    import titanic.mirror.replica_server

    titanic.mirror.replica_server.Replica = MortalReplica  # type: ignore[attr-defined]
    async with Mirror(MortalDisk(directory, dies_at)) as one:
        one.bind(endpoint)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        if dies_at:
            assert isinstance(one.replica, MortalReplica)
            while not one.replica.swapped:
                await asyncio.sleep(0.005)
            return
        await ended.wait()


def started(directory: str, endpoint: str, dies_at: int) -> int:
    """Return the pid of a mirror of this directory."""
    pid = os.fork()
    if not pid:
        asyncio.run(mirror(directory, endpoint, dies_at))
        os._exit(0)
    return pid


def main(arguments: Sequence[str]) -> None:
    directory, endpoint = arguments
    for dies_at in count(1):
        _, status = os.waitpid(started(directory, endpoint, dies_at), 0)
        if not os.WIFSIGNALED(status):
            sys.stdout.write("ended\n")
            sys.stdout.flush()
            return
        mark = read_mark(RealDisk(directory))
        assert mark is not None
        sys.stdout.write(f"killed {dies_at} {mark.step.value}\n")
        sys.stdout.flush()
        alive = started(directory, endpoint, 0)
        sys.stdin.readline()
        os.kill(alive, signal.SIGTERM)
        os.waitpid(alive, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
