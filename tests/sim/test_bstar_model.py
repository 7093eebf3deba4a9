"""Exhaustive searches of the shipped Binary Star machine, and proof that they can fail.

`--sim-states N` adds the long searches, to their ends or for N states, and a million schedules at random; those cut short end later.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from bstar.machine import fsm, member, member_values
from bstar.machine.ballot import Ballot, LeaseTable
from bstar.machine.fsm import BALLOT, Cell, Effect, Event, State, Verdict
from bstar.machine.member_values import Claim, Member, Outcome, Settings
from bstar.machine.wire import Flag
from tests.sim.bstar_model import Model
from tests.sim.bstar_model_actions import CRASH, FAULTS, WITNESS_CRASH
from tests.sim.bstar_model_search import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CRASH_AND_PAUSE = ("crash A", "crash B", "pause A", "pause B")
ORDERS = (*CRASH_AND_PAUSE, "switchover at A", "switchover at B")
NODE_FAULTS = (*CRASH_AND_PAUSE, "isolate A", "isolate B")
NO_WITNESS: dict[str, Any] = {"witness": False}


def long_search(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--sim-states", default=0) or 0)


# --- what holds -----------------------------------------------------------------------------------------------------------------

SHORT_STATES = 20_000  # of a search that is cut short, unless `--sim-states` is given
# name, arguments of the model, whether two masters are wrong even without a witness, states if the search is cut short
SEARCHES: dict[str, tuple[dict[str, Any], bool, int | None]] = {
    "witness, any single fault": ({"faults": 1}, False, None),
    "witness, any single fault, clients with a memory": ({"faults": 1, "clients": True}, False, None),
    "witness that forgets, single fault": ({"faults": 1, "witness_keeps": False, "coarse": True}, False, None),
    "witness, crash, pause and isolation, two of them": ({"faults": 2, "kinds": NODE_FAULTS, "coarse": True}, False, None),
    "witness, crash, pause and switchover, three of them": ({"faults": 3, "kinds": ORDERS, "coarse": True}, False, None),
    "witness, late answers, late messages": ({"faults": 2, "late": True, "sync": False, "coarse": True}, False, 80_000),
    "witness, late questions and answers": ({"faults": 1, "late": True, "late_questions": True, "coarse": True}, False, 60_000),
    "witness, any four faults": ({"faults": 4}, False, 100_000),
    "fenced, any two faults": ({"faults": 2, **NO_WITNESS}, False, None),
    "fenced, any single fault, clients with a memory": ({"faults": 1, "clients": True, **NO_WITNESS}, False, None),
    "witness, any single fault, clients that lie": ({"faults": 1, "clients": True, "liars": True}, False, None),
    "fenced, any single fault, clients that lie": ({"faults": 1, "clients": True, "liars": True, **NO_WITNESS}, False, None),
    "fenced, messages late": ({"faults": 1, "sync": False, **NO_WITNESS}, False, None),
    "fenced, crash, pause and switchover: one master": ({"faults": 3, "kinds": ORDERS, **NO_WITNESS}, True, None),
    "fenced, node ids the other way round": ({"faults": 1, "nodes": (2, 1), **NO_WITNESS}, False, None),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SEARCHES)
def test_nothing_wrong_can_be_reached(name: str, request: pytest.FixtureRequest) -> None:
    """BST-26 to BST-33, F1, P2, BST-45.

    No two masters, never both dead, and always a way back to one that serves.
    """
    arguments, single, limit = SEARCHES[name]
    if limit is not None and not long_search(request):
        limit = SHORT_STATES
    report = Search(Model(**arguments), single=single).run(limit=limit)
    assert not report.findings
    assert report.complete or limit is not None
    assert report.states > 1_000


def test_faults_of_the_budget_are_all_there() -> None:
    model = Model(faults=2)
    Search(model, settle=False).run(limit=40_000)
    assert set(FAULTS) <= {model.name(action) for actions in model.actions.values() for action in actions}


def test_schedules_at_random() -> None:
    """Deep rather than wide: long schedules with many faults, every line and both processes at once."""
    chance = random.Random(20)
    search = Search(Model(faults=6, late=True, clients=True))
    assert [found for found in (search.walk(chance, 60) for _ in range(1_000)) if found] == []


# --- the guide's machine -----------------------------------------------------------------------------------------------------------


def guide(**arguments: Any) -> Model:
    return Model(ballots_on=False, witness=False, **arguments)


def own_steps(path: list[str]) -> list[str]:
    """Leave out the servers' own heartbeats, which the count of the known counterexamples does not have."""
    return [step for step in path if not step.startswith("run")]


def test_the_guide_has_two_masters_after_one_fault() -> None:
    """BST-19: the counterexample known of the guide's machine, found in the machine shipped as its compatible mode."""
    finding = Search(guide(faults=1), settle=False).run().findings["two serve"]
    assert len(own_steps(finding.path)) <= 9


def test_the_guide_has_two_masters_without_any_fault_when_heartbeats_may_be_late() -> None:
    finding = Search(guide(faults=0, sync=False), settle=False).run().findings["two serve"]
    assert len(own_steps(finding.path)) <= 7


def test_the_guide_loses_both_servers_to_a_single_pause() -> None:
    model = guide(faults=1, kinds=("pause A", "pause B"))
    finding = Search(model, settle=False, ignore=("two serve",)).run().findings["both dead"]
    assert len(finding.path) <= 13
    assert [step for step in finding.path if step.startswith("pause")] == ["pause A"]


def test_isolation_splits_the_guide_even_where_the_cable_rule_is_kept() -> None:
    """BST-20: the layout the guide asks for does not help when a whole server is cut off."""
    model = guide(faults=1, kinds=("isolate A", "isolate B"))
    assert "two serve" in Search(model, settle=False).run().findings


# --- the checks can fail -----------------------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def rewrite(patch: Patch, state: State, event: Event, cell: Cell) -> None:
    table: dict[State, Mapping[Event, Cell]] = dict(BALLOT)
    table[state] = {**BALLOT[state], event: cell}
    patch.setattr(member, "BALLOT", table)


def forget_the_ballot(patch: Patch) -> None:
    start = member.start
    patch.setattr(member, "start", lambda settings, counter, now: start(settings, 0, now))


def answer_without_lease(patch: Patch) -> None:
    patch.setattr(member_values, "may_answer", lambda settings, m, now: m.state is State.ACTIVE)
    patch.setattr(member, "_wake", lambda settings, m, now: (m, ()))


def count_the_lease_from_its_arrival(patch: Patch) -> None:
    patch.setattr(member, "lease_expiry", lambda asked_at, lease_s: lease_s)


def grant_after_a_restart_at_once(patch: Patch) -> None:
    ask = LeaseTable.ask

    def hasty(book: LeaseTable, *rest: Any, **named: Any) -> Any:
        return ask(book._replace(closed_until=0.0), *rest, **named)

    patch.setattr(LeaseTable, "ask", hasty)


def grant_to_whoever_asks(patch: Patch) -> None:
    ask = LeaseTable.ask
    patch.setattr(LeaseTable, "ask", lambda book, *rest, **named: ask(book._replace(until=0.0), *rest, **named))


def grant_the_same_node_a_new_ballot_after_a_restart(patch: Patch) -> None:
    ask = LeaseTable.ask

    def friendly(book: LeaseTable, wanted: Ballot, **named: Any) -> Any:
        known = wanted.node == book.holder.node and named["now"] < book.until
        return ask(book._replace(closed_until=0.0) if known else book, wanted, **named)

    patch.setattr(LeaseTable, "ask", friendly)


def release_for_anybody(patch: Patch) -> None:
    patch.setattr(LeaseTable, "release", lambda book, ballot, now: book._replace(until=now))


def never_claim_again(patch: Patch) -> None:
    rewrite(patch, State.PASSIVE, Event.REQUEST_IDLE, Cell(State.PASSIVE, verdict=Verdict.REJECT))


def ignore_a_higher_ballot(patch: Patch) -> None:
    rewrite(patch, State.ACTIVE, Event.PEER_ACTIVE, Cell(State.ACTIVE))


def die_of_a_higher_ballot(patch: Patch) -> None:
    rewrite(patch, State.ACTIVE, Event.PEER_ACTIVE, Cell(State.ACTIVE, fault=fsm.Fault.DUAL_ACTIVE))
    table: dict[State, dict[Event, Cell]] = vars(member)["BALLOT"]
    table[State.ACTIVE][Event.PEER_LOWER] = Cell(State.ACTIVE, fault=fsm.Fault.DUAL_ACTIVE)


def claim_while_the_peer_is_heard(patch: Patch) -> None:
    rewrite(patch, State.PASSIVE, Event.REQUEST, Cell(State.PASSIVE, (Effect.CLAIM,), Verdict.HOLD))


def draw_a_ballot_without_looking(patch: Patch) -> None:
    patch.setattr(member, "next_counter", lambda *known: 1)


def ignore_what_clients_have_seen(patch: Patch) -> None:
    rewrite(patch, State.ACTIVE, Event.OUTBID, Cell(State.ACTIVE))


def believe_clients(patch: Patch) -> None:
    request = member.request

    def gullible(settings: Settings, m: Member, seen: Ballot, now: float) -> Outcome:
        return request(settings, m._replace(counter=max(m.counter, seen.counter)), seen, now)

    patch.setattr(member, "request", gullible)


def serve_at_once_after_start(patch: Patch) -> None:
    start = member.start

    def hasty(settings: Settings, counter: int, now: float) -> Outcome:
        outcome = start(settings, counter, now)
        return outcome._replace(member=outcome.member._replace(peer_until=now))

    patch.setattr(member, "start", hasty)


def go_on_after_standing_still(patch: Patch) -> None:
    patch.setattr(member, "_wake", lambda settings, m, now: (m, ()))
    patch.setattr(member_values, "may_answer", lambda settings, m, now: m.state is State.ACTIVE)


def stay_active_while_yielding(patch: Patch) -> None:
    describe = member_values.describe

    def both(settings: Settings, m: Member, sequence: int, now: float) -> Any:
        said = describe(settings, m, sequence, now)
        yields = m.state is State.ACTIVE and now < m.yield_until
        return said._replace(state=State.PASSIVE, flags=Flag.YIELDS) if yields else said

    rewrite(patch, State.ACTIVE, Event.SWITCHOVER, Cell(State.ACTIVE, (Effect.YIELD,)))
    patch.setattr(member_values, "describe", both)


def win_without_the_witness(patch: Patch) -> None:
    def persisted(settings: Settings, m: Member, counter: int, now: float) -> Outcome:
        m = m._replace(claim=Claim.ACQUIRING, lease_until=now + settings.lease_s)
        return member._apply(settings, m, Event.WON, now, ())

    patch.setattr(member, "persisted", persisted)


def count_the_peers_word_from_its_arrival(patch: Patch) -> None:
    receive = member.receive

    def hasty(settings: Settings, m: Member, message: Any, now: float, acked_at: float | None = None) -> Outcome:
        return receive(settings, m, message, now, None if acked_at is None else now)

    patch.setattr(member, "receive", hasty)


def believe_the_word_of_a_peer_that_has_heard_an_earlier_term(patch: Patch) -> None:
    receive = member.receive

    def gullible(settings: Settings, m: Member, message: Any, now: float, acked_at: float | None = None) -> Outcome:
        return receive(settings, m, message, now, now if message.state is State.PASSIVE else acked_at)

    patch.setattr(member, "receive", gullible)


NO_NODE_ID: dict[str, Any] = {"nodes": (0, 0), **NO_WITNESS}
# What was broken, where it shows, and as what. The first column is also what a reviewer would call the mistake.
MUTANTS: list[tuple[Callable[[Patch], None] | None, dict[str, Any], bool, str]] = [
    (forget_the_ballot, {"faults": 1, **NO_WITNESS}, False, "one ballot served twice"),
    (None, {"faults": 2, **NO_NODE_ID}, False, "two serve under one ballot"),
    (None, {"faults": 2, "nodes": (0, 0), "kinds": NODE_FAULTS, "coarse": True}, False, "two serve"),
    (answer_without_lease, {"faults": 1}, False, "two serve"),
    (count_the_lease_from_its_arrival, {"faults": 1, "late": True, "coarse": True}, False, "two serve"),
    (count_the_peers_word_from_its_arrival, {"faults": 2, "coarse": True}, False, "two serve"),
    (believe_the_word_of_a_peer_that_has_heard_an_earlier_term, {"faults": 2, "coarse": True}, False, "two serve"),
    (grant_after_a_restart_at_once, {"faults": 2, "coarse": True}, False, "two serve"),
    (grant_to_whoever_asks, {"faults": 1}, False, "two serve"),
    (release_for_anybody, {"faults": 1}, False, "two serve"),
    (win_without_the_witness, {"faults": 1}, False, "two serve"),
    (never_claim_again, {"faults": 1}, False, "dead end"),
    (ignore_a_higher_ballot, {"faults": 1, **NO_WITNESS}, False, "overlap"),
    (die_of_a_higher_ballot, {"faults": 1, **NO_WITNESS}, False, "dead end"),
    (claim_while_the_peer_is_heard, {"faults": 0, **NO_WITNESS}, True, "two serve"),
    (draw_a_ballot_without_looking, {"faults": 2, **NO_WITNESS}, False, "one ballot served twice"),
    (ignore_what_clients_have_seen, {"faults": 2, "clients": True, **NO_WITNESS}, False, "dead end"),
    (believe_clients, {"faults": 0, "liars": True}, False, "deposed by a lie"),
    (serve_at_once_after_start, {"faults": 1, "kinds": ORDERS, **NO_WITNESS}, True, "two serve"),
    (go_on_after_standing_still, {"faults": 1, "kinds": ORDERS, **NO_WITNESS}, True, "two serve"),
    (stay_active_while_yielding, {"faults": 1, "kinds": ORDERS, **NO_WITNESS}, True, "two serve"),
]


@pytest.mark.long
@pytest.mark.parametrize(
    "mutant, arguments, single, what",
    MUTANTS,
    ids=[f"{mutant.__name__ if mutant else 'no_node_id'}-{what}" for mutant, _, _, what in MUTANTS],
)
def test_a_broken_machine_is_found_out(
    mutant: Callable[[Patch], None] | None,
    arguments: dict[str, Any],
    single: bool,
    what: str,
    monkeypatch: Patch,
) -> None:
    """G11: each of these mistakes has been made by somebody; the search that lets the shipped machine pass catches it."""
    if mutant is not None:
        mutant(monkeypatch)
    report = Search(Model(**arguments), single=single).run(limit=200_000)
    assert list(report.findings) == [what]


def test_the_witness_may_be_away_while_both_servers_are_there() -> None:
    """BST-39: its crash takes nobody's right to serve away, and that of a peer afterwards does."""
    search = Search(Model(faults=2))
    model, state = search.model, search.model.first
    for _ in range(4):
        state = search.round(state)
    assert search.one_serves(state)
    state = model.apply(state, WITNESS_CRASH)
    for _ in range(8):
        state = search.round(state)
        assert search.one_serves(state)
    state = model.apply(state, CRASH + 1)
    for _ in range(3):
        state = search.round(state)
    assert not search.one_serves(state)


# The active's question is late, and it does not hear its peer. It gives up, the backup gets the lease, the witness crashes, restarts and
# forgets; then it reads that question, takes its asker for the holder, and the asker wants a new ballot.
GHOST = (
    "tick|deliver to A|witness reads question of A|witness answers A|deliver to B|cut B>A|deliver to A|tick|deliver to A|deliver to B|tick|"
    "deliver to A|deliver to B|request at B|witness reads question of B|witness crash|witness restart|witness reads question of A|"
    "request at A|witness reads question of A|witness answers A|witness answers B"
).split("|")


def test_witness_is_not_fooled_by_a_question_from_before_its_crash(monkeypatch: Patch) -> None:
    """BST-32: found by a search of 1.5 million states.

    Too deep to be found anew each time, so the path is kept.
    """

    def model() -> Model:
        return Model(faults=2, late=True, late_questions=True, coarse=True, witness_keeps=False)

    assert Search(model()).follow(GHOST) == ""
    grant_the_same_node_a_new_ballot_after_a_restart(monkeypatch)
    assert Search(model()).follow(GHOST) == "two serve"


def test_the_mutants_are_undone() -> None:
    assert vars(member)["BALLOT"] is BALLOT
    assert vars(member)["start"].__module__ == "bstar.machine.member"
    assert LeaseTable.ask.__module__ == "bstar.machine.ballot"


# --- long searches -----------------------------------------------------------------------------------------------------------------

LONG: dict[str, dict[str, Any]] = {
    "crash, pause and isolation, four of them": {"faults": 4, "kinds": NODE_FAULTS, "coarse": True},
    "crash, pause, isolation and switchover, three of them": {
        "faults": 3,
        "kinds": (*NODE_FAULTS, *ORDERS),
        "coarse": True,
        "clients": True,
    },
    "any two faults": {"faults": 2, "coarse": True},
    "any four faults, everything late": {"faults": 4, "late": True, "late_questions": True, "sync": False},
}
ENDLESS = "any four faults, everything late"  # searched as far as `--sim-states` says


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LONG)
def test_long_search(name: str, request: pytest.FixtureRequest) -> None:
    """G7, G8: the whole state space with a witness, or `--sim-states` of its states.

    A thousand when the option is not given.
    """
    states = long_search(request)
    limit = None if states and name != ENDLESS else states or 1_000
    report = Search(Model(**LONG[name])).run(limit=limit)
    print(f"{name}: {report.states} states, {report.transitions} transitions")  # noqa: T201
    assert not report.findings
    assert report.complete or (limit is not None and report.states >= limit)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(4))
def test_long_walk(seed: int, request: pytest.FixtureRequest) -> None:
    """G7: with `--sim-states` a million schedules at random in four parts, with up to eight faults and every answer late."""
    chance = random.Random(seed)
    search = Search(Model(faults=8, late=True, sync=bool(seed % 2), clients=True))
    walks = 250_000 if long_search(request) else 100
    assert next((found for found in (search.walk(chance, 40) for _ in range(walks)) if found), None) is None
