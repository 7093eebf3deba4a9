"""A member at exact moments: limits are exclusive, and what is due is asked for when it is due."""

from __future__ import annotations

import pytest

from bstar.machine.ballot import Ballot
from bstar.machine.driver import Machine
from bstar.machine.effects import Announce, Ask, BecameActive, ClaimDropped, Persist
from bstar.machine.fsm import State
from bstar.machine.member_values import Settings
from tests.scenes.bstar_machines import LEASE_S, A, Star, pair

PRIMARY, BACKUP, ACTIVE, PASSIVE = State
BEAT_S = 1.0
EXPIRY_S = 2.0


@pytest.mark.parametrize(("late_s", "next_at"), [(0.0, 2.0), (0.5, 2.0), (0.999, 2.0), (1.0, 3.0), (7.25, 9.25)])
def test_a_state_message_goes_out_on_a_schedule_of_its_own(late_s: float, next_at: float) -> None:
    """BST-05: after a suspension one is due, not one for each that was missed."""
    star = Star(PRIMARY)
    star.live(0.0, 0.999)
    at = star.machine.deadline()
    assert at == 1.0
    star.log.clear()
    star.tick(at + late_s)
    assert len([effect for effect in star.log if isinstance(effect, Announce)]) == 1
    assert star.machine.deadline() == next_at


def test_the_peer_is_there_until_its_time_is_over_and_not_at_the_end_of_it() -> None:
    """BST-02, at a switchover."""
    for wait_s, accepted in ((EXPIRY_S - 1e-6, True), (EXPIRY_S, False)):
        stars = pair()
        primary, backup = stars
        now = 1.5
        primary.hears(backup.says(now), now)
        primary.tick(now + 1.0)
        said, _ = primary.machine.switchover(now + wait_s)
        assert said is accepted


def claiming(role: State = PRIMARY, **settings: float) -> tuple[Machine, float, int]:
    """Return a machine whose claim is not written yet, when the claim began, and what is to be written."""
    machine = Machine(Settings(role, node=A, incarnation=1, **settings), 0, 0.0)  # type: ignore[arg-type]
    machine.started()
    now = 0.0
    while (at := machine.deadline()) <= 3.25:
        now = at
        machine.tick(now)
    now = 3.25
    _, effects = machine.request(Ballot(0, 0), now)
    (persist,) = (effect for effect in effects if isinstance(effect, Persist))
    return machine, now, persist.counter


def test_an_undecided_claim_is_dropped_after_its_time() -> None:
    """BST-24: neither a moment before nor with the heartbeat behind it."""
    machine, now, _ = claiming()
    dropped: list[object] = []
    while not dropped:
        at = machine.deadline()
        assert at <= now + EXPIRY_S
        dropped += [effect for effect in machine.tick(at) if isinstance(effect, ClaimDropped)]
        assert bool(dropped) == (at == now + EXPIRY_S)
    machine.tick(now + EXPIRY_S)
    assert machine.deadline() > now + EXPIRY_S


def test_a_claim_that_was_dropped_is_dropped_once() -> None:
    machine, now, counter = claiming()
    while (at := machine.deadline()) <= now + EXPIRY_S:
        machine.tick(at)
    assert not any(isinstance(effect, ClaimDropped) for effect in machine.unwritten(counter, now + EXPIRY_S + 0.01))
    assert not any(isinstance(effect, BecameActive) for effect in machine.persisted(counter, now + EXPIRY_S + 0.02))


def test_a_grant_that_took_longer_than_the_lease_is_none() -> None:
    """BST-29: the next question is in flight."""
    for took_s, state in ((LEASE_S + 0.1, PRIMARY), (0.1, ACTIVE)):
        machine, now, counter = claiming(lease_s=LEASE_S)
        effects = machine.persisted(counter, now)
        assert any(isinstance(effect, Ask) for effect in effects)
        ballot = Ballot(counter, A)
        while (at := machine.deadline()) < now + took_s:  # and the claim is gone on with
            machine.tick(at)
            machine.request(Ballot(0, 0), at)
        machine.granted(ballot, now, LEASE_S, now + took_s)
        assert machine.member.state is state
