"""bstar.net.readiness: the reasons that the log, the status and readiness show."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bstar import errors
from bstar.machine.ballot import COUNTER_MAX, Ballot, Ceiling
from bstar.machine.fsm import Fault, State
from bstar.machine.member_values import Claim, Member
from bstar.net.readiness import SHOWN_S, Troubles, fault_error

OURS, THEIRS = Ballot(3, 7), Ballot(4, 8)
IMPLAUSIBLE = "the peer names counter 111, which no pair can have come to"


class Scene:
    """The problems of one server, at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.counters: Counter[str] = Counter()
        self.writer = SimpleNamespace(trouble="")
        self.lease = SimpleNamespace(trouble="", delay_reason=lambda now: f"nothing at {now:g}")
        self.troubles = Troubles(cast("Any", self.writer), Ceiling(10, 100, self.now), self.counters, lambda: self.now)

    def text(self, *, witness: bool = True, state: State = State.PASSIVE, **member: Any) -> str:
        return self.troubles.text(machine(state, **member), cast("Any", self.lease) if witness else None)

    def ended(self, *, witness: bool = True, writing: bool = False, state: State = State.PASSIVE, **member: Any) -> None:
        self.troubles.claim_ended(machine(state, **member), cast("Any", self.lease) if witness else None, writing=writing)


def machine(state: State, **member: Any) -> Any:
    return SimpleNamespace(member=Member(state, **member))


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Fault.DUAL_ACTIVE, errors.DualActive, "active as well"),
        (Fault.DUAL_PASSIVE, errors.DualPassive, "passive as well"),
        (Fault.DOUBLE_PRIMARY, errors.Misconfigured, "start one of them as backup"),
        (Fault.DOUBLE_BACKUP, errors.Misconfigured, "start one of them as primary"),
        (Fault.SAME_NODE, errors.Misconfigured, "our node id"),
    ],
)
def test_each_fault_is_an_error_that_says_what_to_do(fault: Fault, kind: type[Exception], words: str) -> None:
    error = fault_error(fault)
    assert type(error) is kind
    assert words in str(error)


def test_a_counter_that_nobody_can_have_drawn_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    assert scene.troubles.is_plausible(110, "the peer")
    assert (scene.text(), scene.counters) == ("", {})
    assert not scene.troubles.is_plausible(111, "the peer")
    assert not scene.troubles.is_plausible(112, "the peer")
    assert not scene.troubles.is_plausible(112, "a client")
    assert scene.counters == {"ballot_too_far": 3}
    lines = [(one.who, one.counter, one.highest_believed) for one in caplog.records]  # type: ignore[attr-defined]
    assert lines == [("the peer", 111, 110), ("a client", 112, 110)]
    scene.now += 0.0015  # a thousand claims a second
    assert scene.troubles.is_plausible(111, "the peer")


def test_a_past_problem_is_shown_for_a_minute_or_until_the_server_serves() -> None:
    scene = Scene()
    scene.troubles.is_plausible(111, "the peer")
    scene.now += SHOWN_S - 0.01
    assert scene.text() == scene.text(witness=False) == IMPLAUSIBLE
    scene.now = 1000.0 + SHOWN_S
    assert scene.text() == ""
    scene.troubles.is_plausible(10**9, "the peer")
    assert scene.text() != ""
    scene.troubles.clear()
    assert scene.text() == ""


def test_a_claim_of_a_client_is_counted_and_logged_once_a_while(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.troubles.note_claim(THEIRS, OURS, asks=True)
    scene.troubles.note_claim(THEIRS, OURS, asks=False)
    assert scene.counters == {"ballots_named": 2, "ballots_asked_about": 1}
    assert [(one.named, one.ours) for one in caplog.records] == [(str(THEIRS), str(OURS))]  # type: ignore[attr-defined]


def test_another_heartbeat_of_the_peer_is_reported_once_for_each(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    for heartbeat_ms in (0, 1000):
        scene.troubles.check_heartbeat(heartbeat_ms, 1000)
    assert (scene.troubles.odd_heartbeat_ms, scene.counters) == (0, {})
    for heartbeat_ms in (500, 500, 0, 1000, 700):
        scene.troubles.check_heartbeat(heartbeat_ms, 1000)
    assert (scene.troubles.odd_heartbeat_ms, scene.counters) == (700, {"heartbeat_mismatch": 2})
    assert [(one.ours_ms, one.its_ms) for one in caplog.records] == [(1000, 500)]  # type: ignore[attr-defined]


def test_the_present_problem_comes_first() -> None:
    scene = Scene()
    scene.troubles.is_plausible(111, "the peer")
    assert scene.text(claim=Claim.ACQUIRING) == "nothing at 1000"
    assert scene.text(witness=False, claim=Claim.ACQUIRING) == IMPLAUSIBLE
    assert scene.text(state=State.ACTIVE) == IMPLAUSIBLE
    scene.lease.trouble = "the witness cannot"
    assert scene.text(claim=Claim.ACQUIRING) == scene.text(state=State.ACTIVE) == "the witness cannot"
    assert scene.text(claim=Claim.PERSISTING) == IMPLAUSIBLE
    assert scene.text(counter=COUNTER_MAX - 1) == scene.text(state=State.ACTIVE, witness=False, counter=COUNTER_MAX) == IMPLAUSIBLE
    assert scene.text(counter=COUNTER_MAX, claim=Claim.ACQUIRING) == "no counter is left for a higher ballot"
    scene.writer.trouble = "no space"
    assert scene.text(counter=COUNTER_MAX) == "the ballot file cannot be written: no space"


@pytest.mark.parametrize(
    ("witness", "writing", "trouble", "member", "reason"),
    [
        (True, False, "", {"claim": Claim.ACQUIRING}, "nothing at 1000"),
        (True, True, "", {}, "writing the ballot takes longer than two heartbeats"),
        (True, False, "", {}, "nothing at 1000"),
        (True, False, "the witness cannot", {}, "the witness cannot"),
        (False, False, "", {}, "no client has asked again within two heartbeats"),
        (False, True, "", {"counter": COUNTER_MAX}, "no counter is left for a higher ballot"),
        (False, False, "", {"peer_state": State.PASSIVE, "peer_until": 1001.0}, "no client has asked again within two heartbeats"),
        (False, False, "", {"peer_state": State.ACTIVE, "peer_until": 1000.0}, "no client has asked again within two heartbeats"),
    ],
)
def test_why_a_claim_came_to_nothing_is_said(
    witness: bool, writing: bool, trouble: str, member: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.lease.trouble = trouble
    scene.ended(witness=witness, writing=writing, **member)
    assert (scene.counters, [one.reason for one in caplog.records]) == ({"claims_failed": 1}, [reason])  # type: ignore[attr-defined]
    assert scene.text(witness=False) == reason
    scene.ended(witness=witness, writing=writing, **member)
    assert (scene.counters, len(caplog.records)) == ({"claims_failed": 2}, 1)


@pytest.mark.parametrize("member", [{"state": State.ACTIVE}, {"peer_state": State.ACTIVE, "peer_until": 1000.1}])
def test_a_claim_that_ends_because_a_server_serves_is_no_failure(member: dict[str, Any]) -> None:
    scene = Scene()
    scene.ended(**member)
    assert (scene.counters, scene.text()) == ({}, "")


def test_a_disk_that_fails_is_shown_while_it_does_and_no_longer() -> None:
    scene = Scene()
    scene.writer.trouble = "no space"
    scene.ended()
    assert scene.text() == "the ballot file cannot be written: no space"
    scene.writer.trouble = ""
    assert (scene.text(), scene.counters) == ("", {"claims_failed": 1})
