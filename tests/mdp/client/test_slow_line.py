"""A client whose large request or reply takes longer than its broker may be silent."""

from __future__ import annotations

from core.zmtp.frames import encode_message
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester import LARGE_BYTES_MIN, Requester, numbers_from
from mdp.wire.commands import client_heartbeat


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


def test_a_large_request_has_a_heartbeat_before_it_once_a_second() -> None:
    """BEY-10: the broker knows then that it may take long to arrive."""
    machine: Requester[PendingRequest] = Requester(numbers_from(0x2BCD1234), RequesterLimits())
    call = Call("echo", timeout_s=900.0, attempts=9)

    def sends(now: float, size: int) -> list[bool]:
        """Return which of the messages are heartbeats."""
        machine.submit(PendingRequest(call, [bytes(size)]), now)
        return [message == encode_message(client_heartbeat()) for message in machine.take_outgoing()]

    machine.joined(5.0)
    assert sends(5.0, LARGE_BYTES_MIN // 2) == [False]
    assert sends(5.0, LARGE_BYTES_MIN) == [True, False]
    assert sends(5.9, LARGE_BYTES_MIN) == [False]
    assert sends(6.1, LARGE_BYTES_MIN) == [True, False]
    machine.lost(6.2)
    machine.joined(6.3)
    assert [message == encode_message(client_heartbeat()) for message in machine.take_outgoing()] == [False, True, False, False, False]


def test_what_moved_before_the_broker_was_heard_is_no_sign_of_life_later() -> None:
    """HB-02: that it is lost was noticed late, once."""
    machine: Requester[PendingRequest] = Requester(numbers_from(0x2BCD1234), RequesterLimits(heartbeat_s=1.0, liveness=2))
    octets = 500
    machine.in_transit = lambda: octets
    machine.joined(0.0)
    machine.answers_heartbeats = True
    machine.submit(PendingRequest(Call("echo", timeout_s=900.0, attempts=9), [b"x"]), 0.0)
    for second in range(1, 4):
        machine.tick(float(second))
    assert not machine.dead
    machine.receive([], 3.5)
    octets = 0
    for second in range(3):
        machine.tick(4.5 + second)
    assert machine.dead
