"""Borrowing at its edges: counters, reports of progress, users, requests behind a failure."""

from __future__ import annotations

import msgpack
import pytest

from core.zmtp.limits import PeerLimits
from mdp.access.service_policies import ServicePolicies
from mdp.cluster.lending import EXAMINED_MAX
from mdp.wire.commands import (
    CLIENT_CANCEL_03,
    CLIENT_ERROR_03,
    CLIENT_FINAL_03,
    CLIENT_PARTIAL_03,
    CLIENT_PROGRESS_03,
    CLIENT_REQUEST_03,
    PROGRESS_BYTES_MAX,
    WORKER_READY_03,
)
from mdp.wire.options import encode_options
from tests.scenes.mdp_lending import B, C, Scene, plain, reply


def test_what_is_counted() -> None:
    scene = Scene()
    counters = scene.lending.counters
    scene.offer(B, echo=2)
    scene.ask(1)
    first = scene.lent()
    scene.answer(B, first, CLIENT_FINAL_03, b"done")
    assert counters == {"offers": 1, "lent": 1, "answered": 1}
    (worker,) = scene.machine.directory.services[b"echo"].workers.values()
    assert (worker.done, worker.version) == (1, "lent by B")
    scene.ask(2)
    scene.out(scene.machine.peer_lost(b"client", 0.0))
    assert counters == {"offers": 1, "lent": 2, "answered": 1, "cancelled": 1}
    scene.ask(3, client=b"other")
    scene.answer(B, scene.lent(), CLIENT_ERROR_03, b"BUSY", b"why")
    assert counters["given_back"] == 1
    scene.offer(B, echo=2)
    assert counters["lent"] == 4
    scene.out(scene.lending.on_peer_lost(B, 0.0))
    # With the cancelled one, which was in flight at the peer too.
    assert (counters["peers_lost"], counters["given_back"], counters["offers"]) == (1, 3, 2)
    scene.out(scene.lending.on_peer_lost(B, 0.0))
    assert counters["peers_lost"] == 1
    scene.offer(C, b"A", echo=1)
    assert (counters["peers_refused"], counters["offers"]) == (1, 2)


def test_reports_of_progress_come_to_the_client() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1, options=encode_options({"progress": True}))
    lent = scene.lent()
    head = bytes(7) + b"\x01"
    for report in (b"", b"x", bytes(PROGRESS_BYTES_MAX)):
        assert scene.answer(B, lent, CLIENT_PROGRESS_03, report) == [[b"client", CLIENT_PROGRESS_03 + head, report]]
    wrong: tuple[list[bytes], ...] = ([bytes(PROGRESS_BYTES_MAX + 1)], [], [b"x", b"y"])
    for body in wrong:
        assert scene.answer(B, lent, CLIENT_PROGRESS_03, *body) == []
    for command in (CLIENT_PARTIAL_03, CLIENT_FINAL_03):
        assert scene.answer(B, lent, command) == []
    assert scene.lending.counters["answers_malformed"] == 5
    assert scene.answer(B, lent, CLIENT_FINAL_03, b"done") == [reply(1, b"done")]


def test_the_user_of_a_request_is_passed_on() -> None:
    scene = Scene()
    scene.machine.request_table.user_of = lambda peer: f"user of {peer.decode()}"
    scene.offer(B, echo=2)
    for number, options in ((1, b""), (2, encode_options({"key": b"k"}))):
        scene.ask(number, options=options)
        lent = plain([scene.lent().frames])[0]
        told = msgpack.unpackb(lent[2])
        assert (lent[1], told["user"], told["via"]) == (b"echo", "user of client", [b"A"])
        assert told.get("key") == (b"k" if options else None)


def test_requests_with_one_key_fail_together() -> None:
    scene = Scene()
    options = encode_options({"key": b"k"})
    scene.offer(B, echo=2)
    scene.ask(1, options=options)
    first = scene.lent()
    assert scene.ask(2, options=options) == []
    assert scene.to_peers == []
    out = scene.answer(B, first, CLIENT_ERROR_03, b"HANDLER_ERROR", b"why")
    assert [(frames[1][-1], frames[2]) for frames in out] == [(1, b"HANDLER_ERROR"), (2, b"HANDLER_ERROR")]
    assert scene.machine.idle


def test_what_a_peer_gives_back_goes_to_a_free_worker_here_at_once() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1)
    lent = scene.lent()
    scene.say(b"worker", WORKER_READY_03, b"echo", encode_options({"credit": 1}))
    (work,) = scene.answer(B, lent, CLIENT_ERROR_03, b"BUSY", b"why")
    assert (work[0], work[-1]) == (b"worker", b"body")
    assert scene.to_peers == []


def test_a_request_that_could_not_be_sent_goes_to_a_free_worker_here_at_once() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1)
    lent = scene.lent()
    scene.say(b"worker", WORKER_READY_03, b"echo", encode_options({"credit": 1}))
    cancel = lent._replace(frames=[CLIENT_CANCEL_03 + lent.frames[0][7:]])
    assert scene.out(scene.lending.unsent(cancel, scene.now)) == []
    (work,) = scene.out(scene.lending.unsent(lent, scene.now))
    assert work[0] == b"worker"
    assert scene.out(scene.lending.unsent(lent, scene.now)) == []


def test_workers_are_needed_while_requests_wait_and_no_peer_is_free() -> None:
    scene = Scene()
    assert not scene.lending.needs_workers
    scene.offer(B, echo=1)
    scene.ask(1)
    assert not scene.lending.needs_workers
    scene.ask(2)
    assert scene.lending.needs_workers
    scene.offer(C, b"C", echo=1)
    assert not scene.lending.needs_workers


def test_a_peer_that_offers_a_service_no_longer_keeps_what_it_has() -> None:
    scene = Scene()
    scene.offer(B, echo=1, other=1)
    scene.ask(1)
    lent = scene.lent()
    services = scene.machine.directory.services
    scene.offer(B)
    assert [len(services[name].workers) for name in (b"echo", b"other")] == [1, 0]
    assert scene.answer(B, lent, CLIENT_FINAL_03, b"done") == [reply(1, b"done")]
    scene.offer(B)
    assert [len(services[name].workers) for name in (b"echo", b"other")] == [0, 0]


def test_so_many_requests_that_may_not_go_on_are_looked_at() -> None:
    """The one behind them waits."""
    for before, lent in ((EXAMINED_MAX - 1, 1), (EXAMINED_MAX, 0)):
        scene = Scene(queue_ms=1e6)
        for number in range(before):
            scene.ask(number, options=msgpack.packb({"via": [b"B"], "wait": True}))
        scene.ask(before, options=encode_options({"wait": True}))
        scene.offer(B, echo=1)
        assert len(scene.to_peers) == lent


def test_an_error_of_a_peer_is_shortened() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1)
    ((_, head, code, text),) = scene.answer(B, scene.lent(), CLIENT_ERROR_03, b"C" * 65, b"t" * 5000)
    assert (head, code) == (CLIENT_ERROR_03 + bytes(7) + b"\x01", b"C" * 64)
    assert len(text) <= 1024


def test_a_large_request_goes_to_a_peer_of_its_service() -> None:
    """Another peer that would take it has no such worker."""
    limits = {B: PeerLimits(100, 300, 300)}
    scene = Scene()
    scene.lending._limits_of = limits.get
    scene.offer(B, echo=1)
    scene.offer(C, b"C", other=1)
    (error,) = scene.say(b"client", CLIENT_REQUEST_03 + bytes(8), b"echo", b"", bytes(1000))
    assert error[2] == b"TOO_LARGE"
    assert scene.to_peers == []


@pytest.mark.parametrize("code", [b"NO_SERVICE", b"BUSY", b""])
def test_a_request_that_no_worker_of_a_peer_got_is_not_counted_as_lost_with_one(code: bytes) -> None:
    scene = Scene(deliveries_max=2)
    scene.ask(1, options=encode_options({"once": True, "wait": True}))
    for _ in range(5):
        scene.offer(B, echo=1)
        lent = scene.lent()
        assert (scene.answer(B, lent, CLIENT_ERROR_03, code, b"why") if code else scene.out(scene.lending.unsent(lent, scene.now))) == []
        assert scene.to_peers == []
    scene.offer(C, b"C", echo=1)
    assert scene.answer(C, scene.lent(), CLIENT_FINAL_03, b"done") == [reply(1, b"done")]
    assert scene.lending.counters["given_back"] == 5


def test_a_peer_that_answered_in_part_and_then_refuses_is_a_lost_one() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1)
    lent = scene.lent()
    scene.answer(B, lent, CLIENT_PARTIAL_03, b"part")
    assert [frames[2] for frames in scene.answer(B, lent, CLIENT_ERROR_03, b"BUSY", b"why")] == [b"WORKER_LOST"]


def test_a_request_that_peers_refuse_does_not_wait_for_longer() -> None:
    scene = Scene(queue_ms=1000)
    scene.offer(B, echo=1)
    scene.say(b"client", b"", b"MDPC01", b"echo", b"body")
    for scene.now in (0.4, 0.8):
        scene.answer(B, scene.lent(), CLIENT_ERROR_03, b"BUSY", b"why")
        scene.offer(B, echo=1)
    lent = scene.lent()
    scene.now = 1.2
    scene.answer(B, lent, CLIENT_ERROR_03, b"BUSY", b"why")
    scene.offer(B, echo=1)
    assert scene.to_peers == []
    assert scene.machine.idle


def test_a_peer_that_refuses_gets_nothing_until_its_next_offer() -> None:
    """It finishes what it has while it drains: an answer is no free worker."""
    scene = Scene()
    scene.offer(B, echo=2)
    scene.ask(1)
    first = scene.lent()
    scene.ask(2)
    scene.answer(B, scene.lent(), CLIENT_ERROR_03, b"BUSY", b"why")
    assert scene.answer(B, first, CLIENT_FINAL_03, b"done") == [reply(1, b"done")]
    assert scene.to_peers == []
    scene.offer(B, echo=1)
    assert scene.lent().endpoint == B


def test_requests_of_a_service_with_policies_are_not_lent() -> None:
    """This broker alone decides when one is given."""
    scene = Scene()
    scene.machine.set_policies(ServicePolicies({"policy": [{"services": ["echo"], "rate": {"per_s": 100, "burst": 100}}]}), scene.now)
    scene.offer(B, echo=1)
    scene.ask(1)
    assert (scene.to_peers, scene.machine.stats()["queued"]) == ([], 1)


@pytest.mark.parametrize("first", ["expired", "too large"])
def test_a_request_behind_one_that_ends_is_lent_with_the_same_offer(first: str) -> None:
    scene = Scene()
    scene.lending._limits_of = {B: PeerLimits(parts=10)}.get
    scene.offer(B, echo=0)
    head = CLIENT_REQUEST_03 + bytes(8)
    scene.say(b"client", head, b"echo", encode_options({"deadline_ms": 125}), *[b"x"] * (1 if first == "expired" else 50))
    scene.ask(2)
    scene.now = 0.125 if first == "expired" else 0.0
    (error,) = scene.offer(B, echo=1)
    assert error[2] == (b"DEADLINE_EXCEEDED" if first == "expired" else b"TOO_LARGE")
    assert scene.lent().endpoint == B


def test_an_answer_of_a_peer_shows_that_it_gets_what_a_lost_worker_had() -> None:
    """MDP-37."""
    scene = Scene()
    scene.offer(B, echo=2)
    scene.ask(1)
    first = scene.lent()
    scene.say(b"worker", WORKER_READY_03, b"echo", encode_options({"credit": 1}))
    scene.ask(2)
    scene.now = 1.0
    scene.out(scene.machine.peer_lost(b"worker", scene.now))
    assert (scene.to_peers, scene.lending.needs_workers) == ([], True)
    scene.now = 2.0
    scene.answer(B, first, CLIENT_FINAL_03, b"done")
    assert scene.lent().endpoint == B


def test_what_a_peer_has_lost_is_counted_once() -> None:
    scene = Scene()
    scene.offer(B, echo=1)
    scene.ask(1)
    scene.answer(B, scene.lent(), CLIENT_ERROR_03, b"WORKER_LOST", b"why")
    assert scene.lending.counters["given_back"] == 1
