"""Priorities, rates and retries in the broker's machine."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mdp.access.service_policies import ServicePolicies
from mdp.broker.requests.policy_queue import SHARE
from mdp.wire.commands import client_request, worker_error, worker_final, worker_partial, worker_ready
from mdp.wire.events import Failure, ProgressReport, Work
from mdp.wire.options import encode_options
from mdp.wire.policies import Rate
from mdp.wire.progress import RateWait, decode_rate_wait
from tests.scenes.mdp_dispatcher import ECHO, Scene, decoded
from tests.scenes.mdp_messages import client_cancel

RETRY = {"attempts": 3, "base_s": 1.0, "factor": 4.0, "max_s": 30.0, "jitter": 0.0}


def join(scene: Scene, peer: bytes, *, credit: int = 1, **policies: object) -> None:
    scene.send(peer, worker_ready("0.3", ECHO, options=encode_options({"credit": credit, **policies})))


def bodies(scene: Scene, peer: bytes) -> list[bytes]:
    """Take the bodies of the requests a worker was given."""
    return [event.body[0] for event in scene.at_worker(peer) if isinstance(event, Work)]


def serve_all(scene: Scene, peer: bytes) -> list[bytes]:
    """Let a worker answer all its requests, one by one; return their bodies in order."""
    found = []
    while works := [event for event in scene.at_worker(peer) if isinstance(event, Work)]:
        for work in works:
            found.append(work.body[0])
            scene.send(peer, worker_final("0.3", work.id, [b"done"]))
    return found


# ------------------------------------------------------------------------------------------------------------------- priorities


def test_higher_priorities_go_first_and_each_class_in_turn_of_its_clients() -> None:
    """POL-01."""
    scene = Scene()
    join(scene, b"W")
    scene.ask("0.3", b"C1", b"at work")
    for priority in ("low", None, "high"):
        for client in (b"C1", b"C1", b"C2"):
            scene.ask("0.3", client, b"%s %s" % ((priority or "normal").encode(), client), options={"priority": priority})
    assert serve_all(scene, b"W") == [b"at work"] + [
        b"%s %s" % (priority, client) for priority in (b"high", b"normal", b"low") for client in (b"C1", b"C2", b"C1")
    ]


def test_no_class_waits_for_ever() -> None:
    """POL-01: of `SHARE` + 2 requests given, one at least is of each class that waits."""
    scene = Scene()
    join(scene, b"W")
    scene.ask("0.3", b"C", b"at work")
    for n in range(40):
        for priority in (b"high", b"normal", b"low"):
            scene.ask("0.3", b"C", priority, options={"priority": priority.decode()} if n < 5 or priority == b"high" else None)
    scene.ask("0.3", b"C", b"low", options={"priority": "low"})
    order = serve_all(scene, b"W")
    gaps = [index for index, body in enumerate(order) if body == b"low"]
    assert gaps[0] <= SHARE + 2
    assert all(later - earlier <= SHARE + 2 for earlier, later in pairwise(gaps[:6]))
    assert order.index(b"normal") <= SHARE + 2


def test_requests_with_priority_can_be_cancelled_lost_and_given_back() -> None:
    scene = Scene(client_queue_max=3)
    join(scene, b"W")
    scene.ask("0.3", b"C", b"first")
    scene.ask("0.3", b"C", b"low", options={"priority": "low"})
    scene.ask("0.3", b"C", b"high", options={"priority": "high"})
    scene.ask("0.3", b"C", b"too late", options={"priority": "high", "deadline_ms": 1000})
    scene.ask("0.3", b"C", b"one too many")
    scene.wait(1.5)
    assert [event.code for event in scene.at_client(b"C") if isinstance(event, Failure)] == ["BUSY", "DEADLINE_EXCEEDED"]
    scene.lose(b"W")
    join(scene, b"W2")
    assert serve_all(scene, b"W2") == [b"first", b"high", b"low"]


# ------------------------------------------------------------------------------------------------------------------------ rates


def test_a_service_gets_so_many_requests_a_second() -> None:
    """POL-02."""
    scene = Scene()
    join(scene, b"W", credit=100, rate={"per_s": 2.0, "burst": 3})
    for n in range(10):
        scene.ask("0.3" if n % 2 else "0.1", b"C" if n % 2 else b"D", b"%d" % n)
    assert len(bodies(scene, b"W")) == 3
    for _ in range(4):
        scene.wait(0.5)
        assert len(bodies(scene, b"W")) == 1
    scene.wait(1.4)
    assert len(bodies(scene, b"W")) == 2
    scene.wait(100)
    assert len(bodies(scene, b"W")) == 1


def test_several_workers_share_the_rate_and_a_free_one_waits_for_it() -> None:
    """POL-02."""
    scene = Scene()
    for peer in (b"W1", b"W2", b"W3"):
        join(scene, peer, credit=10, rate={"per_s": 1.0, "burst": 2})
    for n in range(6):
        scene.ask("0.3", b"C", b"%d" % n)
    given = [bodies(scene, peer) for peer in (b"W1", b"W2", b"W3")]
    assert sorted(map(len, given)) == [0, 1, 1]
    scene.wait(3.1)
    assert sum(len(bodies(scene, peer)) for peer in (b"W1", b"W2", b"W3")) == 3


def test_a_burst_of_one_read_is_limited_as_well() -> None:
    scene = Scene()
    join(scene, b"W", credit=100)
    scene.ask("0.3", b"C", b"before")
    assert len(bodies(scene, b"W")) == 1
    join(scene, b"W2", credit=100, rate={"per_s": 1.0, "burst": 4})

    scene.send(b"C", *(client_request("0.3", ECHO, [b"x"], id=n.to_bytes(8, "big")) for n in range(100, 120)))
    assert len(bodies(scene, b"W")) + len(bodies(scene, b"W2")) == 4


def test_priorities_and_rates_together() -> None:
    scene = Scene()
    join(scene, b"W", credit=100, rate={"per_s": 1.0, "burst": 1})
    for body, priority in ((b"first", None), (b"low", "low"), (b"normal", None), (b"high", "high")):
        scene.ask("0.3", b"C", body, options={"priority": priority})
    scene.wait(3.5)
    assert bodies(scene, b"W") == [b"first", b"high", b"normal", b"low"]


# ---------------------------------------------------------------------------------------------------------------------- retries


def fail(scene: Scene, peer: bytes, code: str = "HANDLER_ERROR") -> None:
    scene.send(peer, worker_error(scene.work(peer).id, code, "no"))


def test_a_failed_request_is_executed_again_after_growing_delays() -> None:
    """POL-03."""
    scene = Scene()
    join(scene, b"W", retry=RETRY)
    scene.ask("0.3", b"C", b"x")
    fail(scene, b"W")
    scene.wait(0.9)
    assert bodies(scene, b"W") == []
    scene.wait(0.2)
    fail(scene, b"W")
    scene.wait(3.8)
    assert bodies(scene, b"W") == []
    scene.wait(0.3)
    assert scene.at_client(b"C") == []
    fail(scene, b"W")
    (failure,) = scene.at_client(b"C")
    assert isinstance(failure, Failure)
    assert (failure.code, scene.counters["retried"], scene.counters["closed"]) == ("HANDLER_ERROR", 2, 1)


def test_parts_of_a_lost_worker_that_were_not_sent_do_not_keep_a_request_from_its_retry() -> None:
    """POL-05: a client of MDP/0.1 gets the parts with the end, so those of a lost worker are gone."""
    scene = Scene()
    join(scene, b"V", retry=RETRY)
    scene.ask("0.1", b"C", b"x")
    (work,) = [event for event in scene.at_worker(b"V") if isinstance(event, Work)]
    scene.send(b"V", worker_partial("0.3", work.id, [b"a part"]))
    scene.lose(b"V")
    join(scene, b"W", retry=RETRY)
    (work,) = [event for event in scene.at_worker(b"W") if isinstance(event, Work)]
    scene.send(b"W", worker_error(work.id, "HANDLER_ERROR", "it"))
    assert scene.counters["retried"] == 1
    scene.wait(1.0)
    assert bodies(scene, b"W") == [b"x"]


def test_others_are_served_while_it_waits() -> None:
    scene = Scene()
    join(scene, b"W", retry=RETRY)
    scene.ask("0.3", b"C", b"failing")
    fail(scene, b"W")
    scene.ask("0.3", b"C", b"other")
    assert serve_all(scene, b"W") == [b"other"]
    scene.wait(1.1)
    assert serve_all(scene, b"W") == [b"failing"]
    assert len(scene.at_client(b"C")) == 2


@pytest.mark.parametrize(
    ("code", "options"),
    [("SOLD_OUT", {}), ("BAD_ARGUMENTS", {}), ("HANDLER_ERROR", {"once": True}), ("HANDLER_ERROR", {"deadline_ms": 1000})],
)
def test_what_is_not_repeated(code: str, options: dict[str, object]) -> None:
    """POL-03."""
    scene = Scene()
    join(scene, b"W", retry=RETRY)
    scene.ask("0.3", b"C", b"x", options=options)
    fail(scene, b"W", code)
    (failure,) = scene.at_client(b"C")
    assert isinstance(failure, Failure)
    assert (failure.code, scene.counters["retried"]) == (code, 0)


def test_a_request_that_waits_for_its_retry_can_be_cancelled_expire_and_outlive_its_workers() -> None:
    scene = Scene()
    join(scene, b"W", credit=3, retry=RETRY)
    cancelled = scene.ask("0.3", b"C", b"cancelled")
    scene.ask("0.3", b"D", b"expires", options={"deadline_ms": 1500})
    scene.ask("0.3", b"E", b"stays")
    for work in [event for event in scene.at_worker(b"W") if isinstance(event, Work)]:
        scene.send(b"W", worker_error(work.id, "HANDLER_ERROR", "no"))

    scene.send(b"C", client_cancel(cancelled))
    scene.lose(b"W")
    scene.wait(2)
    assert [event.code for event in scene.at_client(b"C") if isinstance(event, Failure)] == ["CANCELLED"]
    assert [event.code for event in scene.at_client(b"D") if isinstance(event, Failure)] == ["DEADLINE_EXCEEDED"]
    join(scene, b"W2")
    assert serve_all(scene, b"W2") == [b"stays"]
    assert len(scene.at_client(b"E")) == 1


def test_all_requests_of_a_key_wait_for_the_retry() -> None:
    scene = Scene()
    join(scene, b"W", retry=RETRY)
    for client in (b"C", b"D"):
        scene.ask("0.3", client, b"x", options={"key": b"order 17"})
    fail(scene, b"W")
    scene.wait(1.1)
    assert serve_all(scene, b"W") == [b"x"]
    assert [len(scene.at_client(client)) for client in (b"C", b"D")] == [1, 1]


def test_delays_of_many_requests_are_spread() -> None:
    scene = Scene()
    join(scene, b"W", credit=200, retry={**RETRY, "jitter": 1.0})
    for n in range(100):
        scene.ask("0.3", b"C", b"%d" % n)
    for work in [event for event in scene.at_worker(b"W") if isinstance(event, Work)]:
        scene.send(b"W", worker_error(work.id, "HANDLER_ERROR", "no"))
    counts = []
    for _ in range(10):
        scene.wait(0.1)
        counts.append(len(bodies(scene, b"W")))
    assert sum(counts) == 100
    assert max(counts) <= 20


# ------------------------------------------------------------------------------------------------------------------ of the operator


def say(scene: Scene, **keys: object) -> list[list[bytes]]:
    """Let the operator give the service these policies; none without keys."""
    policies = ServicePolicies({"policy": [{"services": ["ech*"], **keys}]}) if keys else None
    out, twins = (decoded(machine.set_policies(policies, scene.now)) for machine in (scene.machine, scene.twin))
    return scene.take(out, twins)


def test_a_rate_of_the_operator_wins_over_that_of_a_worker() -> None:
    """POL-04: before the service is known, and for a worker that announces more."""
    scene = Scene()
    say(scene, rate={"per_s": 2, "burst": 2})
    join(scene, b"W", credit=10, rate={"per_s": 1000.0, "burst": 1000})
    for n in range(4):
        scene.ask("0.3", b"C", b"%d" % n)
    assert bodies(scene, b"W") == [b"0", b"1"]
    scene.wait(0.5)
    assert bodies(scene, b"W") == [b"2"]


def test_new_policies_count_for_what_waits_and_for_what_comes() -> None:
    """POL-04: a rate that is added, changed to none, and left to the worker again."""
    scene = Scene()
    join(scene, b"W", credit=100)
    scene.ask("0.3", b"C", b"0")
    say(scene, rate={"per_s": 1})
    for n in range(1, 4):
        scene.ask("0.3", b"C", b"%d" % n)
    assert bodies(scene, b"W") == [b"0", b"1"]
    say(scene, rate=False)  # what waits is given at once
    assert bodies(scene, b"W") == [b"2", b"3"]
    join(scene, b"W2", credit=100, rate={"per_s": 1.0})
    say(scene)
    scene.ask("0.3", b"C", b"4")
    scene.ask("0.3", b"C", b"5")
    assert sorted(bodies(scene, b"W") + bodies(scene, b"W2")) == [b"4"]


def test_retries_of_the_operator_and_none() -> None:
    """POL-04."""
    scene = Scene()
    join(scene, b"W", retry=RETRY)
    say(scene, retry=False)
    scene.ask("0.3", b"C", b"x")
    (work,) = [event for event in scene.at_worker(b"W") if isinstance(event, Work)]
    scene.send(b"W", worker_error(work.id, "HANDLER_ERROR", "no"))
    assert [event.code for event in scene.at_client(b"C") if isinstance(event, Failure)] == ["HANDLER_ERROR"]
    say(scene, retry={"attempts": 2, "base_s": 1.0, "jitter": 0.0})
    scene.ask("0.3", b"C", b"y")
    for expected in ([], ["HANDLER_ERROR"]):
        (work,) = [event for event in scene.at_worker(b"W") if isinstance(event, Work)]
        scene.send(b"W", worker_error(work.id, "HANDLER_ERROR", "no"))
        assert [event.code for event in scene.at_client(b"C") if isinstance(event, Failure)] == expected
        scene.wait(1.0)


def test_the_operator_can_refuse_high_priority() -> None:
    """POL-04: a request of high priority is a normal one, a low one stays low."""
    scene = Scene()
    say(scene, priority_max="normal")
    join(scene, b"W")
    scene.ask("0.3", b"C", b"at work")
    for priority in ("low", "normal", "high"):
        scene.ask("0.3", b"C", priority.encode(), options={"priority": priority})
    assert serve_all(scene, b"W") == [b"at work", b"normal", b"high", b"low"]
    assert ECHO in scene.machine.directory.services
    assert scene.machine.directory.services[ECHO].policies is None  # the fast way stays open


def test_a_service_that_has_its_policies_no_longer_takes_the_fast_way_again() -> None:
    """POL-04."""
    scene = Scene()
    say(scene, rate={"per_s": 1})
    join(scene, b"W", credit=10)
    directory = scene.machine.directory
    service = directory.services[ECHO]
    assert (service.policies is None, service.route in directory.routes_encoded) == (False, False)
    say(scene)
    assert (service.policies is None, service.route in directory.routes_encoded) == (True, True)
    scene.ask("0.3", b"C", b"0")
    scene.ask("0.3", b"C", b"1")
    assert bodies(scene, b"W") == [b"0", b"1"]


def test_a_client_learns_which_rate_its_request_waits_for() -> None:
    """POL-05."""
    scene = Scene()
    join(scene, b"W", credit=9, rate={"per_s": 2.0, "burst": 1})
    scene.ask("0.3", b"C", b"at work")
    scene.ask("0.1", b"old", b"no command for it")
    scene.ask("0.3", b"C", b"waits")
    scene.ask("0.3", b"C", b"in time", options={"deadline_ms": 100})
    told = [decode_rate_wait(event.progress) for event in scene.at_client(b"C") if isinstance(event, ProgressReport)]
    assert told == [RateWait(Rate(2.0), 2), RateWait(Rate(2.0), 3)]
    scene.wait(0.2)
    assert [(event.code, event.text) for event in scene.at_client(b"C") if isinstance(event, Failure)] == [
        ("DEADLINE_EXCEEDED", "held back by the rate of this service, 2 requests a second with a burst of 1; 3 requests waited")
    ]


def test_a_short_wait_is_not_told() -> None:
    """POL-05."""
    scene = Scene()
    join(scene, b"W", credit=9, rate={"per_s": 64.0, "burst": 1})
    for n in range(9):
        scene.ask("0.3", b"C", b"%d" % n)
    told = [event for event in scene.at_client(b"C") if isinstance(event, ProgressReport)]
    assert len(told) == 2  # six wait for less than a tenth of a second


def test_a_request_that_waits_for_a_retry_is_given_after_the_policies_were_taken_away() -> None:
    """POL-03, POL-04: it was in no queue that anything looked at."""
    scene = Scene()
    scene.both("set_policies", ServicePolicies({"policy": [{"services": ["*"], "retry": RETRY}]}))
    join(scene, b"W")
    scene.ask("0.3", b"C", b"x")
    scene.send(b"W", worker_error(scene.work(b"W").id, "HANDLER_ERROR", "no"))
    scene.both("set_policies", None)
    scene.wait(1.0)
    assert bodies(scene, b"W") == [b"x"]
