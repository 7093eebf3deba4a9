"""Fair queueing: receives alternate between the pipes with messages, whole messages at a time (SOCK-08)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.pattern.pipe import Pipe
    from core.zmtp.frames import Message


class FairQueue:
    """Pipes with messages in their inbox, in the order of receives.

    Attributes:
        active: pipes with a non-empty inbox; the head is next.
        direct: inproc peers put messages straight into an inbox that is not empty.
    """

    __slots__ = ("active", "direct")

    def __init__(self) -> None:
        self.active: deque[Pipe] = deque()
        self.direct = False

    def push(self, pipe: Pipe, messages: Sequence[Message]) -> None:
        inbox = pipe.inbox
        if not inbox and messages:
            self.active.append(pipe)
        inbox.extend(messages)

    def pop(self) -> Message | None:
        active = self.active
        if not active:
            return None
        pipe = active[0]
        message = pipe.take()
        if not pipe.inbox:
            active.popleft()
            pipe.unread_bytes = 0
            if pipe.throttled:
                pipe.engine.resume()
        elif len(active) > 1:
            active.rotate(-1)
        return message

    def pop_from(self) -> tuple[Pipe, Message] | None:
        """As `pop`, with the pipe it came from."""
        if not self.active:
            return None
        pipe = self.active[0]
        message = self.pop()
        return None if message is None else (pipe, message)

    def pop_many(self) -> list[Message]:
        active = self.active
        if len(active) == 1:
            pipe = active.popleft()
            messages = list(pipe.inbox)
            pipe.inbox.clear()
            pipe.unread_bytes = 0
            if pipe.throttled:
                pipe.engine.resume()
            return messages
        messages = []
        while (message := self.pop()) is not None:
            messages.append(message)
        return messages

    def put_back(self, pipe: Pipe | None, message: Message) -> None:
        """Put back the message of a cancelled receive, so that it is next."""
        if pipe is None:
            return
        if pipe.inbox:
            self.active.remove(pipe)
        pipe.inbox.appendleft(message)
        self.active.appendleft(pipe)

    def discard(self, pipe: Pipe) -> int:
        """Drop the messages of a pipe; returns how many."""
        count = len(pipe.inbox)
        if count:
            self.active.remove(pipe)
            pipe.inbox.clear()
            pipe.unread_bytes = 0
            if pipe.throttled:
                pipe.engine.resume()
        return count
