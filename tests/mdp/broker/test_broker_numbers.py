"""The broker's machine: times, counters and states are exactly what was asked for and what happened, not something near it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bstar.machine.ballot import Ballot
from core.zmtp.limits import PeerLimits
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.recorder import Recorder
from mdp.broker.requests.request_states import RequestState
from mdp.broker.workers.peer_limits import Hops
from mdp.wire.commands import client_request, worker_error, worker_partial, worker_ready, worker_return
from mdp.wire.events import Failure, Final, Partial, Work
from mdp.wire.failover import PAIR_SERVICE, PairResponder, ballot_text
from mdp.wire.options import encode_options
from tests.mdp.broker.recordings.recorded_scene import Tale
from tests.scenes.builds import stands_in
from tests.scenes.mdp_dispatcher import DIALECTS, Scene, batch, decoded, number

if TYPE_CHECKING:
    from mdp.broker.requests.records import Request
    from mdp.wire.commands import Dialect

KEY: dict[str, object] = {"key": b"order-17"}
WAIT: dict[str, object] = {**KEY, "wait": True}


def open_requests(scene: Scene, client: bytes) -> list[Request]:
    return [*scene.machine.request_table.clients[client].values()]


def test_the_time_in_the_queue_is_as_long_as_was_asked_for() -> None:
    scene = Scene(queue_ms=100_000)
    scene.ask("0.3", b"C1", options={"wait": True})
    scene.wait(99.95)
    assert scene.at_client(b"C1") == []
    scene.wait(0.1)
    assert scene.failure(b"C1") == "NO_SERVICE"


def test_the_time_a_silent_worker_may_be_busy_is_as_long_as_was_asked_for() -> None:
    scene = Scene(busy_ms=100_000)
    scene.ready("0.1", b"W1")
    scene.ask("0.3", b"C1", options={"wait": True})
    scene.wait(99.95)
    assert b"W1" in scene.machine.directory.workers
    scene.wait(0.1)
    assert b"W1" not in scene.machine.directory.workers
    assert scene.counters["workers_stuck"] == 1


def test_a_worker_of_one_service_too_many_is_refused_and_counted() -> None:
    scene = Scene(services_max=2)
    scene.ready("0.3", b"W1", b"one")
    scene.ready("0.3", b"W2", b"two")
    assert (scene.counters["services_refused"], scene.counters["ready_refused"]) == (0, 0)
    scene.ready("0.3", b"W3", b"three")
    assert scene.is_sent_away(b"W3")
    assert (scene.counters["services_refused"], scene.counters["ready_refused"]) == (1, 1)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_heartbeat_that_goes_out_and_each_request_that_is_done_is_counted(dialect: Dialect) -> None:
    scene = Scene(heartbeat_ms=1000)
    scene.ready(dialect, b"W1")
    worker = scene.machine.directory.workers[b"W1"]
    for client in ("0.1", "0.2", "0.3"):
        done = worker.done
        scene.ask(client, client.encode())
        work = scene.work(b"W1")
        if dialect == "0.3" and client == "0.3":
            scene.send(b"W1", worker_error(work.id, "HANDLER_ERROR", "no"))
        else:
            scene.answer(b"W1", work)
        assert worker.done == done + 1
    sent = 0
    for _ in range(3):
        sent += len(scene.got(b"W1"))
        scene.beat(b"W1")
        scene.wait(1.0)
    sent += len(scene.got(b"W1"))
    assert sent == scene.counters["heartbeats_sent"] >= 3


def test_deadlines_that_are_over_in_one_tick_end_in_their_order() -> None:
    scene = Scene()
    ids = [scene.ask("0.3", b"C1", options={"wait": True, "deadline_ms": deadline_ms}) for deadline_ms in (300, 100, 200)]
    scene.now += 1.0
    scene.both("tick")
    assert [event.id for event in scene.at_client(b"C1") if isinstance(event, Failure)] == [ids[1], ids[2], ids[0]]


@stands_in
def test_a_fault_at_one_deadline_is_not_the_end_of_the_clock_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    for client in (b"C1", b"C2", b"C3"):
        scene.ask("0.3", client, options={"wait": True, "deadline_ms": 100})
    scene.now += 0.2
    for machine in (scene.machine, scene.twin):
        with monkeypatch.context() as patch:
            patch.setattr(machine.request_table, "expire_deadline", {}.__getitem__)
            with pytest.raises(TypeError):
                machine.tick(scene.now)
        assert machine.deadline() <= scene.now
    scene.both("tick")
    assert [scene.failure(client) for client in (b"C1", b"C2", b"C3")] == ["DEADLINE_EXCEEDED"] * 3


def test_a_record_says_how_its_request_ended() -> None:
    """A request that was taken over is merged.

    One that no client waits for is forgotten when its worker answers, fails or is lost.
    """
    for end in ("answer", "error", "loss"):
        scene = Scene()
        scene.ready("0.3", b"W1")
        for client in (b"C1", b"C2"):
            scene.ask("0.3", client, options=WAIT)
        (first,), (follower,) = open_requests(scene, b"C1"), open_requests(scene, b"C2")
        assert [one.state for one in (first, follower)] == [RequestState.GIVEN, RequestState.FOLLOWING]
        assert follower.given == 0.0 < first.given  # what the record of events shows of it
        work = scene.work(b"W1")
        scene.lose(b"C1")
        assert [one.state for one in (first, follower)] == [RequestState.GIVEN, RequestState.MERGED]
        assert first.client == b"C2"
        scene.lose(b"C2")
        assert [first.state] == [RequestState.UNCLAIMED]
        if end == "answer":
            scene.answer(b"W1", work)
            assert scene.counters["replies_kept"] == 1
        elif end == "error":
            scene.send(b"W1", worker_error(work.id, "HANDLER_ERROR", "no"))
        else:
            scene.lose(b"W1")
        assert [first.state] == [RequestState.FORGOTTEN]
        assert scene.machine.idle


@pytest.mark.parametrize("narrow", [(b"C1",), (b"C2",), (b"C1", b"C2"), (b"C2", b"C3"), (b"C1", b"C2", b"C3")])
def test_a_part_that_is_too_large_for_some_who_wait_ends_these_and_no_other(narrow: tuple[bytes, ...]) -> None:
    scene = Scene()
    for machine in (scene.machine, scene.twin):
        machine.request_table.hops = Hops(told=lambda peer: PeerLimits(message_bytes=1000) if peer in narrow else None)
    scene.ready("0.3", b"W1")
    clients = (b"C1", b"C2", b"C3")
    for client in clients:
        scene.both("peer_joined", client)
        scene.ask("0.3", client, options=WAIT)
    work = scene.work(b"W1")
    scene.send(b"W1", worker_partial("0.3", work.id, [b"small"]))
    scene.send(b"W1", worker_partial("0.3", work.id, [bytes(2000)]))
    for client in clients:
        first, second = scene.at_client(client)
        assert isinstance(first, Partial)
        assert getattr(second, "code", "") == ("TOO_LARGE" if client in narrow else "")
    if len(narrow) < 3:
        scene.answer(b"W1", work, b"end")
    for client in clients:
        assert [type(event) for event in scene.at_client(client)] == ([] if client in narrow else [Final])
    assert scene.machine.idle
    assert not any(isinstance(event, Work) for event in scene.at_worker(b"W1"))


@pytest.mark.parametrize(("first", "token"), [(7, 7), (2**63, 0), (2**64 - 1, 2**61 - 1)])
def test_numbers_begin_so_low_that_none_ever_needs_more_than_eight_octets(first: int, token: int) -> None:
    machine = Dispatcher(first_number=first, now=1000.0)
    machine.receive(batch(b"W1", worker_ready("0.3", b"echo")), 1000.0)
    out = machine.receive(batch(b"C1", client_request("0.3", b"echo", [b"x"], id=number(1))), 1000.0)
    assert [message[1][-8:] for message in decoded(out)] == [number(token)]


@stands_in
def test_a_fault_with_one_worker_is_not_the_end_of_the_clock_of_the_others() -> None:
    class Broken(Recorder):
        def worker_lost(self, worker: object, why: str) -> None:
            raise OSError("no room for the event log")

    scene = Scene(heartbeat_ms=1000)
    for peer in (b"W1", b"W2", b"W3"):
        scene.ready("0.3", peer)
    scene.wait(2.9)
    scene.now = 1003.0
    for machine in (scene.machine, scene.twin):
        machine.request_table.recorder = Broken()
        with pytest.raises(OSError, match="no room"):
            machine.tick(scene.now)
        machine.request_table.recorder = None
    scene.wait(1.0)
    assert not scene.machine.directory.workers


def test_a_broker_of_a_pair_remembers_which_client_named_a_higher_ballot() -> None:
    """BST-33."""
    scene = Scene()
    responders = scene.machine.pair, scene.twin.pair = PairResponder(Ballot(5, 1)), PairResponder(Ballot(5, 1))
    for dialect in DIALECTS:
        scene.ask(dialect, b"C" + dialect.encode(), ballot_text(Ballot(6, 9)), service=PAIR_SERVICE)
    for responder in responders:
        assert responder.claimed == [(b"C" + dialect.encode(), Ballot(6, 9)) for dialect in DIALECTS]


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("worker", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
def test_a_worker_gets_what_has_exactly_as_many_octets_as_it_takes_and_nothing_larger(
    client: Dialect, worker: Dialect, guarded: bool
) -> None:
    """The options that the broker adds are counted: the user, the delivery."""
    tale = Tale(guarded=guarded, narrow=(b"W1",), client_queue_max=9)
    tale.comes(worker)
    wish: dict[str, Any] = {"once": True, "deadline_ms": 90_000} if client == "0.3" else {}
    largest = 0
    for size in range(29_930, 30_001):
        tale.got(b"W1")
        tale.asks(client, b"C1", bytes(size), **wish)
        if tale.tokens.get(b"W1"):
            (frames,) = tale.got(b"W1")
            largest = sum(map(len, frames))
            assert largest <= 30_000
            tale.ends(worker)
        else:
            assert tale.counters["error_too_large"] + tale.counters["silent_too_large"] > 0
    assert largest == 30_000
    assert tale.machine.idle


@pytest.mark.parametrize("worker", DIALECTS)
@pytest.mark.parametrize("client", DIALECTS)
def test_the_record_of_what_was_answered_says_so(client: Dialect, worker: Dialect) -> None:
    scene = Scene()
    scene.ready(worker, b"W1")
    scene.ask(client, b"C1")
    records = [request for machine in (scene.machine, scene.twin) for request in machine.request_table.clients[b"C1"].values()]
    scene.answer(b"W1", scene.work(b"W1"))
    assert [request.state for request in records] == [RequestState.ANSWERED] * 2


def test_what_is_given_back_for_nobody_is_forgotten() -> None:
    scene = Scene()
    scene.send(b"W1", worker_ready("0.3", b"echo", options=encode_options({"credit": 3, "concurrency": 1})))
    scene.ask("0.3", b"C9")
    scene.work(b"W1")
    scene.ask("0.3", b"C1", options=KEY)
    work = scene.work(b"W1")
    (record,) = open_requests(scene, b"C1")
    scene.send(b"W2", worker_ready("0.3", b"echo", options=encode_options({"credit": 1, "concurrency": 1})))
    scene.wait(0.1)
    scene.lose(b"C1")
    scene.send(b"W1", worker_return(work.id))
    assert record.state is RequestState.FORGOTTEN
