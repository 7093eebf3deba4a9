"""A client whose large request or reply takes longer than its broker may be silent."""

from __future__ import annotations

from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester import Requester, numbers_from


def test_a_broker_lives_while_octets_of_a_message_move() -> None:
    """HB-02, HB-04: a message that stands still is no sign of life."""
    machine: Requester[PendingRequest] = Requester(numbers_from(0x2BCD1234), RequesterLimits(heartbeat_s=1.0, liveness=2))
    octets = 0
    machine.in_transit = lambda: octets
    machine.joined(0.0)
    machine.answers_heartbeats = True
    machine.submit(PendingRequest(Call("echo", timeout_s=900.0, attempts=9), [b"x"]), 0.0)
    for second in range(1, 100):
        octets += 1
        machine.tick(float(second))
        assert not machine.dead
    for second in range(100, 104):
        machine.tick(float(second))
    assert machine.dead
