"""Pacing of workers: what is learned of each, and how much a slow one gets beside quick ones (MDP-32)."""

from __future__ import annotations

import pytest

from mdp.broker.requests.records import Request, Service, Worker
from mdp.broker.workers.maintenance import allotments
from mdp.broker.workers.pacing import TRUST_US, Pace
from mdp.wire.commands import worker_error, worker_heartbeat, worker_return
from mdp.wire.events import Recall, Work
from tests.scenes.mdp_dispatcher import ECHO
from tests.scenes.mdp_shop import Shop

BEGUN = 5_000_000  # the clock at the first look

# What is learned: looks as (µs since the first, answered, at work).


def learned(looks: list[tuple[int, int, int]], places: int = 1) -> tuple[bool, int, int]:
    """Return what is known after these looks, and from how many to how many µs the worker takes."""
    pace = Pace()
    for after_us, done, running in looks:
        pace.note(BEGUN + after_us, done, running, places)
    return pace.known, pace.least_us, pace.most_us


@pytest.mark.parametrize(
    ("places", "looks", "expected"),
    [
        pytest.param(1, [(0, 7, 1)], (False, 0, 0), id="the first look teaches nothing"),
        pytest.param(1, [(0, 0, 1), (900, 0, 1)], (False, 900, 900), id="without an answer it is as slow as what it is at"),
        pytest.param(1, [(0, 0, 1), (900, 2, 1)], (False, 300, 300), id="what it is at counts beside answers"),
        pytest.param(1, [(0, 0, 1), (900, 3, 1), (1200, 3, 1)], (False, 300, 300), id="three answers are no round"),
        pytest.param(1, [(0, 0, 1), (900, 3, 1), (1200, 4, 1)], (True, 300, 300), id="four are one"),
        pytest.param(8, [(0, 0, 8), (800, 7, 8)], (False, 426, 426), id="a round has as many answers as places"),
        pytest.param(8, [(0, 0, 8), (800, 8, 8)], (True, 800, 800), id="and no more than that"),
        pytest.param(2, [(0, 0, 2), (800, 4, 2)], (True, 400, 400), id="all its places are counted"),
        pytest.param(2, [(0, 0, 0), (800, 4, 2)], (True, 200, 200), id="those taken meanwhile by half"),
        pytest.param(2, [(0, 0, 2), (800, 4, 0)], (True, 200, 200), id="those left meanwhile by half"),
        pytest.param(1, [(0, 0, 1), (800, 4, 1), (2000, 8, 1)], (True, 200, 300), id="two rounds are kept, the longer last"),
        pytest.param(1, [(0, 0, 1), (1200, 4, 1), (2000, 8, 1)], (True, 200, 300), id="two rounds are kept, the shorter last"),
        pytest.param(1, [(0, 0, 1), (400, 4, 1), (1600, 8, 1), (2400, 12, 1)], (True, 200, 300), id="and no third"),
        pytest.param(1, [(0, 0, 1), (800, 4, 1), (1500, 4, 1)], (True, 200, 700), id="one that hangs is slower than its rounds"),
        pytest.param(1, [(0, 0, 1), (800, 4, 1), (900, 4, 1)], (True, 200, 200), id="what it has just begun says nothing"),
        pytest.param(1, [(0, 0, 1), (800, 4, 1), (1600, 5, 1)], (True, 200, 400), id="and with an answer half of it"),
        pytest.param(1, [(0, 0, 1), (800, 4, 1), (1600, 4, 0)], (True, 200, 400), id="what was taken from it counts as one"),
        pytest.param(1, [(0, 0, 0), (1000, 0, 0), (1400, 4, 1)], (True, 50, 50), id="being idle takes no time"),
    ],
)
def test_what_a_worker_takes_for_a_request(places: int, looks: list[tuple[int, int, int]], expected: tuple[bool, int, int]) -> None:
    assert learned(looks, places) == expected


def test_a_worker_that_nobody_has_looked_at_is_not_known() -> None:
    pace = Pace()
    assert (pace.failures, pace.known, pace.least_us, pace.most_us) == (0, False, 0, 0)


def test_the_first_round_is_both_the_shorter_and_the_longer() -> None:
    """Also when the clock of the machine was started just now."""
    pace = Pace()
    pace.note(1, 0, 1, 1)
    pace.note(2001, 4, 1, 1)
    assert (pace.known, pace.least_us, pace.most_us) == (True, 500, 500)


def test_failures_are_no_answers() -> None:
    """Half of the requests fail, which makes it no quicker: four answers in 2 ms."""
    pace = Pace()
    pace.note(BEGUN, 0, 1, 1)
    pace.failures = 2
    pace.note(BEGUN + 1000, 4, 1, 1)
    assert (pace.known, pace.least_us) == (False, 333)
    pace.failures = 4
    pace.note(BEGUN + 2000, 8, 1, 1)
    assert (pace.known, pace.least_us, pace.most_us) == (True, 500, 500)


def test_what_happened_while_nobody_looked_counts_neither_as_time_nor_as_answers() -> None:
    pace = Pace()
    pace.note(BEGUN, 0, 1, 1)
    pace.note(BEGUN + 600, 2, 1, 1)
    pace.note(BEGUN + 90_000, 70, 1, 1, anew=True)
    assert (pace.known, pace.least_us) == (False, 200)
    pace.note(BEGUN + 91_000, 72, 1, 1)
    assert (pace.known, pace.least_us, pace.most_us) == (True, 400, 400)


@pytest.mark.parametrize("last", ["at work", "a round"])
def test_what_is_known_of_a_worker_without_work_is_forgotten_after_ten_seconds(last: str) -> None:
    """Counted from when it was last seen at work, or a round of it was over."""
    pace = Pace()
    pace.note(BEGUN, 0, 1, 1)
    pace.note(BEGUN + 800, 4, last == "at work", 1)
    pace.note(BEGUN + 800 + TRUST_US, 4, 0, 1)
    assert pace.known
    pace.note(BEGUN + 800 + TRUST_US + 1, 4, 0, 1)
    assert (pace.known, pace.least_us, pace.most_us) == (False, 0, 0)
    pace.note(BEGUN + 900 + TRUST_US, 4, 1, 1)
    pace.note(BEGUN + 4900 + TRUST_US, 8, 1, 1)
    assert (pace.known, pace.least_us, pace.most_us) == (True, 1012, 1012)


def test_answers_of_before_a_long_pause_are_forgotten_with_it() -> None:
    """Three answers in 3 s are no round, and ten seconds later they no longer count.

    A worker that works for so long is not forgotten.
    """
    pace = Pace()
    pace.note(BEGUN, 0, 1, 1)
    pace.note(BEGUN + 3_000_000, 3, 0, 1)
    pace.note(BEGUN + 1 + TRUST_US, 3, 1, 1)
    assert (pace.known, pace.least_us) == (False, (TRUST_US - 2_999_999) // 2)
    pace.note(BEGUN + 401 + TRUST_US, 4, 1, 1)
    assert not pace.known
    for seconds in range(1, 31):
        pace.note(BEGUN + seconds * 1_000_000 + TRUST_US, 4 if seconds < 30 else 7, 1, 1)
    assert pace.known


def test_one_that_works_for_longer_than_ten_seconds_is_still_known() -> None:
    looks = [(0, 0, 1), (800, 4, 1), *((800 + seconds * 1_000_000, 4, 1) for seconds in range(1, 31))]
    assert learned(looks) == (True, 200, 30_000_000)


# What each is given.


def worker(each_us: int, *, places: int = 1, credit: int = 100, held: int = 0, known: bool = True) -> Worker:
    """Return one that takes so long for a request and holds so many."""
    made = Worker(b"W", Service(ECHO), "0.3", credit, 0.0, places)
    answers = max(4, places) if known else 0
    made.pace.note(BEGUN, 0, places, places)
    made.pace.note(BEGUN - -each_us * max(answers, places) // places, answers, places, places)
    assert (made.pace.known, made.pace.least_us, made.pace.most_us) == (known, each_us, each_us)
    made.in_flight.update((b"%d" % number, Request()) for number in range(held))
    return made


def given(workers: list[Worker], waiting: int) -> list[int]:
    """Return what each may hold."""
    allowed = list(allotments(workers, waiting))
    assert [one for one, _ in allowed] == workers
    return [count for _, count in allowed]


def test_a_worker_alone_is_given_all_its_credit() -> None:
    assert given([worker(1_000_000)], 1) == [100]


def test_a_worker_of_which_nothing_was_seen_is_given_all_its_credit() -> None:
    new = Worker(b"W", Service(ECHO), "0.3", 100, 0.0, 1)
    assert given([worker(10), new, worker(20)], 0) == [100, 100, 0]


@pytest.mark.parametrize(("each_us", "allowed"), [(1999, 100), (2000, 0), (2001, 0)])
def test_twice_as_long_as_another_is_slow(each_us: int, allowed: int) -> None:
    assert given([worker(1000), worker(each_us)], 1) == [100, allowed]


def test_one_that_is_known_from_what_it_is_at_alone_is_slow_too_but_makes_no_other_slow() -> None:
    assert given([worker(1000), worker(100_000, known=False)], 9) == [100, 0]
    assert given([worker(1000, known=False), worker(100_000)], 9) == [100, 100]


def test_one_that_is_stuck_makes_no_other_slow() -> None:
    quick = worker(1000)
    quick.stuck = True
    assert given([quick, worker(100_000)], 9) == [100, 100]


@pytest.mark.parametrize(("waiting", "allowed"), [(9, 0), (10, 0), (11, 1), (12, 1), (1000, 1)])
def test_a_slow_one_is_given_what_the_quick_one_would_not_have_answered_sooner(waiting: int, allowed: int) -> None:
    """In the 100 ms of one of its requests the other worker answers ten.

    It is given nothing ahead, as a request takes more than 5 ms.
    """
    assert given([worker(10_000), worker(100_000)], waiting) == [100, allowed]


@pytest.mark.parametrize(("waiting", "allowed"), [(20, 0), (21, 1), (22, 2), (23, 3), (24, 4), (25, 4)])
def test_it_is_given_no_more_than_is_left_over(waiting: int, allowed: int) -> None:
    """Two places of the quick one answer twenty in 100 ms; four of the slow one."""
    assert given([worker(10_000, places=2), worker(100_000, places=4)], waiting) == [100, allowed]


@pytest.mark.parametrize(("waiting", "allowed"), [(18, 0), (19, 4), (20, 5), (21, 6)])
def test_what_it_works_on_it_keeps_beside_that(waiting: int, allowed: int) -> None:
    """The quick one has two at work that it will have answered too, which leaves eighteen of the twenty."""
    assert given([worker(10_000, places=2, held=2), worker(100_000, places=8, held=3)], waiting) == [100, allowed]


def test_what_workers_hold_beyond_what_they_work_on_waits_too() -> None:
    """Seven of the quick one and three of the slow one wait, or two.

    The quick one answers ten of them, with the one that it works on.
    """
    assert given([worker(100, held=8), worker(1000, places=2, held=5)], 0) == [100, 3]
    assert given([worker(100, held=8), worker(1000, places=2, held=4)], 0) == [100, 0]
    assert given([worker(100), worker(1000, places=2, held=1)], 10) == [100, 0]


@pytest.mark.parametrize(
    ("each_us", "places", "allowed"), [(1000, 1, 6), (2000, 1, 3), (2000, 2, 7), (5000, 1, 2), (5001, 1, 1), (100_000, 3, 3), (40, 1, 100)]
)
def test_ahead_of_what_it_works_on_it_has_as_much_as_it_does_in_five_milliseconds(each_us: int, places: int, allowed: int) -> None:
    assert given([worker(10), worker(each_us, places=places)], 1_000_000) == [100, allowed]


def test_it_is_never_given_more_than_its_credit() -> None:
    assert given([worker(10), worker(1000, credit=4)], 1_000_000) == [100, 4]


def test_all_that_are_at_least_twice_as_quick_count_and_no_others() -> None:
    """Workers of 10 ms and 15 ms (one busy) answer sixteen in 100 ms; one of 50 ms two more."""
    some = [worker(100_000), worker(15_000, held=1), worker(10_000), worker(51_000), worker(100_000)]
    assert given(some, 15) == [0, 100, 100, 1, 0]
    assert given(some, 16) == [1, 100, 100, 1, 1]
    assert given([*some, worker(50_000)], 17) == [0, 100, 100, 1, 0, 1]
    assert given([*some, worker(50_000)], 18) == [1, 100, 100, 1, 1, 1]


def test_requests_that_take_no_time_are_taken_to_take_a_microsecond() -> None:
    """In its 8 µs the other answers eight."""
    assert given([worker(0), worker(8, held=1)], 8) == [100, 0]
    assert given([worker(0), worker(8, held=1)], 9) == [100, 2]


def test_the_quicker_is_believed_by_its_longer_round_and_the_slower_by_its_shorter() -> None:
    """From 1 to 3 ms and from 4 to 9 ms: 3 and 4 are not far apart."""
    one, other = Worker(b"W1", Service(ECHO), "0.3", 100, 0.0, 1), Worker(b"W2", Service(ECHO), "0.3", 100, 0.0, 1)
    for pace, short, long in ((one.pace, 4000, 12_000), (other.pace, 16_000, 36_000)):
        for after_us, done in ((0, 0), (short, 4), (short + long, 8)):
            pace.note(BEGUN + after_us, done, 1, 1)
    assert given([one, other], 1) == [100, 100]


# When it is looked, with a broker's machine.


# When it is looked how quick they are.


class Yard(Shop):
    """Two workers: QUICK answers on command, SLOW hangs and gives back what it is asked for."""

    def __init__(self, *peers: bytes) -> None:
        super().__init__()
        self.ticks = 0  # times that the broker had something to look at
        for peer in peers:
            self.join(peer, 1)
        self.quick: list[Work] = []
        self.slow: list[Work] = []  # given, and neither answered nor asked back
        self.asked_back: list[bytes] = []  # tokens

    def both(self, method: str, *args: object) -> list[list[bytes]]:
        self.ticks += method == "tick"
        return super().both(method, *args)

    def look(self) -> None:
        """Take what both were sent, and let SLOW give back what it is asked for."""
        self.quick += self.given(b"QUICK")
        for event in self.at_worker(b"SLOW"):
            if isinstance(event, Work):
                self.slow.append(event)
            elif isinstance(event, Recall):
                self.asked_back.append(event.id)
                self.slow = [work for work in self.slow if work.id != event.id]
                self.send(b"SLOW", worker_return(event.id))
        self.check()

    def answer_one(self, each_s: float, *, fails: bool = False) -> None:
        """Let QUICK work for a time and answer one."""
        self.wait(each_s)
        self.look()
        work = self.quick.pop(0)
        if fails:
            self.send(b"QUICK", worker_error(work.id, "HANDLER_ERROR", "no"))
        else:
            self.answer(b"QUICK", work)
        self.look()

    def ask_many(self, count: int) -> None:
        for number in range(count):
            self.ask("0.3", b"C1", b"%d" % number)
        self.look()

    @property
    def waiting(self) -> int:
        """Return how many requests no worker has."""
        return sum(len(list(service.queue)) for service in self.machine.directory.services.values())


def learned_yard() -> Yard:
    """Return the two after QUICK has answered all but what SLOW works on, and two seconds in which nothing came."""
    scene = Yard(b"QUICK", b"SLOW")
    scene.ask_many(40)
    while scene.quick:
        scene.answer_one(0.01)
    assert len(scene.slow) == 1
    scene.wait(2.0)
    scene.look()
    return scene


def test_a_worker_that_fails_half_of_its_requests_is_known_by_the_others() -> None:
    scene = Yard(b"QUICK", b"SLOW")
    scene.ask_many(60)
    for number in range(40):
        scene.answer_one(0.01, fails=number % 2 == 0)
    assert scene.waiting > 0
    assert len(scene.asked_back) == 3  # all it had ahead, before QUICK had nothing to do


def test_a_worker_that_comes_while_requests_wait_has_both_looked_at() -> None:
    """Not only when the next begins to wait.

    The first, which takes longer, is asked for what it has not begun while others still wait.
    """
    scene = Yard(b"SLOW")
    scene.ask_many(40)
    scene.wait(1.0)
    scene.join(b"QUICK", 1)
    for _ in range(20):
        scene.answer_one(0.01)
    assert scene.waiting > 0
    assert len(scene.asked_back) == 3


def test_what_was_kept_from_a_slow_worker_it_is_given_when_the_quick_one_is_lost() -> None:
    """Some milliseconds after the loss, long after the last look: the next request waits no moment."""
    scene = learned_yard()
    scene.answer(b"SLOW", scene.slow.pop())
    scene.look()
    scene.lose(b"QUICK")
    scene.wait(0.0025)
    scene.ask_many(1)
    assert len(scene.slow) == 1


def test_one_request_that_waits_has_workers_looked_at_again() -> None:
    """The quick one hangs now, with all it takes.

    What waits behind is given to the slow one after a second or two, not after ten.
    """
    scene = learned_yard()
    scene.answer(b"SLOW", scene.slow.pop())
    scene.look()
    scene.wait(1.0)  # the broker looks no more
    scene.ask_many(5)
    assert (len(scene.quick), len(scene.slow), scene.waiting) == (4, 0, 1)
    scene.wait(3.0)
    scene.look()
    assert (len(scene.slow), scene.waiting) == (1, 0)


@pytest.mark.parametrize("hangs", [True, False])
def test_while_nothing_waits_the_broker_looks_seldom(hangs: bool) -> None:
    """Not every twenty milliseconds: the slow worker has nothing ahead that could be asked for.

    It is at work, or was.
    """
    scene = learned_yard()
    if not hangs:
        scene.answer(b"SLOW", scene.slow.pop())
        scene.look()
    before = scene.ticks
    scene.wait(0.4)
    assert scene.ticks - before <= 4


def looks(scene: Yard, seconds: float) -> int:
    """Return how often the broker has something to check while no message comes.

    Once a second and for heartbeats it does so anyway.
    """
    before = scene.ticks
    scene.wait(seconds)
    return scene.ticks - before


def test_a_worker_of_which_nothing_is_known_is_looked_at_while_it_works() -> None:
    """More and more seldom, up to once a second."""
    scene = learned_yard()
    counts = []
    for _ in range(4):
        counts.append(looks(scene, 1.0))
        for peer in (b"QUICK", b"SLOW"):
            scene.send(peer, worker_heartbeat("0.3"))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 4
    assert counts[-1] <= 3


def test_equal_workers_are_not_looked_at_when_they_have_answered() -> None:
    scene = Yard(b"QUICK", b"SLOW")
    scene.ask_many(40)
    while scene.quick or scene.slow:
        scene.answer_one(0.01)
        if scene.slow:
            scene.answer(b"SLOW", scene.slow.pop(0))
            scene.look()
    scene.wait(0.5)
    assert looks(scene, 1.5) <= 2


def test_a_worker_that_was_not_seen_long_enough_is_not_looked_at_without_work() -> None:
    """One answer of the slow one is no round, and without work it gives no more."""
    scene = learned_yard()
    scene.answer(b"SLOW", scene.slow.pop())
    scene.wait(0.4)
    assert looks(scene, 1.5) <= 3
