"""Client machine of model 2: all servers are asked, the first answer wins (FRL-03 to FRL-07).

Requests are `["" sequence body]`, replies `["" sequence …]`. Each connected server gets a copy, and so does each server that connects
while the request is open; nothing is queued for a disconnected server, nor for one whose queue is full: it gets what is still open when
it can be sent to again (FRL-07).

Pure: `now` in monotonic seconds. `outgoing` collects the frames to send; calls return the requests that have ended.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from freelance.models.client_machine import ClientMachine, FreelanceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from core.zmtp.frames import Message
    from freelance.errors import TooLarge


class Shotgun(ClientMachine[FreelanceRequest]):
    """Requests of one client to all its servers, by their current connection; raises ValueError without an endpoint."""

    __slots__ = ("_up",)

    def __init__(self, endpoints: Iterable[str], timeout_s: float) -> None:
        super().__init__([b""], timeout_s)
        self._up = dict.fromkeys((endpoint.encode() for endpoint in endpoints), False)
        if not self._up:
            raise ValueError("a client needs at least one endpoint")

    def submit(self, pending: FreelanceRequest, now: float) -> None:
        """Take a request of one frame, and ask all connected servers; raises ValueError."""
        if len(pending.body) != 1:
            raise ValueError(f"a request of model 2 has one body frame, not {len(pending.body)}")
        self._begin(pending, now, inf)
        for name, up in self._up.items():
            if up:
                self._copy(pending, name)

    def refused(self, name: bytes, control: bytes, error: TooLarge, now: float) -> list[FreelanceRequest]:
        """See `Agent.refused`; the other servers have their copies."""
        pending = self._unsent(name, control, error)
        if pending is not None and pending.refused.keys() >= {name for name, up in self._up.items() if up}:
            self._refuse(pending, now)
        return self._updates()

    def blocked(self, name: bytes, controls: Iterable[bytes]) -> None:
        """Record copies that the full queue of their server did not take; `writable` sends those of open requests."""
        for control in controls:
            pending = self._open.get(control)
            if pending is not None:
                self.counters["send_blocked"] += 1
                self.counters["sent"] -= 1
                pending.sent -= 1
                pending.asked.discard(name)

    def writable(self, name: bytes) -> list[FreelanceRequest]:
        """Send a server the open requests that it has no copy of: its queue takes messages again."""
        if self._up.get(name):
            self._copy_open(name)
        return []

    def add(self, endpoint: str) -> bool:
        """Add a server; return whether it is new. It gets copies once it has joined."""
        name = endpoint.encode()
        return name not in self._up and not self._up.setdefault(name, False)

    def remove(self, name: bytes, now: float) -> list[FreelanceRequest]:
        """Remove a server; its replies are no longer accepted."""
        if self._up.pop(name, None) is not None:
            for pending in self._open.values():
                pending.asked.discard(name)
        return []

    def joined(self, name: bytes, now: float) -> list[FreelanceRequest]:
        """Record a connection to a server; it gets the open requests."""
        if name in self._up:  # not removed a moment ago
            self._up[name] = True
            self._copy_open(name)
        return []

    def lost(self, name: bytes, now: float) -> list[FreelanceRequest]:
        """Record a lost connection; requests sent there may be lost."""
        if name in self._up:
            self._up[name] = False
            for pending in self._open.values():
                pending.asked.discard(name)
                pending.refused.pop(name, None)
        return []

    def receive(self, batch: Iterable[Message], now: float) -> list[FreelanceRequest]:
        """Take messages `[server]["" sequence …]`; the first one for an open request is its reply (FRL-05)."""
        for name, *frames in batch:
            if len(frames) < 2 or frames[0]:
                self.counters["reply_malformed"] += 1
            else:
                self._answered(name, frames[1], frames[2:], now)
        return self._updates()

    def tick(self, now: float) -> list[FreelanceRequest]:
        self._give_up(now)
        return self._updates()

    def deadline(self) -> float:
        return self.timeouts.wake_at

    def _copy_open(self, name: bytes) -> None:
        for pending in self._open.values():
            if name not in pending.asked and name not in pending.refused:
                self._copy(pending, name)

    def _copy(self, pending: FreelanceRequest, name: bytes) -> None:
        pending.asked.add(name)
        pending.sent += 1
        self.counters["sent"] += 1
        self.outgoing.append((name, pending.message))
