"""The client machine of Binary Star, with everything that it does as a list of effects."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from bstar.errors import HandlerError, NoServer
from bstar.machine.requester import Limits, Renew, Requester, Send, ServerRequest

if TYPE_CHECKING:
    from collections import Counter

    from bstar.machine.wire import ReplyHeader

__all__ = ["Failed", "Finished", "GaveUp", "RequesterEffect", "WatchedRequester"]


class Finished(NamedTuple):
    sequence: int
    body: list[bytes]


class Failed(NamedTuple):
    sequence: int
    reason: str


class GaveUp(NamedTuple):
    sequence: int
    attempts: int
    after_s: float


RequesterEffect = Send | Renew | Finished | Failed | GaveUp


class WatchedRequester:
    """A machine whose calls return what it does."""

    def __init__(self, client: int, limits: Limits, now: float, *, stock: bool = False) -> None:
        self.machine = Requester(client, limits, stock=stock)
        self.machine.begin(now)
        self.highest = self.machine.highest
        self.asked: list[ServerRequest] = []

    def __len__(self) -> int:
        return len(self.machine)

    @property
    def current(self) -> int:
        return self.machine.current

    @property
    def counters(self) -> Counter[str]:
        return self.machine.counters

    @property
    def full(self) -> bool:
        return self.machine.full

    def submit(self, body: list[bytes], now: float, deadline_s: float | None = None) -> tuple[int, list[RequesterEffect]]:
        pending = ServerRequest(body, deadline_s)
        self.machine.submit(pending, now)
        self.asked.append(pending)
        return pending.key, self.effects([])

    def withdraw(self, sequence: int, now: float) -> list[RequesterEffect]:
        self.machine.cancel(self.asked[sequence - 1], now)
        return self.effects([])

    def joined(self, server: int, now: float) -> list[RequesterEffect]:
        return self.effects(self.machine.joined(server, now))

    def lost(self, server: int, now: float) -> list[RequesterEffect]:
        return self.effects(self.machine.lost(server, now))

    def receive(self, server: int, header: ReplyHeader, body: list[bytes], now: float) -> list[RequesterEffect]:
        return self.effects(self.machine.receive(server, header, body, now))

    def receive_stock(self, server: int, body: list[bytes], now: float) -> list[RequesterEffect]:
        return self.effects(self.machine.receive_stock(server, body, now))

    def tick(self, now: float) -> list[RequesterEffect]:
        return self.effects(self.machine.tick(now))

    def deadline(self) -> float | None:
        self.machine.timeouts.expired(-inf)  # which leaves none that is too early
        at = self.machine.deadline()
        return None if at == inf else at

    def effects(self, settled: list[ServerRequest]) -> list[RequesterEffect]:
        done: list[RequesterEffect] = []
        for pending in settled:
            if pending.error is None:
                assert pending.reply is not None
                done.append(Finished(pending.key, pending.reply))
            elif isinstance(pending.error, HandlerError):
                done.append(Failed(pending.key, pending.error.reason))
            else:
                assert isinstance(pending.error, NoServer)
                done.append(GaveUp(pending.key, pending.error.attempts, pending.error.after_s))
        done += self.machine.outgoing
        self.machine.outgoing = []
        return done
