from __future__ import annotations

import pytest

from bstar.machine import member, member_values
from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.driver import Machine
from bstar.machine.effects import Announce, Ask, BecamePassive, Halt, Release
from bstar.machine.fsm import Event, State, Verdict
from bstar.machine.member_values import Claim, Settings
from bstar.machine.wire import Flag, StateMessage
from tests.scenes.bstar_machines import LEASE_S, A, B, Star, pair

PRIMARY, BACKUP, ACTIVE, PASSIVE = State


# --- witness ----------------------------------------------------------------------------------------------------------------------


def with_witness() -> Star:
    """Return an active primary with a lease from second 2, without a peer."""
    star = Star(PRIMARY, lease_s=LEASE_S)
    star.live(0.0, 2.0)
    assert star.asked(2.0) is Verdict.HOLD
    assert star.took(Ask) == [Ask(Ballot(1, A), holding=False)]
    assert star.state is PRIMARY
    star.granted(2.0)
    assert star.state is ACTIVE
    return star


def test_lease_is_looked_up_for_each_answer() -> None:
    """BST-29."""
    star = with_witness()
    star.tick(3.0)
    assert star.machine.may_answer(3.95)
    assert not star.machine.may_answer(3.96)
    assert star.state is ACTIVE  # nobody has looked at the clock yet
    assert star.asked(3.96) is Verdict.HOLD  # deposed, and a vote: a new ballot
    assert star.machine.member.ballot == 2


def test_lease_counts_from_the_question() -> None:
    """BST-31."""
    star = with_witness()
    star.live(2.0, 3.5)
    star.granted(3.5, asked_at=2.6)
    assert star.machine.member.lease_until == pytest.approx(2.6 + 1.96)
    star.granted(3.6, asked_at=2.1)  # an older answer, late
    assert star.machine.member.lease_until == pytest.approx(2.6 + 1.96)


def test_answer_that_took_longer_than_the_lease_gives_nothing() -> None:
    star = Star(PRIMARY, lease_s=LEASE_S)
    star.live(0.0, 2.0)
    star.asked(2.0)
    star.live(2.0, 3.97)
    star.asked(3.97)
    star.granted(3.97, asked_at=2.0)
    assert star.state is PRIMARY


def test_active_asks_often_enough_to_lose_some_questions() -> None:
    star = with_witness()
    star.log.clear()
    star.live(2.0, 3.9)
    questions = star.took(Ask)
    assert len(questions) == 7
    assert all(question.holding for question in questions)


def test_lapsed_lease_deposes_by_the_timer() -> None:
    star = with_witness()
    star.live(2.0, 4.0)
    assert star.state is PASSIVE
    assert Release(Ballot(1, A)) in star.log
    star.log.clear()
    star.do(star.machine.granted(Ballot(1, A), 3.9, LEASE_S, 4.1), 4.1)
    assert star.state is PASSIVE
    assert star.took(Release) == [Release(Ballot(1, A))]  # what is not used is given back


def test_refusal_with_a_higher_ballot_draws_again() -> None:
    star = Star(PRIMARY, lease_s=LEASE_S)
    star.live(0.0, 2.0)
    star.asked(2.0)
    star.log.clear()
    star.do(star.machine.refused(Ballot(1, A), Ballot(8, B), 0.0, 2.1), 2.1)
    assert Ask(Ballot(9, A), holding=False) in star.log


def test_refusal_because_of_a_lease_asks_again_soon() -> None:
    star = Star(PRIMARY, lease_s=LEASE_S)
    star.live(0.0, 2.0)
    star.asked(2.0)
    star.do(star.machine.refused(Ballot(1, A), NO_BALLOT, 0.1, 2.0), 2.0)
    assert star.machine.deadline() == pytest.approx(2.1)
    star.do(star.machine.refused(Ballot(1, A), NO_BALLOT, 60.0, 2.0), 2.0)
    assert star.machine.deadline() == pytest.approx(2.25)


def test_refused_renewal_deposes() -> None:
    star = with_witness()
    star.do(star.machine.refused(Ballot(1, A), Ballot(2, B), 1.0, 2.5), 2.5)
    assert star.state is PASSIVE
    star.do(star.machine.refused(Ballot(1, A), Ballot(3, B), 1.0, 2.6), 2.6)  # of the ballot it no longer has
    assert star.machine.member.counter == 3


def test_restarted_server_gives_back_what_its_former_life_held() -> None:
    star = Star(PRIMARY, lease_s=LEASE_S, counter=4)
    assert star.took(Release) == [Release(Ballot(4, A))]
    assert Star(PRIMARY, lease_s=LEASE_S).took(Release) == []


# --- switchover -------------------------------------------------------------------------------------------------------------------


def test_switchover() -> None:
    """BST-36, F4."""
    primary, backup = pair()
    primary.hears(backup.says(1.1), 1.1)
    done, effects = primary.machine.switchover(1.2)
    assert done
    assert BecamePassive(Event.SWITCHOVER) in effects
    said = primary.says(1.2)
    assert Flag.YIELDS in said.flags
    assert primary.asked(1.25) is Verdict.REJECT  # it would undo the order
    backup.hears(said, 1.3)
    assert backup.state is ACTIVE
    primary.hears(backup.says(1.3), 1.3)
    assert primary.state is PASSIVE


def test_switchover_needs_a_peer_that_can_take_over() -> None:
    primary, _ = pair()
    assert primary.machine.member.peer_state is BACKUP
    assert primary.machine.switchover(1.2) == (False, ())
    lone = Star(PRIMARY)
    assert not lone.machine.switchover(0.1)[0]
    compatible, peer = pair(ballots=False)
    compatible.hears(peer.says(1.1), 1.1)
    assert not compatible.machine.switchover(1.2)[0]


def test_switchover_the_peer_does_not_follow_ends() -> None:
    """The peer died in that very moment: the next vote makes us active again."""
    primary, backup = pair()
    primary.hears(backup.says(1.1), 1.1)
    primary.machine.switchover(1.2)
    primary.live(1.2, 3.2)
    assert primary.asked(3.2) is Verdict.HOLD
    assert primary.state is ACTIVE


# --- stock peers ------------------------------------------------------------------------------------------------------------------


def test_stock_peer_gets_the_state_that_keeps_it_alive() -> None:
    """BST-38: a passive server without an active peer says that it waits."""
    star = Star(PRIMARY)

    def told(now: float) -> State:
        return member_values.digit(star.machine.settings, star.machine.member, now)

    assert told(0.1) is PRIMARY
    star.hears(StateMessage(ACTIVE), 0.5)
    assert (star.state, told(0.6)) == (PASSIVE, PASSIVE)
    star.live(0.6, 2.4)
    assert told(2.4) is PASSIVE
    assert told(2.5) is PRIMARY  # the stock peer has gone
    star.live(2.4, 2.6)
    star.asked(2.6)
    assert told(2.7) is ACTIVE
    star.hears(StateMessage(ACTIVE), 2.8)
    assert (star.state, star.took(Halt)) == (PASSIVE, [])  # a stock peer has no ballot: it wins, and nobody dies


def test_compatible_mode_says_what_it_is() -> None:
    star = Star(PRIMARY, ballots=False)
    star.hears(StateMessage(ACTIVE), 0.5)
    star.live(0.5, 9.0)
    assert member_values.digit(star.machine.settings, star.machine.member, 9.0) is PASSIVE


@pytest.mark.parametrize("role, at, expected", [(PRIMARY, 0.0, 0.25), (PRIMARY, 1.9, 0.1), (PRIMARY, 5.0, 0.05), (BACKUP, 5.0, 0.25)])
def test_rejected_client_learns_when_to_come_again(role: State, at: float, expected: float) -> None:
    """While no active server is known a change is imminent."""
    machine = Machine(Settings(role), 0, 0.0)
    assert member_values.retry_after(machine.settings, machine.member, at) == pytest.approx(expected)


def test_client_rejected_because_of_an_active_peer_comes_again_when_that_may_be_gone() -> None:
    """F2: until then the active one is named."""
    _, backup = pair()
    assert member_values.retry_after(backup.machine.settings, backup.machine.member, 1.1) == pytest.approx(1.5)


def test_description() -> None:
    star = with_witness()
    star.hears(StateMessage(PASSIVE, BACKUP, Flag(0), B, 4, 9, NO_BALLOT, 0, 0, 1000), 2.1)
    said = star.says(2.2)
    assert said == StateMessage(ACTIVE, PRIMARY, Flag.SERVES | Flag.WITNESS, A, 1, 1, Ballot(1, A), 4, 9, 1000)
    waiting = Star(PRIMARY, lease_s=LEASE_S)
    waiting.live(0.0, 2.0)
    waiting.asked(2.0)
    assert Flag.CLAIMS in waiting.says(2.0).flags


def test_request_of_another_client_waits_for_the_open_claim() -> None:
    star = Star(PRIMARY, lease_s=LEASE_S)
    star.hears(StateMessage(BACKUP, BACKUP, Flag(0), B, 1, 1, NO_BALLOT, 0, 0, 1000), 0.5)
    assert star.machine.member.claim is Claim.ACQUIRING
    assert star.asked(0.6) is Verdict.HOLD  # without a claim it would be rejected: the peer is heard


# --- the peer's word --------------------------------------------------------------------------------------------------------------


def test_what_the_peer_has_heard_of_us_is_a_lease() -> None:
    """BST-39: counted from when we said it, and never shorter than what the witness gave."""
    star = with_witness()
    star.live(2.0, 3.4)
    peer = StateMessage(PASSIVE, BACKUP, node=B, incarnation=1, sequence=1, heartbeat_ms=1000)
    star.do(star.machine.receive(peer, 3.5, 3.0), 3.5)
    assert star.machine.member.lease_until == pytest.approx(3.0 + 1.96)
    star.do(star.machine.receive(peer._replace(sequence=2), 3.6, 2.0), 3.6)
    star.do(star.machine.receive(peer._replace(sequence=3), 3.7), 3.7)
    assert star.machine.member.lease_until == pytest.approx(3.0 + 1.96)
    assert star.machine.may_answer(4.9)
    assert not star.machine.may_answer(4.97)


@pytest.mark.parametrize("state", [ACTIVE, BACKUP])
def test_only_the_word_of_a_passive_peer_counts(state: State) -> None:
    star = with_witness()
    star.live(2.0, 3.4)
    held = star.machine.member.lease_until
    ballot = Ballot(0, 0) if state is BACKUP else Ballot(1, A - 1)
    peer = StateMessage(state, BACKUP, node=A - 1, incarnation=1, sequence=1, ballot=ballot, heartbeat_ms=1000)
    star.do(star.machine.receive(peer, 3.5, 3.4), 3.5)
    assert star.machine.member.lease_until == held


def test_the_peers_word_comes_too_late_for_a_lease_that_has_run_out() -> None:
    star = with_witness()
    star.live(2.0, 3.9)
    star.do(star.machine.receive(StateMessage(PASSIVE, BACKUP, node=B, incarnation=1, sequence=1, heartbeat_ms=1000), 3.97, 3.9), 3.97)
    assert star.state is PASSIVE
    assert not star.machine.may_answer(3.97)


def test_a_passive_server_says_at_once_that_it_has_heard_the_active_one() -> None:
    """BST-39: a heartbeat later its message would be worth half as much. It is not needed without a witness."""
    for lease_s, said in ((LEASE_S, 1), (0.0, 0)):
        first, second = pair(lease_s=0.0)
        second.machine.settings = second.machine.settings._replace(lease_s=lease_s)
        second.hears(first.says(1.1), 1.1)
        assert second.state is PASSIVE
        assert len(second.took(Announce)) == said


def test_a_lease_is_over_at_its_end_and_a_late_answer_gives_none() -> None:
    """BST-31: questions continue; nothing is announced and there is no lease."""
    star = Star(PRIMARY, lease_s=LEASE_S)
    star.live(0.0, 2.0)
    star.asked(2.0)
    held_s = 1.96
    settings, before = star.machine.settings, star.machine.member
    ballot = Ballot(before.ballot, A)
    late = member.granted(settings, before, ballot, 2.0 - held_s, LEASE_S, 2.0)
    assert (late.member.state, late.member.claim, late.member.lease_until) == (PRIMARY, Claim.ACQUIRING, before.lease_until)
    assert not any(isinstance(effect, Announce | Release) for effect in late.effects)
    just = member.granted(settings, before, ballot, 2.001 - held_s, LEASE_S, 2.0)
    assert just.member.state is ACTIVE
    assert just.member.lease_until == pytest.approx(2.001)


def test_an_unexpected_refusal_changes_the_counter_only() -> None:
    star = Star(PRIMARY, lease_s=LEASE_S)
    star.live(0.0, 2.0)
    settings, before = star.machine.settings, star.machine.member
    assert before.claim is Claim.IDLE
    after = member.refused(settings, before, Ballot(before.ballot, A), Ballot(9, B), 0.0, 2.0)
    assert after.member == before._replace(counter=9)
    assert not any(isinstance(effect, Ask) for effect in after.effects)
