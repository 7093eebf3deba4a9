from __future__ import annotations

from math import inf

import pytest

from core.machine.requests import FRESH, QUEUED, SENT, SETTLED
from core.zmtp.limits import PeerLimits
from mdp.client.calls import Call, PendingRequest
from mdp.client.requester import SPLICED_BYTES_MAX, numbers_from
from mdp.errors import Busy, HandlerError, NoService, Overrun, RequestError, Timeout, TooLarge
from mdp.wire.commands import (
    CLIENT_CANCEL_03,
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_PARTIAL_03,
    CLIENT_PROGRESS_03,
    CLIENT_REQUEST_03,
    HEAD_BYTES,
)
from mdp.wire.options import decode_request_options
from mdp.wire.policies import Rate
from mdp.wire.progress import Progress, RateWait, encode_progress, encode_rate_wait
from tests.scenes.mdp_requester import ECHO, connected, error, final, partial, requester, sent, submit

pytestmark = pytest.mark.usefixtures("way")


# ------------------------------------------------------------------------------------------------------------- requests and replies


def test_progress_is_kept_for_the_caller_and_starts_the_timeout_again() -> None:
    """PRG-02, PRG-07; the timeout is one second."""
    machine, frame = connected(), encode_progress(Progress(0.5, "half"))
    wanted, plain = submit(machine, call=Call("echo", timeout_s=1.0, attempts=1, progress=print)), submit(machine)
    assert decode_request_options(sent(machine)[0][2]).progress
    assert machine.receive([[CLIENT_PROGRESS_03 + wanted.id, frame]], 0.9) == []
    assert machine.take_reports() == [(wanted, Progress(0.5, "half"))]
    machine.receive([[CLIENT_PROGRESS_03 + wanted.id, b"x"], [CLIENT_PROGRESS_03 + plain.id, frame], [CLIENT_PROGRESS_03 + wanted.id]], 0.9)
    assert (machine.take_reports(), machine.counters.malformed) == ([], 3)
    assert wanted not in machine.tick(1.5)
    assert wanted in machine.tick(2.0)
    machine.receive([[CLIENT_PROGRESS_03 + wanted.id, frame]], 2.0)
    assert (machine.take_reports(), machine.counters.late) == ([], 1)


@pytest.mark.parametrize("began", [False, True])
def test_a_timeout_names_the_rate_unless_the_handler_has_reported_since(began: bool) -> None:
    """POL-05."""
    machine = connected()
    pending = submit(machine, call=Call("echo", timeout_s=1.0, attempts=1, progress=print))
    machine.receive([[CLIENT_PROGRESS_03 + pending.id, encode_rate_wait(RateWait(Rate(2.0), 3))]], 0.1)
    if began:
        machine.receive([[CLIENT_PROGRESS_03 + pending.id, encode_progress(Progress(0.5))]], 0.2)
    assert pending in machine.tick(2.0)
    assert ("held back by the rate" in str(pending.error)) is not began


SLOW = Call("echo", timeout_s=1.0, attempts=3, deadline_s=9.0)


OTHER = Call("other", timeout_s=7.0, attempts=1)


@pytest.mark.parametrize(
    "asked",
    [
        [(ECHO, [b"x"])] * 5,
        [(ECHO, [b"x"]), (ECHO, [b"x" * 255]), (ECHO, [b"x" * 256]), (ECHO, [b"y"])],
        [(ECHO, [b"x"]), (ECHO, [b"x", b"y"]), (ECHO, [b"y"])],
        [(ECHO, [b"x", b"y" * size]) for size in (0, 1, 255, 256, 4095, 4096)],
        [(ECHO, [b"x" * size, b"y"]) for size in (0, 255)],
        [(ECHO, [b"x"]), (ECHO, [b"x" * 256, b"y"]), (ECHO, [b"x", b"y", b"z"])],
        [(ECHO, [b"x"]), (SLOW, [b"x"]), (ECHO, [b"y"])],
        [(ECHO, [b"x"]), (OTHER, [b"x"]), (ECHO, [b""])],
        [(ECHO, [b"x"])] * 30,
    ],
    ids=["plain", "long", "two-frames", "longer", "first-longer", "neither", "deadline", "other-timeout", "more-than-the-window"],
)
@pytest.mark.parametrize("buckets", [[], [ECHO], [ECHO, OTHER]], ids=["no-bucket", "one-bucket", "both-buckets"])
def test_requests_sent_together_are_the_same_as_one_by_one(asked: list[tuple[Call, list[bytes]]], buckets: list[Call]) -> None:
    machines = [connected(window=20), connected(window=20)]
    batches = [[PendingRequest(call, body) for call, body in asked] for _ in machines]
    for machine in machines:
        for call in buckets:
            machine.submit(PendingRequest(call, [b"before"]), 1.0)
    together, single = machines
    taken = together.submit_many(batches[0], 2.0)
    for pending in batches[0][taken:]:
        together.submit(pending, 2.0)
    for pending in batches[1]:
        single.submit(pending, 2.0)
    assert together.take_outgoing() == single.take_outgoing()
    assert [facts(pending) for pending in batches[0]] == [facts(pending) for pending in batches[1]]
    assert (together.counters, together.in_flight, together.deadline()) == (single.counters, single.in_flight, single.deadline())
    assert [facts(pending) for pending in together.tick(99.0)] == [facts(pending) for pending in single.tick(99.0)]


@pytest.mark.parametrize("body", [[b"x"], [b"nobody", b"x" * 256], [b"x" * 255, b"y" * (SPLICED_BYTES_MAX - 255)]], ids=len)
def test_a_batch_of_requests_with_one_frame_or_two_is_sent_together(body: list[bytes]) -> None:
    machine = connected(window=20)
    machine.submit(PendingRequest(ECHO, [b"before"]), 1.0)
    machine.take_outgoing()
    assert machine.submit_many([PendingRequest(ECHO, body) for _ in range(5)], 2.0) == 5
    assert [message[-len(body) :] for message in sent(machine)] == [body] * 5


@pytest.mark.parametrize(("parts", "together"), [(4, 0), (5, 1)])
def test_a_body_of_two_frames_is_checked_where_the_broker_takes_few_parts(parts: int, together: int) -> None:
    machine = requester()
    machine.submit(PendingRequest(ECHO, [b"before"]), 0.0)
    machine.joined(0.0, PeerLimits(parts=parts))
    assert machine.submit_many([PendingRequest(ECHO, [b"x", b"y"])], 1.0) == together


def facts(pending: PendingRequest) -> tuple[object, ...]:
    known = pending.stage, pending.sent, pending.attempt, pending.started_at, pending.due, pending.give_up_at, pending.expected
    return (*known, pending.body, pending in pending.bucket, type(pending.error))


def test_no_requests_are_sent_together_before_waiting_ones_or_without_a_connection() -> None:
    machine = requester(window=2)
    assert machine.submit_many([PendingRequest(ECHO, [b"x"])], 0.0) == 0
    machine.submit(PendingRequest(ECHO, [b"first"]), 0.0)
    machine.joined(0.0)
    assert machine.submit_many([PendingRequest(ECHO, [b"x"])] * 3, 0.0) == 1
    machine.submit(PendingRequest(ECHO, [b"waits"]), 0.0)
    assert machine.submit_many([PendingRequest(ECHO, [b"x"])], 0.0) == 0


@pytest.mark.parametrize(
    "body",
    [
        (b"x",),
        (b"",),
        (b"x" * 255,),
        (b"x" * 256,),
        (b"", b"", b"end"),
        (b"x" * SPLICED_BYTES_MAX,),
        (b"x" * (SPLICED_BYTES_MAX + 1), b""),
    ],
)
def test_a_request_is_sent_with_number_service_options_and_its_body_unchanged(body: tuple[bytes, ...]) -> None:
    """MDP-07: bodies pass unchanged in number and content, including empty frames."""
    machine = connected()
    pending = submit(machine, *body)
    assert sent(machine) == [[CLIENT_REQUEST_03 + pending.id, b"echo", b"", *body]]
    assert machine.receive([final(pending, *body)], 0.5) == [pending]
    assert pending.reply == [*body]
    assert (pending.stage, pending.settled_at, machine.in_flight) == (SETTLED, 0.5, 0)
    assert machine.deadline() == inf or machine.tick(machine.deadline()) == []


def test_numbers_are_the_epoch_and_a_counter() -> None:
    machine = connected()
    assert [submit(machine).id.hex() for _ in range(3)] == ["2bcd123400000000", "2bcd123400000001", "2bcd123400000002"]


def test_numbers_of_the_highest_epoch_do_not_overflow() -> None:
    assert next(numbers_from(2**32 - 1)) == 0x7FFFFFFF << 32


def test_a_deadline_is_sent_as_the_time_left() -> None:
    machine = requester()
    pending = submit(machine, call=Call("echo", timeout_s=1, attempts=2, deadline_s=2.0), now=0.0)
    machine.joined(0.25)
    machine.tick(1.0)
    options = [decode_request_options(frames[2]).deadline_ms for frames in sent(machine)]
    assert options == [1750, 1000]
    assert pending.give_up_at == 2.0


def test_replies_settle_their_own_request_in_the_order_they_arrive() -> None:
    """BEY-04: each caller gets its own reply."""
    machine = connected()
    first, second, third = submit(machine, b"1"), submit(machine, b"2"), submit(machine, b"3")
    news = machine.receive([final(third, b"c"), final(first, b"a"), final(second, b"b")], 0.1)
    assert news == [third, first, second]
    assert [pending.reply for pending in (first, second, third)] == [[b"a"], [b"b"], [b"c"]]


@pytest.mark.parametrize("body", [(b"", b"a", b""), (b"a" * 200, b"b" * 3, b"c" * 255), (b"x", b"y" * 256, b"z"), (b"x" * 256,)])
def test_a_reply_of_several_frames_or_of_a_long_one_arrives_as_it_was_sent(body: tuple[bytes, ...]) -> None:
    machine = connected()
    asked = [submit(machine) for _ in range(3)]
    assert machine.receive([final(pending, *body) for pending in asked], 0.5) == asked
    assert [pending.reply for pending in asked] == [[*body]] * 3
    assert machine.in_flight == 0


LOW = [PeerLimits(message_bytes=14), PeerLimits(frame_bytes=1000), PeerLimits(parts=3), PeerLimits(message_bytes=SPLICED_BYTES_MAX)]


@pytest.mark.parametrize("body", [(b"",), (b"x",), (b"x" * SPLICED_BYTES_MAX,), (b"x" * 2000, b"y" * 2096)])
@pytest.mark.parametrize("limits", LOW, ids=repr)
def test_a_request_is_checked_against_the_limits_of_its_connection(limits: PeerLimits, body: tuple[bytes, ...]) -> None:
    machine = requester()
    machine.joined(0.0, limits)
    fits = (limits.frame_bytes == 1000 or limits.message_bytes == SPLICED_BYTES_MAX) and len(body[0]) <= 1
    if fits:
        submit(machine, *body)
    else:
        with pytest.raises(TooLarge):
            submit(machine, *body)
        assert machine.submit_many([PendingRequest(ECHO, [*body])], 0.0) == 0
        assert (machine.in_flight, sent(machine)) == (0, [])
    machine.joined(1.0)
    machine.take_outgoing()
    submit(machine, *body)
    assert [message[-len(body) :] for message in sent(machine)] == [[*body]]


def test_empty_frames_count_too() -> None:
    machine = requester()
    for now, limits in enumerate((PeerLimits(), PeerLimits(parts=20))):
        machine.joined(float(now), limits)
        most = limits.parts - 3  # command, service and options go before them
        submit(machine, *[b""] * most)
        assert sent(machine)[-1][-most:] == [b""] * most
        for many in (most + 1, 2 * most, 9 * most):
            with pytest.raises(TooLarge):
                submit(machine, *[b""] * many)
        machine.lost(float(now))


def test_a_late_or_second_reply_is_dropped_and_counted() -> None:
    """MDP-14: late replies of an abandoned attempt are never the answer to another request."""
    machine = connected()
    pending, other = submit(machine), submit(machine)
    assert machine.receive([final(pending, b"1"), final(pending, b"2")], 0.1) == [pending]
    machine.cancel(other, 0.2)
    late = [final(other), partial(other, b"p"), error(other, b"BUSY")]
    assert machine.receive(late, 0.3) == []
    assert pending.reply == [b"1"]
    assert machine.counters.late == 4


@pytest.mark.parametrize(
    "message",
    [
        [b""],
        [b"", b"MDPC01", b"echo", b"x"],
        [b"MDPC02", b"\x03", b"echo", b"x"],
        [b"MDPC03"],
        [CLIENT_FINAL_03, b"x"],
        [CLIENT_FINAL_03 + b"1234567", b"x"],
        [CLIENT_FINAL_03 + b"123456789", b"x"],
        [b"MDPC03\x09" + bytes(8), b"x"],
        [b"MDPW03\x04" + bytes(8), b"x"],
        [CLIENT_ERROR_03 + bytes(8), b"not a code", b"x"],
        [CLIENT_ERROR_03 + bytes(8)],
        [CLIENT_PARTIAL_03 + bytes(8)],
        [b"\xff" * 300],
    ],
)
def test_a_message_that_breaks_the_protocol_is_dropped_and_counted(message: list[bytes]) -> None:
    """MDP-03."""
    machine = connected()
    pending = submit(machine)
    assert machine.receive([message], 0.1) == []
    assert machine.counters.malformed == 1
    assert machine.receive([final(pending)], 0.2) == [pending]


def test_a_final_without_a_body_is_dropped_and_the_wait_goes_on() -> None:
    """MDP-07: a body has at least one frame."""
    machine = connected()
    pending = submit(machine)
    assert machine.receive([final(pending)[:1]], 0.1) == []
    assert (machine.counters.malformed, pending.stage, machine.in_flight) == (1, SENT, 1)
    assert machine.receive([final(pending)], 0.2) == [pending]


@pytest.mark.parametrize(
    ("code", "kind"), [(b"NO_SERVICE", NoService), (b"BUSY", Busy), (b"HANDLER_ERROR", HandlerError), (b"ODD_ONE", HandlerError)]
)
def test_an_error_settles_the_request_with_the_type_of_its_code(code: bytes, kind: type[RequestError]) -> None:
    machine = connected()
    pending = submit(machine, now=1.0)
    assert machine.receive([error(pending, code, b"why \xff")], 3.5) == [pending]
    failure = pending.error
    assert type(failure) is kind
    assert (failure.service, failure.code, failure.attempts, failure.after_s) == ("echo", code.decode(), 1, 2.5)
    assert failure.text.startswith("why")
    assert (machine.in_flight, len(machine.timeouts), machine.counters.failed) == (0, 0, 1)


# ------------------------------------------------------------------------------------------------------------------ parts of a reply


@pytest.mark.parametrize(("last", "joined"), [(b"", [b"1", b"2", b"3"]), (b"4", [b"1", b"2", b"3", b"4"])])
def test_parts_are_joined_for_a_caller_that_wants_one_reply(last: bytes, joined: list[bytes]) -> None:
    """MDP-13: zero or more PARTIAL, then one FINAL; a single empty frame after parts ends them and says nothing."""
    machine = connected()
    pending = submit(machine)
    machine.receive([partial(pending, b"1", b"2"), partial(pending, b"3")], 0.1)
    assert pending.stage == SENT
    assert machine.receive([final(pending, last)], 0.2)[-1] is pending
    assert pending.reply == joined
    assert machine.counters.replied == 1


def test_parts_are_taken_one_by_one_from_a_stream() -> None:
    machine = connected()
    pending = submit(machine, call=Call("tail", timeout_s=1, attempts=3, streaming=True))
    assert machine.receive([partial(pending, b"1"), partial(pending, b"2", b"3")], 0.1) == [pending, pending]
    assert [machine.take_part(pending) for _ in range(3)] == [[b"1"], [b"2", b"3"], None]
    machine.receive([partial(pending, b"4"), final(pending, b"")], 0.2)
    assert machine.take_part(pending) == [b"4"]
    assert (pending.reply, pending.stage) == ([b""], SETTLED)


def test_a_part_restarts_the_timeout_of_its_attempt() -> None:
    machine = connected()
    pending = submit(machine, call=Call("tail", timeout_s=1, attempts=1))
    machine.receive([partial(pending, b"1")], 0.9)
    assert machine.tick(1.0) == []
    assert machine.tick(1.9) == [pending]
    assert isinstance(pending.error, Timeout)


def test_a_reply_that_has_begun_is_not_asked_for_again() -> None:
    machine = connected()
    pending = submit(machine)
    machine.receive([partial(pending, b"1")], 0.5)
    sent(machine)
    assert machine.tick(1.5) == [pending]
    assert [frames[0][:HEAD_BYTES] for frames in sent(machine)] == [CLIENT_CANCEL_03]


@pytest.mark.parametrize("limits", [{"parts_max": 3}, {"parts_bytes_max": 350}])
def test_a_reader_that_does_not_keep_up_ends_the_request(limits: dict[str, int]) -> None:
    machine = connected(**limits)
    pending = submit(machine, call=Call("tail", timeout_s=1, attempts=3, streaming=True))
    sent(machine)
    news = machine.receive([partial(pending, b"x" * 100) for _ in range(6)], 0.1)
    assert news == [pending] * 4
    assert isinstance(pending.error, Overrun)
    assert sent(machine) == [[CLIENT_CANCEL_03 + pending.id]]
    assert (machine.counters.late, machine.counters.failed, machine.in_flight) == (2, 1, 0)


def test_parts_that_are_taken_in_time_do_not_count() -> None:
    machine = connected(parts_max=2, parts_bytes_max=200)
    pending = submit(machine, call=Call("tail", timeout_s=1, attempts=3, streaming=True))
    for _ in range(20):
        machine.receive([partial(pending, b"x" * 100)], 0.1)
        assert machine.take_part(pending) == [b"x" * 100]
    assert pending.stage == SENT


# --------------------------------------------------------------------------------------------------------------- the window, cancelling


def test_no_more_than_the_window_is_in_flight_and_the_rest_follows_in_order() -> None:
    machine = connected(window=2)
    requests = [submit(machine, b"%d" % n) for n in range(5)]
    assert [frames[3] for frames in sent(machine)] == [b"0", b"1"]
    assert [pending.stage for pending in requests] == [SENT, SENT, QUEUED, QUEUED, QUEUED]
    machine.receive([final(requests[1])], 0.1)
    assert [frames[3] for frames in sent(machine)] == [b"2"]
    machine.cancel(requests[3], 0.1)
    machine.receive([final(requests[0])], 0.1)
    assert [frames[3] for frames in sent(machine)] == [b"4"]
    assert machine.in_flight == 2


def test_more_waiting_requests_than_the_limit_are_refused() -> None:
    machine = requester(waiting_max=2)
    first, _ = submit(machine), submit(machine)
    refused = PendingRequest(ECHO, (b"x",))
    with pytest.raises(Busy):
        machine.submit(refused, 0.0)
    assert (machine.counters.refused, refused.stage, len(machine.timeouts)) == (1, FRESH, 2)
    machine.cancel(first, 0.0)
    machine.submit(refused, 0.0)  # a cancelled request does not count
    assert refused.stage == QUEUED


def test_each_request_that_fails_by_its_time_is_counted() -> None:
    machine = connected()
    for _ in range(3):
        submit(machine, call=Call("echo", timeout_s=1.0, attempts=1))
    assert len(machine.tick(1.0)) == 3
    assert machine.counters.failed == 3


def test_cancelling_removes_a_request_in_flight_and_sends_cancel() -> None:
    machine = connected()
    pending = submit(machine)
    sent(machine)
    machine.cancel(pending, 0.1)
    machine.cancel(pending, 0.1)
    assert sent(machine) == [[CLIENT_CANCEL_03 + pending.id]]
    assert (machine.in_flight, len(machine.timeouts), machine.counters.cancelled) == (0, 0, 1)


def test_a_confirmed_cancellation_is_no_late_reply() -> None:
    machine = connected()
    pending = submit(machine)
    machine.cancel(pending, 0.1)
    assert machine.receive([error(pending, b"CANCELLED")], 0.2) == []
    assert (machine.counters.confirmed, machine.counters.late) == (1, 0)


def test_cancelling_a_waiting_request_sends_nothing() -> None:
    machine = requester()
    pending = submit(machine)
    machine.cancel(pending, 0.1)
    machine.joined(0.2)
    assert sent(machine) == []
    assert machine.tick(10.0) == []


def test_cancelling_frees_a_place_in_the_window() -> None:
    machine = connected(window=1)
    first, second = submit(machine, b"1"), submit(machine, b"2")
    machine.cancel(first, 0.0)
    assert second.stage == SENT
