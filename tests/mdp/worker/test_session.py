from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from core.errors import LocalProtocolError
from core.zmtp.limits import PeerLimits
from mdp.session.broker_search import Action, BrokerSearch, SearchState, SearchTimes
from mdp.wire.commands import (
    V01,
    V02,
    V03,
    WORKER_CANCEL_03,
    WORKER_ERROR_03,
    WORKER_FINAL_03,
    WORKER_PARTIAL_03,
    WORKER_READY_03,
    worker_disconnect,
    worker_heartbeat,
)
from mdp.wire.options import decode_ready_options
from mdp.worker.handler import ReplyTooLarge
from mdp.worker.session import SPLICED_BYTES_MAX, UNNUMBERED_IN_FLIGHT_MAX, WorkerSession
from mdp.worker.session_options import SessionOptions
from tests.scenes.mdp_messages import read
from tests.scenes.mdp_worker_sessions import BROKER, DIALECTS, give, sent, serving, session, token, work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdp.request import Request
    from mdp.wire.commands import Dialect


# Every test twice: messages come as frames, and as bytes, as on a socket.
pytestmark = pytest.mark.usefixtures("frames_and_octets")


def test_what_a_broker_adds_to_options_at_their_limit_is_accepted() -> None:
    machine = serving()
    options = {"user": "ann", "deadline_ms": 10, "delivery": 2, **{f"x{number}": 1 for number in range(63)}}
    (request,) = machine.receive(read([work(1, options=msgpack.packb(options))]), 0.0)
    assert (request.user, request.delivery) == ("ann", 2)


# ------------------------------------------------------------------------------------------------------------------------- registering


@pytest.mark.parametrize(
    ("dialect", "ready"),
    [(V01, [b"", b"MDPW01", b"\x01", b"echo"]), (V02, [b"MDPW02", b"\x01", b"echo"]), (V03, [WORKER_READY_03, b"echo"])],
)
def test_ready_is_the_first_message_on_every_connection_and_sent_once(dialect: Dialect, ready: list[bytes]) -> None:
    """MDP-15, MDP-16: no answer is expected."""
    machine = session(dialect)
    machine.search.start(0.0)
    for connection in range(3):
        now = 100.0 * connection
        assert machine.take_outgoing(now) == []
        machine.joined(now)
        machine.joined(now)
        messages = sent(machine, now)
        assert messages[0][: len(ready)] == ready
        assert len(messages) == 1
        assert give(machine, 1, now=now)
        machine.lost(now)
        machine.tick(now + 50.0)
    assert machine.counters.connections == 3


def test_ready_of_our_dialect_carries_credit_version_metadata_and_interval() -> None:
    """BEY-10: READY has the worker's heartbeat interval."""
    machine = session(credit=64, version="1.2", metadata={"host": "a"}, heartbeat_s=0.5)
    machine.search.start(0.0)
    machine.joined(0.0)
    options = decode_ready_options(sent(machine)[0][2])
    assert (options.credit, options.version, options.metadata, options.heartbeat_ms) == (64, "1.2", {"host": "a"}, 500)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\tb"])
def test_a_name_no_service_can_have_is_refused(name: str) -> None:
    """MDP-05."""
    with pytest.raises(LocalProtocolError):
        WorkerSession(name, BrokerSearch([BROKER], None, SearchTimes(), random.random), SessionOptions())


@pytest.mark.parametrize("options", [{"credit": 0}, {"credit": 65536}, {"heartbeat_s": 0}, {"liveness": 0}])
def test_options_out_of_range_are_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"credit|positive"):
        SessionOptions(**options)


# ------------------------------------------------------------------------------------------------------------------ requests and answers


PAIRS = [(b"200", b"x" * 32), (b"", b""), (b"x" * 255, b""), (b"", b"x" * 255), (b"x" * 256, b"y"), (b"y", b"x" * 256)]


@pytest.mark.parametrize("body", [(b"x",), (b"",), (b"x" * 256,), *PAIRS, (b"", b"", b"z"), (b"x" * (SPLICED_BYTES_MAX + 1), b"")])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_is_answered_once_with_the_address_it_came_with(dialect: Dialect, body: tuple[bytes, ...]) -> None:
    """MDP-06, MDP-07, MDP-22."""
    machine = serving(dialect)
    (request,) = machine.receive(read([work(7, *body, dialect=dialect)]), 0.1)
    assert (request.service, request.body, machine.in_flight) == ("echo", [*body], 1)
    machine.answer(request, request.body)
    machine.answer(request, request.body)
    expected = {
        V01: [b"", b"MDPW01", b"\x03", token(7), b"", *body],
        V02: [b"MDPW02", b"\x04", token(7), b"", *body],
        V03: [WORKER_FINAL_03 + token(7), *body],
    }
    assert sent(machine) == [expected[dialect]]
    assert (machine.in_flight, machine.counters.answered, machine.counters.unwanted) == (0, 1, 1)


@pytest.mark.parametrize(("dialect", "head"), [(V02, [b"MDPW02", b"\x03", token(1), b""]), (V03, [WORKER_PARTIAL_03 + token(1)])])
def test_parts_are_sent_before_the_final(dialect: Dialect, head: list[bytes]) -> None:
    machine = serving(dialect)
    (request,) = give(machine, 1)
    assert machine.can_send_parts
    machine.send_part(request, [b"1", b"2"])
    machine.answer(request, [b""])
    machine.send_part(request, [b"late"])
    messages = sent(machine)
    assert messages[0] == [*head, b"1", b"2"]
    assert (len(messages), machine.counters.unwanted) == (2, 1)


LOW = [PeerLimits(message_bytes=14), PeerLimits(frame_bytes=1000), PeerLimits(parts=1), PeerLimits(message_bytes=SPLICED_BYTES_MAX)]


@pytest.mark.parametrize("body", [(b"",), (b"x",), (b"x" * SPLICED_BYTES_MAX,), (b"x" * 2000, b"y" * 2096)])
@pytest.mark.parametrize("limits", LOW, ids=repr)
def test_a_reply_is_judged_by_the_limits_of_its_connection_and_the_request_can_be_refused(
    limits: PeerLimits, body: tuple[bytes, ...]
) -> None:
    made = session()
    made.search.start(0.0)
    made.joined(0.0, limits)
    made.take_outgoing(0.0)
    (request,) = give(made, 1)
    if (limits.frame_bytes == 1000 or limits.message_bytes == SPLICED_BYTES_MAX) and len(body[0]) <= 1:
        made.answer(request, body)
        assert sent(made) == [[WORKER_FINAL_03 + token(1), *body]]
        return
    with pytest.raises(ReplyTooLarge):
        made.answer(request, body)
    assert sent(made) == []
    made.refuse(request, "TOO_LARGE", "")
    assert sent(made) == [[WORKER_ERROR_03 + token(1), b"TOO_LARGE", b""]]
    assert (made.counters.answered, made.counters.failed) == (0, 1)


def test_an_error_answers_the_request_and_gives_the_credit_back() -> None:
    machine = serving()
    (request,) = give(machine, 1)
    machine.refuse(request, "HANDLER_ERROR", "ValueError")
    machine.refuse(request, "HANDLER_ERROR", "ValueError")
    assert sent(machine) == [[WORKER_ERROR_03 + token(1), b"HANDLER_ERROR", b"ValueError"]]
    assert (machine.in_flight, machine.counters.failed, machine.counters.unwanted) == (0, 1, 1)


@pytest.mark.parametrize("dialect", [V01, V02])
def test_without_errors_in_the_dialect_a_failed_request_is_given_back_by_leaving(dialect: Dialect) -> None:
    machine = serving(dialect)
    (request,) = give(machine, 1)
    assert not machine.can_refuse
    machine.give_back(1.0)
    assert sent(machine) == [worker_disconnect(dialect)]
    assert (machine.search.take_actions(), machine.take_unwanted()) == ([Action.CLOSE], [request])
    assert machine.search.deadline() == pytest.approx(1.1)


def test_options_of_a_request_reach_the_handler() -> None:
    machine = serving()
    options = msgpack.packb({"deadline_ms": 1500, "key": b"k", "once": True, "delivery": 2, "trace": {"a": "b"}})
    (request,) = machine.receive(read([work(1, options=options)]), 10.0)
    assert (request.key, request.once, request.delivery, request.trace) == (b"k", True, 2, {"a": "b"})
    assert (request.expires_at, request.left_s(11.0), request.left_s(99.0)) == (11.5, 0.5, 0.0)


def test_a_request_without_options_has_none() -> None:
    (request,) = give(serving(), 1)
    assert (request.key, request.once, request.delivery, request.trace, request.left_s(5.0)) == (None, False, 1, None, None)


def test_no_payload_in_the_representation_of_a_request() -> None:
    (request,) = serving().receive(read([work(1, b"secret", b"word")]), 0.0)
    assert repr(request) == "<Request of 'echo', 2 frames, 10 bytes>"


def test_options_that_break_the_draft_are_refused() -> None:
    machine = serving()
    assert machine.receive(read([work(1, options=b"\xc1"), work(2)]), 0.0)[0]._token == token(2)
    assert sent(machine)[0][:2] == [WORKER_ERROR_03 + token(1), b"BAD_REQUEST"]


def test_requests_beyond_the_credit_are_refused_at_once() -> None:
    machine = serving(credit=2)
    assert len(give(machine, 1, 2, 3)) == 2
    assert sent(machine)[0][:2] == [WORKER_ERROR_03 + token(3), b"BUSY"]
    assert give(machine, 4) == []
    assert (machine.in_flight, machine.counters.overcredited) == (2, 2)


@pytest.mark.parametrize("dialect", [V01, V02])
def test_a_broker_without_credit_may_give_several_requests_up_to_a_limit(dialect: Dialect) -> None:
    machine = serving(dialect)
    requests = machine.receive(read([work(1, b"%d" % n, dialect=dialect) for n in range(UNNUMBERED_IN_FLIGHT_MAX + 5)]), 0.0)
    assert len(requests) == machine.in_flight == UNNUMBERED_IN_FLIGHT_MAX
    machine.answer(requests[1], [b"r"])
    assert (machine.in_flight, machine.counters.overcredited) == (UNNUMBERED_IN_FLIGHT_MAX - 1, 5)


@pytest.mark.parametrize("credit", [1, 8])
def test_a_token_in_flight_is_not_accepted_twice(credit: int) -> None:
    machine = serving(credit=credit)
    (request,) = give(machine, 1)
    assert give(machine, 1) == []
    machine.answer(request, [b"r"])
    assert len(sent(machine)) == 1
    assert machine.counters.malformed + machine.counters.overcredited == 1


# ------------------------------------------------------------------------------------------------------------------------ cancellation


def test_a_cancelled_request_becomes_unwanted_and_is_still_answered() -> None:
    machine = serving()
    first, second = give(machine, 1, 2)
    machine.receive(read([[WORKER_CANCEL_03 + token(1)]]), 0.1)
    assert machine.take_unwanted() == [first]
    assert machine.take_unwanted() == []
    assert machine.holds(first)
    machine.refuse(first, "CANCELLED", "")
    assert not machine.holds(first)
    assert sent(machine) == [[WORKER_ERROR_03 + token(1), b"CANCELLED", b""]]
    assert machine.holds(second)


def test_cancelling_what_was_answered_is_dropped_and_counted() -> None:
    machine = serving()
    (request,) = give(machine, 1)
    machine.answer(request, [b"r"])
    machine.receive(read([[WORKER_CANCEL_03 + token(1)]]), 0.1)
    assert (machine.take_unwanted(), machine.counters.cancel_unknown) == ([], 1)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("seed", range(4))
def test_a_walk_answers_every_request_of_a_connection_at_most_once_and_none_of_another(seed: int, dialect: Dialect) -> None:
    chance = random.Random(seed)
    machine = serving(dialect, heartbeat_s=1.0, credit=4)
    held: list[Request] = []
    old: list[Request] = []
    given: set[bytes] = set()  # tokens of this connection that wait for an answer
    number, now = 0, 0.0
    for _ in range(3000):
        now += chance.choice((0.0, 0.01, 0.3))
        match chance.randrange(9):
            case 0 | 1 | 2:
                if machine.search.state is SearchState.UP and len(given) < 4:
                    number += 1
                    given.add(token(number))
                    held += give(machine, number, now=now)
            case 3 | 4 if held:
                request = held.pop(chance.randrange(len(held)))
                machine.answer(request, [b"r"])
            case 5 if old:
                machine.answer(chance.choice(old), [b"stale"])
            case 6:
                machine.receive(read([worker_heartbeat(dialect)]), now)
            case 7 if chance.random() < 0.1:
                machine.receive(read([worker_disconnect(dialect)]), now)
            case _:
                machine.tick(now)
        for message in sent(machine, now):
            if message[-1] in (b"r", b"stale"):
                assert message[-1] == b"r"
                given.remove(message[0][7:] if dialect == V03 else message[-3])
        if machine.search.state is not SearchState.UP:
            unwanted = machine.take_unwanted()
            old += unwanted
            held = [request for request in held if request not in unwanted]
            given.clear()
            machine.tick(now + 60)
            now += 60
            machine.joined(now)
            assert len(sent(machine, now)) == 1
        assert machine.in_flight == len(held) == len(given)
    assert machine.counters.answered > 100
    assert machine.counters.connections > 3
