"""The servers of one client: which are there, in what order they are asked, when they are pinged (FLP-06, 10, 12, 13).

Two memories that must not be mixed up. *Live*: the connection stands and something was heard within `dead_s`; a PONG is enough.
*Suspect*: it was asked and did not answer in time; only an answer clears that, because a server can be well enough to say PONG
and too ill to work. Suspects are asked last. After a pause that doubles with each failure one request tries such a server again.

Pure: `now` in monotonic seconds. A tick that comes late postpones each verdict of silence to an interval from then: what was sent
meanwhile was not read yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from core.machine.deadlines import Deadlines, earliest

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

__all__ = ["Health", "Roster", "Server"]

# 2 ** 16 times any pause is beyond its maximum; the exponent itself need not grow for ever.
DOUBLINGS_MAX = 16
# Part of the ping interval by which a tick may come late and still count as having listened. A PONG takes up to three turns of a busy loop.
LATE = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Times that decide about servers, in seconds.

    Attributes:
        ping_s: silence after which a server is pinged (FLP-06).
        dead_s: silence after which it is taken off the list (FLP-06: two to three ping intervals).
        suspect_s: pause after the first unanswered request; doubles with each further one.
        suspect_max_s: the longest pause; also bounds how long a server that has recovered is left alone.
    """

    ping_s: float = 2.0
    dead_s: float = 6.0
    suspect_s: float = 2.0
    suspect_max_s: float = 60.0


class Server:
    """What is known of one server.

    Attributes:
        name: routing id: its endpoint's octets (FLP-13).
        alone: just that name.
        endpoint: where it is.
        up: its connection stands.
        live: it may be asked.
        failures: requests in a row it did not answer in time.
        failed_at: when that happened last.
        heard_at: when its last reply came that was not told by `Roster.heard`: the moments of silence lag behind, and catch up in `tick`.
        suspect_until: not asked before, as long as there is another.
    """

    __slots__ = ("alone", "endpoint", "failed_at", "failures", "heard_at", "live", "name", "suspect_until", "up")

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.name = endpoint.encode()
        self.alone = (self.name,)
        self.up = False
        self.live = False
        self.failures = 0
        self.failed_at = self.heard_at = self.suspect_until = float("-inf")


class Roster:
    """Servers in the order of their priority.

    Args:
        endpoints: most wanted first; named twice is named once (FLP-12).
        health: times.

    Attributes:
        servers: by name, in that order.
        postponed: verdicts of silence that were put off for an interval, since the tick came late.

    Raises:
        ValueError: no endpoint.
    """

    def __init__(self, endpoints: Iterable[str], health: Health) -> None:
        self.servers = {server.name: server for server in map(Server, endpoints)}
        if not self.servers:
            raise ValueError("a client needs at least one endpoint")
        self.postponed = 0
        self._woke_at = -inf  # when a tick last came late
        self._health = health
        self._pings: Deadlines[bytes] = Deadlines()
        self._silences: Deadlines[bytes] = Deadlines()

    def __contains__(self, name: object) -> bool:
        return name in self.servers

    def add(self, endpoint: str) -> bool:
        """Put a server at the end of the list. Returns whether it was not on it."""
        server = Server(endpoint)
        return self.servers.setdefault(server.name, server) is server

    def remove(self, name: bytes) -> None:
        """Take a server off the list and forget what is known of it."""
        del self.servers[name]
        self._pings.discard(name)
        self._silences.discard(name)

    def joined(self, name: bytes, now: float) -> bool:
        """The handshake is complete, so the server is there (FLP-14). Returns whether it was not live before."""
        return self.heard(name, now)

    def lost(self, name: bytes) -> None:
        """The connection is gone. Nothing is sent there until it is back, no PING either: it could not arrive."""
        server = self.servers[name]
        server.up = server.live = False
        server.heard_at = float("-inf")
        self._pings.discard(name)
        self._silences.discard(name)

    def heard(self, name: bytes, now: float) -> bool:
        """Any message puts off both the next PING and death. Returns whether the server was not live before."""
        server = self.servers[name]
        revived = not server.live
        server.up = server.live = True
        self._pings.set(name, now + self._health.ping_s)
        self._silences.set(name, now + self._health.dead_s)
        return revived

    def best(self, now: float) -> Server | None:
        """Return the server `take` would, excluding none, if asking it is no trial; None if that takes a closer look."""
        # Hot path.
        for server in self.servers.values():
            if server.live:
                if not server.failures:
                    return server
                if now >= server.suspect_until:
                    return None
        return None

    def take(self, now: float, exclude: Container[bytes]) -> Server | None:
        """Return the server to ask: the first live one that is not suspect, else the suspect whose pause ends first."""
        suspect: Server | None = None
        for server in self.servers.values():
            if not server.live or server.name in exclude:
                continue
            if now >= server.suspect_until:
                if server.failures:
                    # This request is the trial; the others go elsewhere until it is answered.
                    server.suspect_until = now + self._pause(server)
                return server
            if suspect is None or server.suspect_until < suspect.suspect_until:
                suspect = server
        return suspect

    def failed(self, name: bytes, asked_at: float, now: float) -> None:
        """A request was not answered in time. Many that were outstanding together are one failure."""
        server = self.servers[name]
        if asked_at < server.failed_at:
            return
        server.failures += 1
        server.failed_at = now
        server.suspect_until = now + self._pause(server)

    def answered(self, name: bytes) -> None:
        """It answered a request that was waiting for it."""
        server = self.servers[name]
        server.failures = 0
        server.failed_at = server.suspect_until = float("-inf")

    def tick(self, now: float) -> tuple[list[bytes], list[bytes]]:
        """Return (whom to PING, who is dead from now on). The dead are pinged on: they come back by answering (FLP-06)."""
        due_at = self.deadline()
        if due_at is not None and now - due_at > self._health.ping_s * LATE:
            self._woke_at = now
        dead: list[bytes] = []
        for name in self._silences.due(now):
            server = self.servers[name]
            if now < server.heard_at + self._health.dead_s:
                self._silences.set(name, server.heard_at + self._health.dead_s)
            elif now < self._woke_at + self._health.ping_s:
                self.postponed += 1
                self._silences.set(name, self._woke_at + self._health.ping_s)
            else:
                server.live = False
                dead.append(name)
        pings: list[bytes] = []
        for name in self._pings.due(now):
            heard_at = self.servers[name].heard_at
            if now < heard_at + self._health.ping_s:
                self._pings.set(name, heard_at + self._health.ping_s)
            else:
                self._pings.set(name, now + self._health.ping_s)
                pings.append(name)
        return pings, dead

    def deadline(self) -> float | None:
        """Return when `tick` wants to be called next, or a moment before."""
        return earliest(self._pings.deadline(), self._silences.deadline())

    def _pause(self, server: Server) -> float:
        return min(self._health.suspect_max_s, self._health.suspect_s * 2.0 ** min(server.failures - 1, DOUBLINGS_MAX))
