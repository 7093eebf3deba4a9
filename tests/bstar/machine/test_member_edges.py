"""Edge cases of a member: ballots just in reach, answers to old questions, remains of dropped claims."""

from __future__ import annotations

from typing import Any

import pytest

from bstar.machine.ballot import CLIENT_JUMP_MAX, COUNTER_MAX, NO_BALLOT, Ballot
from bstar.machine.driver import Machine
from bstar.machine.effects import Announce, Ask, BecameActive, ClaimDropped, Halt, Persist, Release, ShellEffect
from bstar.machine.fsm import Fault, State, Verdict
from bstar.machine.member_values import Claim, Settings, retry_after
from bstar.machine.wire import Flag, StateMessage
from tests.scenes.bstar_machines import LEASE_S, A, B, Star, pair

PRIMARY, BACKUP, ACTIVE, PASSIVE = State
EXPIRY_S = 2.0
HELD_S = 1.96  # of a lease of two seconds


def alone(now: float = 10.0, **settings: Any) -> Star:
    """Return a primary that has heard no peer for long enough."""
    star = Star(PRIMARY, **settings)
    star.live(0.0, now)
    star.log.clear()
    return star


def said_by(node: int, state: State, role: State, counter: int = 0) -> StateMessage:
    return StateMessage(state, role, Flag(0), node, 1, 1, Ballot(counter, node) if counter else NO_BALLOT, 0, 0, 1000)


def kinds(effects: tuple[ShellEffect, ...]) -> list[type]:
    return [type(effect) for effect in effects]


# --- how far counters go --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "seen", "drawn"),
    [
        (0, 0, 1),
        (0, CLIENT_JUMP_MAX, CLIENT_JUMP_MAX + 1),
        (0, CLIENT_JUMP_MAX + 1, 1),
        (7, CLIENT_JUMP_MAX + 7, CLIENT_JUMP_MAX + 8),
        (7, CLIENT_JUMP_MAX + 8, 8),
        (7, 3, 8),
        (COUNTER_MAX - 1, 0, COUNTER_MAX),
        (COUNTER_MAX, 0, None),
        (COUNTER_MAX - 1, COUNTER_MAX, None),
    ],
)
def test_the_ballot_of_a_vote_is_the_lowest_above_what_is_known_and_may_be_believed(known: int, seen: int, drawn: int | None) -> None:
    """BST-27, BST-33, BST-47: up to the last counter; without one nothing is held for a client."""
    star = alone(counter=known)
    verdict, effects = star.machine.request(Ballot(seen, B) if seen else NO_BALLOT, 10.0)
    assert effects == ((ClaimDropped(),) if drawn is None else (Persist(drawn),))
    assert verdict is (Verdict.REJECT if drawn is None else Verdict.HOLD)


# --- what the witness says --------------------------------------------------------------------------------------------------------


def asking(counter: int = 4) -> tuple[Machine, Ballot]:
    """Return a machine that asks the witness for the ballot after `counter` at second 10."""
    star = alone(lease_s=LEASE_S, counter=counter)
    assert star.asked(10.0) is Verdict.HOLD
    ballot = Ballot(counter + 1, A)
    assert star.took(Ask) == [Ask(ballot, holding=False)]
    return star.machine, ballot


@pytest.mark.parametrize(("lease_s", "held_s"), [(LEASE_S, HELD_S), (0.5, 0.49), (60.0, HELD_S)])
def test_a_lease_is_never_longer_than_what_was_granted_nor_than_what_was_asked_for(lease_s: float, held_s: float) -> None:
    """BST-31: and at its end the machine wants to be called, whatever else is due later."""
    machine, ballot = asking()
    machine.granted(ballot, 10.0, lease_s, 10.1)
    machine.tick(10.2)
    assert machine.may_answer(10.0 + held_s - 1e-6)
    assert not machine.may_answer(10.0 + held_s)
    while (at := machine.deadline()) < 10.0 + held_s - 1e-6:
        machine.tick(at)
    assert at == pytest.approx(10.0 + held_s)
    assert ClaimDropped not in kinds(machine.tick(at))
    assert machine.member.state is PASSIVE


@pytest.mark.parametrize("other", [Ballot(4, A), Ballot(6, A), Ballot(5, B)])
@pytest.mark.parametrize("state", ["asking", "writing", "active"])
def test_an_answer_about_another_ballot_decides_nothing(other: Ballot, state: str) -> None:
    """BST-29: a lease for it is given back; a refusal of it says no more than which counters there are."""
    machine, ballot = asking()
    if state == "active":
        machine.granted(ballot, 10.0, LEASE_S, 10.0)
    elif state == "writing":
        (persist,) = machine.refused(ballot, Ballot(6, B), 0.0, 10.0)
        assert persist == Persist(7)
    before = machine.member
    assert machine.granted(other, 10.0, LEASE_S, 10.1) == (Release(other),)
    assert machine.member == before
    assert machine.refused(other, Ballot(9, B), 0.0, 10.1) == ()
    assert machine.member == before._replace(counter=9)


@pytest.mark.parametrize(
    ("highest", "then"),
    [
        (NO_BALLOT, "asks again"),
        (Ballot(5, A), "asks again"),
        (Ballot(5, A - 1), "asks again"),
        (Ballot(5, A + 1), Persist(6)),
        (Ballot(6, 1), Persist(7)),
    ],
)
def test_a_refused_claim_draws_again_only_where_that_helps(highest: Ballot, then: Persist | str) -> None:
    """BST-30: below the highest ballot waiting does not help, and at it nothing else does."""
    machine, ballot = asking()
    effects = machine.refused(ballot, highest, 0.125, 10.0)
    if isinstance(then, Persist):
        assert effects == (then,)
        assert machine.member.claim is Claim.PERSISTING
    else:
        assert effects == ()
        assert machine.deadline() == 10.125
        assert machine.tick(10.125) == (Ask(ballot, holding=False),)


@pytest.mark.parametrize("highest", [NO_BALLOT, Ballot(5, A), Ballot(5, B), Ballot(99, B)])
def test_an_active_server_that_is_refused_stops_serving(highest: Ballot) -> None:
    """BST-29: whatever the witness's reason is."""
    machine, ballot = asking()
    assert BecameActive(ballot) in machine.granted(ballot, 10.0, LEASE_S, 10.0)
    assert Release(ballot) in machine.refused(ballot, highest, 0.0, 10.1)
    assert (machine.member.state, machine.may_answer(10.1)) == (PASSIVE, False)
    assert machine.member.counter == max(5, highest.counter)


# --- claims -------------------------------------------------------------------------------------------------------------------


def test_a_vote_lengthens_the_open_claim_and_begins_no_other() -> None:
    """By two heartbeats from then on."""
    machine, _ = asking()
    while machine.deadline() <= 11.5:
        machine.tick(machine.deadline())
    verdict, effects = machine.request(NO_BALLOT, 11.5)
    assert (verdict, [effect for effect in effects if isinstance(effect, Persist)]) == (Verdict.HOLD, [])
    dropped: list[float] = []
    while (at := machine.deadline()) <= 11.5 + EXPIRY_S:
        dropped += [at for effect in machine.tick(at) if isinstance(effect, ClaimDropped)]
    assert dropped == [11.5 + EXPIRY_S]


def test_without_a_claim_nothing_is_dropped() -> None:
    star = Star(PRIMARY)
    star.log.clear()
    star.hears(said_by(B, ACTIVE, BACKUP, 3), 0.5)
    assert star.state is PASSIVE
    assert ClaimDropped() not in star.log
    star.log.clear()
    star.hears(said_by(B, ACTIVE, BACKUP, 3)._replace(sequence=2), 0.6)
    assert star.log == []


def test_a_lone_backup_stays_one_until_its_claim_is_through() -> None:
    """BST-13, the override: a running claim is not announced to a peer."""
    machine = Machine(Settings(BACKUP, node=B, lone_backup=True), 0, 0.0)
    machine.started()
    machine.tick(1.0)
    verdict, effects = machine.request(NO_BALLOT, 2.0)
    assert (verdict, effects, machine.member.state) == (Verdict.HOLD, (Persist(1),), BACKUP)
    assert machine.persisted(1, 2.0) == (BecameActive(Ballot(1, B)), Announce())


@pytest.mark.parametrize("way", ["dropped", "dropped unwritten", "lapsed", "outbid", "hears a higher", "switched over"])
def test_of_what_was_given_up_nothing_is_left(way: str) -> None:
    """Two servers in the same situation are the same value, however they came there: the model checker counts on it."""
    machine, ballot = asking()
    if way == "dropped unwritten":
        machine.refused(ballot, Ballot(5, B), 0.0, 10.0)
        machine.unwritten(6, 10.1)
    elif way == "dropped":
        machine.tick(11.0)
        machine.tick(12.0)
    else:
        machine.granted(ballot, 10.0, LEASE_S, 10.0)
        if way == "lapsed":
            machine.tick(11.0)
            machine.tick(12.0)
        elif way == "outbid":
            machine.refused(ballot, Ballot(9, B), 0.0, 10.1)
        elif way == "hears a higher":
            machine.receive(said_by(B, ACTIVE, BACKUP, 9), 10.1)
        else:
            machine.receive(said_by(B, PASSIVE, BACKUP), 10.1)
            assert machine.switchover(10.2)[0]
    left = machine.member
    assert left.state is (PRIMARY if way.startswith("dropped") else PASSIVE)
    assert (left.ballot, left.claim, left.claim_until, left.lease_until, machine.ballot) == (0, Claim.IDLE, 0.0, 0.0, NO_BALLOT)
    assert left.ask_at == 0.0 or not way.startswith("dropped")


def test_a_ballot_that_is_drawn_begins_without_a_lease() -> None:
    machine, ballot = asking()
    machine.granted(ballot, 10.0, LEASE_S, 10.0)
    machine.tick(11.0)
    machine.request(NO_BALLOT, 10.0 + HELD_S)
    after = machine.member
    assert (after.state, after.ballot, after.claim, after.lease_until) == (PASSIVE, 6, Claim.PERSISTING, 0.0)
    machine.persisted(6, 12.0)
    machine.granted(Ballot(6, A), 12.0, LEASE_S, 12.0)
    serves = machine.member
    assert (serves.state, serves.claim, serves.claim_until, serves.yield_until) == (ACTIVE, Claim.IDLE, 0.0, 0.0)


# --- moments ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [0.0, 5.0, 1e6])
def test_the_first_state_message_after_that_of_the_start_is_due_in_a_heartbeat(now: float) -> None:
    machine = Machine(Settings(PRIMARY), 0, now)
    assert machine.started() == (Announce(),)
    assert machine.deadline() == now + 1.0


def yields_from(now: float) -> Star:
    """Return a primary that has handed over to its passive peer and hears it again two heartbeats later."""
    primary, backup = pair()
    primary.hears(backup.says(now - 0.25), now - 0.25)
    done, effects = primary.machine.switchover(now)
    primary.do(effects, now)
    assert done
    primary.live(now, now + EXPIRY_S - 0.125)
    primary.hears(backup.says(now + EXPIRY_S - 0.125), now + EXPIRY_S - 0.125)
    return primary


def test_who_hands_over_yields_for_two_heartbeats_and_then_no_longer() -> None:
    """BST-36: until then it asks its peer to take over and claims nothing; afterwards a client decides."""
    primary = yields_from(1.5)
    assert Flag.YIELDS in primary.says(3.5 - 1e-6).flags
    assert Flag.YIELDS not in primary.says(3.5).flags
    with_witness = primary.machine.settings._replace(lease_s=LEASE_S)
    for settings in (primary.machine.settings, with_witness):
        for at, verdict in ((3.5 - 1e-6, Verdict.REJECT), (3.5, Verdict.HOLD)):
            machine = Machine(settings, 0, 0.0)
            machine.member = primary.machine.member
            assert machine.request(NO_BALLOT, at)[0] is verdict


def test_who_has_become_active_again_yields_no_more() -> None:
    """Not even if it is passive again while it was to yield.

    It lost its right, it was not ordered to hand over.
    """
    primary = yields_from(1.5)
    now = 3.4375
    primary.hears(said_by(B, BACKUP, BACKUP)._replace(sequence=50), now)
    assert primary.state is ACTIVE
    primary.hears(said_by(B, ACTIVE, BACKUP, 90)._replace(sequence=51), now)
    assert primary.state is PASSIVE
    assert Flag.YIELDS not in primary.says(now).flags


def test_a_quick_pair_yields_no_more_in_its_first_second() -> None:
    star = Star(PRIMARY, heartbeat_s=0.015625)
    star.hears(said_by(B, BACKUP, BACKUP), 0.015625)
    star.hears(said_by(B, ACTIVE, BACKUP, 9)._replace(sequence=2), 0.02)
    assert star.state is PASSIVE
    assert Flag.YIELDS not in star.says(0.02).flags
    assert retry_after(star.machine.settings, star.machine.member, 0.02) == pytest.approx(2 * 0.015625)


# --- peers --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("role", [PRIMARY, BACKUP])
def test_a_peer_of_our_role_ends_us_unless_we_serve(role: State, state: State) -> None:
    """BST-08: whatever its state is. Of two that serve, the ballots decide."""
    fault = Fault.DOUBLE_PRIMARY if role is PRIMARY else Fault.DOUBLE_BACKUP
    counter = 9 if state is ACTIVE else 0
    for waits in (True, False):
        star = Star(role)
        if not waits:
            star.hears(said_by(77, ACTIVE, PRIMARY if role is BACKUP else BACKUP, 3), 0.5)
            assert star.state is PASSIVE
        star.log.clear()
        star.hears(said_by(99, state, role, counter), 1.0)
        assert star.took(Halt) == [Halt(fault)]
    for ours, theirs, ends in ((1, counter, PASSIVE if counter else ACTIVE), (20, counter, ACTIVE)):
        star = Star(role, counter=ours - 1, lone_backup=True)
        star.live(0.0, 1.5)
        star.asked(2.0)
        star.log.clear()
        star.hears(said_by(99, state, role, theirs), 2.5)
        assert (star.state, star.took(Halt)) == (ends, [])


def test_a_stock_peer_in_the_place_of_one_that_fell_silent_is_heard_again_and_again() -> None:
    """BST-38: and nothing is said of messages that the one before had sent."""
    _, backup = pair()
    backup.live(1.0, 2.75)
    assert backup.says(2.75)[7:9] != (0, 0)
    for now in (2.75, 3.75, 4.75):
        backup.hears(StateMessage(ACTIVE), now)
        backup.live(now, now + 0.9)
        assert backup.says(now)[7:9] == (0, 0)
        assert backup.machine.member.peer_until == now + EXPIRY_S
    backup.hears(said_by(A, ACTIVE, PRIMARY, 5), 5.0)  # its first: not older than what was heard of a server that is gone
    assert (backup.machine.stale, backup.says(5.0)[7:9]) == (0, (1, 1))


def test_in_compatible_mode_who_serves_serves_until_it_is_stopped() -> None:
    """BST-19: the guide knows neither leases nor suspension."""
    star = Star(PRIMARY, ballots=False)
    assert not star.machine.may_answer(0.0)
    star.hears(StateMessage(BACKUP), 0.5)
    assert star.state is ACTIVE
    star.tick(100.0)
    assert (star.state, star.asked(200.0)) == (ACTIVE, Verdict.ACCEPT)
    assert star.machine.may_answer(1e6)
