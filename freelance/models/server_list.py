"""Servers of one client: liveness, order of requests, and times of PINGs (FLP-06, 10, 12, 13).

*Live* and *suspect* are independent. *Live*: connected, and something was received within `dead_s`; a PONG is enough. *Suspect*: a
request was not answered in time. Only a reply clears that, because a server may answer PING and still fail its requests. Suspects are
asked last. After a pause that doubles with each failure, one request tries such a server again.

Pure: `now` in monotonic seconds. A late tick postpones each silence verdict by one interval, as
`core.machine.liveness.Stalls` allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from core.machine.backoff import backoff_s
from core.machine.deadlines import Deadlines, earliest
from core.machine.liveness import Silences

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

# A tick may be late by this part of the ping interval and still judge silence. A PONG takes up to three iterations of a busy loop.
LATE = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Intervals and pauses, in seconds.

    Attributes:
        ping_s: silence after which a server is pinged (FLP-06).
        dead_s: silence after which a server is not asked (FLP-06: two to three ping intervals).
        suspect_s: pause after the first unanswered request; doubles with each further one.
        suspect_max_s: the longest pause; also how long a recovered server may be left alone.
    """

    ping_s: float = 2.0
    dead_s: float = 6.0
    suspect_s: float = 2.0
    suspect_max_s: float = 60.0


class Server:
    """State of one server.

    Attributes:
        name: routing id: bytes of its endpoint (FLP-13).
        heard_at: time of its last reply that was not passed to `ServerList.heard`; `tick` then corrects the deadlines.
        suspect_until: not asked before this time if there is another server.
    """

    __slots__ = ("endpoint", "failed_at", "failures", "heard_at", "live", "name", "suspect_until")

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.name = endpoint.encode()
        self.live = False
        self.failures = 0
        self.failed_at = self.heard_at = self.suspect_until = float("-inf")


class ServerList:
    """Servers in order of priority.

    Raises:
        ValueError: no endpoint.
    """

    def __init__(self, endpoints: Iterable[str], health: Health) -> None:
        self.by_name = {server.name: server for server in map(Server, endpoints)}
        if not self.by_name:
            raise ValueError("a client needs at least one endpoint")
        self.postponed = 0  # silence verdicts that were postponed because a tick was late
        self.wake_at = inf  # `tick` is not due before, inf for never; may be too early
        self._health = health
        self._pings: Deadlines[bytes] = Deadlines()
        self.silences: Silences[bytes] = Silences(health.ping_s * LATE, health.ping_s)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def add(self, endpoint: str) -> bool:
        """Add a server at the end of the list; return whether it is new."""
        server = Server(endpoint)
        return self.by_name.setdefault(server.name, server) is server

    def remove(self, name: bytes) -> None:
        del self.by_name[name]
        self._pings.discard(name)
        self.silences.forget(name)
        self._find_next()

    def joined(self, name: bytes, now: float) -> bool:
        """Record a complete handshake (FLP-14); return whether the server was not live before."""
        return self.heard(name, now)

    def lost(self, name: bytes) -> None:
        """Record a lost connection. Nothing is sent there until it is back, not even PING."""
        self.by_name[name].live = False
        self._pings.discard(name)
        self.silences.forget(name)
        self._find_next()

    def heard(self, name: bytes, now: float) -> bool:
        """Record a message: it postpones the next PING and the verdict; return whether the server was not live before."""
        server = self.by_name[name]
        revived = not server.live
        server.live = True
        self._pings.set(name, now + self._health.ping_s)
        self.silences.set(name, now + self._health.dead_s)
        self.wake_at = min(self.wake_at, now + self._health.ping_s, now + self._health.dead_s)
        return revived

    def best(self, now: float) -> Server | None:
        """Return the server `take` would choose without exclusions; None if a suspect may have to be tried."""
        # Hot path.
        for server in self.by_name.values():
            if server.live:
                if not server.failures:
                    return server
                if now >= server.suspect_until:
                    return None
        return None

    def take(self, now: float, exclude: Container[bytes]) -> Server | None:
        """Return the server to ask: the first live unsuspected one, else the suspect with the shortest pause left."""
        suspect: Server | None = None
        for server in self.by_name.values():
            if not server.live or server.name in exclude:
                continue
            if now >= server.suspect_until:
                if server.failures:
                    # This request is the trial; others go elsewhere until it is answered.
                    server.suspect_until = now + self._pause(server)
                return server
            if suspect is None or server.suspect_until < suspect.suspect_until:
                suspect = server
        return suspect

    def failed(self, name: bytes, asked_at: float, now: float) -> None:
        """Record a request without an answer in time. Requests outstanding together count as one failure."""
        server = self.by_name[name]
        if asked_at < server.failed_at:
            return
        server.failures += 1
        server.failed_at = now
        server.suspect_until = now + self._pause(server)

    def answered(self, name: bytes) -> None:
        """Record an answer to an outstanding request."""
        server = self.by_name[name]
        server.failures = 0
        server.failed_at = server.suspect_until = float("-inf")

    def tick(self, now: float) -> tuple[list[bytes], list[bytes]]:
        """Return (servers to PING, servers that are dead now). Dead servers are still pinged: a PONG revives them (FLP-06)."""
        ended, postponed = self.silences.take_ended(self.deadline(), now)
        self.postponed += postponed
        dead: list[bytes] = []
        for name in ended:
            server = self.by_name[name]
            if now < server.heard_at + self._health.dead_s:
                self.silences.set(name, server.heard_at + self._health.dead_s)
            else:
                server.live = False
                dead.append(name)
        pings: list[bytes] = []
        for name in self._pings.due(now):
            heard_at = self.by_name[name].heard_at
            if now < heard_at + self._health.ping_s:
                self._pings.set(name, heard_at + self._health.ping_s)
            else:
                self._pings.set(name, now + self._health.ping_s)
                pings.append(name)
        self._find_next()
        return pings, dead

    def deadline(self) -> float | None:
        """Return when `tick` is due, or slightly earlier."""
        return earliest(self._pings.deadline(), self.silences.deadline())

    def _find_next(self) -> None:
        due_at = self.deadline()
        self.wake_at = inf if due_at is None else due_at

    def _pause(self, server: Server) -> float:
        return backoff_s(self._health.suspect_s, self._health.suspect_max_s, server.failures - 1)
