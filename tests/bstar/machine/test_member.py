from __future__ import annotations

import pytest

from bstar.machine import member, member_values
from bstar.machine.ballot import CLIENT_JUMP_MAX, COUNTER_MAX, NO_BALLOT, Ballot
from bstar.machine.driver import Machine
from bstar.machine.effects import Announce, Ask, BecameActive, BecamePassive, ClaimDropped, Halt, Persist, Release
from bstar.machine.fsm import Event, Fault, State, Verdict
from bstar.machine.member_values import Claim, Settings
from bstar.machine.wire import Flag, StateMessage
from tests.scenes.bstar_machines import LEASE_S, A, B, Star, pair

PRIMARY, BACKUP, ACTIVE, PASSIVE = State


MODES = pytest.mark.parametrize("ballots", [True, False], ids=["ballot", "compatible"])


# --- the guide's rules, in both modes ---------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("first", [0, 1])
def test_start_order_does_not_matter(first: int, ballots: bool) -> None:
    """BST-09: primary active and backup passive, without any client."""
    stars = Star(PRIMARY, ballots=ballots), Star(BACKUP, ballots=ballots)
    for now in (1.0, 2.0, 3.0):
        for i in (first, 1 - first):
            stars[i].tick(now)
            stars[1 - i].hears(stars[i].says(now), now)
    assert [s.state for s in stars] == [ACTIVE, PASSIVE]
    assert len(stars[0].took(BecameActive)) == len(stars[1].took(BecamePassive)) == 1


@MODES
def test_lone_primary_listens_for_two_heartbeats_first(ballots: bool) -> None:
    """BST-02."""
    star = Star(PRIMARY, ballots=ballots)
    star.live(0.0, 1.9)
    assert star.asked(1.99) is Verdict.REJECT
    star.live(1.99, 2.0)
    assert star.asked(2.0) is (Verdict.HOLD if ballots else Verdict.ACCEPT)
    assert star.state is ACTIVE


@MODES
def test_lone_backup_does_not_serve(ballots: bool) -> None:
    """BST-13."""
    star = Star(BACKUP, ballots=ballots)
    star.live(0.0, 60.0)
    assert star.asked(60.0) is Verdict.REJECT
    assert star.state is BACKUP


@MODES
def test_operator_may_let_a_lone_backup_serve(ballots: bool) -> None:
    """BST-13, the override."""
    star = Star(BACKUP, ballots=ballots, lone_backup=True)
    star.live(0.0, 1.9)
    assert star.asked(1.9) is Verdict.REJECT
    star.live(1.9, 2.5)
    star.asked(2.5)
    assert star.state is ACTIVE


@MODES
def test_fail_over_needs_two_silent_heartbeats_and_a_client(ballots: bool) -> None:
    """BST-10."""
    _, backup = pair(ballots=ballots)
    backup.live(1.0, 2.5)
    assert backup.asked(2.5) is Verdict.REJECT  # heard at 0.6
    backup.live(2.5, 30.0)
    assert backup.state is PASSIVE
    backup.asked(30.0)
    assert backup.state is ACTIVE
    assert len(backup.took(BecameActive)) == 1


@MODES
def test_any_valid_state_message_counts_as_life_before_it_is_an_event(ballots: bool) -> None:
    """BST-02: a message that arrives late still refreshes."""
    primary, backup = pair(ballots=ballots)
    backup.live(1.0, 9.0)
    primary.live(1.0, 9.0)
    backup.hears(primary.says(9.0), 9.0)
    backup.live(9.0, 10.9)
    assert backup.asked(10.9) is Verdict.REJECT


@MODES
def test_no_fail_back(ballots: bool) -> None:
    """BST-11."""
    _, backup = pair(ballots=ballots)
    backup.live(1.0, 5.0)
    backup.asked(5.0)
    primary = Star(PRIMARY, 6.0, ballots=ballots, incarnation=2, counter=1)
    primary.hears(backup.says(6.1), 6.1)
    assert primary.state is PASSIVE
    assert primary.asked(6.2) is Verdict.REJECT
    backup.tick(6.2)
    backup.hears(primary.says(6.3), 6.3)
    assert backup.state is ACTIVE


@MODES
def test_active_that_restarts_before_a_vote_hands_over_at_once(ballots: bool) -> None:
    """BST-25."""
    _, backup = pair(ballots=ballots)
    primary = Star(PRIMARY, 1.2, ballots=ballots, incarnation=2, counter=1)
    backup.hears(primary.says(1.2), 1.2)
    assert backup.state is ACTIVE
    primary.hears(backup.says(1.3), 1.3)
    assert primary.state is PASSIVE
    assert len(primary.took(BecamePassive)) == 1


@MODES
def test_stars_of_one_role_stop(ballots: bool) -> None:
    """BST-08, F3."""
    one, other = Star(PRIMARY, ballots=ballots), Star(PRIMARY, ballots=ballots, node=B)
    one.hears(other.says(0.5), 0.5)
    assert one.took(Halt) == [Halt(Fault.DOUBLE_PRIMARY)]
    backup = Star(BACKUP, ballots=ballots)
    backup.hears(Star(BACKUP, ballots=ballots, node=A).says(0.5), 0.5)
    assert backup.took(Halt) == [Halt(Fault.DOUBLE_BACKUP)]


@MODES
def test_passive_of_one_role_stops_whatever_the_other_is(ballots: bool) -> None:
    """BST-08: in any state; the state 1 is heard by a passive configured primary."""
    _, backup = pair(ballots=ballots)
    backup.hears(Star(BACKUP, ballots=ballots, node=99).says(1.5), 1.5)
    assert backup.took(Halt) == [Halt(Fault.DOUBLE_BACKUP)]


def test_compatible_mode_dies_of_two_actives_and_of_two_passives() -> None:
    """BST-06, BST-19: the guide's two fatal cells."""
    primary, backup = pair(ballots=False)
    primary.hears(StateMessage(ACTIVE), 1.5)
    assert primary.took(Halt) == [Halt(Fault.DUAL_ACTIVE)]
    backup.hears(StateMessage(PASSIVE), 1.5)
    assert backup.took(Halt) == [Halt(Fault.DUAL_PASSIVE)]


# --- heartbeats -------------------------------------------------------------------------------------------------------------------


@MODES
def test_one_announcement_per_heartbeat_whatever_the_traffic(ballots: bool) -> None:
    """BST-05."""
    primary, _ = pair(ballots=ballots)
    for number in range(1, 1000):
        primary.asked(1.0 + number / 1000)
    primary.live(1.0, 6.0)
    assert len(primary.took(Announce)) == 5


def test_after_a_suspension_one_announcement_is_due() -> None:
    primary, _ = pair()
    primary.tick(50.0)
    assert len(primary.took(Announce)) == 2  # the change to passive, and the heartbeat
    primary.tick(50.9)
    assert primary.took(Announce) == []
    primary.tick(51.0)
    assert len(primary.took(Announce)) == 1


@MODES
def test_silence_while_asleep_is_not_silence(ballots: bool) -> None:
    """BST-18: after a suspension a server listens for two heartbeats before it considers its peer dead."""
    _, backup = pair(ballots=ballots)
    assert backup.asked(100.0) is Verdict.REJECT
    backup.live(100.0, 101.9)
    assert backup.asked(101.9) is Verdict.REJECT
    backup.live(101.9, 102.0)
    backup.asked(102.0)
    assert backup.state is ACTIVE


@MODES
@pytest.mark.parametrize("stall_s", [1.05, 1.3, 1.9])
@pytest.mark.parametrize("phase_s", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("ticks_first", [True, False])
def test_after_a_stall_the_peer_gets_one_more_heartbeat(stall_s: float, phase_s: float, ticks_first: bool, ballots: bool) -> None:
    """BST-18: a machine that stands still for a moment holds both servers."""
    primary, backup = pair(ballots=ballots)
    heard = 1.2 + phase_s
    backup.live(1.0, heard)
    backup.hears(primary.says(heard), heard)
    backup.live(heard, heard + 0.99)  # its next message does not come any more
    now = heard + 0.99 + stall_s
    if ticks_first:
        backup.tick(now)
    assert backup.asked(now) is Verdict.REJECT
    backup.live(now, now + 0.99)
    assert backup.asked(now + 0.99) is Verdict.REJECT
    backup.hears(primary.says(now + 0.99), now + 0.99)
    backup.live(now + 0.99, now + 1.5)
    assert backup.asked(now + 1.5) is Verdict.REJECT
    assert backup.state is PASSIVE


@MODES
def test_a_silence_is_excused_once(ballots: bool) -> None:
    """BST-18: a server whose every tick is late takes over all the same."""
    _, backup = pair(ballots=ballots)  # it has heard its peer at 0.6
    backup.tick(2.7)
    assert backup.asked(2.7) is Verdict.REJECT
    backup.tick(3.7)
    backup.asked(3.7)
    assert backup.state is ACTIVE


@MODES
def test_a_stall_does_not_make_a_dead_peer_live(ballots: bool) -> None:
    """BST-18: its silence was long enough before the stall."""
    _, backup = pair(ballots=ballots)  # it has heard its peer at 0.6
    backup.live(1.0, 3.0)
    backup.tick(4.9)
    backup.asked(4.9)
    assert backup.state is ACTIVE


def test_who_stood_still_steps_down_before_it_answers() -> None:
    """BST-34, P2, BST-29: and asks its peer to take over."""
    primary, backup = pair()
    assert primary.machine.may_answer(2.9)
    assert not primary.machine.may_answer(3.0)  # before anything has looked at the clock
    assert primary.asked(3.0) is Verdict.REJECT
    assert primary.state is PASSIVE
    said = primary.says(3.1)
    assert Flag.YIELDS in said.flags
    backup.live(1.0, 3.1)
    backup.hears(said, 3.1)
    assert backup.state is ACTIVE


# --- staleness --------------------------------------------------------------------------------------------------------------------


def test_message_from_before_a_crash_is_recognised() -> None:
    """BST-35: it changes nothing and does not make the peer live."""
    primary, backup = pair()
    old = primary.says(1.1)
    reborn = Star(PRIMARY, 1.2, incarnation=2, counter=1)
    backup.hears(reborn.says(1.2), 1.2)
    assert backup.state is ACTIVE
    backup.live(1.2, 3.0)
    before = backup.machine.member
    backup.hears(old, 3.0)
    assert backup.machine.member == before
    assert backup.machine.stale == 1


def test_message_that_came_round_by_an_old_connection_is_recognised() -> None:
    primary, backup = pair()
    first, second = primary.says(1.1), primary.says(1.2)
    backup.hears(second, 1.2)
    backup.hears(first, 1.3)
    backup.hears(second, 1.4)
    assert backup.machine.stale == 2
    assert backup.machine.member.peer_until == 1.2 + 2.0


def test_member_with_a_new_file_is_a_new_member() -> None:
    primary, backup = pair()
    backup.hears(Star(PRIMARY, 1.2, node=77).says(1.2), 1.2)
    assert backup.state is ACTIVE
    assert primary.machine.stale == 0


def test_digits_of_a_peer_in_ballot_mode_are_ignored_while_it_is_heard() -> None:
    """BST-38."""
    _, backup = pair()
    backup.hears(StateMessage(PRIMARY), 1.5)
    assert backup.state is PASSIVE
    backup.live(1.0, 2.6)
    backup.hears(StateMessage(PRIMARY), 2.6)  # two heartbeats later somebody else may sit there
    assert backup.state is ACTIVE


# --- ballots ----------------------------------------------------------------------------------------------------------------------


def test_ballot_is_on_disk_before_it_is_used() -> None:
    """BST-27, BST-28."""
    machine = Machine(Settings(PRIMARY, node=A), 6, 0.0)
    machine.tick(1.0)
    _, effects = machine.request(NO_BALLOT, 2.0)
    assert Persist(7) in effects
    assert machine.member.state is PRIMARY
    assert not machine.may_answer(2.0)
    assert machine.persisted(5, 2.1) == ()  # of another claim
    assert BecameActive(Ballot(7, A)) in machine.persisted(7, 2.1)
    assert machine.ballot == Ballot(7, A)


def test_claim_is_dropped_when_an_active_is_heard_meanwhile() -> None:
    machine = Machine(Settings(PRIMARY, node=A), 0, 0.0)
    machine.tick(1.0)
    machine.request(NO_BALLOT, 2.0)
    said = StateMessage(ACTIVE, BACKUP, Flag.SERVES, B, 1, 1, Ballot(1, B), 0, 0, 1000)
    effects = machine.receive(said, 2.05)
    assert ClaimDropped() in effects
    assert BecamePassive(Event.PEER_ACTIVE) in effects
    assert machine.persisted(1, 2.1) == ()
    assert machine.member.state is PASSIVE
    assert machine.member.counter == 1


def test_claim_without_further_votes_is_given_up() -> None:
    machine = Machine(Settings(PRIMARY, node=A, lease_s=LEASE_S), 0, 0.0)
    machine.tick(1.0)
    machine.request(NO_BALLOT, 2.0)
    machine.persisted(1, 2.0)
    for now in (2.5, 3.0, 3.5):
        assert any(isinstance(effect, Ask) for effect in machine.tick(now))
    effects = machine.tick(4.0)
    assert ClaimDropped() in effects
    assert Release(Ballot(1, A)) in effects
    assert machine.member.claim is Claim.IDLE


def test_of_two_actives_the_lower_steps_down_and_hears_of_it_at_once() -> None:
    """BST-30, F1."""
    primary, backup = pair()
    backup.live(1.0, 4.0)
    backup.asked(4.0)
    primary.live(1.0, 4.0)
    assert [primary.state, backup.state] == [ACTIVE, ACTIVE]
    backup.log.clear()
    backup.hears(primary.says(4.1), 4.1)
    assert backup.took(Announce) == [Announce()]
    primary.hears(backup.says(4.1), 4.1)
    assert [primary.state, backup.state] == [PASSIVE, ACTIVE]
    assert primary.took(Halt) == []


def test_same_node_id_twice_is_refused_and_spares_the_one_that_serves() -> None:
    """F3: a copied ballot file, or a server connected to itself."""
    star = Star(PRIMARY)
    star.hears(star.says(0.1), 0.1)
    assert star.took(Halt) == [Halt(Fault.SAME_NODE)]
    primary, _ = pair()
    copy = Star(BACKUP, node=A)
    primary.hears(copy.says(1.5), 1.5)
    assert primary.took(Halt) == []
    copy.hears(primary.says(1.5), 1.5)
    assert copy.took(Halt) == [Halt(Fault.SAME_NODE)]


def test_client_does_not_depose_by_its_word_alone() -> None:
    """BST-45: any ballot it names: its request is rejected, nothing is drawn, and peer and witness can be asked."""
    primary, _ = pair()
    primary.live(1.0, 10.0)
    before = primary.machine.member
    assert primary.asked(10.0, Ballot(1, A)) is Verdict.ACCEPT
    for named in (Ballot(1, B), Ballot(2, 1), Ballot(2 + CLIENT_JUMP_MAX, B), Ballot(COUNTER_MAX, B)):
        assert primary.asked(10.0, named) is Verdict.REJECT
    assert primary.machine.member == before
    primary.log.clear()
    primary.do(primary.machine.question(10.0), 10.0)
    assert primary.log == [Announce()]


def test_active_with_a_witness_asks_both_when_a_client_names_a_higher_ballot() -> None:
    """BST-45: a renewal that is refused because of a higher ballot is the proof."""
    star = Star(PRIMARY, lease_s=LEASE_S)
    star.live(0.0, 10.0)
    assert star.asked(10.0) is Verdict.HOLD
    star.granted(10.0)
    star.log.clear()
    assert star.asked(10.1, Ballot(7, B)) is Verdict.REJECT
    star.do(star.machine.question(10.1), 10.1)
    assert star.log == [Announce(), Ask(Ballot(1, A), holding=True)]
    star.do(star.machine.refused(Ballot(1, A), Ballot(7, B), 0.0, 10.2), 10.2)
    assert star.state is PASSIVE
    assert star.machine.member.counter == 7


def test_passive_asks_no_witness_for_a_client() -> None:
    _, backup = pair()
    assert backup.machine.question(1.5) == ()


def test_client_whose_ballot_the_peer_bears_out_deposes() -> None:
    """BST-33, BST-45: the peer has said that it knows that counter, so it was drawn."""
    primary, backup = pair()
    claims = member_values.describe(backup.machine.settings, backup.machine.member._replace(counter=3), 9, 1.5)
    primary.hears(claims, 1.5)
    assert primary.asked(1.5, Ballot(4, B)) is Verdict.REJECT
    assert primary.asked(1.5, Ballot(1, 99)) is Verdict.REJECT
    primary.asked(1.5, Ballot(3, B))
    assert len(primary.took(BecamePassive)) == 1


def test_ballot_of_a_vote_is_above_what_the_voter_has_seen() -> None:
    """BST-33: a server that lost its ballot file can answer clients of its former ballots."""
    star = Star(PRIMARY)
    star.live(0.0, 10.0)
    assert star.asked(10.0, Ballot(41, B)) is Verdict.HOLD
    assert star.machine.ballot == Ballot(42, A)


def test_voter_cannot_name_a_ballot_out_of_reach() -> None:
    star = Star(PRIMARY)
    star.live(0.0, 10.0)
    assert star.asked(10.0, Ballot(1 + CLIENT_JUMP_MAX, B)) is Verdict.HOLD
    assert star.machine.ballot == Ballot(1, A)


def test_where_no_counter_is_left_there_is_no_claim() -> None:
    star = Star(PRIMARY, counter=COUNTER_MAX)
    star.live(0.0, 10.0)
    star.log.clear()
    assert star.asked(10.0) is Verdict.REJECT
    assert star.log == [ClaimDropped()]
    assert star.machine.member.counter == COUNTER_MAX


def test_claim_that_cannot_be_written_is_given_up_and_can_be_tried_again() -> None:
    """BST-27: the server stays what it was."""
    star = Star(PRIMARY)
    star.live(0.0, 10.0)
    _, effects = star.machine.request(NO_BALLOT, 10.0)
    assert effects == (Persist(1),)
    assert star.machine.unwritten(7, 10.0) == ()
    assert star.machine.unwritten(1, 10.0) == (ClaimDropped(),)
    assert star.machine.persisted(1, 10.0) == ()
    assert star.state is PRIMARY
    assert star.asked(10.1) is Verdict.HOLD
    assert star.machine.ballot == Ballot(2, A)


def test_dual_passive_is_decided_by_a_client() -> None:
    """BST-30: the guide dies here."""
    primary, backup = pair()
    primary.live(1.0, 2.0)
    outcome = member.receive(
        primary.machine.settings,
        primary.machine.member._replace(state=PASSIVE, ballot=0),
        backup.says(2.0),
        2.0,
    )
    primary.machine.member = outcome.member
    assert primary.asked(2.1) is Verdict.HOLD
    assert primary.state is ACTIVE
