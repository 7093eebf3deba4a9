"""Client machine of model 2: all servers are asked, the first answer wins (FRL-03 to FRL-07).

Requests are `["" sequence body]`, replies `["" sequence …]`. Each connected server gets a copy, and so does each server that connects
while the request is open; nothing is queued for a disconnected server (FRL-07). While the servers stay the same, a request is kept in
`fast_replies.py`.

Pure: `now` in monotonic seconds; frames to send are returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.machine.deadlines import earliest
from freelance.models.client_machine import ClientMachine, PendingRequest
from freelance.models.effects import Finished, Refused, Send
from freelance.models.flp import control_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freelance.errors import TooLarge
    from freelance.models.effects import Effect
    from freelance.models.fast_replies import FastRequest

__all__ = ["Shotgun"]


class ShotgunRequest(PendingRequest):
    """One request until its end; `asked` and `refused` hold servers by their current connection."""

    __slots__ = ("refused",)

    def __init__(self, number: int, body: Sequence[bytes], now: float) -> None:
        super().__init__(number, [b"", control_frame(number), *body], now)
        self.refused: set[bytes] = set()


class Shotgun(ClientMachine[ShotgunRequest]):
    """Requests of one client to all of its servers.

    Args:
        endpoints: of the servers.
        timeout_s: after which a request ends.

    Attributes:
        counters: what was sent, dropped, given up, by name.
        first_step_s: earliest time after which a new request needs attention.

    Raises:
        ValueError: no endpoint.
    """

    def __init__(self, endpoints: Iterable[str], timeout_s: float) -> None:
        super().__init__([b""], timeout_s)
        self._up = dict.fromkeys((endpoint.encode() for endpoint in endpoints), False)
        if not self._up:
            raise ValueError("a client needs at least one endpoint")
        self._timeout_s = self.first_step_s = timeout_s
        self._present: tuple[bytes, ...] = ()  # connected servers

    def submit_fast(self, body: tuple[bytes, ...], now: float) -> tuple[int, tuple[bytes, ...], bytes] | None:
        """See `Agent.submit_fast`."""
        # Hot path.
        asked = self._present
        if not asked:
            return None
        self.counters["sent"] += len(asked)
        number, octets = self._fast.add_encoded(body, asked, now)
        return number, asked, octets

    def take_fast_replies(self, name: bytes, octets: bytes, longest: int, now: float, finished: list[tuple[int, list[bytes]]]) -> int:
        """See `Agent.take_fast_replies`."""
        # Hot path.
        return self._fast.take(name, octets, longest, self._requests, finished)

    def submit(self, body: list[bytes], now: float, timeout_s: float | None = None) -> tuple[int, list[Effect]]:
        """Take a request of one frame; return its number and effects.

        Raises:
            ValueError: not exactly one frame, which a server would drop (FRL-04).
        """
        if len(body) != 1:
            raise ValueError(f"a request of model 2 has one body frame, not {len(body)}")
        if timeout_s is None and self._present:
            self.counters["sent"] += len(self._present)
            number = self._fast.add(body, self._present, now)
            return number, [Send(name, [b"", control_frame(number), *body]) for name in self._present]
        self._fast.number += 1
        request = ShotgunRequest(self._fast.number, body, now)
        self._requests[request.control] = request
        self._ends.set(request.control, now + (self._timeout_s if timeout_s is None else timeout_s))
        return request.number, [self._copy(request, name) for name in self._present]

    def refused(self, name: bytes, control: bytes, error: TooLarge, now: float) -> list[Effect]:
        """See `Agent.refused`; the other servers have their copies."""
        request = self._not_sent(name, control)
        if request is None:
            return []
        request.refused.add(name)
        if not request.refused.issuperset(self._present):
            return []
        self._forget(request)
        self.counters["too_large"] += 1
        return [Refused(request.number, error)]

    def add(self, endpoint: str) -> bool:
        """Add a server; return whether it is new. It gets copies once it has joined."""
        name = endpoint.encode()
        return name not in self._up and not self._up.setdefault(name, False)

    def remove(self, name: bytes, now: float) -> list[Effect]:
        """Remove a server; its replies are no longer accepted."""
        if self._up.pop(name, None) is not None:
            self._update_present()
            for request in self._requests.values():
                request.asked.discard(name)
        return []

    def joined(self, name: bytes, now: float) -> list[Effect]:
        """Record a connection to a server; it gets the open requests."""
        if name not in self._up:
            return []  # removed a moment ago
        self._up[name] = True
        self._update_present()
        return [self._copy(request, name) for request in self._requests.values() if name not in request.asked]

    def lost(self, name: bytes, now: float) -> list[Effect]:
        """Record a lost connection; requests sent there may be lost."""
        if name not in self._up:
            return []
        self._up[name] = False
        self._update_present()
        for request in self._requests.values():
            request.asked.discard(name)
            request.refused.discard(name)
        return []

    def receive(self, name: bytes, frames: list[bytes], now: float) -> list[Effect]:
        """Take a message `["" sequence …]`; the first one for an open request is its reply (FRL-05)."""
        if len(frames) < 2 or frames[0]:
            self.counters["reply_malformed"] += 1
            return []
        number = self._answered(name, frames[1])
        return [Finished(number, frames[2:])] if number else []

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        self._take_over(self._fast.overdue(now))
        return self._give_up(now)

    def deadline(self) -> float | None:
        """Return when `tick` is due."""
        return earliest(self._fast.deadline(), self._ends.deadline())

    def _update_present(self) -> None:
        """Update the connected servers; fast requests were sent to the previous ones."""
        self._take_over(self._fast.take_all())
        self._present = tuple(name for name, up in self._up.items() if up)

    def _take_over(self, requests: Iterable[FastRequest]) -> None:
        for fast in requests:
            request = ShotgunRequest(fast.number, fast.body, fast.at)
            request.asked.update(fast.asked)
            request.attempts = len(fast.asked)
            self._requests[request.control] = request
            self._ends.set(request.control, fast.at + self._timeout_s)

    def _copy(self, request: ShotgunRequest, name: bytes) -> Send:
        request.asked.add(name)
        request.attempts += 1
        self.counters["sent"] += 1
        return Send(name, request.frames)
