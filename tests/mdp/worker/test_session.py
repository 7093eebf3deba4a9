from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from core.errors import LocalProtocolError
from core.zmtp.decoder import Decoder, Encoded, encode_message
from core.zmtp.limits import PeerLimits
from mdp.session.broker_search import Action, BrokerSearch, SearchState, SearchTimes
from mdp.wire.commands import (
    V01,
    V02,
    V03,
    WORKER_CANCEL_03,
    WORKER_DISCONNECT_03,
    WORKER_ERROR_03,
    WORKER_FINAL_03,
    WORKER_HEARTBEAT_03,
    WORKER_PARTIAL_03,
    WORKER_READY_03,
    WORKER_REQUEST_03,
    worker_disconnect,
    worker_heartbeat,
    worker_request,
)
from mdp.wire.options import decode_ready_options
from mdp.worker.handler import ReplyTooLarge
from mdp.worker.session import SPLICED_BYTES_MAX, UNNUMBERED_IN_FLIGHT_MAX, SessionOptions, WorkerSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdp.request import Request
    from mdp.wire.commands import Dialect

DIALECTS: list[Dialect] = [V01, V02, V03]
BROKER = "tcp://broker:5555"


def session(dialect: Dialect = V03, **options: Any) -> WorkerSession:
    search = BrokerSearch([BROKER], dialect, SearchTimes(), lambda: 1.0)
    return WorkerSession("echo", search, SessionOptions(**{"credit": 8, **options}))


def serving(dialect: Dialect = V03, now: float = 0.0, **options: Any) -> WorkerSession:
    made = session(dialect, **options)
    made.search.start(now)
    made.joined(now)
    made.search.take_actions()
    made.take_outgoing(now)
    return made


decoded = WorkerSession.receive


def as_octets(machine: WorkerSession, batch: list[list[bytes]], now: float) -> list[Request]:
    """Hand a batch over as a socket does, from the bytes of a read."""
    return decoded(machine, Decoder(on_command=lambda _: None).feed(b"".join(map(encode_message, batch))).messages(), now)


@pytest.fixture(autouse=True, params=["frames", "octets"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test twice: messages come as frames, and as bytes, as on a socket."""
    if request.param == "octets":
        monkeypatch.setattr(WorkerSession, "receive", as_octets)


def sent(machine: WorkerSession, now: float = 0.0) -> list[list[bytes]]:
    messages = []
    for message in machine.take_outgoing(now):
        frames: list[bytes] = []
        for item in [Encoded(message)] if isinstance(message, bytes) else message:
            frames += item.frames() if isinstance(item, Encoded) else [item]
        messages.append(frames)
    return messages


def token(number: int) -> bytes:
    return number.to_bytes(8, "big")


def work(number: int, *body: bytes, dialect: Dialect = V03, options: bytes = b"") -> list[bytes]:
    return worker_request(dialect, token(number), body or (b"x",), options=options)


def give(machine: WorkerSession, *numbers: int, now: float = 0.0) -> list[Request]:
    return machine.receive([work(number, dialect=machine.search.dialect) for number in numbers], now)


def test_what_a_broker_adds_to_options_at_their_limit_is_accepted() -> None:
    machine = serving()
    options = {"user": "ann", "deadline_ms": 10, "delivery": 2, **{f"x{number}": 1 for number in range(63)}}
    (request,) = machine.receive([work(1, options=msgpack.packb(options))], 0.0)
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


@pytest.mark.parametrize("body", [(b"x",), (b"",), (b"x" * 256,), (b"", b"", b"z"), (b"x" * (SPLICED_BYTES_MAX + 1), b"")])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_request_is_answered_once_with_the_address_it_came_with(dialect: Dialect, body: tuple[bytes, ...]) -> None:
    """MDP-06, MDP-07, MDP-22."""
    machine = serving(dialect)
    (request,) = machine.receive([work(7, *body, dialect=dialect)], 0.1)
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
    (request,) = machine.receive([work(1, options=options)], 10.0)
    assert (request.key, request.once, request.delivery, request.trace) == (b"k", True, 2, {"a": "b"})
    assert (request.expires_at, request.left_s(11.0), request.left_s(99.0)) == (11.5, 0.5, 0.0)


def test_a_request_without_options_has_none() -> None:
    (request,) = give(serving(), 1)
    assert (request.key, request.once, request.delivery, request.trace, request.left_s(5.0)) == (None, False, 1, None, None)


def test_no_payload_in_the_representation_of_a_request() -> None:
    (request,) = serving().receive([work(1, b"secret", b"word")], 0.0)
    assert repr(request) == "<Request of 'echo', 2 frames, 10 bytes>"


def test_options_that_break_the_draft_are_refused() -> None:
    machine = serving()
    assert machine.receive([work(1, options=b"\xc1"), work(2)], 0.0)[0]._token == token(2)
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
    requests = machine.receive([work(1, b"%d" % n, dialect=dialect) for n in range(UNNUMBERED_IN_FLIGHT_MAX + 5)], 0.0)
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
    machine.receive([[WORKER_CANCEL_03 + token(1)]], 0.1)
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
    machine.receive([[WORKER_CANCEL_03 + token(1)]], 0.1)
    assert (machine.take_unwanted(), machine.counters.cancel_unknown) == ([], 1)


# --------------------------------------------------------------------------------------------------------------- heartbeats and silence


@pytest.mark.parametrize("dialect", DIALECTS)
def test_heartbeats_are_sent_at_the_interval_after_ready(dialect: Dialect) -> None:
    """MDP-19, HB-03."""
    machine = serving(dialect, heartbeat_s=1.0)
    beats = []
    now = 0.0
    while now < 5.0:
        now = machine.deadline()
        machine.receive([worker_heartbeat(dialect)], now)
        machine.tick(now)
        beats += [now for message in sent(machine, now) if message == worker_heartbeat(dialect)]
    assert beats == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert machine.counters.heartbeats == 5


def test_no_heartbeat_while_other_commands_are_sent() -> None:
    """MDP-19."""
    machine = serving(heartbeat_s=1.0)
    for step in range(1, 40):
        now = step * 0.25
        (request,) = give(machine, step, now=now)
        machine.answer(request, [b"r"])
        sent(machine, now)
        machine.tick(now)
    assert (sent(machine), machine.counters.heartbeats) == ([], 0)


def test_heartbeats_go_on_while_a_request_is_in_flight() -> None:
    """MDP-24: in asyncio the handler runs beside the heartbeat."""
    for dialect in DIALECTS:
        machine = serving(dialect, heartbeat_s=1.0)
        give(machine, 1)
        for now in (1.0, 2.0):
            machine.tick(now)
            assert sent(machine, now) == [worker_heartbeat(dialect)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_broker_silent_for_the_liveness_is_left(dialect: Dialect) -> None:
    """MDP-20: close, wait the reconnect delay, connect again, READY."""
    machine = serving(dialect, heartbeat_s=1.0, liveness=3)
    for now in (1.0, 2.0):
        machine.tick(now)
    assert machine.search.state is SearchState.UP
    machine.tick(3.0)
    assert (machine.search.take_actions(), machine.counters.silences) == ([Action.CLOSE], 1)
    assert machine.deadline() == 5.5
    machine.tick(5.5)
    assert machine.search.take_actions() == [Action.OPEN]
    sent(machine, 5.5)
    machine.joined(5.6)
    assert len(sent(machine, 5.6)) == 1


@pytest.mark.parametrize("dialect", [V01, V02])
def test_silence_does_not_count_while_a_request_is_in_flight_and_a_full_window_follows(dialect: Dialect) -> None:
    """MDP-21: example brokers do not heartbeat busy workers."""
    machine = serving(dialect, heartbeat_s=1.0, liveness=3)
    (request,) = give(machine, 1)
    for step in range(1, 50):
        machine.tick(float(step))
    assert machine.search.state is SearchState.UP
    machine.answer(request, [b"r"])
    machine.take_outgoing(50.0)
    machine.tick(52.9)
    assert machine.search.take_actions() == []
    machine.tick(53.0)
    assert machine.search.take_actions() == [Action.CLOSE]


def test_our_broker_heartbeats_busy_workers_so_its_silence_counts() -> None:
    machine = serving(heartbeat_s=1.0, liveness=3)
    (request,) = give(machine, 1)
    machine.tick(3.0)
    assert machine.search.state is SearchState.WAITING
    assert machine.take_unwanted() == [request]


@pytest.mark.parametrize(
    "message",
    [
        [b""],
        [b"", b"MDPW01", b"\x09"],
        [b"", b"MDPW01", b"\x04", b"x"],
        [b"", b"MDPC01", b"echo", b"x"],
        [b"", b"MDPW01", b"\x02", b"client", b"not empty", b"x"],
        [b"", b"MDPW01", b"\x02", b"client", b""],
        [b"MDPW02", b"\x05"],
        [WORKER_HEARTBEAT_03],
        [WORKER_REQUEST_03 + token(1), b"", b"x"],
        [b"\xff" * 50],
    ],
)
def test_an_unknown_command_is_ignored_counted_and_no_sign_of_life(message: list[bytes]) -> None:
    """MDP-25."""
    machine = serving(V01, heartbeat_s=1.0, liveness=3)
    machine.tick(1.0)
    assert machine.receive([message], 2.0) == []
    assert machine.counters.malformed == 1
    machine.tick(3.0)
    assert machine.search.state is SearchState.WAITING


@pytest.mark.parametrize(
    "message",
    [
        [b""],
        [b"MDPW03\x0c" + token(1)],
        [WORKER_REQUEST_03 + token(1), b""],
        [WORKER_REQUEST_03 + b"short", b"", b"x"],
        [WORKER_HEARTBEAT_03, b"x"],
        [WORKER_CANCEL_03 + token(1), b"x"],
        [WORKER_FINAL_03 + token(1), b"x"],
        [b"", b"MDPW01", b"\x04"],
        [b"", b"MDPW01", b"\x05"],
    ],
)
def test_an_unknown_command_is_ignored_in_0_3_too(message: list[bytes]) -> None:
    """MDP-25."""
    machine = serving(heartbeat_s=1.0, liveness=3)
    machine.tick(1.0)
    assert machine.receive([message], 2.0) == []
    assert machine.counters.malformed == 1
    machine.tick(3.0)
    assert machine.search.state is SearchState.WAITING


# ----------------------------------------------------------------------------------------------------------- the end of a connection


@pytest.mark.parametrize("dialect", DIALECTS)
def test_after_disconnect_nothing_more_is_sent_and_a_new_connection_follows_after_a_wait(dialect: Dialect) -> None:
    """MDP-17, MDP-18."""
    machine = serving(dialect)
    (request,) = give(machine, 1)
    machine.answer(request, [b"on its way"])
    new = machine.receive([work(2, dialect=dialect), worker_disconnect(dialect), work(3, dialect=dialect)], 1.0)
    assert new == []
    assert (sent(machine), machine.search.take_actions()) == ([], [Action.CLOSE])
    assert [request._token for request in machine.take_unwanted()] != []
    machine.tick(2.0)
    assert (sent(machine), machine.deadline()) == ([], 3.5)
    machine.tick(3.5)
    assert machine.search.take_actions() == [Action.OPEN]
    machine.joined(3.6)
    assert len(sent(machine)) == 1
    assert machine.counters.sent_away == 1


def test_a_broker_that_refuses_the_service_is_asked_at_growing_intervals() -> None:
    """MDP-18: the guide's worker would spin."""
    machine = session()
    machine.search.start(0.0)
    now, asked = 0.0, []
    while now < 100.0:
        machine.joined(now)
        asked.append(now)
        machine.receive([[WORKER_DISCONNECT_03]], now)
        now = machine.deadline()
        machine.tick(now)
    assert asked == [0.0, 2.5, 7.5, 17.5, 37.5, 69.5]


@pytest.mark.parametrize("sign", [[WORKER_HEARTBEAT_03], [WORKER_REQUEST_03 + token(1), b"", b"x"]])
def test_a_request_of_the_broker_ends_the_back_off(sign: list[bytes]) -> None:
    machine = serving()
    machine.search.failures = 5
    machine.receive([[*sign]], 0.1)
    assert machine.search.failures == 0


def test_answers_to_requests_of_an_earlier_connection_are_dropped_and_counted() -> None:
    """The broker gave them to another worker; from us they would be commands of a stranger."""
    machine = serving()
    (old,) = give(machine, 1)
    machine.lost(1.0)
    assert machine.take_unwanted() == [old]
    machine.tick(5.0)
    machine.joined(5.0)
    (new,) = give(machine, 1, now=5.0)  # the same token again
    sent(machine)
    machine.answer(old, [b"old"])
    machine.refuse(old, "HANDLER_ERROR", "")
    machine.send_part(old, [b"old"])
    assert (sent(machine), machine.counters.unwanted, machine.counters.abandoned) == ([], 3, 1)
    machine.answer(new, [b"new"])
    assert sent(machine) == [[WORKER_FINAL_03 + token(1), b"new"]]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_draining_takes_no_new_requests_and_disconnect_gives_them_back(dialect: Dialect) -> None:
    """MDP-23."""
    machine = serving(dialect)
    (running,) = give(machine, 1)
    machine.drain()
    assert give(machine, 2) == []
    machine.answer(running, [b"done"])
    machine.close()
    assert sent(machine)[-1] == worker_disconnect(dialect)
    assert machine.search.state is SearchState.IDLE
    assert (machine.deadline(), machine.counters.abandoned) == (inf, 1)


def test_closing_before_a_connection_sends_nothing() -> None:
    machine = session()
    machine.search.start(0.0)
    machine.close()
    assert (sent(machine), machine.search.take_actions()) == ([], [Action.OPEN, Action.CLOSE])


def test_what_arrives_after_the_end_is_dropped() -> None:
    machine = serving()
    machine.lost(1.0)
    machine.lost(1.0)
    assert give(machine, 1) == []
    assert machine.in_flight == 0


# --------------------------------------------------------------------------------------------------------------------------- seeded walks


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
                machine.receive([worker_heartbeat(dialect)], now)
            case 7 if chance.random() < 0.1:
                machine.receive([worker_disconnect(dialect)], now)
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
