"""Borrowing: a broker's machine with scripted peers, and every way a peer can fail."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest

from core.zmtp.limits import PeerLimits
from mdp.broker.requests.invariants import check_invariants
from mdp.cluster.lending import LendingMachine, SendToPeer
from mdp.wire.channels import channel_frame
from mdp.wire.commands import (
    CLIENT_CANCEL_03,
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_PARTIAL_03,
    CLIENT_REQUEST_03,
    MDPC01,
    WORKER_FINAL_03,
    WORKER_HEARTBEAT_03,
    WORKER_READY_03,
)
from mdp.wire.lending import LENDING_SERVICE, decode_offer, extend_via, via_of
from mdp.wire.options import OPTIONS_BYTES_MAX, encode_options
from tests.scenes.mdp_dispatcher import decoded
from tests.scenes.mdp_lending import B, C, Scene, offer_of, plain, reply


def test_a_request_without_a_free_worker_here_is_lent() -> None:
    scene = Scene()
    scene.offer(B, echo=2)
    assert scene.ask(1) == []
    lent = scene.lent()
    head, service, options, body = plain([lent.frames])[0]
    assert (lent.endpoint, head[:7], service, body) == (B, CLIENT_REQUEST_03, b"echo", b"body")
    assert via_of(options) == (b"A",)
    assert scene.answer(B, lent, CLIENT_PARTIAL_03, b"part") == [[b"client", CLIENT_PARTIAL_03 + bytes(7) + b"\x01", b"part"]]
    assert scene.answer(B, lent, CLIENT_FINAL_03, b"done") == [reply(1, b"done")]
    assert scene.machine.idle
    assert scene.lending.counters["answered"] == 1


def test_a_worker_here_goes_before_a_peer() -> None:
    """PEER-02: per service."""
    scene = Scene()
    scene.offer(B, echo=5)
    scene.say(b"worker", WORKER_READY_03, b"echo", encode_options({"credit": 1}))
    (work,) = scene.ask(1)
    assert work[0] == b"worker"
    assert scene.to_peers == []
    scene.ask(2)
    lent = scene.lent()
    assert scene.say(b"worker", WORKER_FINAL_03 + work[1][7:], b"here") == [reply(1, b"here")]
    assert scene.answer(B, lent, CLIENT_FINAL_03, b"there") == [reply(2, b"there")]
    assert scene.ask(3)[0][0] == b"worker"
    assert scene.to_peers == []


def test_not_more_is_lent_than_the_peer_can_take_until_it_says_so() -> None:
    """PEER-09."""
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1)
    lent = scene.lent()
    scene.ask(2)
    assert scene.to_peers == []
    assert scene.lending.needs_workers
    scene.answer(B, lent, CLIENT_FINAL_03, b"done")
    assert len(scene.to_peers) == 1
    assert not scene.lending.needs_workers


def test_requests_sent_after_the_query_are_subtracted_from_the_answer() -> None:
    scene = Scene()
    scene.offer(B, echo=3)
    scene.lending.on_query_sent(B)
    for number in (1, 2):
        scene.ask(number)
    scene.out(scene.lending.on_offer(B, [b"200", b"B", msgpack.packb({b"echo": 3})], 0.0))
    assert scene.lending.router.capacity(b"B", b"echo", 0.0) == 1


def test_capacity_is_forgotten_after_three_intervals() -> None:
    """PEER-08."""
    scene = Scene()
    scene.offer(B, echo=3)
    scene.now = 3.0
    scene.ask(1)
    assert scene.to_peers == []
    scene.offer(B, echo=3)
    assert len(scene.to_peers) == 1


def test_requests_of_a_lost_peer_go_to_another() -> None:
    """PEER-11."""
    scene = Scene()
    scene.offer(B, echo=2)
    scene.ask(1)
    first = scene.lent()
    scene.offer(C, b"C", echo=2)
    assert scene.out(scene.lending.on_peer_lost(B, 0.0)) == []
    assert scene.to_peers == []  # it may have been lost as well
    scene.now = 1.0
    scene.offer(C, b"C", echo=2)
    second = scene.lent()
    assert second.endpoint == C
    assert scene.answer(B, first, CLIENT_FINAL_03, b"late") == []
    assert scene.answer(C, second, CLIENT_FINAL_03, b"done") == [reply(1, b"done")]
    assert scene.lending.counters["answers_unknown"] == 1


def test_a_request_that_may_be_given_once_is_not_given_twice() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1, options=encode_options({"once": True}))
    assert len(scene.to_peers) == 1
    (error,) = scene.out(scene.lending.on_peer_lost(B, 0.0))
    assert error[:3] == [b"client", CLIENT_ERROR_03 + bytes(7) + b"\x01", b"WORKER_LOST"]


def test_losses_are_bounded() -> None:
    """PEER-11: bounded retries, and a failure the client sees."""
    scene = Scene(deliveries_max=2)
    errors: list[list[bytes]] = []
    scene.offer(B, echo=1)
    scene.ask(1)
    for _ in range(2):
        assert len(scene.to_peers) == 1
        errors += scene.out(scene.lending.on_peer_lost(B, scene.now))
        scene.now += 1.0
        scene.offer(B, echo=1)
    assert [error[2] for error in errors] == [b"DEAD_LETTER"]


@pytest.mark.parametrize("code", [b"NO_SERVICE", b"BUSY", b"WORKER_LOST", b"TIMEOUT"])
def test_a_request_the_peer_could_not_process_goes_to_another(code: bytes) -> None:
    scene = Scene()
    scene.offer(B, echo=5)
    scene.ask(1)
    lent = scene.lent()
    assert scene.answer(B, lent, CLIENT_ERROR_03, code, b"why") == []
    assert scene.to_peers == []
    scene.offer(C, b"C", echo=1)
    assert scene.lent().endpoint == C


@pytest.mark.parametrize("code", [b"HANDLER_ERROR", b"DEADLINE_EXCEEDED", b"DEAD_LETTER", b"BAD_REQUEST"])
def test_an_error_of_the_worker_is_sent_to_the_client(code: bytes) -> None:
    scene = Scene()
    scene.offer(B, echo=5)
    scene.ask(1)
    assert scene.answer(B, scene.lent(), CLIENT_ERROR_03, code, b"why") == [[b"client", CLIENT_ERROR_03 + bytes(7) + b"\x01", code, b"why"]]


@pytest.mark.parametrize("channels", [False, True])
def test_a_request_is_cancelled_at_the_peer_when_its_client_is_gone(channels: bool) -> None:
    """BEY-07; the CANCEL was lost once any workers of the broker had shared a connection."""
    scene = Scene()
    if channels:
        scene.say(b"app", channel_frame(1), WORKER_READY_03, b"other", b"")
    scene.offer(B, echo=1)
    scene.ask(1)
    lent = scene.lent()
    scene.out(scene.machine.peer_lost(b"client", 0.0))
    assert scene.lent() == SendToPeer(B, [CLIENT_CANCEL_03 + lent.frames[0][7:]])
    assert scene.answer(B, lent, CLIENT_ERROR_03, b"CANCELLED", b"") == []
    assert scene.machine.idle


def test_peers_are_no_workers_that_share_a_connection() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    (row,) = json.loads(scene.say(b"client", CLIENT_REQUEST_03 + bytes(8), b"mmi.workers", b"", b"")[0][3])
    assert (row["version"], row.get("connection")) == ("lent by B", None)


def test_a_service_only_peers_have_is_offered_but_not_lent_on() -> None:
    scene = Scene()
    assert scene.ask(1)[0][2] == b"NO_SERVICE"
    scene.offer(B, echo=0)
    service = scene.say(b"client", CLIENT_REQUEST_03 + bytes(8), b"mmi.service", b"", b"echo")
    assert service[0][2] == b"200"
    assert offer_of(scene.machine, 1000)[0] == b"A"
    assert decode_offer([b"200", *offer_of(scene.machine, 1000)]) == (b"A", {})
    scene.offer(B)
    assert scene.ask(2)[0][2] == b"NO_SERVICE"


@pytest.mark.parametrize(
    ("hops_max", "via", "peer", "lent"),
    [
        (1, [b"X"], b"B", False),  # PEER-03
        (2, [b"X"], b"B", True),
        (2, [b"B"], b"B", False),  # it has been there
        (9, [b"A"], b"B", False),  # it has been here
        (2, [7], b"B", False),  # its route is unknown
        (2, "X", b"B", False),
    ],
)
def test_n8_loops_are_refused_and_hops_limited(hops_max: int, via: object, peer: bytes, lent: bool) -> None:
    scene = Scene(hops_max=hops_max)
    scene.offer(B, peer, echo=1)
    scene.ask(1, options=msgpack.packb({"via": via}))
    assert bool(scene.to_peers) is lent
    if lent:
        assert via_of(plain([scene.lent().frames])[0][2]) == (b"X", b"A")


def test_a_request_that_may_not_go_on_does_not_hold_up_those_behind_it() -> None:
    scene = Scene()
    scene.offer(B, echo=0)
    scene.ask(1, options=msgpack.packb({"via": [b"X"]}))
    scene.ask(2)
    scene.offer(B, echo=5)
    assert len(scene.to_peers) == 1
    (work,) = scene.say(b"worker", WORKER_READY_03, b"echo", encode_options({"credit": 4}))
    assert work[0] == b"worker"
    assert via_of(work[2]) == (b"X",)


def test_a_request_whose_worker_was_lost_and_that_may_not_go_on_keeps_its_place() -> None:
    """It is for workers heard from after the loss, even if it was offered in vain to a peer before."""
    scene = Scene()
    scene.say(b"W1", WORKER_READY_03, b"echo", b"")
    scene.ask(1, options=msgpack.packb({"via": [b"X"]}))
    scene.say(b"W2", WORKER_READY_03, b"echo", b"")
    scene.out(scene.machine.peer_lost(b"W1", scene.now))
    scene.now += 0.5
    scene.offer(B, echo=5)
    assert not scene.to_peers
    check_invariants(scene.machine)
    (work,) = scene.say(b"W2", WORKER_HEARTBEAT_03)
    assert work[0] == b"W2"


@pytest.mark.parametrize(("name", "whose"), [(b"A", "this broker"), (b"B", B)])
def test_n8_a_peer_with_a_name_that_is_taken_is_refused(name: bytes, whose: str) -> None:
    scene = Scene()
    scene.offer(B, echo=0)
    scene.offer(C, name, echo=5)
    scene.ask(1)
    assert scene.to_peers == []
    (warning,) = scene.lending.warnings
    assert C in warning
    assert whose in warning


@pytest.mark.parametrize(
    "body",
    [[], [b"501"], [b"200"], [b"200", b"B", b"\xc1"], [b"200", b"B", msgpack.packb([1])], [b"200", b"B", msgpack.packb({"echo": 1})]]
    + [[b"200", b"B", msgpack.packb(None)]]
    + [[b"200", b"B", msgpack.packb({b"echo": count})] for count in (-1, 1.5, True, "1")]
    + [[b"200", b"x" * 256, msgpack.packb({})], [b"200", b"B", msgpack.packb({b"": 1})]],
)
def test_a_peer_that_does_not_lend_is_logged_and_not_asked(body: list[bytes]) -> None:
    scene = Scene()
    scene.offer(B, echo=5)
    scene.out(scene.lending.on_offer(B, body, 0.0))
    assert scene.lending.counters["offers_refused"] == 1
    assert scene.ask(1)[0][2] == b"NO_SERVICE"
    assert len(scene.lending.warnings) == 1


def test_a_peer_without_a_name_lends_under_its_endpoint() -> None:
    scene = Scene()
    scene.offer(B, b"", echo=1)
    scene.ask(1)
    assert scene.lent().endpoint == B


def test_a_request_that_could_not_be_sent_goes_to_another_worker() -> None:
    scene = Scene()
    scene.offer(B, echo=5)
    scene.ask(1)
    assert scene.out(scene.lending.unsent(scene.lent(), 0.0)) == []
    assert scene.to_peers == []
    scene.offer(C, b"C", echo=1)
    assert scene.lent().endpoint == C


# ------------------------------------------------------------------------------------------------------------------ too large for peers


def limited(limits: dict[str, PeerLimits], **options: Any) -> Scene:
    scene = Scene(**options)
    scene.lending = LendingMachine(scene.machine, b"A", limits_of=limits.get)
    return scene


def too_large(number: int, text: bytes) -> list[list[bytes]]:
    return [[b"client", CLIENT_ERROR_03 + number.to_bytes(8, "big"), b"TOO_LARGE", text]]


def test_a_request_that_no_peer_takes_has_failed_with_both_numbers() -> None:
    scene = limited({B: PeerLimits(parts=10, message_bytes=1000)})
    scene.offer(B, echo=2)
    head = CLIENT_REQUEST_03 + bytes(7)
    assert scene.say(b"client", head + b"\x01", b"echo", b"", *[b"x"] * 8) == too_large(1, b"frames of the request: 8, at most 7")
    assert scene.to_peers == []
    scene.say(b"client", head + b"\x02", b"echo", b"", *[b"x"] * 7)
    assert plain([scene.lent().frames])[0][3:] == [b"x"] * 7
    assert scene.lending.counters["too_large"] == 1
    assert scene.machine.counters.as_dict()["error_too_large"] == 1


def test_a_request_may_grow_too_large_by_what_is_added_on_its_way() -> None:
    """The options `via`, which say where it has been: 15 octets of head, 4 of name, 10 of options."""
    limit = 15 + 4 + len(extend_via(b"", (), b"A")) + 500
    scene = limited({B: PeerLimits(message_bytes=limit)})
    scene.offer(B, echo=2)
    head = CLIENT_REQUEST_03 + bytes(7)
    assert scene.say(b"client", head + b"\x01", b"echo", b"", bytes(501)) == too_large(1, b"bytes of the request: 501, at most 500")
    scene.say(b"client", head + b"\x02", b"echo", b"", bytes(500))
    assert scene.lent()


def test_options_that_would_outgrow_their_limit_are_not_sent() -> None:
    scene = Scene(name=b"A" * 200)
    scene.offer(B, echo=2)
    options = encode_options({"key": b"k", "note": b"t" * (OPTIONS_BYTES_MAX - 100)})
    (answer,) = scene.ask(1, options=options)
    grown = len(extend_via(options, (), b"A" * 200))
    assert answer[2:] == [b"TOO_LARGE", b"bytes of the options of the request: %d, at most %d" % (grown, OPTIONS_BYTES_MAX)]


def test_a_request_that_is_too_large_for_one_peer_goes_to_another() -> None:
    scene = limited({B: PeerLimits(parts=10), C: PeerLimits(parts=1000)})
    scene.offer(B, b"B", echo=9)
    scene.offer(C, b"C", echo=1)
    head = CLIENT_REQUEST_03 + bytes(7)
    assert scene.say(b"client", head + b"\x01", b"echo", b"", *[b"x"] * 50) == []
    first = scene.lent()
    assert first.endpoint == C
    assert scene.say(b"client", head + b"\x02", b"echo", b"", *[b"x"] * 50) == [], "it waits for the one that takes it"
    assert scene.to_peers == []
    assert scene.answer(C, first, CLIENT_FINAL_03, b"done") == [reply(1, b"done")]
    assert scene.lent().endpoint == C


def test_a_request_that_is_too_large_for_peers_waits_for_a_worker_here() -> None:
    scene = limited({B: PeerLimits(parts=10)})
    scene.offer(B, echo=9)
    scene.say(b"worker", WORKER_READY_03, b"echo", encode_options({"credit": 1}))
    (work,) = scene.ask(1)
    head = CLIENT_REQUEST_03 + bytes(7)
    assert scene.say(b"client", head + b"\x02", b"echo", b"", *[b"x"] * 50) == []
    assert scene.to_peers == []
    answered, given = scene.say(b"worker", WORKER_FINAL_03 + work[1][7:], b"here")
    assert answered == reply(1, b"here")
    assert given[0] == b"worker"
    assert given[3:] == [b"x"] * 50


def test_a_request_of_an_older_dialect_is_too_large_for_a_peer_by_its_envelope() -> None:
    """MDP/0.1 has no such error; it is counted, and no peer is disconnected."""
    scene = Scene()
    scene.offer(B, echo=2)
    assert scene.say(b"client", b"", MDPC01, b"echo", *[b"x"] * 1021) == []
    assert scene.lent()
    assert scene.say(b"client", b"", MDPC01, b"echo", *[b"x"] * 1022) == []
    assert scene.to_peers == []
    assert scene.machine.counters.as_dict()["silent_too_large"] == 1


def test_expired_requests_are_not_lent() -> None:
    scene = Scene()
    scene.offer(B, echo=0)
    scene.ask(1, options=encode_options({"deadline_ms": 100}))
    scene.now = 0.2
    (error,) = scene.offer(B, echo=1)
    assert error[2] == b"DEADLINE_EXCEEDED"
    assert scene.to_peers == []


def test_a_broker_that_stops_cancels_what_it_lent() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1)
    out = scene.machine.stop(0.0)
    to_peers = scene.lending.take_for_peers(out)
    assert [frames[2] for frames in decoded(out)] == [b"WORKER_LOST"]
    assert [one.frames[0][:7] for one in to_peers] == [CLIENT_CANCEL_03]


def test_options_are_passed_to_the_peer() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1, options=encode_options({"key": b"k", "trace": {"id": "7"}}))
    options = msgpack.unpackb(plain([scene.lent().frames])[0][2])
    assert options == {"key": b"k", "trace": {"id": "7"}, "via": [b"A"]}


def test_services_beyond_the_limit_are_not_borrowed() -> None:
    scene = Scene(services_max=1)
    scene.say(b"worker", WORKER_READY_03, b"mine", b"")
    scene.offer(B, echo=1)
    assert scene.lending.counters["services_refused"] == 1
    assert scene.ask(1)[0][2] in (b"NO_SERVICE", b"BUSY")


def test_invalid_answers_are_dropped() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1)
    lent = scene.lent()
    for command, body in ((CLIENT_FINAL_03, []), (CLIENT_PARTIAL_03, []), (CLIENT_ERROR_03, [b"BUSY"]), (CLIENT_CANCEL_03, [b"x"])):
        assert scene.answer(B, lent, command, *body) == []
    assert scene.out(scene.lending.on_answers(B, [[b"short"], [], [b"MDPC03\x03" + bytes(8), b"x"]], 0.0)) == []
    assert (scene.lending.counters["answers_malformed"], scene.lending.counters["answers_unknown"]) == (4, 3)
    assert scene.answer(C, lent, CLIENT_FINAL_03, b"not asked") == []
    assert scene.answer(B, lent, CLIENT_FINAL_03, b"done") == [reply(1, b"done")]


@pytest.mark.parametrize("options", [b"\xc1", msgpack.packb([1]), msgpack.packb({"via": [b"X"] * 65}), msgpack.packb({"via": {}})])
def test_an_invalid_via_is_none(options: bytes) -> None:
    assert via_of(options) is None


def test_via_grows_by_one() -> None:
    assert via_of(b"") == ()
    assert via_of(extend_via(b"", (), b"A")) == (b"A",)
    assert via_of(extend_via(extend_via(b"", (), b"A"), (b"A",), b"B")) == (b"A", b"B")


def test_an_offer_is_truncated_where_it_gets_too_large() -> None:
    scene = Scene()
    for number in range(20):
        scene.say(b"w%d" % number, WORKER_READY_03, b"service-%02d" % number, b"")
    answer = decode_offer([b"200", *offer_of(scene.machine, 100)])
    assert answer is not None
    assert len(answer[1]) == 5


def test_lending_is_queried_like_any_mmi() -> None:
    scene = Scene()
    scene.say(b"worker", WORKER_READY_03, b"echo", encode_options({"credit": 3}))
    ((_, _, *body),) = scene.say(b"client", CLIENT_REQUEST_03 + bytes(8), LENDING_SERVICE, b"", b"B")
    assert decode_offer(body) == (b"A", {b"echo": 3})


def test_x2_an_offer_has_as_many_services_as_its_bytes_pay_for() -> None:
    def offer(count: int) -> list[bytes]:
        return [b"200", b"A", msgpack.packb({b"%x" % number: 1 for number in range(count)})]

    assert len((decode_offer(offer(1_000)) or (b"", {}))[1]) == 1_000
    assert decode_offer(offer(9_000)) is None, "names of three characters"
    longer = [b"200", b"A", msgpack.packb({b"service-%04d" % number: 1 for number in range(9_000)})]
    assert len((decode_offer(longer) or (b"", {}))[1]) == 9_000
