"""Clients, queues, worker choice and time in the broker (MDP-31 to MDP-34, MDP-41 to MDP-47).

Faults B4, B5 and B8; conformance 9.6.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from mdp.wire.commands import worker_disconnect, worker_error, worker_partial
from mdp.wire.events import Cancel, Failure, Final, Partial, Work
from tests.scenes.mdp_dispatcher import DIALECTS, ECHO, Scene
from tests.scenes.mdp_messages import client_cancel

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect

PAIRS = list(product(DIALECTS, DIALECTS))


@pytest.mark.parametrize(("client", "worker"), PAIRS)
@pytest.mark.parametrize("body", [[b"x"], [b""], [b"", b"a", b""], [b"a" * 255], [b"a" * 256, b"b" * 70_000]])
def test_mdp_07_bodies_pass_unchanged_between_all_dialects(client: Dialect, worker: Dialect, body: list[bytes]) -> None:
    """MDP-02, MDP-07, MDP-40, MDP-43: number and content of body frames stay; each peer is answered in its dialect."""
    scene = Scene()
    scene.ready(worker, b"W1")
    request_id = scene.ask(client, b"C1", *body)
    work = scene.work(b"W1")
    assert work.dialect == worker
    assert [*work.body] == body
    scene.answer(b"W1", work, *reversed(body))
    (event,) = scene.at_client(b"C1")
    assert isinstance(event, Final)
    assert [*event.body] == [*reversed(body)]
    assert event.dialect == client
    assert event.id == request_id
    assert event.service == (b"" if client == "0.3" else ECHO)  # MDP-40
    scene.check()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_mdp_31_one_outstanding_request_per_worker_and_fifo(dialect: Dialect) -> None:
    scene = Scene()
    scene.ready(dialect, b"W1")
    bodies = [b"%d" % i for i in range(5)]
    for body in bodies:
        scene.ask(dialect, b"C1", body)
    seen = []
    for _ in bodies:
        work = scene.work(b"W1")
        seen.append(work.body[0])
        scene.answer(b"W1", work)
    assert seen == bodies
    scene.check()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_mdp_31_clients_take_turns(dialect: Dialect) -> None:
    """MDP-31: one client with a long queue does not keep another one waiting behind all of it."""
    scene = Scene()
    for i in range(4):
        scene.ask("0.1", b"A", b"A%d" % i)
    scene.ask("0.1", b"B", b"B0")
    scene.ask("0.1", b"C", b"C0")
    scene.ask("0.1", b"C", b"C1")
    scene.ready(dialect, b"W1")
    seen = []
    for _ in range(7):
        work = scene.work(b"W1")
        seen.append(work.body[0])
        scene.answer(b"W1", work)
    assert seen == [b"A0", b"B0", b"C0", b"A1", b"C1", b"A2", b"A3"]


def test_mdp_32_the_least_recently_used_worker_is_chosen() -> None:
    scene = Scene()
    for name in (b"W1", b"W2", b"W3"):
        scene.ready("0.1", name)
    order = []
    for turn in range(6):
        scene.ask("0.1", b"C1", b"%d" % turn)
        (worker,) = [peer for peer in list(scene.sent) if peer != b"C1"]
        order.append(worker)
        scene.answer(worker, scene.work(worker))
        scene.got(b"C1")
    assert order == [b"W1", b"W2", b"W3"] * 2


def test_mdp_32_workers_with_credit_take_turns() -> None:
    """BEY-06: a worker takes as many requests as it granted, and requests go round among the workers."""
    scene = Scene()
    scene.ready("0.3", b"W1", credit=3)
    scene.ready("0.3", b"W2", credit=2)
    for i in range(8):
        scene.ask("0.3", b"C1", b"%d" % i)
    first, second = scene.at_worker(b"W1"), scene.at_worker(b"W2")
    assert [w.body[0] for w in first if isinstance(w, Work)] == [b"0", b"2", b"4"]
    assert [w.body[0] for w in second if isinstance(w, Work)] == [b"1", b"3"]
    assert isinstance(second[0], Work)
    scene.answer(b"W2", second[0])
    assert scene.work(b"W2").body[0] == b"5"
    scene.check()


@pytest.mark.parametrize("client", ["0.1", "0.2"])
@pytest.mark.parametrize("worker", DIALECTS)
def test_mdp_33_requests_wait_for_a_worker_and_expire(client: Dialect, worker: Dialect) -> None:
    """MDP-33, MDP-34: delivered when a worker registers; those that waited longer than `queue_ms` are dropped and counted."""
    scene = Scene(queue_ms=5000)
    scene.ask(client, b"C1", b"old")
    scene.wait(4)
    scene.ask(client, b"C1", b"new")
    scene.wait(2.5)
    scene.ready(worker, b"W1")
    assert scene.work(b"W1").body[0] == b"new"
    assert scene.counters["silent_no_service"] == 1
    assert scene.got(b"C1") == []
    scene.check()


def test_mdp_33_an_expired_request_is_never_dispatched_even_between_sweeps() -> None:
    scene = Scene(queue_ms=100)
    scene.ask("0.1", b"C1", b"old")
    scene.now += 0.2
    scene.ready("0.1", b"W1")
    assert scene.at_worker(b"W1") == []
    scene.check()


@pytest.mark.parametrize(("dialect", "how"), [("0.1", "expired"), ("0.2", "expired"), ("0.3", "expired"), ("0.3", "cancelled")])
def test_mdp_33_what_has_left_the_queue_counts_against_no_limit(dialect: Dialect, how: str) -> None:
    """`client_queue_max` counts waiting requests, not those that were cancelled or have expired."""
    scene = Scene(client_queue_max=4, queue_ms=1000)
    scene.ready("0.1", b"W1")
    scene.ask("0.3", b"C0", b"runs")
    scene.ask("0.3", b"C2", b"between")
    options: dict[str, object] = {"deadline_ms": 1500} if dialect == "0.3" and how == "expired" else {}
    ids = [scene.ask(dialect, b"C1", b"%d" % i, options=options) for i in range(4)]
    if how == "cancelled":
        for request_id in ids:
            scene.send(b"C1", client_cancel(request_id))
    else:
        scene.wait(2.5)
    assert len(scene.got(b"C1")) == (4 if dialect == "0.3" else 0)
    for i in range(4):
        scene.ask(dialect, b"C1", b"again %d" % i)
    assert scene.got(b"C1") == []
    scene.ask("0.3", b"C1", b"one too many")
    assert scene.failure(b"C1") == "BUSY"
    scene.check()
    seen = []
    for _ in range(6):
        work = scene.work(b"W1")
        seen.append(work.body[0])
        scene.answer(b"W1", work)
    assert sorted(seen[1:]) == [b"again 0", b"again 1", b"again 2", b"again 3", b"between"]
    assert scene.machine.idle
    scene.check()


@pytest.mark.parametrize(("options", "count"), [({"queue_max": 3}, 3), ({"client_queue_max": 2}, 2), ({"queue_max_bytes": 20}, 6)])
def test_mdp_34_the_queue_is_bounded(options: dict[str, float], count: int) -> None:
    """MDP-34, fault B4: beyond the limit BUSY at once (MDP/0.3) or a counted drop (MDP/0.1)."""
    scene = Scene(**options)
    scene.ready("0.1", b"W1")
    scene.ask("0.1", b"C0", b"runs")
    for _ in range(count):
        scene.ask("0.1", b"C1", b"x")
    assert scene.counters["silent_busy"] == 0
    scene.ask("0.1", b"C1", b"x")
    assert scene.counters["silent_busy"] == 1
    scene.ask("0.3", b"C1", b"x" * 20)
    assert scene.failure(b"C1") == "BUSY"
    scene.check()


def test_all_requests_together_are_bounded_in_memory() -> None:
    """Fault B4: running and queued requests count, with what a record costs; room returns with each reply."""
    scene = Scene(memory_max_bytes=3 * 600)
    scene.ready("0.3", b"W1", credit=10)
    for _ in range(3):
        scene.ask("0.3", b"C1", b"x" * 50)
    assert len(scene.at_worker(b"W1")) == 3
    scene.ask("0.3", b"C2", b"x" * 50)
    assert scene.failure(b"C2") == "BUSY"
    scene.ask("0.1", b"C3", b"x" * 50)
    assert scene.counters["silent_busy"] == 1
    work, *_ = scene.machine.directory.workers[b"W1"].in_flight.values()
    token = work.number.to_bytes(8, "big")
    scene.answer(b"W1", Work("0.3", token, []))
    scene.ask("0.3", b"C2", b"x" * 50)
    assert scene.at_client(b"C2") == []
    scene.check()


def test_no_service_at_once_unless_the_client_waits() -> None:
    """Fault B9: a client of MDP/0.3 gets an error, or waits if it asks to."""
    scene = Scene(queue_ms=5000)
    scene.ask("0.3", b"C1")
    assert scene.failure(b"C1") == "NO_SERVICE"
    assert scene.machine.directory.services == {}
    scene.ask("0.3", b"C1", b"patient", options={"wait": True})
    assert scene.at_client(b"C1") == []
    scene.ready("0.3", b"W1")
    assert scene.work(b"W1").body[0] == b"patient"
    scene.ask("0.3", b"C2", service=b"none", options={"wait": True})
    scene.wait(6.5)
    assert scene.failure(b"C2") == "NO_SERVICE"
    scene.check()


def test_requests_left_without_workers_end_with_no_service() -> None:
    """The last worker leaves while others wait: they wait for a new one as long as `queue_ms`."""
    scene = Scene(queue_ms=5000)
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1", b"runs")
    scene.ask("0.3", b"C2", b"waits")
    scene.send(b"W1", worker_disconnect("0.3"))
    scene.wait(3)
    assert scene.got(b"C1") == scene.got(b"C2") == []
    scene.wait(4)
    assert scene.failure(b"C1") == scene.failure(b"C2") == "NO_SERVICE"
    scene.check()


@pytest.mark.parametrize(("client", "worker"), PAIRS)
def test_mdp_41_client_gone_before_the_reply(client: Dialect, worker: Dialect) -> None:
    """MDP-41, BEY-07, fault B5: queued requests go, a running one is cancelled (MDP/0.3), its reply dropped and counted."""
    scene = Scene()
    scene.ready(worker, b"W1")
    scene.ask(client, b"C1", b"runs")
    scene.ask(client, b"C1", b"waits")
    scene.ask(client, b"C2", b"other")
    work = scene.work(b"W1")
    scene.lose(b"C1")
    told = scene.at_worker(b"W1")
    assert told == ([Cancel(work.id)] if worker == "0.3" else [])
    scene.answer(b"W1", work, b"too late")
    assert scene.got(b"C1") == []
    assert scene.counters["client_gone"] == 2
    assert scene.counters["replies_unwanted"] == 1
    assert scene.work(b"W1").body[0] == b"other"
    scene.check()


def test_a_new_owner_of_a_routing_id_gets_nothing_of_the_old_one() -> None:
    """Fault list: client id reuse after reconnect; the old reply must not reach the new owner."""
    scene = Scene()
    scene.ready("0.1", b"W1")
    scene.ask("0.1", b"C1", b"old")
    work = scene.work(b"W1")
    scene.both("peer_joined", b"C1")
    scene.ask("0.1", b"C1", b"new")
    scene.answer(b"W1", work, b"to the old one")
    assert scene.got(b"C1") == []
    scene.answer(b"W1", scene.work(b"W1"), b"to the new one")
    assert scene.reply(b"C1") == [b"to the new one"]


@pytest.mark.parametrize(("client", "worker"), list(product(["0.2", "0.3"], ["0.2", "0.3"])))
def test_mdp_42_partials_then_one_final(client: Dialect, worker: Dialect) -> None:
    scene = Scene()
    scene.ready(worker, b"W1")
    scene.ask(client, b"C1")
    work = scene.work(b"W1")
    for i in range(3):
        scene.send(b"W1", worker_partial(worker, work.id, [b"%d" % i, b""]))
    scene.answer(b"W1", work, b"end")
    scene.send(b"W1", worker_partial(worker, work.id, [b"after the end"]))
    events = scene.at_client(b"C1")
    assert [type(event) for event in events] == [Partial] * 3 + [Final]
    assert [[*event.body] for event in events if isinstance(event, (Partial, Final))] == [
        [b"0", b""],
        [b"1", b""],
        [b"2", b""],
        [b"end"],
    ]
    assert scene.is_sent_away(b"W1")
    scene.check()


@pytest.mark.parametrize("worker", ["0.2", "0.3"])
def test_mdp_43_partials_are_kept_for_a_client_without_partials(worker: Dialect) -> None:
    scene = Scene()
    scene.ready(worker, b"W1")
    scene.ask("0.1", b"C1")
    work = scene.work(b"W1")
    scene.send(b"W1", worker_partial(worker, work.id, [b"1", b""]))
    scene.send(b"W1", worker_partial(worker, work.id, [b"2" * 300]))
    assert scene.got(b"C1") == []
    scene.check()
    scene.answer(b"W1", work, b"3")
    assert scene.reply(b"C1") == [b"1", b"", b"2" * 300, b"3"]
    scene.check()


def test_mdp_43_what_is_kept_is_bounded() -> None:
    scene = Scene(parts_max_bytes=100)
    scene.ready("0.3", b"W1")
    scene.ask("0.1", b"C1")
    work = scene.work(b"W1")
    scene.send(b"W1", worker_partial("0.3", work.id, [b"x" * 60]))
    scene.send(b"W1", worker_partial("0.3", work.id, [b"x" * 60]))
    assert scene.at_worker(b"W1") == [Cancel(work.id)]
    assert scene.counters["parts_dropped"] == 1
    scene.answer(b"W1", work)
    assert scene.got(b"C1") == []
    scene.check()


def test_kept_partials_of_a_lost_worker_are_not_sent() -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.1", b"C1")
    scene.send(b"W1", worker_partial("0.3", scene.work(b"W1").id, [b"half"]))
    scene.lose(b"W1")
    scene.ready("0.3", b"W2")
    work = scene.work(b"W2")
    scene.send(b"W2", worker_partial("0.3", work.id, [b"a"]))
    scene.answer(b"W2", work, b"b")
    assert scene.reply(b"C1") == [b"a", b"b"]
    scene.check()


def test_a_stream_that_has_begun_is_not_begun_again() -> None:
    """MDP-42: parts of two executions must not be mixed, so the client gets an error."""
    scene = Scene()
    scene.ready("0.3", b"W1")
    scene.ask("0.3", b"C1")
    scene.send(b"W1", worker_partial("0.3", scene.work(b"W1").id, [b"half"]))
    scene.got(b"C1")
    scene.lose(b"W1")
    assert scene.failure(b"C1") == "WORKER_LOST"
    scene.check()


@pytest.mark.parametrize("client", DIALECTS)
def test_errors_of_workers_reach_clients_that_know_errors(client: Dialect) -> None:
    scene = Scene()
    scene.ready("0.3", b"W1")
    request_id = scene.ask(client, b"C1")
    scene.send(b"W1", worker_error(scene.work(b"W1").id, "HANDLER_ERROR", "ValueError"))
    if client == "0.3":
        assert scene.at_client(b"C1") == [Failure(request_id, "HANDLER_ERROR", "ValueError")]
    else:
        assert scene.got(b"C1") == []
        assert scene.counters["silent_handler_error"] == 1
    scene.ask(client, b"C1", b"next")
    assert scene.work(b"W1").body[0] == b"next"
    scene.check()


def test_mdp_46_workers_of_an_earlier_broker_register_again() -> None:
    """MDP-46, fault B10: a broker that knows nobody tells them to come again, and an old answer reaches nobody."""
    scene = Scene()
    scene.ready("0.1", b"W1")
    scene.ask("0.1", b"C1")
    work = scene.work(b"W1")
    restarted = Scene()
    restarted.answer(b"W1", work)
    assert restarted.is_sent_away(b"W1")
    assert restarted.got(b"C1") == []
    restarted.ready("0.1", b"W1-again")
    restarted.ask("0.1", b"C1")
    assert restarted.work(b"W1-again").body[0] == b"x"


def test_mdp_47_work_per_message_does_not_grow_with_workers_and_clients() -> None:
    """MDP-47: 1,000 workers and 1,000 clients; each message makes the machine send what belongs to it and no more."""
    scene = Scene()
    for i in range(1000):
        scene.ready(DIALECTS[i % 3], b"W%d" % i)
    assert scene.sent == {}
    for i in range(1000):
        scene.ask(DIALECTS[i % 3], b"C%d" % i, b"%d" % i)
    assert len(scene.sent) == 1000
    for i in range(1000):
        scene.answer(b"W%d" % i, scene.work(b"W%d" % i), b"%d" % i)
    for i in range(1000):
        assert scene.reply(b"C%d" % i) == [b"%d" % i]
    scene.wait(20)
    assert scene.machine.directory.workers == {}
    scene.check()
