"""Mirror of a store: requests are refused while it is away, unless the store may acknowledge alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from titanic.mirror.mirrored_disk import MirroredDisk

if TYPE_CHECKING:
    from titanic.journal.disk import Disk
    from titanic.journal.group_commit import Journal
    from titanic.mirror.replica_link import MirrorLine

__all__ = ["MirrorAttachment"]


class MirrorAttachment:
    """Mirror of one store; the journal writes to `disk`, which is both copies."""

    def __init__(self, mirror: MirrorLine, disk: Disk, go_on: bool) -> None:
        self.disk = MirroredDisk(disk, mirror, go_on, mirror.may_go_alone if mirror.terms is not None else None)
        self._mirror = mirror  # connection to the replica
        self._go_on = go_on  # acknowledge without the mirror while it is away
        self._in_step = asyncio.Event()
        self._journal: Journal

    async def start(self, journal: Journal) -> None:
        """Connect, once the journal is open."""
        self._journal = journal
        self._mirror.on_state = self._on_state
        self._on_state(self._mirror.state, self._mirror.reason)
        disk = self.disk
        await journal.run(lambda opened: disk.attach(opened.store))  # in the writer thread, before its first batch
        self._mirror.start(disk, journal)

    def _on_state(self, state: str, reason: str) -> None:
        if state == "in step":
            self._in_step.set()
            self._journal.stalled = None
        else:
            self._in_step.clear()
            if not self._go_on or self._mirror.stale:
                self._journal.stalled = f"the mirror is {state}{': ' + reason if reason else ''}"

    async def wait(self) -> None:
        if not self._go_on or (self._mirror.terms is not None and not self._mirror.terms.alone):
            await self._in_step.wait()
