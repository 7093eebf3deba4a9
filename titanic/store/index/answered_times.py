"""Stored requests in the order in which they were answered or given up. Pure.

With a million of them each walk takes about a second, and a store that stands still so long misses heartbeats. Therefore every walk is a
generator that yields after `SLICE` requests; its caller serves others in between.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from titanic.store.index.packed_requests import Requests
    from titanic.store.index.stored_request import Entry

SLICE: Final = 4096  # requests between two yields: some milliseconds
SLACK: Final = 1024  # those of closed requests are dropped when there are more than twice as many times as requests, and this
_AFTER_ALL: Final = b"\xff" * 16  # after every UUID of the same millisecond

T = TypeVar("T")


class Ended(NamedTuple):
    """A request that was answered or given up."""

    ms: int  # when, on the store clock
    uuid: bytes


class AnsweredTimes:
    """The requests of an index by the time of their end.

    `prepare` makes the list when it is first needed; it must be run to its end before `between`, and not twice at once.
    """

    def __init__(self, entries: Requests, passed_over: frozenset[bytes], at_once: int = SLICE) -> None:
        self._entries = entries
        self._passed_over = passed_over
        self._at_once = at_once
        self._times: list[Ended] | None = None
        self._new: dict[bytes, int] | None = None  # ended while the list is being made

    def note(self, entry: Entry) -> None:
        """Take a request that has just ended; nothing is kept before `prepare` has begun."""
        if entry.service in self._passed_over:
            return
        if self._new is not None:
            self._new[entry.uuid] = entry.ended_ms
        elif self._times is not None:
            self._times.append(Ended(entry.ended_ms, entry.uuid))

    def prepare(self) -> Iterator[None]:
        """Make the list, or drop closed requests when most of the list is of such."""
        if self._times is None:
            yield from self._collect()
        elif len(self._times) > 2 * len(self._entries) + SLACK:
            yield from self._drop_closed(self._times)

    def _collect(self) -> Iterator[None]:
        new = self._new = {}
        entries = self._entries.unpacked()  # those of a checkpoint stay packed until they are answered
        sorted_slices: list[list[Ended]] = []
        for at in range(0, len(entries), self._at_once):
            ended = [
                Ended(entry.ended_ms, entry.uuid)
                for entry in entries[at : at + self._at_once]
                if entry.reply is not None and entry.service not in self._passed_over and entry.uuid not in new
            ]
            sorted_slices.append(sorted(ended))
            yield
        times: list[Ended] = []
        merged = heapq.merge(*sorted_slices)
        while part := list(islice(merged, self._at_once)):
            times += part
            yield
        times += [Ended(ms, uuid) for uuid, ms in new.items()]
        self._times, self._new = times, None

    def _drop_closed(self, times: list[Ended]) -> Iterator[None]:
        find = self._entries.find
        kept: list[Ended] = []
        at = 0
        while at < len(times):  # it grows meanwhile
            part = times[at : at + self._at_once]
            kept += [ended for ended in part if find(ended.uuid) is not None]
            at += len(part)
            yield
        self._times = kept

    def between(self, owner: bytes, service: bytes, after_ms: int, end_ms: int, most: int = 0) -> Generator[None, None, list[Ended]]:
        """Return the requests of an owner that ended in (after, end] and are not closed.

        Args:
            owner: whose requests.
            service: of which service, b"" for all.
            after_ms: on the store clock.
            end_ms: likewise.
            most: stop when so many are found; 0 for no limit.
        """
        times, find = self._times or [], self._entries.find
        last = bisect_right(times, (end_ms, _AFTER_ALL))
        found: list[Ended] = []
        for at in range(bisect_right(times, (after_ms, _AFTER_ALL)), last, self._at_once):
            for ended in times[at : min(at + self._at_once, last)]:
                entry = find(ended.uuid)
                if entry is not None and entry.owner == owner and (not service or entry.service == service):
                    found.append(ended)
            if most and len(found) >= most:
                return found[:most]
            yield
        return found
