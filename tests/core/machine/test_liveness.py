"""core.machine.liveness: HB-01 to HB-04."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from core.machine.liveness import EXCUSES_MAX, Liveness, Silences, Stalls, Transit, WorkerHeartbeats


@pytest.mark.parametrize("silent_s,dead", [(0.0, False), (1.0, False), (2.0, False), (2.9, False), (3.0, True), (100.0, True)])
def test_hb_04_a_peer_is_dead_after_as_many_silent_intervals(silent_s: float, dead: bool) -> None:
    assert Liveness(1.0, 3, now=10.0).is_dead(10.0 + silent_s) is dead


def test_hb_02_anything_heard_counts() -> None:
    peer = Liveness(1.0, 3, now=0.0)
    peer.heard(2.9)
    assert peer.expires_at() == pytest.approx(5.9)
    assert not peer.is_dead(5.8)


def test_hb_03_sending_has_its_own_schedule() -> None:
    """However often the loop wakes up, one heartbeat leaves per interval."""
    peer = Liveness(1.0, 3, now=0.0)
    sent = 0
    for wake_up in range(1, 1001):
        now = wake_up / 100
        peer.heard(now)
        sent += peer.take_heartbeat(now)
    assert sent == 10


def test_hb_03_two_peers_do_not_speed_each_other_up() -> None:
    one, other = Liveness(1.0, 3, now=0.0), Liveness(1.0, 3, now=0.3)
    sent = [0, 0]
    now = 0.0
    while now < 20.0:
        now = min(one.deadline(), other.deadline())
        for index, (me, peer) in enumerate(((one, other), (other, one))):
            if me.take_heartbeat(now):
                sent[index] += 1
                peer.heard(now)
    assert sent == [20, 19]


def test_a_pause_does_not_cause_a_burst() -> None:
    peer = Liveness(1.0, 3, now=0.0)
    assert peer.take_heartbeat(50.0)
    assert not peer.take_heartbeat(50.0)
    assert peer.send_at == 51.0


def test_hb_03_a_late_beat_keeps_the_schedule_unless_the_next_is_due_too() -> None:
    peer = Liveness(1.0, 3, now=0.0)
    assert peer.take_heartbeat(1.2)
    assert peer.send_at == 2.0
    assert peer.take_heartbeat(3.0)
    assert peer.send_at == 4.0
    assert not peer.take_heartbeat(3.0)


@pytest.mark.parametrize(("now", "dies_at"), [(5.0, 6.0), (2.5, 3.5), (2.0, 3.0), (1.0, 3.0)])
def test_a_postponed_verdict_comes_one_interval_later_and_no_earlier_than_before(now: float, dies_at: float) -> None:
    peer = Liveness(1.0, 3, 0.0)
    assert peer.called(now - 0.6, now) is (dies_at > 3.0)
    assert peer.expires_at() == dies_at
    assert peer.is_dead(dies_at)
    assert not peer.is_dead(dies_at - 0.001)


def test_a_silence_is_excused_a_few_times() -> None:
    """A process whose every call is late notices a dead peer all the same."""
    peer = Liveness(1.0, 3, 0.0)
    assert not peer.called(0.4, 1.0)  # not near the end: no excuse is used up
    for excuse in range(EXCUSES_MAX):
        assert peer.called(0.0, 3.6 + 1.1 * excuse)
        assert not peer.is_dead(3.6 + 1.1 * excuse)
    end = 3.6 + 1.1 * EXCUSES_MAX
    assert not peer.called(0.0, end)
    assert peer.is_dead(end)
    peer.heard(end)
    assert peer.called(0.0, end + 3.2)
    assert not peer.is_dead(end + 3.2)


def test_a_call_that_was_due_at_no_time_is_not_late() -> None:
    peer = Liveness(1.0, 3, 0.0)
    assert not peer.called(None, 5.0)
    assert peer.is_dead(5.0)


@pytest.mark.parametrize("every_s", [0.51, 0.6, 1.0, 2.5, 100.0])
def test_a_process_that_is_always_late_notices_every_peer_that_died(every_s: float) -> None:
    """Whenever it died: each call is late, and by any time. A peer that speaks lives on."""
    for died_at in (0.0, 1.0, 1.7, 40.3):
        dead, lives, silent, now = Liveness(1.0, 3, 0.0), Liveness(1.0, 3, 0.0), list[bytes](), 0.0
        workers = WorkerHeartbeats(1.0, 3, Counter(), 0.0)
        workers.heard(b"dead", 0.0)
        workers.heard(b"lives", 0.0)
        for turn in range(1, 200):
            now = turn * every_s
            lives.called(now - 0.501, now)
            dead.called(now - 0.501, now)
            assert not lives.is_dead(now)
            silent += workers.take_silent(now - 0.501, now)
            for peer, name in ((lives, b"lives"), (dead, b"dead")):
                if name == b"lives" or now <= died_at:
                    peer.heard(now)
                    workers.heard(name, now)
            if dead.is_dead(now):
                break
        assert silent == [b"dead"]
        heard_at = died_at // every_s * every_s
        assert heard_at + 3.0 <= now <= heard_at + 3.0 + EXCUSES_MAX * (1.0 + 2 * every_s)


def test_a_stall_excuses_only_a_silence_that_it_makes_too_short() -> None:
    stalls = Stalls(0.5, 2.0)
    for turn in range(1000):
        stalls.called(float(turn), turn + 0.6)
    assert stalls.excused(1001.0, 2.0) == 1001.6
    assert stalls.excused(1001.6, 2.0) == 1001.6
    assert stalls.excused(1001.7, 2.0) == 1001.7, "no stall reaches so far"


def test_deadline_is_the_earlier_of_sending_and_dying() -> None:
    peer = Liveness(1.0, 1, now=0.0)
    peer.take_heartbeat(1.0)
    assert peer.deadline() == 1.0
    peer.heard(1.5)
    assert peer.deadline() == 2.0


@pytest.mark.parametrize("interval_s,liveness", [(0.0, 3), (-1.0, 3), (float("nan"), 3), (1.0, 0)])
def test_meaningless_values_are_refused(interval_s: float, liveness: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Liveness(interval_s, liveness, now=0.0)


def test_silent_workers_are_returned_once() -> None:
    counters: Counter[str] = Counter()
    workers = WorkerHeartbeats(1.0, 3, counters, 0.0)
    assert workers.silent_at() is None
    workers.heard(b"a", 0.0)
    workers.heard(b"b", 0.5)
    workers.heard(b"c", 0.5)
    workers.forget(b"c")
    assert workers.silent_at() == 3.0
    assert [workers.take_silent(at, at) for at in (2.9, 3.0, 3.5, 9.0)] == [[], [b"a"], [b"b"], []]
    assert not counters


def test_a_late_call_postpones_the_verdict_by_one_interval() -> None:
    counters: Counter[str] = Counter()
    workers = WorkerHeartbeats(1.0, 3, counters, 0.0)
    workers.heard(b"a", 0.0)
    workers.heard(b"b", 0.0)
    assert workers.take_silent(3.0, 3.6) == []
    assert (counters["verdict_postponed"], workers.silent_at()) == (2, 4.6)
    workers.heard(b"b", 4.0)
    assert workers.take_silent(4.6, 4.6) == [b"a"]


@pytest.mark.parametrize(("now", "silent"), [(3.0, [b"a"]), (3.5, [b"a"]), (3.501, [])])
def test_a_call_is_late_from_half_an_interval_on(now: float, silent: list[bytes]) -> None:
    workers = WorkerHeartbeats(1.0, 3, Counter(), 0.0)
    workers.heard(b"a", 0.0)
    assert workers.take_silent(workers.silent_at(), now) == silent


def test_hb_03_one_beat_after_a_pause() -> None:
    workers = WorkerHeartbeats(1.0, 3, Counter(), 0.0)
    assert [workers.take_beat(now) for now in (0.9, 1.0, 1.1, 2.0, 7.3, 8.2, 8.3)] == [False, True, False, True, True, False, True]


def test_hb_02_octets_that_move_are_a_sign_of_life() -> None:
    transit = Transit()
    assert [transit.moves(octets) for octets in (0, 10, 10, 30, 20, 20)] == [False, True, False, True, True, False]
    assert [transit.moves(octets) for octets in (0, 0, 20, 0)] == [True, False, True, True]  # it got through since then


def test_hb_02_a_peer_whose_message_moves_is_not_dead() -> None:
    liveness = Liveness(1.0, 3, 0.0)
    for now in range(3, 100, 3):
        assert not liveness.is_dead(float(now), partial(int, now))
        assert liveness.expires_at() == now + 3
    assert not liveness.is_dead(101.9, partial(int, 99))
    assert liveness.is_dead(102.0, partial(int, 99))


def test_hb_02_of_many_peers_those_whose_messages_move_are_not_silent() -> None:
    octets = {b"moves": 1, b"stands": 5, b"none": 0}
    silences: Silences[bytes] = Silences(10.0, 1.0)
    silences.in_transit = octets.__getitem__
    for peer in octets:
        silences.set(peer, 3.0)
    ended: list[tuple[float, bytes]] = []
    for step in range(3, 10):
        now = float(step)
        ended += [(now, peer) for peer in silences.take_ended(now, now)[0]]
        octets[b"moves"] += 1
    assert ended == [(3.0, b"none"), (4.0, b"stands")]
    silences.forget(b"moves")
    assert silences.deadline() is None


def test_hb_02_what_moved_before_a_peer_was_heard_is_no_sign_of_life_later() -> None:
    """It was noticed one whole silence late that a peer was lost, once after each large message."""
    liveness = Liveness(1.0, 3, 0.0)
    assert not liveness.is_dead(3.0, partial(int, 500))
    liveness.heard(4.0)
    assert liveness.is_dead(7.0)


def test_hb_02_of_many_peers_what_moved_before_one_was_heard_is_no_sign_of_life_later() -> None:
    octets = 500
    workers = WorkerHeartbeats(1.0, 3, Counter(), 0.0)
    workers.silences.in_transit = lambda name: octets
    workers.heard(b"a", 0.0)
    assert workers.take_silent(3.0, 3.0) == []
    workers.heard(b"a", 4.0)
    octets = 0
    assert workers.take_silent(7.0, 7.0) == [b"a"]
