"""Ends of requests in a client's machine of any dialect: errors with their numbers, parts, counters, limits."""

from __future__ import annotations

import pytest

from core.machine.requests import QUEUED, SETTLED
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterBase, RequesterLimits, give_up
from mdp.errors import Busy, ClientClosed, NotSupported, Overrun, RequestError, Timeout, TooLarge, WorkerLost

PLAIN = Call("echo", timeout_s=5.0, attempts=2)
ONCE = Call("echo", timeout_s=5.0, attempts=2, once=True)
STREAM = Call("echo", timeout_s=5.0, attempts=2, streaming=True)


def machine(**limits: int) -> RequesterBase[PendingRequest]:
    made = RequesterBase[PendingRequest](RequesterLimits(**limits))
    made.destination = "the broker"
    return made


def begun(made: RequesterBase[PendingRequest], call: Call = PLAIN, now: float = 10.0) -> PendingRequest:
    """Return a request that was sent once."""
    pending = PendingRequest(call, [b"x"])
    made.timeouts.start(pending, now, call.timeout_s)
    pending.sent = 1
    return pending


def ended(pending: PendingRequest) -> tuple[type[RequestError], int, float]:
    assert pending.stage == SETTLED
    assert pending.error is not None
    return type(pending.error), pending.error.attempts, pending.error.after_s


def test_limits_are_positive() -> None:
    names = ("window", "waiting_max", "connections_max", "parts_max", "parts_bytes_max", "liveness")
    RequesterLimits(heartbeat_s=0.001, **dict.fromkeys(names, 1))
    for name in names:
        with pytest.raises(ValueError, match="limits must be positive"):
            RequesterLimits(**{name: 0})
    for heartbeat_s in (0.0, -0.5):
        with pytest.raises(ValueError, match="limits must be positive"):
            RequesterLimits(heartbeat_s=heartbeat_s)


def test_without_a_batch_of_its_own_a_machine_sends_none() -> None:
    assert machine().submit_many([PendingRequest(PLAIN, [b"x"])], 0.0) == 0


def test_parts_are_kept_up_to_their_number_and_bytes() -> None:
    for limits, sizes in (({"parts_max": 2}, (1, 1, 1)), ({"parts_bytes_max": 9}, (4, 5, 1))):
        made = machine(**limits)
        pending = begun(made, STREAM)
        kept = [made._keep_part(pending, [bytes(size)], 11.0 + size) for size in sizes]
        assert kept == [True, True, False]
        assert (*ended(pending), made.counters.failed) == (Overrun, 1, 2.0, 1)
    made = machine(parts_bytes_max=9)
    pending = begun(made, STREAM)
    for _ in range(5):  # what was taken counts no longer
        assert made._keep_part(pending, [bytes(4), bytes(5)], 12.0)
        assert made.take_part(pending) == [bytes(4), bytes(5)]
    assert (made.take_part(pending), pending.parts_bytes, pending.due) == (None, 0, 17.0)


def test_parts_are_joined_unless_they_are_streamed() -> None:
    made = machine()
    for call, end, reply in ((PLAIN, b"", [b"a", b"b"]), (PLAIN, b"c", [b"a", b"b", b"c"]), (STREAM, b"", [b""])):
        pending = begun(made, call)
        for part in (b"a", b"b"):
            made._keep_part(pending, [part], 11.0)
        made._complete(pending, [end], 12.0)
        assert (pending.reply, pending.parts is None, pending.stage) == (reply, call is PLAIN, SETTLED)
    assert made.counters.replied == 3
    assert len(made.timeouts) == 0


def test_what_the_broker_does_not_take_is_counted_by_its_reason() -> None:
    made = machine()
    large = TooLarge("bytes of the request", 9, 8, service="echo")
    for error in (large, NotSupported("echo"), large):
        pending = begun(made)
        made._refuse(pending, error, 12.5)
        assert pending.error is error
        assert ended(pending) == (type(error), 1, 2.5)
    assert (made.counters.too_large, made.counters.unsupported) == (2, 1)
    assert len(made.timeouts) == 0


def test_a_request_too_many_was_not_attempted() -> None:
    made = machine(waiting_max=1)
    made._enqueue(PendingRequest(PLAIN, [b"x"]), 0.0)
    with pytest.raises(Busy) as caught:
        made._enqueue(PendingRequest(PLAIN, [b"x"]), 0.0)
    assert (caught.value.attempts, made.counters.refused) == (0, 1)


def test_requests_of_a_lost_connection_wait_first_unless_they_must_not_be_sent_again() -> None:
    made = machine()
    waits = PendingRequest(PLAIN, [b"x"])
    made._enqueue(waits, 10.0)
    plain, once, fresh, read, spent, cleared = (begun(made, call) for call in (PLAIN, ONCE, STREAM, STREAM, PLAIN, PLAIN))
    made._keep_part(plain, [b"part"], 10.0)
    made._keep_part(read, [b"part"], 10.0)
    spent.sent = cleared.sent = 2
    failed = made._put_back([plain, once, fresh, read, spent, cleared], 13.0, [cleared])
    assert [ended(pending) for pending in failed] == [(WorkerLost, 1, 3.0), (WorkerLost, 1, 3.0), (Timeout, 2, 3.0)]
    assert failed == [once, read, spent]
    assert made.counters.failed == 3
    assert plain.parts is None
    assert made.take_all() == [plain, fresh, cleared, waits]
    assert {pending.stage for pending in (plain, fresh, cleared, waits)} == {QUEUED}


def test_a_client_that_is_closed_fails_what_is_open() -> None:
    made = machine()
    waits = PendingRequest(PLAIN, [b"x"])
    made._enqueue(waits, 10.0)
    sent = begun(made)
    assert made._fail_all([sent], 11.0) == [sent, waits]
    assert [ended(pending) for pending in (sent, waits)] == [(ClientClosed, 1, 1.0), (ClientClosed, 0, 1.0)]
    assert made.counters.failed == 2


def test_a_timeout_says_how_many_attempts_were_made_and_how_many_had_no_connection() -> None:
    pending = begun(machine())
    give_up(pending, 20.0, "the broker", connected=True, others=0)
    assert str(pending.error) == "echo: no answer after 10.000 s in 1 attempt (TIMEOUT): sent to the broker"
    pending = begun(machine())
    pending.attempt = 3
    pending.held = "held back"
    give_up(pending, 20.0, "the broker", connected=False, others=0)
    assert str(pending.error) == (
        "echo: no answer after 10.000 s in 1 attempt (TIMEOUT): sent to the broker, held back, "
        "2 attempts without a connection, not connected now"
    )
