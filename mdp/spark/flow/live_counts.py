"""Rows of tasks that still run: each tells the driver its numbers now and then, in datagrams.

An accumulator grows when its task ends. A datagram may be lost and nothing waits for one: it has the numbers so far, so the next one makes
up for it. A random token in the job keeps out those of others; what is seen on the way are counts.
"""

from __future__ import annotations

import hmac
import logging
import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_TOKEN_BYTES: Final = 16
_FORM: Final = struct.Struct(f"!{_TOKEN_BYTES}sIIIQQ")
# Interval of a task's reports.
_EVERY_S: Final = 0.25
# Tasks that are remembered; of more, the oldest are left out.
_TASKS_MAX: Final = 100_000
# Datagrams taken at once, so that a flood of them ends.
_TAKEN_MAX: Final = 10_000


class TaskRows(NamedTuple):
    """Numbers of one attempt of a task."""

    attempt: int
    rows: int
    failed: int


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Place of the reports, which the job takes to the tasks."""

    host: str
    port: int
    token: bytes


class LiveCounts:
    """The driver's end; raises OSError for an address of another machine."""

    def __init__(self, host: str, bind: str) -> None:
        family = socket.getaddrinfo(bind, 0, type=socket.SOCK_DGRAM)[0][0]
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((bind, 0))
        self.strange = 0  # datagrams without the token of the job, or of another size; dropped
        self.forgotten = 0  # tasks left out of the sum, because more have come since than are remembered
        self._tasks: dict[tuple[int, int], TaskRows] = {}  # by stage and partition
        self.report = TaskReport(host, self._socket.getsockname()[1], os.urandom(_TOKEN_BYTES))

    def take(self) -> TaskRows:
        """Return the sum over all tasks, running or ended, of what has arrived."""
        for _ in range(_TAKEN_MAX):
            try:
                octets = self._socket.recv(_FORM.size + 1)
            except BlockingIOError:
                break
            self._note(octets)
        tasks = self._tasks.values()
        return TaskRows(0, sum(task.rows for task in tasks), sum(task.failed for task in tasks))

    def _note(self, octets: bytes) -> None:
        if len(octets) != _FORM.size or not hmac.compare_digest(octets[:_TOKEN_BYTES], self.report.token):
            if not self.strange:  # once: others are counted
                log.warning("a datagram that no task of this job has sent came to the port of its counts", extra={"octets": len(octets)})
            self.strange += 1
            return
        _, stage, partition, attempt, rows, failed = _FORM.unpack(octets)
        known = self._tasks.get((stage, partition))
        # A later attempt begins again; datagrams may overtake each other.
        if known is None or attempt > known.attempt or (attempt == known.attempt and rows > known.rows):
            self._tasks[stage, partition] = TaskRows(attempt, rows, failed)
            if len(self._tasks) > _TASKS_MAX:
                del self._tasks[next(iter(self._tasks))]
                self.forgotten += 1

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:  # the end of the counts, which have no other
        if hasattr(self, "_socket"):  # else its address could not be found
            self.close()


class Reporter:
    """A task's end: the numbers so far, sent as often as useful."""

    def __init__(self, to: TaskReport, stage: int, partition: int, attempt: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._to = to
        self._task = (stage, partition, attempt)
        self._clock = clock
        self.unsent = 0
        self._rows = self._failed = 0
        self._due = clock()
        self._socket: socket.socket | None = None

    def add(self, rows: int, failed: int) -> None:
        self._rows += rows
        self._failed += failed
        if self._clock() >= self._due:
            self.send()

    def send(self) -> None:
        """Send the numbers; what cannot be sent is lost."""
        self._due = self._clock() + _EVERY_S
        octets = _FORM.pack(self._to.token, *self._task, self._rows, self._failed)
        try:
            if self._socket is None:
                family, kind, _, _, _ = socket.getaddrinfo(self._to.host, self._to.port, type=socket.SOCK_DGRAM)[0]
                self._socket = socket.socket(family, kind)
                self._socket.setblocking(False)
            self._socket.sendto(octets, (self._to.host, self._to.port))
        except OSError:
            self.unsent += 1

    def close(self) -> None:
        self.send()
        if self._socket is not None:
            self._socket.close()
