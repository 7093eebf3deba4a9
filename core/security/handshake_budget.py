"""Rationing of the public-key work of handshakes, in all and by address (C3).

A HELLO of CURVE costs the server two key agreements and an INITIATE three, before the peer is known. Such a step waits here until the
budget allows it: so many agreements a second in all, so many per address, and so few per loop iteration that open connections hardly
notice. Addresses take turns, so a new one waits for one step of each other waiting address, however many steps these have.

Each bucket is one number, the time at which the work done is paid off at its rate. Work is done as long as that is at most `BURST_S`
ahead: a second's worth can be done at once after a pause, and after that work goes on at the rate. Pure.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf
from typing import Final, Generic, TypeVar

Owner = TypeVar("Owner")

BURST_S: Final = 1.0
WORK_PER_ITERATION: Final = 8  # key agreements, some 33 µs each: an iteration gets longer by a quarter of a millisecond


class _Address(Generic[Owner]):
    """State of one address: waiting steps with their work and round, and the time its work is paid off."""

    __slots__ = ("later_at", "paid_at", "ready", "waiting")

    def __init__(self, now: float) -> None:
        self.waiting: dict[Owner, tuple[int, int]] = {}
        self.paid_at = now
        self.later_at = inf  # time of its valid entry in the heap; others are dropped when they come up
        self.ready = False  # it is in the queue of addresses


class HandshakeBudget(Generic[Owner]):
    """See the module."""

    __slots__ = ("_addresses", "_deferred", "_later", "_queue", "_paid_at", "_per_s", "_per_s_by_address", "_round", "waiting")

    def __init__(self, work_per_s: int, work_per_s_by_address: int) -> None:
        self._per_s = work_per_s  # key agreements a second in all, 0 for no limit
        self._per_s_by_address = work_per_s_by_address  # and for each address
        self._paid_at = 0.0
        self._round = 0
        self._addresses: dict[str, _Address[Owner]] = {}
        self._queue: deque[str] = deque()  # addresses to be served, next first
        self._later: list[tuple[float, str]] = []  # heap: when to check an address again that has spent its share
        self.waiting = 0  # steps that wait
        self._deferred = 0

    @property
    def addresses(self) -> int:
        """Number of addresses that wait or whose work is not paid off."""
        return len(self._addresses)

    def ask(self, owner: Owner, address: str, work: int, now: float) -> None:
        """Queue the only step of its owner: so many key agreements, counted for an address ("" for none)."""
        known = self._addresses.get(address)
        if known is None:
            known = self._addresses[address] = _Address(now)
        known.waiting[owner] = work, self._round
        self.waiting += 1
        if not known.ready and known.paid_at <= now + BURST_S:
            self._enqueue(address, known)

    def withdraw(self, owner: Owner, address: str) -> None:
        known = self._addresses.get(address)
        if known is not None and known.waiting.pop(owner, None) is not None:
            self.waiting -= 1

    def take(self, now: float) -> list[Owner]:
        """Return the owners of the steps to do in this loop iteration; call it once per iteration."""
        self._check_due(now)
        taken: list[Owner] = []
        left = WORK_PER_ITERATION
        while left > 0 and self._queue and self._paid_at <= now + BURST_S:
            address = self._queue.popleft()
            known = self._addresses[address]
            known.ready = False
            if known.waiting:
                owner = next(iter(known.waiting))
                work, asked = known.waiting.pop(owner)
                self.waiting -= 1
                self._deferred += asked != self._round
                left -= work
                self._paid_at = _pay(self._paid_at, work, self._per_s, now)
                known.paid_at = _pay(known.paid_at, work, self._per_s_by_address if address else 0, now)
                taken.append(owner)
            self._requeue(address, known, now)
        self._round += 1
        return taken

    def take_deferred(self) -> int:
        """Return how many of the steps taken since the last call had to wait for a later iteration."""
        count, self._deferred = self._deferred, 0
        return count

    def deadline(self) -> float | None:
        """Return when `take` may return a step, in the past for at once; None while none waits."""
        if not self.waiting:
            return None
        at = self._paid_at - BURST_S
        return at if self._queue else max(at, self._later[0][0])

    def _enqueue(self, address: str, known: _Address[Owner]) -> None:
        known.ready = True
        self._queue.append(address)

    def _requeue(self, address: str, known: _Address[Owner], now: float) -> None:
        """Queue an address again, schedule a check of it, or forget it."""
        if known.paid_at > now + BURST_S:
            self._check_later(address, known, known.paid_at - BURST_S)  # its share is spent; a step that comes meanwhile waits as long
        elif known.waiting:
            self._enqueue(address, known)
        elif known.paid_at > now:
            self._check_later(address, known, known.paid_at)
        else:
            del self._addresses[address]

    def _check_later(self, address: str, known: _Address[Owner], at: float) -> None:
        """Keep one entry per address, the earliest, so that a peer cannot make the heap grow."""
        if at < known.later_at:
            known.later_at = at
            heappush(self._later, (at, address))

    def _check_due(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            at, address = heappop(self._later)
            known = self._addresses.get(address)
            if known is None or at != known.later_at:
                continue
            known.later_at = inf
            if not known.ready:
                self._requeue(address, known, now)


def _pay(paid_at: float, work: int, per_s: int, now: float) -> float:
    return max(paid_at, now) + work / per_s if per_s else paid_at
