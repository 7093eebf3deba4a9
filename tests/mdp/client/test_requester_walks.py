"""A client's machine and a broker that loses, delays, repeats and cuts at will: seeded walks."""

from __future__ import annotations

import random

import pytest

from core.machine.requests import SETTLED
from mdp.client.calls import Call, PendingRequest
from mdp.client.requester import Requester
from mdp.wire.commands import CLIENT_ERROR_03, CLIENT_FINAL_03, CLIENT_PARTIAL_03, CLIENT_REQUEST_03, HEAD_BYTES
from tests.scenes.mdp_requester import as_octets, requester, sent


class Walk:
    """A client and a broker that loses, delays, repeats and cuts at will."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machine = requester(window=self.chance.choice((1, 5, 1000)), parts_max=4)
        self.open: dict[int, PendingRequest] = {}
        self.ended: list[PendingRequest] = []
        self.at_broker: list[list[bytes]] = []  # requests it got and did not answer yet
        self.now = 0.0

    def note(self, news: list[PendingRequest]) -> None:
        for pending in {id(pending): pending for pending in news}.values():
            if pending.stage == SETTLED:
                assert (pending.reply is None) != (pending.error is None)
                assert self.open.pop(id(pending)) is pending
                self.ended.append(pending)

    def ask(self, step: int) -> None:
        chance = self.chance
        call = Call(
            "echo",
            timeout_s=chance.choice((0.2, 1.0)),
            attempts=chance.choice((1, 3)),
            once=chance.random() < 0.2,
            streaming=chance.random() < 0.2,
        )
        pending = PendingRequest(call, (b"%d" % step,))
        self.machine.submit(pending, self.now)
        self.open[id(pending)] = pending

    def replies(self) -> list[list[bytes]]:
        """Next message of the broker."""
        chance = self.chance
        batch: list[list[bytes]] = []
        for _ in range(min(len(self.at_broker), chance.randrange(5))):
            frames = self.at_broker.pop(chance.randrange(len(self.at_broker)))
            number, body = frames[0][HEAD_BYTES:], frames[3:]
            batch += [[CLIENT_PARTIAL_03 + number, b"part"]] * chance.choice((0, 0, 0, 1))
            answers = {0: [[CLIENT_ERROR_03 + number, b"HANDLER_ERROR", b""]], 1: [[CLIENT_FINAL_03 + number, *body]] * 2, 2: []}
            batch += [[*message] for message in answers.get(chance.randrange(6), [[CLIENT_FINAL_03 + number, *body]])]
        return batch

    def step(self, step: int) -> None:
        self.now += self.chance.choice((0.0, 0.001, 0.01, 0.3))
        match self.chance.randrange(12):
            case 0 | 1 | 2 | 3:
                self.ask(step)
            case 4:
                self.at_broker.clear()  # a new connection is a new peer to the broker
                if self.machine.connected:
                    self.note(self.machine.lost(self.now))
                else:
                    self.machine.joined(self.now)
            case 5 if self.open:
                self.machine.cancel(self.open.pop(self.chance.choice([*self.open])), self.now)
            case 6:
                self.note(self.machine.tick(self.now))
            case _ if self.machine.connected:
                self.at_broker += [frames for frames in sent(self.machine) if frames[0].startswith(CLIENT_REQUEST_03)]
                self.note(self.machine.receive(self.replies(), self.now))


@pytest.mark.parametrize("octets_first", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_walk_ends_every_request_once_with_its_own_reply(seed: int, octets_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is lost, answered twice, given another's reply, or sent twice when it must not be."""
    if octets_first:
        monkeypatch.setattr(Requester, "receive", as_octets)
    walk = Walk(seed)
    machine = walk.machine
    for step in range(4000):
        walk.step(step)
        assert machine.in_flight <= machine.limits.window
        assert len(machine.timeouts) == len(walk.open)
        assert machine.connected or machine.in_flight == 0
    while walk.open:
        walk.now = machine.deadline()
        walk.note(machine.tick(walk.now))
    for pending in walk.ended:
        if pending.reply is not None:
            assert pending.reply[-1] == pending.body[0]
            assert pending.attempt <= pending.call.attempts
        assert pending.sent <= 1 or not pending.call.once
    assert sum(pending.reply is not None for pending in walk.ended) == machine.counters.replied > 100
