from __future__ import annotations

import itertools

import pytest

from bstar.machine import fsm
from bstar.machine.fsm import BALLOT, GUIDE, Cell, Effect, Event, Fault, State, Verdict, step
from tests.scenes.bstar_diagram import mermaid

PRIMARY, BACKUP, ACTIVE, PASSIVE = State
ROLES = (PRIMARY, BACKUP)
GUIDE_EVENTS = tuple(Event)[:6]

# The table of the guide as people write it down: state, then one word per event
# (peer primary, peer backup, peer active, peer passive, request, vote).
GUIDE_TABLE = {
    PRIMARY: "stay active passive stay reject active+accept",
    BACKUP: "stay stay passive stay reject reject",
    ACTIVE: "stay stay fatal stay accept accept",
    PASSIVE: "active active stay fatal reject active+accept",
}


def expected(state: State, word: str) -> Cell:
    goes, _, verdict = word.partition("+")
    if goes in ("accept", "reject"):
        return Cell(state, verdict=Verdict(goes))
    if goes == "fatal":
        return Cell(state, fault=Fault.DUAL_ACTIVE if state is ACTIVE else Fault.DUAL_PASSIVE)
    if goes == "stay":
        return Cell(state)
    to = ACTIVE if goes == "active" else PASSIVE
    effect = Effect.ON_ACTIVE if to is ACTIVE else Effect.ON_PASSIVE
    return Cell(to, (effect,), Verdict(verdict) if verdict else None)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", GUIDE_EVENTS)
def test_cells_of_the_guide(state: State, event: Event) -> None:
    """BST-01, BST-03, BST-04, BST-13, BST-25: all 24 cells."""
    word = GUIDE_TABLE[state].split()[event - 1]
    role = state if state in ROLES else next(r for r in ROLES if int(r) != int(event))
    if int(event) == int(role):  # the guide's cell stands in the table, BST-08 lies over it
        assert step(role, state, event).fault is not None
        assert GUIDE[state][event] == expected(state, word)
    else:
        assert step(role, state, event) == expected(state, word)


@pytest.mark.parametrize("table", [GUIDE, BALLOT], ids=["guide", "ballot"])
def test_every_cell_is_written(table: dict[State, dict[Event, Cell]]) -> None:
    events = set(GUIDE_EVENTS) if table is GUIDE else set(Event)
    assert set(table) == set(State)
    assert all(set(row) == events for row in table.values())


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("role", ROLES)
def test_a_peer_of_our_own_role_is_fatal(role: State, state: State) -> None:
    """BST-08: in any state in compatible mode; in ballot mode the one that serves goes on."""
    event = Event(role)
    fault = Fault.DOUBLE_PRIMARY if role is PRIMARY else Fault.DOUBLE_BACKUP
    assert step(role, state, event) == Cell(state, fault=fault)
    assert step(role, state, event, BALLOT).fault is (None if state is ACTIVE else fault)


def test_callbacks_are_called_once_per_entry() -> None:
    """BST-14: on-active and on-passive go with a change of state and with nothing else."""
    for table in (GUIDE, BALLOT):
        for state, row in table.items():
            for cell in row.values():
                entered = cell.state if cell.state is not state else None
                assert (Effect.ON_ACTIVE in cell.effects) == (entered is ACTIVE)
                assert (Effect.ON_PASSIVE in cell.effects) == (entered is PASSIVE)


def test_in_ballot_mode_only_winning_a_claim_makes_active_and_nothing_is_fatal() -> None:
    """BST-28, BST-30."""
    for state, event in itertools.product(State, Event):
        cell = BALLOT[state][event]
        assert cell.fault is None
        if cell.state is ACTIVE and state is not ACTIVE:
            assert event is Event.WON


def test_requests_have_a_verdict_and_other_events_have_none() -> None:
    requests = {Event.REQUEST, Event.VOTE, Event.REQUEST_IDLE}
    for table in (GUIDE, BALLOT):
        for row in table.values():
            assert all((cell.verdict is not None) == (event in requests) for event, cell in row.items())


def test_no_state_leads_back_to_waiting() -> None:
    """BST-11: a server leaves PRIMARY and BACKUP for good; only a restart begins there."""
    for table in (GUIDE, BALLOT):
        for state in (ACTIVE, PASSIVE):
            assert all(cell.state in (ACTIVE, PASSIVE) for cell in table[state].values())


def test_drawing_has_an_arrow_for_each_cell_that_leads_elsewhere() -> None:
    for table in (GUIDE, BALLOT):
        arrows = [line for line in mermaid(table).splitlines() if "-->" in line and "[*] -->" not in line]
        moving = [
            cell
            for state, row in table.items()
            for cell in row.values()
            if cell.fault or cell.state is not state or Effect.CLAIM in cell.effects
        ]
        assert len(arrows) == len(moving)
    assert "ACTIVE --> [*]: peer active, fatal" in mermaid(GUIDE)
    assert "PASSIVE --> PASSIVE: vote, claims" in mermaid(BALLOT)


def test_values_are_the_digits_of_the_wire() -> None:
    """DIS-54: 1 to 4, never the enum ordinals 0 to 3."""
    assert [int(s) for s in State] == [1, 2, 3, 4]
    assert [int(e) for e in fsm.Event][:4] == [1, 2, 3, 4]
