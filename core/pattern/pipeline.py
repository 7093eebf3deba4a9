"""PUSH and PULL (RFC 30; PPL-01, PPL-02), and the balancing they share with DEALER."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from core.pattern.base import Counters, Pattern
from core.pattern.load_balancer import LoadBalancer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.errors import MessageTooLarge
    from core.options import Options
    from core.pattern.pipe import Pipe
    from core.zmtp.frames import Given


class Balanced(Pattern):
    """Base of patterns whose sends go round robin and wait when no peer has capacity."""

    def __init__(self, options: Options, counters: Counters) -> None:
        super().__init__(options, counters)
        self.outbound = LoadBalancer()

    def attach(self, pipe: Pipe) -> bool:
        """Take a pipe; a connecting pipe is available unless IMMEDIATE is set (SOCK-09, OPT-01)."""
        self.pipes[pipe] = None
        if self.available(pipe):
            self.outbound.add(pipe)
        return True

    def ready(self, pipe: Pipe) -> bool:
        self.outbound.add(pipe)
        return True

    def suspend(self, pipe: Pipe) -> None:
        """With IMMEDIATE, drop what waits for a lost connection (OPT-01)."""
        if self.options.immediate:
            self.outbound.remove(pipe)
            self.counters.undelivered += pipe.discard_outbox()

    def detach(self, pipe: Pipe) -> None:
        super().detach(pipe)
        self.outbound.remove(pipe)

    def on_writable(self, pipe: Pipe) -> None:
        if not pipe.listed and pipe in self.pipes and self.available(pipe):
            self.outbound.add(pipe)

    def send(self, frames: Given) -> bool:
        """Send to the next peer with capacity (SOCK-09); never drops."""
        outbound = self.outbound
        pipes = outbound.pipes
        if len(pipes) == 1:
            (pipe,) = pipes
            if len(pipe.outbox) < pipe.limit:
                pipe.write(frames)
                return True
        return outbound.send(frames)

    def send_many(self, messages: Sequence[Given]) -> int:
        pipes = self.outbound.pipes
        if len(pipes) == 1:
            (pipe,) = pipes
            count = len(messages)
            if len(pipe.outbox) + count <= pipe.limit:
                if count == 1:
                    pipe.write(messages[0])
                else:
                    pipe.write_many(messages)
                return count
        return super().send_many(messages)

    def has_capacity_for(self, first: Any) -> bool:
        return self.outbound.has_capacity()

    def judge(self, frames: Given) -> MessageTooLarge | None:
        """See `Pattern`; the message may go to any of the peers."""
        limits = self.limits()
        return None if limits is None else limits.judge(frames)

    def route(self, routing_id: bytes) -> Pipe | None:
        """Return the pipe of a single peer, whatever its id."""
        pipes = self.outbound.pipes
        return pipes[0] if len(pipes) == 1 else None

    def writable(self) -> bool:
        return self.outbound.has_capacity()


class Push(Balanced):
    """Round robin to the PULL peers."""

    type_name: ClassVar[bytes] = b"PUSH"
    receives: ClassVar[bool] = False
    as_queued: ClassVar[bool] = False


class Pull(Pattern):
    """Fair queueing from the PUSH peers."""

    type_name: ClassVar[bytes] = b"PULL"
