"""The client of model 2: every server is asked, the first answer wins (FRL-03 to FRL-07).

Requests are `["" sequence body]`, replies `["" sequence …]`. A copy goes to each server whose connection stands, and to those
whose connection comes about while the request is open; none is kept for a server that is away (FRL-07).

Pure: `now` in monotonic seconds; what has to be sent is returned.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from core.clock import Deadlines
from freelance.effects import Finished, GaveUp, Send
from freelance.flp import control_frame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from freelance.effects import Effect

__all__ = ["Shotgun"]


class Call:
    """One request until its end; `asked` are the servers that have it over their present connection."""

    __slots__ = ("asked", "attempts", "first_at", "frames", "number")

    def __init__(self, number: int, body: list[bytes], now: float) -> None:
        self.number = number
        self.frames = [b"", control_frame(number), *body]
        self.first_at = now
        self.attempts = 0
        self.asked: set[bytes] = set()


class Shotgun:
    """Requests of one client to all of its servers.

    Args:
        endpoints: of the servers.
        timeout_s: after which a request ends.

    Attributes:
        counters: what was sent, dropped, given up, by name.
        first_step_s: after which, at the earliest, something is to be done about a new request.

    Raises:
        ValueError: no endpoint.
    """

    def __init__(self, endpoints: Iterable[str], timeout_s: float) -> None:
        self.counters: Counter[str] = Counter()
        self._up = dict.fromkeys((endpoint.encode() for endpoint in endpoints), False)
        if not self._up:
            raise ValueError("a client needs at least one endpoint")
        self._timeout_s = self.first_step_s = timeout_s
        self._number = 0
        self._calls: dict[bytes, Call] = {}  # by sequence
        self._ends: Deadlines[bytes] = Deadlines()

    def __len__(self) -> int:
        return len(self._calls)

    def submit(self, body: list[bytes], now: float, timeout_s: float | None = None) -> tuple[int, list[Effect]]:
        """Take a request of one frame; return its number and what is to be done.

        Raises:
            ValueError: not exactly one frame, which a server would drop (FRL-04).
        """
        if len(body) != 1:
            raise ValueError(f"a request of model 2 has one body frame, not {len(body)}")
        self._number += 1
        call = Call(self._number, body, now)
        self._calls[call.frames[1]] = call
        self._ends.set(call.frames[1], now + (self._timeout_s if timeout_s is None else timeout_s))
        return call.number, [self._copy(call, name) for name, up in self._up.items() if up]

    def withdraw(self, number: int) -> None:
        """Forget a request; replies that still come are counted as unknown."""
        if self._calls.pop(control_frame(number), None) is not None:
            self._ends.discard(control_frame(number))

    def add(self, endpoint: str) -> bool:
        """Take one more server. Returns whether it was not there; it gets copies once it has joined."""
        name = endpoint.encode()
        return name not in self._up and not self._up.setdefault(name, False)

    def remove(self, name: bytes, now: float) -> list[Effect]:
        """Ask a server nothing more and believe none of its replies."""
        if self._up.pop(name, None) is not None:
            for call in self._calls.values():
                call.asked.discard(name)
        return []

    def joined(self, name: bytes, now: float) -> list[Effect]:
        """There is a connection to a server: it gets the open requests."""
        if name not in self._up:
            return []  # removed a moment ago
        self._up[name] = True
        return [self._copy(call, name) for call in self._calls.values() if name not in call.asked]

    def lost(self, name: bytes, now: float) -> list[Effect]:
        """The connection to a server is gone; what it was asked may be lost."""
        if name not in self._up:
            return []
        self._up[name] = False
        for call in self._calls.values():
            call.asked.discard(name)
        return []

    def receive(self, name: bytes, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `["" sequence …]`; the first for an open request is its reply (FRL-05)."""
        if len(frames) < 2 or frames[0]:
            self.counters["reply_malformed"] += 1
            return []
        call = self._calls.get(frames[1])
        if call is None:
            self.counters["reply_unknown"] += 1  # those that come second, mostly
            return []
        if name not in call.asked:
            self.counters["reply_unasked"] += 1
            return []
        self.withdraw(call.number)
        return [Finished(call.number, frames[2:])]

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for sequence in self._ends.due(now):
            call = self._calls.pop(sequence)
            self.counters["gave_up"] += 1
            effects.append(GaveUp(call.number, call.attempts, now - call.first_at))
        return effects

    def deadline(self) -> float | None:
        """Return when `tick` wants to be called next."""
        return self._ends.deadline()

    def _copy(self, call: Call, name: bytes) -> Send:
        call.asked.add(name)
        call.attempts += 1
        self.counters["sent"] += 1
        return Send(name, call.frames)
