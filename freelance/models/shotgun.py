"""The client of model 2: every server is asked, the first answer wins (FRL-03 to FRL-07).

Requests are `["" sequence body]`, replies `["" sequence …]`. A copy goes to each server whose connection stands, and to those
whose connection comes about while the request is open; none is kept for a server that is away (FRL-07). As long as the servers stay the
same, a request is kept in `fast_replies.py`.

Pure: `now` in monotonic seconds; what has to be sent is returned.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from core.machine.deadlines import Deadlines, earliest
from freelance.models.effects import Finished, GaveUp, Refused, Send
from freelance.models.fast_replies import Lane
from freelance.models.flp import control_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freelance.errors import TooLarge
    from freelance.models.effects import Effect
    from freelance.models.fast_replies import Posted

__all__ = ["Shotgun"]


class Call:
    """One request until its end; `asked` are the servers that have it over their present connection, `refused` those that take it not."""

    __slots__ = ("asked", "attempts", "first_at", "frames", "number", "refused")

    def __init__(self, number: int, body: Sequence[bytes], now: float) -> None:
        self.number = number
        self.frames = [b"", control_frame(number), *body]
        self.first_at = now
        self.attempts = 0
        self.asked: set[bytes] = set()
        self.refused: set[bytes] = set()


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
        self._lane = Lane([b""], timeout_s)
        self._present: tuple[bytes, ...] = ()  # servers whose connection stands
        self._calls: dict[bytes, Call] = {}  # by sequence; those that are not in the lane
        self._ends: Deadlines[bytes] = Deadlines()

    def __len__(self) -> int:
        return len(self._calls) + len(self._lane)

    def post(self, body: tuple[bytes, ...], now: float) -> tuple[int, tuple[bytes, ...], bytes] | None:
        """As `Agent.post`."""
        # Hot path.
        asked = self._present
        if not asked:
            return None
        self.counters["sent"] += len(asked)
        number, octets = self._lane.post(body, asked, now)
        return number, asked, octets

    def express(self, name: bytes, octets: bytes, longest: int, now: float, finished: list[tuple[int, list[bytes]]]) -> int:
        """Take replies off the front of what a server sent; see `Lane.take`."""
        # Hot path.
        taken = self._lane.take(name, octets, longest, self._calls, finished)
        if self._lane.unknown:
            self.counters["reply_unknown"] += self._lane.unknown
            self._lane.unknown = 0
        return taken

    def submit(self, body: list[bytes], now: float, timeout_s: float | None = None) -> tuple[int, list[Effect]]:
        """Take a request of one frame; return its number and what is to be done.

        Raises:
            ValueError: not exactly one frame, which a server would drop (FRL-04).
        """
        if len(body) != 1:
            raise ValueError(f"a request of model 2 has one body frame, not {len(body)}")
        if timeout_s is None and self._present:
            self.counters["sent"] += len(self._present)
            number = self._lane.put(body, self._present, now)
            return number, [Send(name, [b"", control_frame(number), *body]) for name in self._present]
        self._lane.number += 1
        call = Call(self._lane.number, body, now)
        self._calls[call.frames[1]] = call
        self._ends.set(call.frames[1], now + (self._timeout_s if timeout_s is None else timeout_s))
        return call.number, [self._copy(call, name) for name in self._present]

    def refused(self, name: bytes, control: bytes, error: TooLarge, now: float) -> list[Effect]:
        """As `Agent.refused`; the others have their copies."""
        posted = self._lane.pop(control)
        if posted is not None:
            self._take_over([posted])
        call = self._calls.get(control)
        if call is None:
            return []
        self.counters["send_refused"] += 1
        self.counters["sent"] -= 1
        call.attempts -= 1
        call.asked.discard(name)
        call.refused.add(name)
        if not call.refused.issuperset(self._present):
            return []
        self.withdraw(call.number)
        self.counters["too_large"] += 1
        return [Refused(call.number, error)]

    def withdraw(self, number: int) -> None:
        """Forget a request; replies that still come are counted as unknown."""
        if not self._lane.remove(number) and self._calls.pop(control_frame(number), None) is not None:
            self._ends.discard(control_frame(number))

    def add(self, endpoint: str) -> bool:
        """Take one more server. Returns whether it was not there; it gets copies once it has joined."""
        name = endpoint.encode()
        return name not in self._up and not self._up.setdefault(name, False)

    def remove(self, name: bytes, now: float) -> list[Effect]:
        """Ask a server nothing more and believe none of its replies."""
        if self._up.pop(name, None) is not None:
            self._servers_changed()
            for call in self._calls.values():
                call.asked.discard(name)
        return []

    def joined(self, name: bytes, now: float) -> list[Effect]:
        """There is a connection to a server: it gets the open requests."""
        if name not in self._up:
            return []  # removed a moment ago
        self._up[name] = True
        self._servers_changed()
        return [self._copy(call, name) for call in self._calls.values() if name not in call.asked]

    def lost(self, name: bytes, now: float) -> list[Effect]:
        """The connection to a server is gone; what it was asked may be lost."""
        if name not in self._up:
            return []
        self._up[name] = False
        self._servers_changed()
        for call in self._calls.values():
            call.asked.discard(name)
            call.refused.discard(name)
        return []

    def receive(self, name: bytes, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `["" sequence …]`; the first for an open request is its reply (FRL-05)."""
        if len(frames) < 2 or frames[0]:
            self.counters["reply_malformed"] += 1
            return []
        number = self._lane.settle(frames[1], name)
        call = self._calls.get(frames[1])
        if call is not None and name in call.asked:
            number = call.number
            self.withdraw(number)
        if number:
            return [Finished(number, frames[2:])]
        if call is None and frames[1] not in self._lane.posted:
            self.counters["reply_unknown"] += 1  # those that come second, mostly
        else:
            self.counters["reply_unasked"] += 1
        return []

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        self._take_over(self._lane.overdue(now))
        effects: list[Effect] = []
        for sequence in self._ends.due(now):
            call = self._calls.pop(sequence)
            self.counters["gave_up"] += 1
            effects.append(GaveUp(call.number, call.attempts, now - call.first_at))
        return effects

    def deadline(self) -> float | None:
        """Return when `tick` wants to be called next."""
        return earliest(self._lane.deadline(), self._ends.deadline())

    def _servers_changed(self) -> None:
        """Requests in the lane were sent to those that were there until now."""
        self._take_over(self._lane.clear())
        self._present = tuple(name for name, up in self._up.items() if up)

    def _take_over(self, requests: Iterable[Posted]) -> None:
        """Look after requests that leave the lane."""
        for request in requests:
            call = Call(request.number, request.body, request.at)
            call.asked.update(request.asked)
            call.attempts = len(request.asked)
            self._calls[call.frames[1]] = call
            self._ends.set(call.frames[1], request.at + self._timeout_s)

    def _copy(self, call: Call, name: bytes) -> Send:
        call.asked.add(name)
        call.attempts += 1
        self.counters["sent"] += 1
        return Send(name, call.frames)
