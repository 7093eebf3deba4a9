"""mdp.client.requester_01 at its edges: what is refused, sent, dropped and counted, in MDP/0.1 and 0.2."""

from __future__ import annotations

from math import inf

import pytest

from core.machine.requests import SENT, SETTLED
from core.zmtp.frames import decode_frames
from core.zmtp.limits import PeerLimits
from mdp.client.calls import Call, PendingRequest
from mdp.client.requester_01 import CloseConnection, OpenConnection
from mdp.errors import NotSupported, TooLarge
from mdp.wire.commands import V01, V02, client_request
from mdp.wire.size_limits import too_large
from tests.mdp.client.test_requester_01 import REPLY, opened, requester, submit
from tests.scenes.mdp_messages import read

HEADERS = Call("echo", timeout_s=1.0, attempts=3, headers={"a": "b"})


@pytest.mark.parametrize("dialect", [V01, V02])
@pytest.mark.parametrize("size", [0, 255, 256])
def test_requests_are_the_same_encoded_or_as_frames(dialect: str, size: int) -> None:
    machine = requester(dialect)  # type: ignore[arg-type]
    bodies = [(bytes(size),), (bytes(size), b"x")]
    for body in bodies:
        submit(machine, *body)
    opened(machine)
    sent = machine.take_outgoing()
    frames = [decode_frames(message) if isinstance(message, bytes) else message for _, message in sent]
    assert frames == [client_request(dialect, b"echo", body) for body in bodies]  # type: ignore[arg-type]
    assert [type(message) is bytes for _, message in sent] == [dialect == V01 and size < 256, False]


@pytest.mark.parametrize("waits", [True, False])
def test_headers_are_refused_before_or_after_a_request_has_waited(waits: bool) -> None:
    machine = requester(connections_max=1)
    if waits:
        pending, behind = submit(machine, call=HEADERS), submit(machine)
        opened(machine)
        assert machine.deadline() == -inf
        assert machine.tick(0.5) == [pending]
        assert (machine.tick(0.5), machine.deadline()) == ([], 1.0)
        assert (pending.stage, behind.stage) == (SETTLED, SENT)
        assert isinstance(pending.error, NotSupported)
        assert (pending.error.attempts, pending.error.after_s) == (0, 0.0)
    else:
        machine.begin()
        opened(machine)
        with pytest.raises(NotSupported, match=r"MDP/0\.1 has no headers"):
            submit(machine, call=HEADERS)
        assert submit(machine).stage == SENT
    assert (machine.counters.unsupported, machine.counters.sent) == (1, 1)
    assert len(machine.timeouts) == 1


@pytest.mark.parametrize(("dialect", "envelope"), [(V01, 6 + 4), (V02, 6 + 1 + 4)])
def test_a_request_beyond_the_brokers_limits_is_refused_to_one_octet_and_frame(dialect: str, envelope: int) -> None:
    machine = requester(dialect)  # type: ignore[arg-type]
    machine.begin()
    machine.begin()
    assert machine.take_orders() == [OpenConnection(1)]
    machine.joined(1, PeerLimits(3 + 2, envelope + 100, 1000))
    for body in ((bytes(101),), (b"x", b"y", b"z")):
        with pytest.raises(TooLarge):
            submit(machine, *body)
    assert machine.counters.too_large == 2
    assert submit(machine, bytes(50), bytes(50)).stage == SENT
    assert machine.connections == 1


@pytest.mark.parametrize(("dialect", "envelope"), [(V01, 6 + 255), (V02, 6 + 1 + 255)])
@pytest.mark.parametrize("parts", [255, 256, 257, 400, 1024])
@pytest.mark.parametrize(
    ("message_bytes", "frame_bytes"), [(511, 10**9), (512, 10**9), (513, 10**9), (800, 10**9), (3000, 512), (3000, 700)]
)
def test_a_body_that_is_sent_unchecked_is_within_the_limits(
    dialect: str, envelope: int, parts: int, message_bytes: int, frame_bytes: int
) -> None:
    limits = PeerLimits(parts, message_bytes, frame_bytes)
    call = Call("s" * 255, timeout_s=1.0, attempts=3)
    for size in range(0, 900, 7):
        machine = requester(dialect)  # type: ignore[arg-type]
        machine.begin()
        machine.joined(1, limits)
        if too_large("request", (bytes(size),), limits, 3, envelope) is None:
            assert submit(machine, bytes(size), call=call).stage == SENT
        else:
            with pytest.raises(TooLarge):
                submit(machine, bytes(size), call=call)


def test_a_broker_that_is_gone_is_asked_for_nothing_until_the_search_says_so() -> None:
    machine = requester(connections_max=2)
    first = submit(machine)
    assert opened(machine) == [1]
    waits = [submit(machine), submit(machine)]
    assert machine.take_orders() == [OpenConnection(2)]
    assert machine.connections == 2
    assert machine.lost(0.2, 1) == []
    assert set(machine.take_orders()) == {CloseConnection(1), CloseConnection(2)}
    assert (machine.connections, machine.in_flight, machine.connected) == (0, 0, False)
    assert machine.take_outgoing() == []
    machine.joined(2)
    assert not machine.connected, "it was given up"
    submit(machine)
    assert machine.take_orders() == []
    machine.begin()
    assert machine.take_orders() == [OpenConnection(3), OpenConnection(4)]
    machine.joined(3)
    assert (first.stage, machine.counters.repeated, machine.counters.sent) == (SENT, 1, 1)
    machine.joined(4)
    assert waits[0].stage == SENT
    assert (machine.counters.repeated, machine.counters.sent) == (1, 2)


def test_waiting_requests_of_another_machine_get_connections() -> None:
    before, machine = requester(), requester()
    waiting = [submit(before), submit(before)]
    machine.restore(before.take_all())
    assert [type(order) for order in machine.take_orders()] == [OpenConnection] * 2
    opened(machine)
    machine.joined(1)
    machine.joined(2)
    assert {pending.stage for pending in waiting} == {SENT}


def test_a_cancelled_request_makes_place_for_the_next() -> None:
    machine = requester(connections_max=1)
    first, second = submit(machine), submit(machine)
    opened(machine)
    machine.cancel(first, 0.5)
    machine.cancel(first, 0.6)
    assert machine.counters.cancelled == 1
    assert machine.take_orders() == [CloseConnection(1), OpenConnection(2)]
    machine.joined(2)
    assert second.stage == SENT


def test_what_follows_a_dropped_message_in_one_read_counts() -> None:
    machine = requester()
    pending = submit(machine)
    opened(machine)
    short = [b"", b"MDPC01", b"echo"]
    batch = [[b"noise"], short, [b"", b"MDPC01", b"other", b"x"], REPLY, REPLY, REPLY]
    assert machine.receive(1, read(batch), 0.5) == [pending]
    assert (pending.reply, machine.counters.malformed, machine.counters.late) == ([b"reply"], 3, 2)
    assert machine.in_flight == 0
    assert submit(machine).stage == SENT, "on the connection that is free"
    assert machine.take_orders() == []


def test_a_reply_of_the_other_dialect_is_dropped() -> None:
    machine = requester(V02)
    submit(machine)
    opened(machine)
    assert machine.receive(1, read([REPLY]), 0.5) == []
    assert machine.counters.malformed == 1


def test_attempts_and_sendings_are_limited_both() -> None:
    """A request that was sent again after a lost connection has as many attempts less."""
    for sent, ends in ((0, False), (2, True)):
        machine = requester()
        pending = PendingRequest(Call("echo", timeout_s=1.0, attempts=2), [b"x"])
        machine.submit(pending, 0.0)
        if sent:
            opened(machine)
            pending.sent = sent
        settled = machine.tick(1.0)
        assert (settled == [pending], machine.counters.failed) == (ends, int(ends))


def test_connections_that_were_idle_are_gone_with_the_others() -> None:
    machine = requester()
    for _ in range(2):
        submit(machine)
    opened(machine)
    assert len(machine.receive(1, read([REPLY]), 0.1)) == 1
    assert (machine.connections, machine.in_flight) == (2, 1)
    machine.lost(0.2, 2)
    assert set(machine.take_orders()) == {CloseConnection(1), CloseConnection(2)}
    assert machine.connections == 0
    assert submit(machine).stage != SENT


def test_a_request_whose_connection_was_not_lost_may_be_sent_more_often() -> None:
    machine = requester()
    call = Call("echo", timeout_s=9.0, attempts=1)
    guilty, innocent = submit(machine, call=call), submit(machine, call=call)
    failed: list[PendingRequest] = []
    for _ in range(2):
        machine.begin()
        numbers = opened(machine)
        failed += machine.lost(0.1, numbers[0])
    assert failed == [guilty]
    assert innocent.stage != SETTLED
    assert machine.lost(0.2) == []
    assert machine.in_flight == 0
