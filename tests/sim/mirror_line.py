"""A line to a mirror in the same thread, which may break at any call: for `titanic.mirror.mirrored_disk` on simulated disks."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgpack

from titanic.mirror.replica_directory import Replica
from titanic.wire.mirror_frames import Call

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk
    from titanic.mirror.mirrored_disk import MirroredDisk


class DirectLine:
    """Does each call at once on the mirror's disk; breaks by chance, and comes back when somebody waits."""

    def __init__(self, mirror: SimDisk, seed: int, breaks: float = 0.0) -> None:
        self.live = self.ending = self.stale = False
        self.ready = 0
        self.mirror = mirror
        self.random = Random(seed)
        self.breaks = breaks
        self.away = False
        self.sessions = 0
        self.replica: Replica
        self.disk: MirroredDisk
        self._open = False
        self._number = 0

    def greet(self) -> None:
        """Begin a session with a mirror that was just started."""
        self.mirror.locked = False
        self.mirror.lock()
        self.replica = Replica(self.mirror)
        self.sessions += 1
        self._open = True
        there = msgpack.unpackb(self.replica.do(Call.HELLO.value, [self.disk.hello()]))
        done = self.disk.copy_ahead(self.sessions, {name: tuple(numbers) for name, numbers in there.items()})
        self.ready = self.sessions if done else 0

    def post(self, call: Call, *arguments: bytes, session: int = 0) -> int:
        self._number += 1
        if self._open and self.random.random() < self.breaks:
            self._open = self.live = False
            self.ready = 0
        if self._open:
            self.replica.do(call.value, arguments)
        return self._number

    def wait(self, number: int) -> bool:
        return self._open

    def wait_change(self, timeout_s: float) -> None:
        if not self.away:
            self.greet()

    def joined(self, session: int, live: bool) -> None:
        self.ready = 0
        self.live = live and self._open
