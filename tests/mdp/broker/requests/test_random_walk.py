"""10,000 walks of 400 steps over the broker's machine (`tests.scenes.mdp_broker_walk`).

On the sources as they are a fiftieth of them; with SIM_WALKS in the environment as many as it says.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from mdp.broker.requests.invariants import InvariantBroken
from mdp.broker.requests.policy_queue import PolicyQueue
from mdp.broker.requests.request_states import AFTER, RequestState
from mdp.wire.channels import connection_of
from tests.scenes.builds import stands_in
from tests.scenes.hunts import examples, whole_hunts
from tests.scenes.mdp_broker_walk import Walk, WalkFailed, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.broker.requests.records import Request

WALKS = int(os.environ.get("SIM_WALKS") or examples(10_000, divisor=50))
CHUNKS = 40  # for two processes to share


@pytest.mark.long
@pytest.mark.timeout(0 if "SIM_WALKS" in os.environ else 300)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_crosses_every_request_has_one_place_and_one_end(chunk: int) -> None:
    """Play walks, each fourth with policies, each sixth with workers that share connections.

    MDP-26, 30, 31, 33, 34, 41 to 46, IDM-03 to IDM-06, POL-01 to POL-04, CHN-03, CHN-04; faults B2, B5 to B8.
    """
    for seed in range(chunk * WALKS // CHUNKS, (chunk + 1) * WALKS // CHUNKS):
        walk(seed, policies=has_policies(seed), channels=has_channels(seed))


def has_channels(seed: int) -> bool:
    """Tell whether workers of a walk share connections: those of each sixth do."""
    return seed % 6 == 4


def has_policies(seed: int) -> bool:
    """Tell whether the services of a walk have policies: those of each fourth do."""
    return seed % 4 == 3


@whole_hunts
def test_walks_with_policies_come_by_what_they_are_for() -> None:
    total: dict[str, int] = {}
    delayed = waited = ranked = 0
    for seed in range(40):
        going = Walk(seed, policies=True)
        going.machine.request_table.timer_changed = True
        going.look()
        for step in going.steps * 4:
            going.touched = False
            step()
            going.look()
            for service in going.machine.directory.services.values():
                queue = service.queue
                if isinstance(queue, PolicyQueue):
                    delayed += len(queue.delayed)
                    ranked += bool(queue._rotations[0]) and bool(queue._rotations[2])
                bucket = None if service.policies is None else service.policies.bucket
                free = any(worker.ready_list is not None for worker in service.workers.values())
                waited += bucket is not None and free and queue.count > 0
        going.end()
        for name, count in going.machine.counters.as_dict().items():
            total[name] = total.get(name, 0) + count
    assert min(total["retried"], delayed, waited, ranked) > 0


@whole_hunts
def test_walks_with_shared_connections_come_by_what_they_are_for() -> None:
    """Requests of several services are lost with one connection, and given to others."""
    lost_together = beside = 0
    for seed in range(40):
        going = Walk(seed, channels=True)
        lose = going.lose

        def noted(peer: bytes, going: Walk = going, lose: Callable[[bytes], None] = lose) -> None:
            nonlocal lost_together, beside
            directory = going.machine.directory
            workers = [directory.workers[one] for one in directory.channels.get(connection_of(peer), ())]
            lost_together += len({worker.service.name for worker in workers if worker.in_flight}) > 1
            lose(peer)
            beside += bool(directory.channels)

        going.lose = noted  # type: ignore[method-assign]
        going.go()
    assert min(lost_together, beside) > 10


@pytest.mark.parametrize("seed", [6752, 8427])
def test_what_walks_have_found(seed: int) -> None:
    """A service made for a kept answer; an execution begun again beside a request whose worker was lost."""
    walk(seed)


def test_a_walk_is_the_same_each_time() -> None:
    first: list[str] = []
    second: list[str] = []
    Walk(3, first).go()
    Walk(3, second).go()
    assert first == second
    assert len(first) > 400


@whole_hunts
def test_walks_come_by_what_they_are_for() -> None:
    """A walk tests only what happens in it."""
    total: dict[str, int] = {}
    for seed in range(120):  # the first walks of `test_whatever_crosses_every_request_has_one_place_and_one_end`
        going = Walk(seed, policies=has_policies(seed), channels=has_channels(seed))
        going.look = lambda: None  # type: ignore[method-assign]  # that test looks at the records of these walks
        going.go()
        for name, count in going.machine.counters.as_dict().items():
            total[name] = total.get(name, 0) + count
    assert [name for name in MUST_HAPPEN if not total[name]] == []


MUST_HAPPEN = (
    *(
        "error_busy",
        "error_cancelled",
        "error_dead_letter",
        "error_deadline_exceeded",
        "error_forbidden",
        "error_no_service",
        "error_timeout",
    ),
    *("error_worker_lost", "silent_busy", "silent_dead_letter", "silent_no_service", "silent_timeout", "silent_worker_lost"),
    *("key_begun_again", "key_conflicts", "key_joined", "key_replayed", "replies_kept", "parts_dropped", "partials", "dropped_duplicate"),
    *("redelivered", "client_gone", "cancel_unknown", "workers_expired", "workers_left", "workers_lost", "cut_invalid", "cut_unexpected"),
    *(
        "recalled",
        "returned",
        "error_too_large",
        "silent_too_large",
        "workers_stuck",
        "services_forgotten",
        "services_refused",
        "ready_refused",
        "replies_unwanted",
        "partials_unwanted",
        "errors_forwarded",
    ),
)


@stands_in
@pytest.mark.parametrize(
    "fault",
    [
        "self.memory_left_bytes += 1",
        "self.counters.accepted += 1",
        "request.service.queue.push_front(request)",
        "self.deadlines.set(request, now + 9)",
    ],
)
def test_a_fault_put_into_the_machine_is_found_and_named_with_its_seed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter(range(20))

    def new_walk(seed: int, trace: list[str] | None = None, *, policies: bool = False, channels: bool = False) -> Walk:
        made = Walk(seed, trace, policies=policies, channels=channels)
        give_back = made.machine.request_table.give_back

        def faulty(request: object, loss: object, now: float) -> None:
            give_back(request, loss, now)  # type: ignore[arg-type]
            exec(fault, {"self": made.machine.request_table, "request": request, "now": now})

        monkeypatch.setattr(made.machine.request_table, "give_back", faulty)
        return made

    monkeypatch.setattr("tests.scenes.mdp_broker_walk.Walk", new_walk)
    with pytest.raises(WalkFailed, match=r"walk \d+: (.|\n)*python -m tests.scenes.mdp_broker_walk \d+") as found:
        for seed in seeds:
            walk(seed)
    assert isinstance(found.value.__cause__, InvariantBroken)


@stands_in
def test_what_is_due_before_the_clock_ticks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment that is noted without a word to the shell."""
    going = Walk(0)
    accept = going.machine.request_table.accept

    def silent(*given: Any) -> list[Request]:
        requests = accept(*given)
        for request in requests:
            going.machine.request_table.checks.set(request.service, going.now + 0.001)
        return requests

    monkeypatch.setattr(going.machine.request_table, "accept", silent)
    with pytest.raises(InvariantBroken, match=r"the clock is set to .*, though something is due at"):
        going.go()


def test_every_state_is_in_the_table_and_an_end_is_the_end() -> None:
    assert set(AFTER) == set(RequestState)
    ends = {state for state, after in AFTER.items() if not after}
    assert ends == set(RequestState) - {RequestState[name] for name in ("ACCEPTED", "QUEUED", "GIVEN", "FOLLOWING", "UNCLAIMED")}
    reached = {RequestState.ACCEPTED}.union(*AFTER.values())
    assert reached == set(RequestState)
