"""Load balancing: sends go round robin to pipes with capacity, and wait when none has any (SOCK-09)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.pattern.pipe import Pipe
    from core.zmtp.frames import Given


class LoadBalancer:
    """Pipes with capacity, in round-robin order."""

    __slots__ = ("_next", "last", "pipes")

    def __init__(self) -> None:
        self.pipes: list[Pipe] = []  # candidates; a full pipe is removed until `add` brings it back
        self.last: Pipe | None = None  # the pipe of the latest message
        self._next = 0

    def add(self, pipe: Pipe) -> None:
        if not pipe.listed:
            pipe.listed = True
            self.pipes.append(pipe)

    def remove(self, pipe: Pipe) -> None:
        if pipe.listed:
            pipe.listed = False
            at = self.pipes.index(pipe)
            del self.pipes[at]
            if at < self._next:
                self._next -= 1

    def has_capacity(self) -> bool:
        """Whether some pipe has capacity. Does not change the order."""
        return any(len(pipe.outbox) < pipe.limit or pipe.engine.flush() for pipe in self.pipes) or self.choose() is not None

    def choose(self) -> Pipe | None:
        """Return the next pipe with capacity, None when all are full."""
        pipes = self.pipes
        while pipes:
            at = self._next
            if at >= len(pipes):
                at = 0
            pipe = pipes[at]
            if len(pipe.outbox) < pipe.limit or pipe.engine.flush():
                self._next = at + 1
                return pipe
            pipe.listed = False
            pipe.waiting_for_capacity = True
            del pipes[at]
            self._next = at
        return None

    def send(self, frames: Given, first: int = 0) -> bool:
        """Send one message; returns False when all pipes are full."""
        pipe = self.choose()
        if pipe is None:
            return False
        self.last = pipe
        pipe.write(frames, first)
        return True
