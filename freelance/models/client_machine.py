"""Common part of the client machines of models 2 and 3: their requests from submission to the end.

A plain request is in `fast_replies.py` until anything but its reply happens; then the machine takes it over with a `PendingRequest`.
Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from core.machine.deadlines import Deadlines
from freelance.models.effects import GaveUp
from freelance.models.fast_replies import FastReplies
from freelance.models.flp import control_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freelance.models.effects import Effect
    from freelance.models.fast_replies import FastRequest

__all__ = ["ClientMachine", "PendingRequest"]


class PendingRequest:
    """One request until its end.

    Attributes:
        number: of the request.
        control: its control frame.
        frames: as sent.
        first_at: when it was made.
        attempts: how often it was sent.
        asked: every server it was sent to; a reply of another is not accepted.
    """

    __slots__ = ("asked", "attempts", "control", "first_at", "frames", "number")

    def __init__(self, number: int, frames: list[bytes], now: float) -> None:
        self.number = number
        self.control = control_frame(number)
        self.frames = frames
        self.first_at = now
        self.attempts = 0
        self.asked: set[bytes] = set()


R = TypeVar("R", bound=PendingRequest)


class ClientMachine(ABC, Generic[R]):
    """Requests of one client.

    Args:
        envelope: frames before the control frame, of requests and replies.
        takeover_s: seconds after which the machine takes over a request that has no reply.

    Attributes:
        counters: what was sent, dropped, given up, by name.
    """

    def __init__(self, envelope: Sequence[bytes], takeover_s: float) -> None:
        self.counters: Counter[str] = Counter()
        self._fast = FastReplies(envelope, takeover_s, self.counters)
        self._requests: dict[bytes, R] = {}  # by control frame; those that are not in `_fast`
        self._ends: Deadlines[bytes] = Deadlines()

    def __len__(self) -> int:
        return len(self._requests) + len(self._fast)

    def withdraw(self, number: int) -> None:
        """Forget a request; a reply that still comes is counted as unknown."""
        if not self._fast.remove(number):
            request = self._requests.get(control_frame(number))
            if request is not None:
                self._forget(request)

    @abstractmethod
    def _take_over(self, requests: Iterable[FastRequest]) -> None:
        """Make records of requests that leave `_fast`."""

    def _forget(self, request: R) -> None:
        del self._requests[request.control]
        self._ends.discard(request.control)

    def _not_sent(self, name: bytes, control: bytes) -> R | None:
        """Record that a copy was too large for its server; return its request, None if it has ended."""
        fast = self._fast.pop(control)
        if fast is not None:
            self._take_over([fast])
        request = self._requests.get(control)
        if request is not None:
            self.counters["send_refused"] += 1
            self.counters["sent"] -= 1
            request.attempts -= 1
            request.asked.discard(name)
        return request

    def _answered(self, name: bytes, control: bytes) -> int:
        """Take a decoded reply; return its request's number, 0 for none or a server that was not asked."""
        number = self._fast.settle(control, name)
        request = self._requests.get(control)
        if request is not None and name in request.asked:
            number = request.number
            self._forget(request)
        if not number:
            known = request is not None or control in self._fast.requests
            self.counters["reply_unasked" if known else "reply_unknown"] += 1
        return number

    def _give_up(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for control in self._ends.due(now):
            request = self._requests[control]
            self._forget(request)
            self.counters["gave_up"] += 1
            effects.append(GaveUp(request.number, request.attempts, now - request.first_at))
        return effects
