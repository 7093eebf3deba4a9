"""Back-pressure of the front: a sender whose messages do not leave is not read from until they have left.

Messages of a peer wait in its connection while the shard does not read or is being started, and messages of the shards wait at the front
while the peer does not read. At a mark the front stops reading from the sender, and TCP slows it down: a peer itself, or the shard, which
then pauses workers or ends the connection, as a broker does. No more waits for one peer than the mark and what is read at once; the sum of
the marks is `unread_total_max_bytes` at most, however many peers there are.

A queue is looked at each time as many bytes were sent as would fill it, and by a timer while something is held back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.runtime import supervision

if TYPE_CHECKING:
    from collections.abc import Callable

# Interval of looking at queues whose sender is held back. It doubles up to the second number while none of them becomes shorter.
LOOK_S: Final = 0.005
IDLE_S: Final = 0.1
# A mark is not lower than this: what a socket writes at once.
MARK_MIN: Final = 4 * 1024


class Queue:
    """Messages that wait on their way to one receiver.

    Args:
        unread: returns their bytes; may be expensive.
        most: highest mark, in bytes.
    """

    __slots__ = ("hold", "left", "most", "release", "seen", "unread")

    def __init__(self, unread: Callable[[], int], hold: Callable[[], None], release: Callable[[], None], most: int) -> None:
        self.unread = unread
        self.hold = hold
        self.release = release
        self.most = most
        self.left = 0  # bytes that may be sent before the next look; `Backpressure` counts it down
        self.seen = 0  # bytes at the last look, while the sender is held back


class Backpressure:
    """Holds senders back, and reads on."""

    def __init__(self, total_bytes: int, count: Callable[[], int]) -> None:
        self._total_bytes = total_bytes
        self._count = count
        self.held: dict[Queue, None] = {}
        self.times = 0
        self._pause_s = LOOK_S
        # A look that fails is repeated by the supervisor: nothing else reads on.
        self._clock = supervision.current().timer("mdp front clock", self._look_held)

    def sent(self, queue: Queue, size: int) -> None:
        """Count bytes that were put into a queue."""
        queue.left -= size
        if queue.left <= 0:
            self._look(queue)

    def forget(self, queue: Queue) -> None:
        if queue in self.held:
            del self.held[queue]
            queue.release()

    def close(self) -> None:
        self._clock.cancel()
        self.held.clear()

    def _mark(self, queue: Queue) -> int:
        return max(MARK_MIN, min(queue.most, self._total_bytes // max(1, self._count())))

    def _look(self, queue: Queue) -> None:
        unread, mark = queue.unread(), self._mark(queue)
        if unread < mark:
            queue.left = mark - unread
            return
        queue.left, queue.seen = mark, unread
        self.times += queue not in self.held
        self.held[queue] = None
        self._pause_s = LOOK_S
        self._clock.after(LOOK_S)
        queue.hold()

    def _look_held(self) -> None:
        """Read on where half of the mark has left."""
        pause_s = min(2 * self._pause_s, IDLE_S)
        for queue in [*self.held]:
            unread, mark = queue.unread(), self._mark(queue)
            if unread < queue.seen:
                pause_s = LOOK_S
            queue.seen = unread
            if unread <= mark // 2:
                queue.left = mark - unread
                self.forget(queue)
        self._pause_s = pause_s
        if self.held:
            self._clock.after(pause_s)
