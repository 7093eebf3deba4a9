"""The queue of a service with priorities or retries.

It takes the place of a plain one when the first of them comes.

Three classes, high, normal and low, each a queue of its own: round robin over clients. A class goes before all lower ones, except that one
that was passed over `SHARE` times gets the next turn: so of `SHARE` + 2 requests given, one at least is of each class that waits. Requests
that were given before go first, as in any queue. Those that wait for a retry are in no class until their time has come.

Pure.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final

from mdp.broker.requests.records import Request, RequestQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdp.broker.requests.client_requests import ClientQueue

# How many requests of higher classes are given while a lower one waits: low priority gets a tenth at least.
SHARE: Final = 8
_RANKS: Final = (0, 1, 2)  # high, normal, low
_NORMAL: Final = 1


class PolicyQueue(RequestQueue):
    """A queue with priorities and delays; see `RequestQueue`."""

    __slots__ = ("_passed", "_queues", "_rotations", "delayed")

    def __init__(self) -> None:
        super().__init__()
        self.delayed: list[tuple[float, int, Request]] = []  # by the time at which they may run, a heap
        self._queues: list[dict[bytes, ClientQueue]] = [{}, self._client_queues, {}]
        self._rotations: list[deque[bytes]] = [deque(), self._rotation, deque()]
        self._passed = [0, 0, 0]  # how many requests of higher classes were given since a class had its turn

    @classmethod
    def of(cls, queue: RequestQueue) -> PolicyQueue:
        """Return a queue with the requests of another one, or that one if it is of this kind."""
        if isinstance(queue, PolicyQueue):
            return queue
        made = cls()
        made.count, made.size, made.lost, made._dead, made._front = queue.count, queue.size, queue.lost, queue._dead, queue._front
        made._queues[_NORMAL], made._rotations[_NORMAL] = queue._client_queues, queue._rotation
        made._use(_NORMAL)
        return made

    def __iter__(self) -> Iterator[Request]:
        lists = ([request for _, request in self.lost], self._front, [request for *_, request in self.delayed])
        for requests in (*lists, *([*waiting] for queues in self._queues for waiting in queues.values())):
            yield from (request for request in requests if request.client is not None)

    @property
    def next_delayed_at(self) -> float:
        """When the first of the delayed requests may run, inf without one."""
        return self.delayed[0][0] if self.delayed else inf

    def waiting(self, client: bytes) -> int:
        found = 0
        for rank in _RANKS:
            self._use(rank)
            found += super().waiting(client)
        return found

    def push(self, client: bytes, requests: list[Request]) -> None:
        """Add requests behind the others of their client and priority."""
        for request in requests:
            self._use(_NORMAL if request.extras is None else _NORMAL - request.extras.priority)
            super().push(client, [request])

    def push_delayed(self, request: Request, at: float) -> None:
        """Add a request that may not run before a time."""
        heappush(self.delayed, (at, request.number, request))
        self._count(request)

    def release_delayed(self, now: float) -> None:
        """Put delayed requests whose time has come in front."""
        while self.delayed and (self.delayed[0][0] <= now or self.delayed[0][2].client is None):
            self._front.append(heappop(self.delayed)[2])

    def pop(self, heard: float = -inf) -> Request | None:
        while True:
            rank = self._next_rank()
            self._use(rank)
            request = super().pop(heard)
            if request is None:
                if not self.count or not any(self._rotations):
                    return None
                continue  # all requests of this class were dropped
            if request.client_queue is not None:
                self._passed[rank] = 0
                for lower in range(rank + 1, len(self._passed)):
                    self._passed[lower] = self._passed[lower] + 1 if self._rotations[lower] else 0
            return request

    def pop_many(self, heard: float, most: int) -> list[Request]:
        popped: list[Request] = []
        while len(popped) < most and (request := self.pop(heard)) is not None:
            popped.append(request)
        return popped

    def drop(self, request: Request) -> None:
        super().drop(request)
        if not self.count:
            self.delayed.clear()
            for queues, rotation in zip(self._queues, self._rotations, strict=True):
                queues.clear()
                rotation.clear()

    def tidy(self) -> None:
        dead = self._dead
        for rank in _RANKS:
            self._use(rank)
            self._dead = dead
            super().tidy()
            self._rotations[rank] = self._rotation
        if self._dead != dead:
            self.delayed = sorted(entry for entry in self.delayed if entry[2].client is not None)

    def expired(self, now: float, most: int) -> list[Request]:
        found = {request: None for *_, request in self.delayed if request.client is not None and request.expires <= now}
        for rank in _RANKS:
            self._use(rank)
            found.update(dict.fromkeys(super().expired(now, most)))  # what is in front is found in each class
        return list(found)[:most]

    def _use(self, rank: int) -> None:
        self._client_queues, self._rotation = self._queues[rank], self._rotations[rank]

    def _next_rank(self) -> int:
        for rank in (2, 1):
            if self._rotations[rank] and self._passed[rank] >= SHARE:
                return rank
        return next((rank for rank in _RANKS if self._rotations[rank]), _NORMAL)
