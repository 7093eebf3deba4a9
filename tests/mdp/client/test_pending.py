"""The queue of a client's machine: its limit counts waiting requests, and a refusal does not search it."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import pytest

from core.machine.requests import QUEUED
from mdp.client.calls import PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester import Requester, numbers_from
from mdp.client.requester_01 import LockstepRequester, OpenConnection
from mdp.errors import Busy
from mdp.wire.commands import V01
from tests.scenes.builds import stands_in
from tests.scenes.mdp_requester import ECHO

if TYPE_CHECKING:
    from collections.abc import Callable

Machine = Requester[PendingRequest] | LockstepRequester[PendingRequest]
MAKERS: dict[str, Callable[[RequesterLimits], Machine]] = {
    "0.3": lambda limits: Requester(numbers_from(0), limits),
    "0.1": lambda limits: LockstepRequester(V01, limits),
}


class Looked(PendingRequest):
    """A request that counts how often its stage is looked at."""

    looks = 0

    @property
    def stage(self) -> int:
        Looked.looks += 1
        return self._stage

    @stage.setter
    def stage(self, stage: int) -> None:
        self._stage = stage


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[RequesterLimits], Machine]:
    return MAKERS[request.param]


@pytest.mark.parametrize("seed", range(3))
def test_the_limit_counts_waiting_requests_only(make: Callable[[RequesterLimits], Machine], seed: int) -> None:
    """Sent, cancelled, timed out, moved to another machine, and back from a connection that broke."""
    limits = RequesterLimits(waiting_max=5, window=3, connections_max=3)
    machine, chance = make(limits), random.Random(seed)
    opened: list[PendingRequest] = []
    now = 0.0
    refused = 0
    for _ in range(3000):
        dice = chance.random()
        if dice < 0.6:
            pending = PendingRequest(ECHO, (b"x",))
            waiting = sum(other.stage == QUEUED for other in opened)
            if waiting >= limits.waiting_max:  # more of them than that come back from a connection that broke
                refused += 1
                with pytest.raises(Busy, match=f"already has {waiting} requests waiting"):
                    machine.submit(pending, now)
            else:
                machine.submit(pending, now)
                opened.append(pending)
        elif dice < 0.75 and opened:
            machine.cancel(opened.pop(chance.randrange(len(opened))), now)
        elif dice < 0.85:
            now += 0.3
            machine.tick(now)
        elif dice < 0.9:
            machine.lost(now)
        elif dice < 0.93:
            machine.lost(now)
            moved = make(limits)
            moved.timeouts, moved.counters = machine.timeouts, machine.counters
            moved.restore(machine.take_all())
            machine = moved
        elif isinstance(machine, Requester):
            machine.joined(now)
        else:
            machine.begin()
            for order in machine.take_orders():
                if isinstance(order, OpenConnection):
                    machine.joined(order.number)
    assert refused > 50
    assert machine.counters.sent > 50


@stands_in
def test_a_refusal_does_not_search_the_backlog(make: Callable[[RequesterLimits], Machine]) -> None:
    machine = make(RequesterLimits(waiting_max=1000))
    for _ in range(1000):
        machine.submit(Looked(ECHO, (b"x",)), 0.0)
    Looked.looks = 0
    for _ in range(10):
        with pytest.raises(Busy, match="1000 requests waiting"):
            machine.submit(Looked(ECHO, (b"x",)), 0.0)
    assert Looked.looks < 100
    assert machine.counters.refused == 10


def test_what_was_cancelled_while_it_waited_does_not_stay_in_memory(make: Callable[[RequesterLimits], Machine]) -> None:
    machine = make(RequesterLimits())
    body = (b"x",)
    before = sys.getrefcount(body)
    for kept in [True] * 10 + [False] * 2000:
        pending = PendingRequest(ECHO, body)
        machine.submit(pending, 0.0)
        if not kept:
            machine.cancel(pending, 0.0)
    assert 10 <= sys.getrefcount(body) - before < 200
    assert len(machine.take_all()) == 10
