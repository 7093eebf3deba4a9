"""Log of refusals and drops: one line a minute of each kind, with the count since the last line.

The kinds are counters. Counters of normal operation (`accepted`, `replies`, heartbeats) are in `ORDINARY`, all others in `REFUSALS`.
Nothing is logged while a request is handled: the broker's timer reads the counters.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from core.daemon.logs import RateLimitedLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

log = logging.getLogger(__name__)

# Counter -> text of the log line. The socket logs its own counters, because it knows the peer.
REFUSALS: Final[Mapping[str, str]] = {
    "error_bad_request": "requests refused with BAD_REQUEST",
    "error_busy": "requests refused with BUSY",
    "error_dead_letter": "requests given up with DEAD_LETTER",
    "error_deadline_exceeded": "requests ended with DEADLINE_EXCEEDED",
    "error_forbidden": "requests refused with FORBIDDEN",
    "error_no_service": "requests refused with NO_SERVICE",
    "error_timeout": "requests ended with TIMEOUT",
    "error_too_large": "requests or replies refused with TOO_LARGE",
    "error_worker_lost": "requests ended with WORKER_LOST",
    "silent_busy": "requests dropped that would be BUSY, of clients whose dialect has no errors",
    "silent_dead_letter": "requests dropped that would be DEAD_LETTER, of clients whose dialect has no errors",
    "silent_forbidden": "requests dropped that would be FORBIDDEN, of clients whose dialect has no errors",
    "silent_handler_error": "errors of handlers dropped, of clients whose dialect has none",
    "silent_no_service": "requests dropped that would be NO_SERVICE, of clients whose dialect has no errors",
    "silent_timeout": "requests dropped that would be TIMEOUT, of clients whose dialect has no errors",
    "silent_too_large": "requests or replies dropped that would be TOO_LARGE, of clients whose dialect has no errors",
    "silent_worker_lost": "requests dropped that would be WORKER_LOST, of clients whose dialect has no errors",
    "dropped_duplicate": "requests dropped with the id of an open request",
    "key_conflicts": "requests refused whose key was used with another body",
    "parts_dropped": "requests ended whose parts outgrew what is kept",
    "ready_refused": "workers refused at READY",
    "ready_elsewhere": "workers refused at READY whose service belongs to another shard: they ask the broker again",
    "workers_expired": "workers removed that were silent",
    "workers_stuck": "workers removed that held a request for too long",
    "cut_slow": "peers disconnected that do not read what they are sent",
    "cut_unexpected": "workers disconnected for a command that their state does not allow",
    "cut_invalid": "workers removed for an invalid message",
    "forbidden_mmi": "questions to MMI answered with 403",
    "forbidden_serve": "workers refused by the rules",
    "told_disconnect": "commands of workers that are not registered, answered with DISCONNECT",
    "invalid_frames": "messages dropped: wrong number of frames",
    "invalid_header": "messages dropped: no header of MDP",
    "invalid_command": "messages dropped: no such command",
    "invalid_service": "messages dropped: not a service name",
    "invalid_address": "messages dropped: not an address",
    "invalid_id": "messages dropped: not an id",
    "invalid_error": "messages dropped: not an ERROR",
    "invalid_dialect": "messages dropped: of another dialect than the worker's READY",
    "users_not_believed": "users that clients named and that were not believed",
    "services_refused": "services refused: too many names",
}
# Normal operation, or visible elsewhere: cancelled by the client, answered late, disconnected, described in a line for each peer.
ORDINARY: Final = frozenset(
    (
        "recalled returned retried "
        "accepted closed replies partials errors_forwarded mmi error_cancelled cancel_unknown client_gone redelivered key_joined "
        "key_replayed key_begun_again replies_kept replies_unwanted partials_unwanted progress told_rate heartbeats_received "
        "heartbeats_sent client_heartbeats "
        "unknown_dialect workers_registered workers_left workers_lost ignored_disconnect services_forgotten"
    ).split()
)


class RefusalLog:
    """Writer of the log lines about refusals."""

    def __init__(self, lines: RateLimitedLog | None = None) -> None:
        self._lines = RateLimitedLog(log) if lines is None else lines
        self._told: dict[str, int] = {}

    def look(self, counters: Mapping[str, int], reasons: Mapping[str, str]) -> None:
        """Write a line for each kind that has happened since its last line, unless that is too recent."""
        told = self._told
        for name, meaning in REFUSALS.items():
            count = counters.get(name, 0)
            before = told.get(name, 0)
            if count <= before:
                continue
            fields: dict[str, object] = {"counter": name, "count": count - before, "total": count}
            reason = reasons.get(name.partition("_")[2].upper())
            if reason:
                fields["reason"] = reason
            if self._lines.warning(name, "%s", meaning, **fields):
                told[name] = count

    def strangers(self, peers: Iterable[tuple[bytes, str]], address_of: Callable[[bytes], str]) -> None:
        """Write a line for each peer of no known dialect."""
        for peer, description in peers:
            fields = {"peer": peer.hex(), "address": address_of(peer)}
            self._lines.warning(("unknown_dialect", peer), "peer of no known dialect: %s", description, **fields)
