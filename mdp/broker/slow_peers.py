"""Policy for peers that do not read: pause workers for them, and disconnect them at a limit (fault N5).

A peer is behind when its unread bytes exceed half of the limit per peer. When those of all peers exceed half of the common limit, the
peers with the most are behind too. A peer stays behind until it is down to a quarter. While a peer that reads is behind, the workers of
its requests are not read from: TCP slows them down, and no request is lost or executed twice. A peer that reads nothing for `STILL_S`, or
is behind for too long, no longer pauses workers, so that other peers do not suffer. A peer that reaches a whole limit is disconnected; for
the common limit one step early, so that it holds until the next look.

Looking at every queue costs time, so the next look comes after as many sent bytes as could at most reach a threshold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from core.pattern.reqrep import Router
from mdp.wire.channels import connection_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import core
    from core.runtime.supervision import Timer
    from mdp.broker.dispatcher import Dispatcher
    from mdp.broker.limits import BrokerOptions

# Interval of looking at peers that read too slowly, while workers are paused for them.
LOOK_S = 0.005
# Near a limit the queues are checked again after this part of it was sent.
_STEPS = 16
# Share of `unread_total_max_bytes` that is read from paused workers beyond the high-water mark: 8 MiB by default, as for one peer.
_AHEAD_PART = 32
# A peer that is behind is not waited for after reading nothing for this time; reading programs pause now and then.
STILL_S = 0.25
# Looks at peers that are waited for come every few ms. A later one shows a pause of the broker: not more than this of it is held against a
# peer, which may have been paused with it.
PAUSE_S_MAX = 0.1


class _Behind(NamedTuple):
    """Since when a peer is behind, its fewest unread bytes since then, and for how long it has had these."""

    since: float
    least: int
    still_s: float


class Backlog:
    """Decisions about slow peers: when to look at queues, which peers to wait for, and which to disconnect.

    Args:
        peer_bytes: maximum unread bytes of one peer.
        total_bytes: maximum unread bytes of all peers.
        hold_s: maximum time to wait for a peer that is behind but reads.
    """

    __slots__ = ("_behind", "_hold_s", "_looked_at", "_peer_bytes", "_step", "_total_bytes", "awaited", "left")

    def __init__(self, peer_bytes: int, total_bytes: int, hold_s: float) -> None:
        self._peer_bytes = peer_bytes
        self._total_bytes = total_bytes
        self._hold_s = hold_s
        self._step = max(1, min(peer_bytes, total_bytes) // _STEPS)
        # bytes that may be sent before the next look at the queues; the sender counts it down
        self.left = min(peer_bytes, total_bytes) // 2
        self.awaited: set[bytes] = set()
        self._behind: dict[bytes, _Behind] = {}
        self._looked_at = 0.0

    def look(self, waiting: Mapping[bytes, int], now: float) -> list[bytes]:
        """Return the peers to disconnect."""
        passed_s, self._looked_at = min(now - self._looked_at, PAUSE_S_MAX), now
        total = rest = sum(waiting.values())
        behind: dict[bytes, _Behind] = {}
        slow = []
        most = 0
        for peer in sorted(waiting, key=waiting.__getitem__, reverse=True):
            octets, known = waiting[peer], self._behind.get(peer)
            if not self._is_behind(octets, rest, known is not None):
                most = octets
                break
            rest -= octets
            if known is None:
                known = _Behind(now, octets, 0.0)
            elif octets < known.least:
                known = _Behind(known.since, octets, 0.0)
            else:
                known = known._replace(still_s=known.still_s + passed_s)
            if octets > self._peer_bytes or total > self._total_bytes - self._step:
                slow.append(peer)
                total -= octets
            else:
                behind[peer] = known
        self._behind = behind
        self.awaited = {p for p, known in behind.items() if known.still_s < STILL_S and now - known.since < self._hold_s}
        self.left = max(self._step, min(self._total_bytes // 2 - total, self._peer_bytes // 2 - most))
        return slow

    def _is_behind(self, octets: int, rest: int, already: bool) -> bool:
        """Return whether a peer with so many unread bytes is behind; `rest` is their sum with all smaller peers'."""
        part = 4 if already else 2
        return octets > self._peer_bytes // part or rest > self._total_bytes // part


def backlog_of(limits: BrokerOptions) -> tuple[Backlog, int]:
    """Return the policy by the limits of a broker, and the octets that are read ahead from paused workers."""
    # The heartbeats of a paused worker are not read: the pause must be too short for it to expire.
    hold_ms = min(limits.unread_hold_ms, limits.heartbeat_ms * limits.liveness / 2)
    ahead = limits.unread_total_max_bytes // _AHEAD_PART
    return Backlog(limits.unread_max_bytes, limits.unread_total_max_bytes - ahead, hold_ms / 1000), ahead


class SlowPeers:
    """The policy applied to the peers of a socket: workers that are not read from, and peers that are disconnected."""

    def __init__(self, socket: core.Socket, policy: Backlog, clock: Timer) -> None:
        self._socket, self._policy = socket, policy
        self._clock = clock  # calls `look`
        self._held_back: set[bytes] = set()  # workers that are not read from
        self._disconnecting: set[bytes] = set()  # peers that are being disconnected

    def forget(self, peer: bytes) -> bool:
        """Forget a peer that has come or left; return whether it was being disconnected."""
        was_slow = peer in self._disconnecting
        self._disconnecting.discard(peer)
        self._held_back.discard(peer)
        return was_slow

    def look(self, machine: Dispatcher, now: float) -> None:
        """Check the unread bytes of all peers: disconnect the slowest, pause workers for those that are waited for."""
        pattern = self._socket.pattern
        if not isinstance(pattern, Router):
            return
        directory = machine.directory
        workers = directory.workers.keys() | directory.channels.keys()  # requests wait for them, which have limits of their own
        waiting = {
            peer: octets
            for peer, pipe in pattern.routes.items()
            if peer not in self._disconnecting and peer not in workers and (octets := pipe.waiting_bytes())
        }
        slow = self._policy.look(waiting, now)
        awaited = self._policy.awaited
        if awaited:  # before anything else can fail: only this timer resumes paused workers
            self._clock.after(LOOK_S)
        self.disconnect(machine, slow)
        self.throttle(machine, awaited)
        if not awaited:  # last: a timer repeats its call after a fault unless it was cancelled in it
            self._clock.cancel()

    def disconnect_full(self, machine: Dispatcher, peers: set[bytes]) -> None:
        """Disconnect those of the peers whose queue is full."""
        pattern = self._socket.pattern
        if isinstance(pattern, Router):
            self.disconnect(
                machine, (peer for peer in peers if (pipe := pattern.routes.get(peer)) is not None and len(pipe.outbox) >= pipe.limit)
            )

    def throttle(self, machine: Dispatcher, awaited: Collection[bytes]) -> None:
        """Pause the workers that answer the clients that are waited for, and resume the others."""
        pattern, workers = self._socket.pattern, machine.directory.workers
        if not isinstance(pattern, Router) or (not awaited and not self._held_back):
            return
        pausing = {
            connection_of(worker.peer)
            for worker in workers.values()
            if awaited and any(request.client in awaited for request in worker.in_flight.values())
        }
        for peer in pausing | self._held_back:
            pipe = pattern.routes.get(peer)
            if pipe is None or pipe.throttled != (peer in self._held_back):
                continue
            if peer not in pausing:
                self._held_back.discard(peer)
                pipe.engine.resume()
            elif not pipe.throttled:
                self._held_back.add(peer)
                pipe.engine.throttle()

    def disconnect(self, machine: Dispatcher, peers: Iterable[bytes]) -> None:
        """Disconnect peers, each once."""
        for peer in peers:
            if peer not in self._disconnecting:
                self._disconnecting.add(peer)
                machine.counters.count("cut_slow")
                self._socket.cut(peer, "it does not read what it is sent")
